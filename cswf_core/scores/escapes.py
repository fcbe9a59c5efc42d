r"""Texts of strangers as LaTeX, Markdown and CSV have them: shown as they are, and never obeyed.

A name may have `&`, `|` or `=` in it, and a file's name anything at all. Each function returns one line.
"""

from __future__ import annotations

import re
import unicodedata

from cswf_core.errors import printable

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

_MARKDOWN = re.compile(r"[\\`*_{}\[\]|~#$]")
_FORMULA = ("=", "+", "-", "@")


def latex(text: str) -> str:
    """Return a text for LaTeX, as a document with the usual fonts and UTF-8 compiles it."""
    return "".join(map(_latex, printable(" ".join(text.split()))))


def _latex(character: str) -> str:
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
    return "".join(map(_latex, plain)) or f"U+{ord(character):04X}"


def label(text: str) -> str:
    r"""Return a text as the key of a \label: small letters, digits and hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "scores"


def markdown(text: str) -> str:
    """Return a text for a cell or a sentence of GitHub's Markdown."""
    escaped = _MARKDOWN.sub(r"\\\g<0>", printable(" ".join(text.split())))
    return escaped.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("@", "&#64;")


def cell(text: str) -> str:
    """Return a text for a cell of CSV; one that a spreadsheet would compute has an apostrophe before it."""
    line = printable(" ".join(text.split()))
    return f"'{line}" if line.startswith(_FORMULA) else line
