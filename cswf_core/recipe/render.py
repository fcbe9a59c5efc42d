"""Recipes as text: YAML that reads back as the same values, each with its origin if wanted, and flat lists."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cswf_core.nodes import Location, Problem, RecipeError, parse, resolve, value_of
from cswf_core.recipe.recipe import Recipe

_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_./+-]*( [A-Za-z0-9_./+(),-]+)*")
_WIDTH = 100

Comment = Callable[[str], str]
"""Key path → the comment behind the value."""


def to_yaml(value: dict[str, Any], comment: Comment | None = None) -> str:
    """Return a mapping as YAML in block style."""
    return "".join(line + "\n" for line in _lines(value, 0, "", comment or (lambda _: "")))


def from_yaml(text: str) -> Any:
    """Return the values in a YAML text by the rules of recipes; raise `RecipeError` if it cannot be read."""
    problems: list[Problem] = []
    node = parse(text, Location("recipe.yaml"), problems)
    if problems:
        raise RecipeError(problems)
    return None if node is None else value_of(node)


def flattened(value: Any, path: str = "") -> dict[str, str]:
    """Return key path → value, both as texts, for every single value of a resolved recipe."""
    if isinstance(value, Mapping) and value:
        items = list(value.items())
    elif isinstance(value, list) and any(isinstance(item, (Mapping, list)) for item in value):
        items = list(enumerate(value))
    else:
        return {path: _inline(value, str)}
    values: dict[str, str] = {}
    for key, item in items:
        values |= flattened(item, f"{path}.{key}" if path else str(key))
    return values


def short_paths(keys: Sequence[str]) -> list[str]:
    """Return key paths by their last part, or as many as tell them apart; 'use' and numbers say too little."""
    paths = [key.split(".") for key in keys]

    def shortest(path: list[str]) -> str:
        for size in range(1, len(path)):
            end = path[-size:]
            alike = sum(other[-size:] == end for other in paths)
            if alike == 1 and end[0] != "use" and not end[0].isdigit():
                return ".".join(end)
        return ".".join(path)

    return [shortest(path) for path in paths]


def with_origins(recipe: Recipe) -> str:
    """Return the resolved recipe as YAML, each value followed by the place it was written at, or 'default'."""
    origins = origin_of_every_value(recipe)
    inside: dict[str, dict[str, str]] = {}
    for path, origin in origins.items():
        keys = path.split(".")
        for depth in range(1, len(keys)):
            inside.setdefault(".".join(keys[:depth]), {})[".".join(keys[depth:])] = origin

    def comment(path: str) -> str:
        """A list's own place, and those of items that were written elsewhere."""
        own = origins.get(path, "")
        file = own.rsplit(":", 2)[0]
        items = inside.get(path, {}).items()
        return ", ".join([own, *(f"[{i}] {o}" for i, o in items if o.rsplit(":", 2)[0] != file)])

    return to_yaml(recipe.resolved(), comment)


def origin_of_every_value(recipe: Recipe) -> dict[str, str]:
    """Return key path → place, or 'default', for every single value of the resolved recipe."""
    origins: dict[str, str] = {}

    def walk(value: Any, path: str) -> None:
        if isinstance(value, dict):
            for key, item in value.items():
                walk(item, f"{path}.{key}" if path else key)
            return
        origins[path] = str(recipe.origins.get(path, "default"))
        for index, item in enumerate(value if isinstance(value, list) else ()):
            below = f"{path}.{index}"
            if isinstance(item, (dict, list)) or below in recipe.origins:
                walk(item, below)

    walk(recipe.resolved(), "")
    return origins


def _lines(value: dict[str, Any], indent: int, path: str, comment: Comment) -> list[str]:
    lines = []
    for key, item in value.items():
        below = f"{path}.{key}" if path else key
        start = f"{' ' * indent}{_scalar(key)}:"
        if isinstance(item, dict) and item:
            lines += [start, *_lines(item, indent + 2, below, comment)]
        elif isinstance(item, list) and _is_long(item):
            lines.append(start)
            for index, entry in enumerate(item):
                lines += _item(entry, indent + 2, f"{below}.{index}", comment)
        else:
            lines.append(_noted(f"{start} {_inline(item)}", comment(below)))
    return lines


def _item(entry: Any, indent: int, path: str, comment: Comment) -> list[str]:
    if not isinstance(entry, dict) or not entry:
        return [_noted(f"{' ' * indent}- {_inline(entry)}", comment(path))]
    first, *rest = _lines(entry, indent + 2, path, comment)
    return [f"{' ' * indent}- {first[indent + 2 :]}", *rest]


def _is_long(items: list[Any]) -> bool:
    """Say whether a list is better written with a line for each item."""
    return any(isinstance(item, (dict, list)) for item in items) or len(_inline(items)) > _WIDTH


def _noted(line: str, note: str) -> str:
    return f"{line:<48}  # {note}" if note else line


def _inline(value: Any, text: Callable[[str], str] | None = None) -> str:
    """Return a value on one line; `text` says how a text is written."""
    if isinstance(value, list):
        return "[" + ", ".join(_inline(item, text) for item in value) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_scalar(key)}: {_inline(item)}" for key, item in value.items()) + "}"
    return text(value) if text is not None and isinstance(value, str) else _scalar(value)


def _scalar(value: Any) -> str:
    if isinstance(value, str):
        plain = _PLAIN.fullmatch(value) and isinstance(resolve(value), str) and len(value) < _WIDTH
        return value if plain and "," not in value else json.dumps(value, ensure_ascii=False)
    return json.dumps(value) if value is None or isinstance(value, bool) else repr(value)
