"""Hooks of MkDocs: what no plugin of it makes, which is all about recipes, and links as a site has them.

A page in `docs/` says with a comment, `<!-- generated: plugins cdf -->`, where text goes that is made here.
Contracts and hooks come from mkdocstrings, commands from mkdocs-click. Nothing that is generated is kept in
the repository.
"""

from __future__ import annotations

import ast
import inspect
import json
import posixpath
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import griffe
import yaml
from mkdocs.exceptions import PluginError
from mkdocs.utils import get_relative_url

from cswf_core import errors, hookspecs, interfaces
from cswf_core.fields import options, plain
from cswf_core.flow.settings import DEFAULTS
from cswf_core.plugins import BUILTIN, Plugin, Registry
from cswf_core.recipe import builtin_recipes
from cswf_core.recipe.sections import (
    CHOICES,
    KEYS,
    SECTIONS,
    EvaluateSection,
    HeadSection,
    OnlineSection,
    ReuseSection,
    recipe_schema,
)
from cswf_core.scaffold import names_made_of, template_for

ROOT = Path(__file__).resolve().parents[1]

MARKER = re.compile(r"^<!-- generated: (.+?) -->$", re.MULTILINE)

PAGES = {"README.md": "index.md", "CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
"""Files of the repository's root that have a page."""

FOREIGN_SCRIPT = "https://unpkg.com/iframe-worker/shim"
"""A script of another host that Material's offline plugin asks for; docs/theme/worker.js takes its place."""

CHOSEN = {
    **{key: (key, kind) for key, kind in CHOICES.items()},
    "observers": ("observers", "observer"),
    "online": ("online.arrivals", "dataset"),
    "evaluate": ("evaluate.metrics", "metric"),
}
"""Top-level key → (the key with plugins, their kind)."""

INSIDE: dict[str, type[Any]] = {
    **SECTIONS,
    "projection": ReuseSection,
    "online": OnlineSection,
    "evaluate": EvaluateSection,
}
"""Top-level key → its other keys."""


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Return a page with all that it asks for, and with links and blocks of code as a site has them."""
    place = page.file.src_uri
    text = MARKER.sub(lambda marker: made(*marker[1].split()), markdown)
    fence = re.compile(r'^```(\w+) (?:.*?(title="[^"]*"))?.*$', re.MULTILINE)  # other words are for tests
    return fence.sub(lambda line: f"```{line[1]} {line[2] or ''}".rstrip(), without_links_outside(text, place))


def on_page_content(html: str, *, page: Any, **_: Any) -> str:
    """Return a page of the reference in which names in the type of code lead to what explains them."""
    if not page.file.src_uri.startswith("reference/"):
        return html
    parts = re.split(r"(<pre.*?</pre>|<h\d.*?</h\d>|<a .*?</a>)", html, flags=re.DOTALL)
    for index in range(0, len(parts), 2):
        parts[index] = re.sub(r"<code>(\w+)([\w.]*)</code>", _linked, parts[index])
    return "".join(parts)


def _linked(code: re.Match[str]) -> str:
    for module in (interfaces, errors, hookspecs):
        home = getattr(getattr(module, code[1], None), "__module__", "")
        if home.startswith("cswf_core."):
            return f'<autoref optional identifier="{home}.{code[1]}{code[2]}">{code[0]}</autoref>'
    return code[0]


def on_post_page(output: str, *, page: Any, **_: Any) -> str:
    """Return a page's HTML with scripts of this site only."""
    return output.replace(FOREIGN_SCRIPT, get_relative_url("theme/worker.js", page.url))


def on_post_template(output_content: str, *, template_name: str, **_: Any) -> str:
    """Return 404.html, whose addresses begin at the root, with scripts of this site only."""
    worker = "/theme/worker.js" if template_name == "404.html" else FOREIGN_SCRIPT
    return output_content.replace(FOREIGN_SCRIPT, worker)


class Defaults(griffe.Extension):
    """Attributes of attrs classes show their default, and the help of `parameter` is their description."""

    def on_attribute_instance(self, *, attr: griffe.Attribute, **_: Any) -> None:
        """Put the default in the place of the call that declares a field."""
        call = attr.value
        if not isinstance(call, griffe.ExprCall) or str(call.function) not in ("attrs.field", "parameter"):
            return
        named = {each.name: each.value for each in call.arguments if isinstance(each, griffe.ExprKeyword)}
        factory = named.get("factory")
        attr.value = named.get("default") if factory is None else f"{factory}()"
        if str(call.function) == "parameter":
            attr.docstring = griffe.Docstring(ast.literal_eval(str(call.arguments[0])), parent=attr)


def made(subject: str, *words: str) -> str:
    """Return the text that a comment asks for."""
    makers: dict[str, Callable[..., str]] = {
        "keys": keys_page,
        "recipes": recipes_page,
        "plugins": plugins_page,
        "file": included,
        "source": source,
        "template": template,
    }
    if subject not in makers:
        raise PluginError(f"nothing makes '{subject}'; known: {', '.join(makers)}")
    return makers[subject](*words)


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
    return _python(path, (ROOT / path).read_text(encoding="utf-8"))


def template(kind: str, name: str) -> str:
    """Return the plugin that `cswf new KIND NAME` writes, as a block of code."""
    names = names_made_of(kind, name)
    title = f"{names['distribution']}/{names['module']}.py"
    return _python(title, template_for(names, "plugin.py.template"))


def _python(title: str, text: str) -> str:
    return f'```python title="{title}"\n{text.strip()}\n```'


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

    return re.sub(r"(?<!!)\[([^\]\[]+)\]\(((?:\.\./)+[^)#]+)(#[^)]*)?\)", mended, text)


@cache
def registry() -> Registry:
    """Return the built-in plugins; those of other packages are no part of this reference."""
    return Registry.discover(environment={"CSWF_LOAD_PLUGINS": ""})


def keys_page() -> str:
    """Return every key that a recipe may have besides the plugins' own parameters."""
    described = recipe_schema(registry())["properties"]
    rows = (row for key in KEYS for row in _key(key, described[key]))
    return table(("key", "value", "default", "meaning"), rows)


def _key(key: str, described: dict[str, Any]) -> Iterator[Sequence[str]]:
    if key in CHOSEN:
        path, kind = CHOSEN[key]
        value, default = (f"a {kind}", "required") if key in CHOICES else (f"a list of {kind}s", "none")
        links = [f"[`{p.owner.name}`](plugins/{kind}.md#{kind}-{p.owner.name})" for p in builtins(kind)]
        meaning = f"{', '.join(links)} ([contract](contracts/{kind}.md))"
        yield f"`{path}`", value, f"`{DEFAULTS[key]}`" if key in DEFAULTS else default, meaning
    if key in INSIDE:
        yield from _rows(INSIDE[key], f"{key}.")
    elif key in options(HeadSection):
        yield from (row for row in _rows(HeadSection) if row[0] == f"`{key}`")
    elif key not in CHOSEN:
        words = {"string": "a text", "array": "a list of texts", "object": "a mapping"}
        kinds = [words[kind["type"]] for kind in described.get("anyOf", [described])]
        yield f"`{key}`", " or ".join(kinds), "none", required(described.get("description"), key)


def _rows(cls: type[Any], prefix: str = "") -> Iterator[Sequence[str]]:
    """Yield (name, what may be written, default, meaning) of the parameters of a class."""
    signs = {"at_least": "≥", "above": ">", "at_most": "≤"}
    for option in options(cls).values():
        met = [limit for limit in option.bounds.items() if abs(limit[1]) < 1e9]  # nobody meets one beyond
        kind = ", ".join([option.kind.words, *(f"{signs[name]} {bound:,}" for name, bound in met)])
        default = "required" if option.required else plain(option.default)
        if not option.required and default not in (None, "", [], {}):
            default = f"`{default if isinstance(default, str) else json.dumps(default, ensure_ascii=False)}`"
        name = f"`{prefix}{option.name}`"
        yield name, kind, default if isinstance(default, str) else "", required(option.help, name)


def builtins(kind: str) -> list[Plugin]:
    """Return the built-in plugins of a kind, in the order they are offered."""
    return [p for p in registry().plugins if p.owner.kind == kind and p.owner.distribution == BUILTIN]


def plugins_page(kind: str) -> str:
    """Return the built-in plugins of a kind: what each is, its cost, when not to use it, its parameters."""
    return "\n\n".join(map(_plugin, builtins(kind)))


def _plugin(plugin: Plugin) -> str:
    text = required(sys.modules[plugin.factory.__module__].__doc__, str(plugin.owner))
    summary, _, rest = inspect.cleandoc(text).partition("\n")
    sentence = summary.partition(": ")[2] or summary
    subjects = re.sub(r"^(What it is|Cost|When not to use it):", r"\n**\1:**", rest, flags=re.MULTILINE)
    rows = table(("parameter", "value", "default", "meaning"), _rows(plugin.factory))
    return (
        f"## `{plugin.owner.name}` {{ #{plugin.owner.kind}-{plugin.owner.name} }}\n\n"
        f"{prose(sentence[:1].upper() + sentence[1:])}\n\n{prose(subjects).strip()}\n\n"
        f"{rows or 'It has no parameters.'}"
    )


def recipes_page() -> str:
    """Return the built-in recipes, each with its sentence."""
    written = {n: yaml.safe_load(r.path.read_text(encoding="utf-8")) for n, r in builtin_recipes().items()}
    rows = ((f"`{name}`", required(recipe.get("description"), name)) for name, recipe in written.items())
    return table(("recipe", "purpose"), rows)


def required(text: str | None, name: str) -> str:
    """Return a text; raise an error, with the name of what it should explain, if there is none."""
    if not text or not text.strip():
        raise PluginError(f"{name} has no documentation: write a docstring, or a help, for it")
    return text.strip()


def table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; nothing if it has no rows."""
    lines = ["| " + " | ".join(" ".join(prose(cell, "|").split()) for cell in row) + " |" for row in rows]
    head = ["| " + " | ".join(titles) + " |", "|" + "---|" * len(titles)]
    return "\n".join([*head, *lines]) if lines else ""


def prose(text: str, bar: str = "") -> str:
    """Return text as Markdown: outside of code, `<` begins no HTML, and `bar` ends no cell of a table."""
    parts = re.split(r"(`[^`]*`)", text)
    for index in range(0, len(parts), 2):
        parts[index] = parts[index].replace("<", "&lt;")
        if bar:
            parts[index] = parts[index].replace(bar, f"\\{bar}")
    return "".join(parts)
