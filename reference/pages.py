"""Pages of `docs/` with the text that their comments ask for: `<!-- generated: contract cdf -->`."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

from cswf_core.plugins import KINDS, Registry
from cswf_core.scaffold import Names
from reference.commands import commands_page
from reference.contracts import contract_page, explained, shared_page
from reference.hooks import hooks_page
from reference.markdown import linked
from reference.recipes import keys_page, plugins_page, recipes_page

ROOT = Path(__file__).resolve().parents[1]

MARKER = re.compile(r"^<!-- generated: (.+?) -->$", re.MULTILINE)

PAGES = {"README.md": "index.md", "CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
"""Files of the repository's root that have a page."""

SOURCES = (
    "examples/cswf-strokes/cswf_strokes/__init__.py",
    "examples/plugins/brightness.py",
    "examples/plugins/energy.py",
    "examples/plugins/circular.py",
)
"""Files that a page shows as they are."""

TEMPLATES = {
    "cdf": "straight-lines",
    "schedule": "cooling",
    "coordinates": "spread",
    "dataset": "rings",
    "metric": "energy",
    "observer": "my-table",
}
"""Kinds of plugins whose template a page shows, and the name that the plugin has there."""

OUTSIDE = re.compile(r"(?<!!)\[([^\]\[]+)\]\(((?:\.\./)+[^)#]+)(#[^)]*)?\)")
"""A link with a path that goes up."""


@cache
def registry() -> Registry:
    """Return the built-in plugins; those of other packages are no part of this reference."""
    return Registry.discover(environment={"CSWF_LOAD_PLUGINS": ""})


@cache
def generators() -> Mapping[str, Callable[[], str]]:
    """Return what may be asked for, and what makes it."""
    made: dict[str, Callable[[], str]] = {
        "keys of recipes": lambda: keys_page(registry()),
        "built-in recipes": recipes_page,
        "contract shared": shared_page,
        "hooks": hooks_page,
        "commands": commands_page,
    }
    for kind in KINDS:
        made[f"contract {kind}"] = lambda kind=kind: contract_page(kind)  # type: ignore[misc]
        made[f"plugins {kind}"] = lambda kind=kind: plugins_page(registry(), kind)  # type: ignore[misc]
    for name in ("CHANGELOG.md", "CONTRIBUTING.md"):
        made[f"file {name}"] = lambda name=name: included(name)  # type: ignore[misc]
    for path in SOURCES:
        made[f"source {path}"] = lambda path=path: source(path)  # type: ignore[misc]
    for kind, name in TEMPLATES.items():
        made[f"template {kind}"] = lambda kind=kind, name=name: template(kind, name)  # type: ignore[misc]
    return made


@cache
def explained_places() -> Mapping[str, str]:
    """Return where each class, method and name of the contracts is explained."""
    return dict(explained())


def expanded(text: str, page: str) -> str:
    """Return the text of a page, `reference/hooks.md`, with all that it asks for in place of the comments."""
    folder = posixpath.dirname(page)
    places = {
        name: posixpath.relpath(f"reference/{place}", folder) for name, place in explained_places().items()
    }

    def made(marker: re.Match[str]) -> str:
        asked_for = marker[1]
        if asked_for not in generators():
            raise KeyError(f"{page}: nothing makes '{asked_for}'; known: {', '.join(generators())}")
        text = generators()[asked_for]()
        as_it_is = asked_for.startswith(("file ", "source ", "template "))
        return text if as_it_is else linked(text, places)

    return without_links_outside(MARKER.sub(made, text), page)


def included(name: str) -> str:
    """Return a file of the repository's root without its title, and with links as seen from `docs/`."""
    text = (ROOT / name).read_text(encoding="utf-8")
    text = re.sub(r"\A# .*\n", "", text)
    text = re.sub(r"\]\(docs/", "](", text)
    for file, page in PAGES.items():
        text = text.replace(f"]({file}", f"]({page}")
    return re.sub(r"\]\((?![a-z-]+\.md|#|images/|https?:)", "](../", text).strip()


def source(path: str) -> str:
    """Return a file of the repository as a block of code."""
    return f'```python title="{path}"\n{(ROOT / path).read_text(encoding="utf-8").strip()}\n```'


def template(kind: str, name: str) -> str:
    """Return the plugin that `cswf new KIND NAME` writes, as a block of code."""
    text = (ROOT / f"cswf_core/scaffold/templates/{kind}/plugin.py.template").read_text(encoding="utf-8")
    names = Names(kind, name)
    place = f"{names.distribution}/{names.module}.py"
    return f'```python title="{place}"\n{names.fill(text).strip()}\n```'


def without_links_outside(text: str, page: str) -> str:
    """Return a page in which links to files outside `docs/`, which a site has not, are plain names.

    README, CHANGELOG and CONTRIBUTING have pages of their own, and links to them lead there.
    """
    folder = posixpath.dirname(page)

    def mended(link: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join("docs", folder, link[2]))
        if path in PAGES and PAGES[path] != page:
            return f"[{link[1]}]({posixpath.relpath(PAGES[path], folder)}{link[3] or ''})"
        return link[0] if path.startswith("docs/") else link[1]

    return OUTSIDE.sub(mended, text)
