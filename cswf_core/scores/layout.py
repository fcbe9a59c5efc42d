"""A table of cells as text: in plain letters, Markdown, LaTeX or CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs

from cswf_core.errors import printable
from cswf_core.runs.screen import in_letters, table
from cswf_core.scores import escapes
from cswf_core.scores.quantities import Quantity

ARROWS = {"lower": "↓", "higher": "↑"}
"""Which way a score gets better, as a sign."""

MISSING = "–"
"""What stands in the place of a score that is not there."""

BEST = "*"
"""What stands behind the best number of a column in plain letters."""

WIDEST = 10_000
"""Characters of a line in plain letters, at most."""

Cell = str | Quantity | None
"""A text, a quantity, or nothing where there is none."""


@attrs.frozen
class Heading:
    """The head of a column."""

    text: str
    better: str = ""
    """`lower`, `higher`, or nothing."""

    def __str__(self) -> str:
        """Return it with an arrow."""
        return f"{self.text} {ARROWS[self.better]}" if self.better else self.text


@attrs.frozen
class Grid:
    """Cells in rows below headings, and sentences that say what they are."""

    headings: tuple[Heading, ...]
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


def plain(grid: Grid) -> str:
    """Return a table in plain letters, its caption below it."""
    drawn = table(
        [*map(str, grid.headings)], [[_plain(cell) for cell in row] for row in grid.rows], others="right"
    )
    return "\n".join([in_letters(drawn, WIDEST), *map(printable, grid.sentences(BEST))])


def _plain(cell: Cell) -> str:
    if isinstance(cell, Quantity):
        return f"{cell}{BEST if cell.best else ''}"
    return MISSING if cell is None else " ".join(cell.split())


def markdown(grid: Grid) -> str:
    """Return a table as GitHub's Markdown, the caption as a paragraph below it."""
    heads = [escapes.markdown(str(heading)) for heading in grid.headings]
    sides = ["---" if number < grid.texts else "---:" for number in range(len(heads))]
    rows = [heads, sides, *([_markdown(cell) for cell in row] for row in grid.rows)]
    lines = [f"| {' | '.join(row)} |" for row in rows]
    below = " ".join(map(escapes.markdown, grid.sentences("Bold")))
    return "\n".join([*lines, "", below] if below else lines)


def _markdown(cell: Cell) -> str:
    if isinstance(cell, Quantity):
        return f"**{cell}**" if cell.best else str(cell)
    return MISSING if cell is None else escapes.markdown(cell)


def latex(grid: Grid) -> str:
    r"""Return a table as LaTeX, for documents that load booktabs; its caption above it, as `\toprule` wants."""
    columns = "l" * grid.texts + "r" * (len(grid.headings) - grid.texts)
    heads = " & ".join(escapes.latex(str(heading)) for heading in grid.headings)
    rows = [" & ".join(map(_latex, row)) for row in grid.rows]
    caption = "\n    ".join(map(escapes.latex, grid.sentences("Bold")))
    return "\n".join(
        [
            r"\begin{table}",
            r"  \centering",
            *([f"  \\caption{{{caption}}}"] if caption else []),
            f"  \\label{{tab:{escapes.label(grid.name)}}}",
            f"  \\begin{{tabular}}{{{columns}}}",
            r"    \toprule",
            f"    {heads} \\\\",
            r"    \midrule",
            *(f"    {row} \\\\" for row in rows),
            r"    \bottomrule",
            r"  \end{tabular}",
            r"\end{table}",
        ]
    )


def _latex(cell: Cell) -> str:
    if not isinstance(cell, Quantity):
        return "--" if cell is None else escapes.latex(cell)
    value = f"\\mathbf{{{cell.value}}}" if cell.best else cell.value
    both = f"{value} \\pm {_power(cell.spread)}" if cell.spread else value
    if cell.exponent:
        both = f"({both})" if cell.spread else both
        both += f" \\times 10^{{{cell.exponent}}}"
    return f"${both}$ ({cell.remark})" if cell.remark else f"${both}$"


def _power(number: str) -> str:
    """Return a number such as `1.0e-12` in LaTeX's letters."""
    digits, letter, exponent = number.partition("e")
    return f"{digits} \\times 10^{{{int(exponent)}}}" if letter else digits


def comma_separated(columns: Sequence[str], records: Iterable[Mapping[str, Any]]) -> str:
    """Return records as CSV below a line of names; numbers in full, nothing for what a record lacks."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for record in records:
        writer.writerow([_comma_separated(record.get(column)) for column in columns])
    return text.getvalue().rstrip("\n")


def _comma_separated(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return repr(value) if isinstance(value, (int, float)) else escapes.cell(str(value))
