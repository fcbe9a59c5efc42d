"""Consoles and tables for people at a terminal; texts in them are shown and never obeyed, see `printing`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

from cswf_core.errors import printable

Cell = str | Sequence[str]
"""A text of a table, or several lines of text."""


def console(*, stderr: bool = False, quiet: bool = False) -> Console:
    """Return a console that takes no `[word]` of a text for a style, and no `:word:` for a picture."""
    return Console(stderr=stderr, quiet=quiet, markup=False, emoji=False)


def words(text: str, style: str = "") -> Text:
    """Return a text for a console, in one line."""
    return Text(printable(text), style)


def table(
    headings: Sequence[str], rows: Iterable[Sequence[Cell]], *, others: Literal["left", "right"] = "left"
) -> Table:
    """Return a table without lines; `others` is the side at which all columns but the first are aligned."""
    made = Table(box=None, pad_edge=False)
    for number, heading in enumerate(headings):
        made.add_column(words(heading), justify=others if number else "left", overflow="fold")
    for row in rows:
        made.add_row(*map(_cell, row))
    return made


def in_letters(drawn: Table, width: int) -> str:
    """Return a table as plain lines of text, without styles, wherever it will be printed."""
    screen = Console(color_system=None, width=width)
    with screen.capture() as captured:
        screen.print(drawn)
    return "\n".join(line.rstrip() for line in captured.get().rstrip().split("\n"))


def _cell(cell: Cell) -> Text:
    return words(cell) if isinstance(cell, str) else Text("\n").join(map(words, cell))
