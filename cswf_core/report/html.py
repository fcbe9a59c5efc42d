"""HTML put together from parts: texts are escaped unless they are HTML already."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

from PIL import Image

from cswf_core.pictures import grid as pictures

VOID = {"img", "input", "meta", "br"}
"""Elements that have no content."""

GENERATOR = "cswf report"
"""What a page says about its origin; a file with it may be replaced by another page."""


class Html(str):
    """Text that is HTML: it is taken as it is, where other texts are escaped."""

    __slots__ = ()


Attribute = str | int | bool | None


def tag(name: str, /, *content: str, **attributes: Attribute) -> Html:
    """Return an element. `class_` is written class, `data_x` data-x; None and False leave an attribute out."""
    written = "".join(_attribute(key, value) for key, value in attributes.items())
    if name in VOID:
        return Html(f"<{name}{written}>")
    return Html(f"<{name}{written}>{join(*content)}</{name}>")


def join(*content: str) -> Html:
    """Return parts one after the other, escaped where they are plain text."""
    return Html("".join(part if isinstance(part, Html) else html.escape(part) for part in content))


def table(head: Sequence[str], rows: Sequence[Sequence[str]], **attributes: Attribute) -> Html:
    """Return a table that scrolls on a narrow screen; the first cell of each row is its heading.

    Cells that are elements td or th already are taken as they are.
    """
    top = tag("tr", *(tag("th", cell, scope="col") for cell in head))
    body = [tag("tr", tag("th", row[0], scope="row"), *(_cell(cell) for cell in row[1:])) for row in rows]
    whole = tag("table", tag("thead", top) if head else Html(""), tag("tbody", *body), **attributes)
    return tag("div", whole, class_="scroll", tabindex=0, role="group", aria_label="table")


def details(summary: str, *content: str) -> Html:
    """Return something that is folded away until it is asked for."""
    return tag("details", tag("summary", summary), *content)


def embedded(value: Any, name: str) -> Html:
    """Return a value as JSON that scripts find by its name, and that nothing in it can end early."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return tag("script", Html(text), type="application/json", id=name)


def uri(content: bytes, kind: str) -> str:
    """Return a file's content as an address of its own."""
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def png_uri(picture: Image.Image) -> str:
    """Return a picture as PNG, as an address of its own."""
    return uri(pictures.png(picture), "image/png")


def image(address: str, alt: str, size: tuple[int, int], **attributes: Attribute) -> Html:
    """Return a picture whose place is kept before it is decoded; `size` is its width and height in pixels."""
    return tag("img", src=address, alt=alt, width=size[0], height=size[1], **attributes)


def document(title: str, body: str, data: Mapping[str, Any]) -> str:
    """Return a whole page with its style, its scripts and the data that they show.

    Its policy allows this script and no other, and no address outside the page.
    """
    assets = files("cswf_core.report") / "assets"
    style = (assets / "report.css").read_text(encoding="utf-8")
    names = ("start.js", "film.js", "scales.js", "curves.js")
    script = "\n".join((assets / name).read_text(encoding="utf-8") for name in names)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        "default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
        f"script-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    )
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="generator", content=GENERATOR),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        tag("style", Html(style)),
    )
    held = [embedded(value, name) for name, value in data.items()]
    whole = tag("html", head, tag("body", body, *held, tag("script", Html(script))), lang="en")
    return f"<!doctype html>\n{whole}\n"


def _cell(cell: str) -> Html:
    ready = isinstance(cell, Html) and cell.startswith(("<td", "<th"))
    return Html(cell) if ready else tag("td", cell)


def _attribute(key: str, value: Attribute) -> str:
    name = key.rstrip("_").replace("_", "-")
    if value is None or value is False:
        return ""
    return f" {name}" if value is True else f' {name}="{html.escape(str(value))}"'
