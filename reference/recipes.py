"""Recipes as pages: every key, every built-in plugin with its parameters, and the built-in recipes."""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections.abc import Iterator
from typing import Any

import yaml

from cswf_core.fields import Option, options, plain
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
from reference.markdown import anchor, code, heading, prose, required, section, table

LISTS: dict[str, tuple[str, str, type[Any] | None]] = {
    "observers": ("observers", "observer", None),
    "online": ("online.arrivals", "dataset", OnlineSection),
    "evaluate": ("evaluate.metrics", "metric", EvaluateSection),
}
"""Top-level key → (the key with a list of plugins, their kind, the other keys of the section)."""

LIMITS = {"at_least": "≥", "above": ">", "at_most": "≤"}

FAR = 1e9
"""A bound from which on nobody meets it."""

Row = tuple[str, str, str, str]
"""(name, what may be written, default, meaning)."""


def keys_page(registry: Registry) -> str:
    """Return every key that a recipe may have besides the plugins' own parameters."""
    described = recipe_schema(registry)["properties"]
    rows = [row for key in KEYS for row in _key(key, described[key], registry)]
    return table(["key", "value", "default", "meaning"], rows)


def _key(key: str, described: dict[str, Any], registry: Registry) -> Iterator[Row]:
    if key in CHOICES:
        kind, default = CHOICES[key], DEFAULTS.get(key)
        yield code(key), f"a {kind}", code(default) if default else "required", _choice(kind, registry)
        yield from _rows(ReuseSection, "projection.") if key == "projection" else ()
    elif key in LISTS:
        path, kind, others = LISTS[key]
        yield code(path), f"a list of {kind}s", "none", _choice(kind, registry)
        yield from _rows(others, f"{key}.") if others is not None else ()
    elif key in SECTIONS:
        yield from _rows(SECTIONS[key], f"{key}.")
    elif key in options(HeadSection):
        yield _row(options(HeadSection)[key], "", "a recipe")
    else:
        yield code(key), _written(described), "none", prose(required(described.get("description"), key))


def _written(described: dict[str, Any]) -> str:
    """Return what may be written, for the keys that are read by themselves, from their JSON Schema."""
    words = {"string": "a text", "array": "a list of texts", "object": "a mapping"}
    kinds = described.get("anyOf", [described])
    return " or ".join(words[kind["type"]] for kind in kinds)


def _choice(kind: str, registry: Registry) -> str:
    """Return the plugins of a kind, each a link to its parameters."""
    links = [f"[`{p.owner.name}`](plugins/{kind}.md#{mark(p)})" for p in builtins(registry, kind)]
    contract = f"[contract](contracts/{kind}.md)"
    return f"{', '.join(links)} ({contract})"


def _rows(cls: type[Any], prefix: str) -> Iterator[Row]:
    return (_row(option, prefix, cls.__name__) for option in options(cls).values())


def _row(option: Option, prefix: str, owner: str) -> Row:
    limits = option.attribute.metadata
    bounds = [f"{sign} {limits[name]:,}" for name, sign in LIMITS.items() if abs(limits.get(name, FAR)) < FAR]
    value = ", ".join([option.kind.words, *bounds])
    help_text = required(option.help, f"parameter '{option.name}' of {owner}")
    return code(prefix + option.name), prose(value), _default(option), prose(help_text)


def _default(option: Option) -> str:
    if option.required:
        return "required"
    value = plain(option.default)
    if value in (None, "", [], {}):
        return ""
    return code(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def builtins(registry: Registry, kind: str) -> list[Plugin]:
    """Return the built-in plugins of a kind, in the order they are offered."""
    return [p for p in registry.plugins if p.owner.kind == kind and p.owner.distribution == BUILTIN]


def mark(plugin: Plugin) -> str:
    """Return the anchor of a plugin on its kind's page."""
    return anchor(f"{plugin.owner.kind}-{plugin.owner.name}")


def plugins_page(registry: Registry, kind: str) -> str:
    """Return the built-in plugins of a kind: what each is, its cost, when not to use it, its parameters."""
    return section(*(_plugin(plugin) for plugin in builtins(registry, kind)))


def _plugin(plugin: Plugin) -> str:
    owner = f"{plugin.owner.kind} '{plugin.owner.name}'"
    module = sys.modules[plugin.factory.__module__]
    text = inspect.cleandoc(required(module.__doc__, owner))
    summary, _, rest = text.partition("\n")
    required(plugin.factory.__doc__, owner)
    rows = [_row(option, "", owner) for option in options(plugin.factory).values()]
    parameters = table(["parameter", "value", "default", "meaning"], rows) or "It has no parameters."
    sentence = summary.partition(": ")[2] or summary
    return section(
        heading(2, code(plugin.owner.name), f"{plugin.owner.kind}-{plugin.owner.name}"),
        prose(sentence[:1].upper() + sentence[1:]),
        _marked(prose(rest)),
        parameters,
    )


def _marked(text: str) -> str:
    """Return a plugin's text with its three subjects as paragraphs of their own, in bold."""
    return re.sub(r"^(What it is|Cost|When not to use it):", r"\n**\1:**", text, flags=re.MULTILINE).strip()


def recipes_page() -> str:
    """Return the built-in recipes, each with its sentence."""
    rows = []
    for name, found in builtin_recipes().items():
        written = yaml.safe_load(found.path.read_text(encoding="utf-8"))
        rows.append((code(name), prose(required(written.get("description"), f"recipe {name}"))))
    return table(["recipe", "purpose"], rows)
