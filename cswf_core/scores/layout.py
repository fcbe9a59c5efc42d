"""Tables as text: numbers rounded to the digits that are worth printing, texts of strangers, and writers.

A name may have `&`, `|` or `=` in it, and a file's name anything at all: texts are shown as they are, and never
obeyed, in one line.
"""

from __future__ import annotations

import csv
import io
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from decimal import ROUND_HALF_EVEN, Decimal
from typing import Any

import attrs

from cswf_core.errors import printable
from cswf_core.runs.screen import in_letters, table

DIGITS = 4
"""Digits of a number of which nobody knows how sure it is."""

LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': "''",
    "±": r"$\pm$",
    "×": r"$\times$",
    "·": r"$\cdot$",
    "−": "$-$",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    "→": r"$\rightarrow$",
    "↓": r"$\downarrow$",
    "↑": r"$\uparrow$",
    "∞": r"$\infty$",
    "√": r"$\surd$",
    "µ": r"$\mu$",
    "°": r"$^\circ$",
    "–": "--",
    "—": "---",
    "…": r"\ldots{}",
    "\N{RIGHT SINGLE QUOTATION MARK}": "'",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    **{sign: f"{{{sign}}}" for sign in "[]*"},  # behind \\ these would be its own
    **{digit: f"$_{i}$" for i, digit in enumerate("₀₁₂₃₄₅₆₇₈₉")},
    **{digit: f"$^{i}$" for i, digit in enumerate("⁰¹²³⁴⁵⁶⁷⁸⁹")},
}
"""Characters that LaTeX would obey, or that its usual fonts lack, and how they are written."""

GREEK = (
    " alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi pi rho sigma tau upsilon phi "
    "chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Upsilon Phi Psi Omega "
)
"""Greek letters that LaTeX has by name, between spaces."""


@attrs.frozen
class Quantity:
    """A number as it is printed: `value ± spread`, both times a power of ten."""

    value: str
    spread: str = ""
    """Nothing: it is not known."""
    exponent: int = 0
    """Of the power of ten; 0: there is none."""
    best: bool = False
    """Whether it is the best of its column by more than noise."""
    remark: str = ""
    """Written behind it in brackets."""

    def __str__(self) -> str:
        """Return it in plain letters: `31.23 ± 0.31`, `(1.20 ± 0.30)e-7`, `0 (all 3 seeds)`."""
        text = f"{self.value} ± {self.spread}" if self.spread else self.value
        if self.exponent:
            text = f"({text})e{self.exponent}" if self.spread else f"{text}e{self.exponent}"
        return f"{text} ({self.remark})" if self.remark else text


Cell = str | Quantity | None
"""A text, a quantity, or nothing where there is none."""


@attrs.frozen
class Grid:
    """Cells in rows below headings, and sentences that say what they are."""

    headings: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    caption: tuple[str, ...] = ()
    name: str = "scores"
    r"""What LaTeX refers to it by, behind `tab:`."""
    texts: int = 1
    """How many columns are texts, which begin at the left; the others are numbers."""
    mark: str = ""
    """What it means that a number is marked as the best; nothing: none is."""

    def sentences(self, sign: str) -> list[str]:
        """Return the caption, with what a sign means that the best numbers have."""
        return [*self.caption, *([f"{sign}: {self.mark}."] if self.mark else [])]


def quantity(value: float, spread: float | None = None, *, share: bool = False, best: bool = False) -> Quantity:
    """Return a number with two digits of its spread, or with four digits where no spread is known.

    A share becomes percent. A spread of 0 is not printed: values that agree do not make a number certain. A
    number has nine digits at most, however small its spread is.
    """
    scale = 100 if share else 1
    value = value * scale
    spread = None if spread is None else spread * scale
    largest = max(abs(value), spread or 0.0)
    exponent = 0 if not largest or 1e-4 <= largest < 1e6 else _exponent(largest, DIGITS)
    number = Decimal(repr(value)).scaleb(-exponent)
    if not spread:
        return Quantity(_written(number, _places(number, DIGITS)), "", exponent, best)
    width = Decimal(repr(spread)).scaleb(-exponent)
    places = _places(width, 2)
    most = _places(number, 9)
    if number and places > most:  # a spread of the last bits
        return Quantity(_written(number, most), f"{width:.1e}", exponent, best)
    return Quantity(_written(number, places), _written(width, places), exponent, best)


def measured(value: float, spread: float | None = None, *, share: bool = False) -> str:
    """Return a number with its spread as a text; a share in percent."""
    return f"{quantity(value, spread, share=share)}{' %' if share else ''}"


def _exponent(value: float | Decimal, digits: int) -> int:
    """Return the power of ten of a number that is not 0, after it is rounded to some digits."""
    return int(f"{abs(value):.{digits - 1}e}".partition("e")[2])


def _places(number: Decimal, digits: int) -> int:
    """Return how many places behind the point show these digits; of hundreds fewer than 0."""
    return digits - 1 - _exponent(number, digits) if number else 0


def _written(number: Decimal, places: int) -> str:
    """Return a number rounded to places; whole numbers keep zeros in the place of digits that say nothing."""
    rounded = number.quantize(Decimal(1).scaleb(-places), ROUND_HALF_EVEN)
    text = f"{rounded:f}"
    return text.removeprefix("-") if not rounded else text


def heading(text: str, better: str = "") -> str:
    """Return the head of a column of scores, with an arrow that says which way they get better."""
    return f"{text} {'↓' if better == 'lower' else '↑'}" if better else text


def plain_or_markdown(grid: Grid, *, markdown: bool = False) -> str:
    """Return a table in plain letters, or as GitHub's Markdown, its caption below it."""

    def text_of(cell: Cell) -> str:
        if isinstance(cell, Quantity):
            best = "**{}**" if markdown else "{}*"
            return best.format(cell) if cell.best else str(cell)
        if cell is None:
            return "–"
        return escaped_for_markdown(cell) if markdown else " ".join(cell.split())

    rows = [[text_of(cell) for cell in row] for row in grid.rows]
    if not markdown:
        drawn = table(grid.headings, rows, others="right")
        return "\n".join([in_letters(drawn, 10_000), *map(printable, grid.sentences("*"))])
    sides = ["---" if number < grid.texts else "---:" for number in range(len(grid.headings))]
    heads = list(map(escaped_for_markdown, grid.headings))
    lines = [f"| {' | '.join(row)} |" for row in (heads, sides, *rows)]
    below = " ".join(map(escaped_for_markdown, grid.sentences("Bold")))
    return "\n".join([*lines, "", below] if below else lines)


def escaped_for_markdown(text: str) -> str:
    """Return a text for a cell or a sentence of GitHub's Markdown."""
    escaped = re.sub(r"[\\`*_{}\[\]|~#$]", r"\\\g<0>", printable(" ".join(text.split())))
    return escaped.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("@", "&#64;")


def latex(grid: Grid) -> str:
    r"""Return a table as LaTeX, for documents that load booktabs; its caption above it, as `\toprule` wants."""
    columns = "l" * grid.texts + "r" * (len(grid.headings) - grid.texts)
    heads = " & ".join(map(escaped_for_latex, grid.headings))
    caption = "\n    ".join(map(escaped_for_latex, grid.sentences("Bold")))
    label = re.sub(r"[^a-z0-9]+", "-", grid.name.lower()).strip("-") or "scores"
    return "\n".join(
        [
            r"\begin{table}",
            r"  \centering",
            *([f"  \\caption{{{caption}}}"] if caption else []),
            f"  \\label{{tab:{label}}}",
            f"  \\begin{{tabular}}{{{columns}}}",
            r"    \toprule",
            f"    {heads} \\\\",
            r"    \midrule",
            *(f"    {' & '.join(map(_latex_cell, row))} \\\\" for row in grid.rows),
            r"    \bottomrule",
            r"  \end{tabular}",
            r"\end{table}",
        ]
    )


def escaped_for_latex(text: str) -> str:
    """Return a text for LaTeX, as a document with the usual fonts and UTF-8 compiles it."""
    return "".join(map(_latex_letter, printable(" ".join(text.split()))))


def _latex_letter(character: str) -> str:
    if character in LATEX:
        return LATEX[character]
    if character.isascii() or ("À" <= character <= "ÿ" and character not in "ÐðÞþ÷"):
        return character
    name = unicodedata.name(character, "")
    if name.startswith("GREEK") and " WITH " not in name:
        letter = name.rpartition(" LETTER ")[2].lower().replace("lamda", "lambda")
        command = letter.capitalize() if "CAPITAL" in name else letter
        if f" {command} " in GREEK:
            return f"$\\{command}$"
    plain = unicodedata.normalize("NFKD", character).encode("ascii", "ignore").decode()
    return "".join(map(_latex_letter, plain)) or f"U+{ord(character):04X}"


def _latex_cell(cell: Cell) -> str:
    if not isinstance(cell, Quantity):
        return "--" if cell is None else escaped_for_latex(cell)
    both = f"\\mathbf{{{cell.value}}}" if cell.best else cell.value
    if cell.spread:
        digits, letter, exponent = cell.spread.partition("e")  # of a number such as 1.0e-12
        spread = f"{digits} \\times 10^{{{int(exponent)}}}" if letter else digits
        both = f"({both} \\pm {spread})" if cell.exponent else f"{both} \\pm {spread}"
    if cell.exponent:
        both += f" \\times 10^{{{cell.exponent}}}"
    return f"${both}$ ({cell.remark})" if cell.remark else f"${both}$"


def comma_separated(columns: Sequence[str], records: Iterable[Mapping[str, Any]]) -> str:
    """Return records as CSV below a line of names; numbers in full, nothing for what a record lacks."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for record in records:
        writer.writerow([_csv_cell(record.get(column)) for column in columns])
    return text.getvalue().rstrip("\n")


def _csv_cell(value: Any) -> str:
    """Return a value for a cell of CSV; a text that a spreadsheet would compute has an apostrophe before it."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (int, float)):
        return repr(value)
    line = printable(" ".join(str(value).split()))
    return f"'{line}" if line.startswith(("=", "+", "-", "@")) else line
