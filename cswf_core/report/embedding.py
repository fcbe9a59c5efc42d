"""Files held within a page, as addresses of their own."""

from __future__ import annotations

import base64

import attrs


@attrs.frozen
class Download:
    """A file to save, held within the page or lying beside it."""

    name: str
    href: str = attrs.field(repr=False)
    size: int
    """Its bytes."""


def address(content: bytes, kind: str) -> str:
    """Return the address of a file's content, of a media type such as `image/png`."""
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def download(name: str, content: bytes, kind: str) -> Download:
    """Return a file to save that is held within the page."""
    return Download(name, address(content, kind), len(content))


def safe_name(text: str) -> str:
    """Return a text as the name of a file, or as what an anchor is called: letters, digits and - _ . only."""
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in text)
