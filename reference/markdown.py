"""Markdown for generated text: tables, headings with anchors, and docstrings with links to what they name."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping, Sequence


class UndocumentedError(Exception):
    """Something that the reference has to explain has no text that does."""


def required(text: str | None, name: str) -> str:
    """Return a text; raise `UndocumentedError`, with the name of what it should explain, if there is none."""
    if not text or not text.strip():
        raise UndocumentedError(f"{name} has no documentation: write a docstring, or a help, for it")
    return text.strip()


def anchor(name: str) -> str:
    """Return the anchor of a name: `CDFEstimator.fit` → `cdfestimator-fit`."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def heading(level: int, text: str, name: str) -> str:
    """Return a heading with an anchor made of `name`."""
    return f"{'#' * level} {text} {{ #{anchor(name)} }}"


def table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; nothing if it has no rows."""
    lines = ["| " + " | ".join(cell(text) for text in row) + " |" for row in rows]
    head = ["| " + " | ".join(titles) + " |", "|" + "---|" * len(titles)]
    return "\n".join([*head, *lines]) if lines else ""


def cell(text: str) -> str:
    """Return a text that fits in a cell of a table; bars in the type of code end no cell."""
    parts = re.split(r"(`[^`]*`)", " ".join(text.split()))
    return "".join(part if part.startswith("`") else part.replace("|", "\\|") for part in parts)


def code(text: str) -> str:
    """Return a text in the type of code; nothing of nothing."""
    return f"`{text}`" if text else ""


def prose(text: str) -> str:
    """Return a docstring as Markdown: without its indentation, and with `<` where it is no HTML."""
    parts = re.split(r"(`[^`]*`)", inspect.cleandoc(text))
    return "".join(part if part.startswith("`") else part.replace("<", "&lt;") for part in parts)


def linked(text: str, places: Mapping[str, str]) -> str:
    """Return Markdown in which names in the type of code lead to the place that explains them.

    Lines of code, of tables' heads and headings are left as they are; so is a name that is a link already.
    """

    def link(match: re.Match[str]) -> str:
        place = places.get(match[1])
        return f"[`{match[1]}`]({place})" if place else match[0]

    pieces = re.split(r"(^```.*?^```$|^#.*?$)", text, flags=re.MULTILINE | re.DOTALL)
    return "".join(
        piece if piece.startswith(("```", "#")) else re.sub(r"(?<!\[)`([\w.]+)`(?!\])", link, piece)
        for piece in pieces
    )


def section(*parts: str) -> str:
    """Return parts one below the other, with an empty line between them; empty parts are left out."""
    return "\n\n".join(part for part in parts if part)
