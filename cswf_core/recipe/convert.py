"""From located nodes to typed values, with every mistake written down at its place."""

from __future__ import annotations

import math
import typing
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any, Literal

import attrs

from cswf_core.errors import did_you_mean
from cswf_core.interfaces import Written
from cswf_core.recipe.nodes import Items, Location, Mapping, Node, Problem, Scalar
from cswf_core.recipe.types import (
    Option,
    alternatives,
    fixed_length,
    is_written,
    item_type,
    item_types,
    options,
    plugin_kind,
    value_type,
    words,
)

MISSING: Any = object()
"""What stands for a value that could not be read; a problem says why."""

Choose = Callable[[Node, str, str], Any]
"""(node, kind of plugin, path) → the plugin's object, or MISSING."""

_YAML_1_1 = {"yes": "true", "on": "true", "no": "false", "off": "false"}


class Converter:
    """Reads nodes as typed values; remembers where each came from and what was wrong."""

    def __init__(self, problems: list[Problem], *, complete: bool = True) -> None:
        self.problems = problems
        self.complete = complete
        self.origins: dict[str, Location] = {}
        self.choose: Choose | None = None

    def problem(self, location: Location, message: str) -> Any:
        """Write a mistake down and return MISSING."""
        self.problems.append(Problem(location, message))
        return MISSING

    def missing(self, location: Location, key: str, of: str = "") -> Any:
        """Write down that a key is missing, if that is certain, and return MISSING."""
        if self.complete:
            self.problem(location, f"missing key '{key}'{f' of {of}' if of else ''}")
        return MISSING

    def value(self, node: Node, kind: Any, path: str) -> Any:
        """Return a node as a value of a type."""
        self.origins[path] = node.location
        members = alternatives(kind)
        if len(members) > 1:
            return self._union(node, kind, members, path)
        plugin = plugin_kind(kind)
        if plugin is not None and self.choose is not None:
            return self.choose(node, plugin, path)
        if is_written(kind):
            return self._written(node, kind, path)
        if attrs.has(kind):
            return self.object(node, kind, path)
        item, held, length = item_type(kind), value_type(kind), fixed_length(kind)
        if item is not None and isinstance(node, Items) and length in (None, len(node.items)):
            kinds = item_types(kind, len(node.items))
            values = tuple(self.value(n, kinds[i], f"{path}.{i}") for i, n in enumerate(node.items))
            return MISSING if _lacking(values) else values
        if held is not None and isinstance(node, Mapping):
            found = {key: self.value(e.node, held, f"{path}.{key}") for key, e in node.entries.items()}
            return MISSING if _lacking(found.values()) else found
        read = MISSING if not isinstance(node, Scalar) else _scalar(node, kind)
        return self.problem(node.location, _mismatch(node, kind, path)) if read is MISSING else read

    def object(self, node: Node, cls: type[Any], path: str, of: str = "", extra: Collection[str] = ()) -> Any:
        """Return a mapping as an object of an attrs class; `extra` keys are somebody else's business."""
        if isinstance(node, Scalar) and node.value is None:
            node = Mapping(node.location, {})
        if not isinstance(node, Mapping):
            return self.problem(node.location, _mismatch(node, cls, path))
        known = options(cls)
        of = of or (f"'{path}'" if path else "")
        self.unknown_keys(node, [*known, *extra], of)
        values = {name: self._option(node, option, path, of) for name, option in known.items()}
        if _lacking(values.values()):
            return MISSING
        try:
            return cls(**values)
        except Exception as error:
            return self.problem(node.location, f"{of}: {error}" if of else str(error))

    def unknown_keys(self, node: Mapping, known: Collection[str], of: str) -> None:
        """Write down every key that is not known, with the nearest one that is."""
        for key, entry in node.entries.items():
            if key not in known:
                hint = "; use 'extends' to build on a recipe" if key == "<<" else did_you_mean(key, known)
                self.problem(entry.location, f"unknown key '{key}'{f' of {of}' if of else ''}{hint}")

    def _option(self, node: Mapping, option: Option, path: str, of: str) -> Any:
        entry = node.entries.get(option.name)
        left_out = entry is None or _is_empty(entry.node)
        if entry is None or left_out:
            if option.required:
                return self.missing(node.location if entry is None else entry.location, option.name, of)
            return option.default
        value = self.value(entry.node, option.type, f"{path}.{option.name}" if path else option.name)
        if value is not MISSING and option.attribute.validator is not None:
            try:
                option.attribute.validator(None, option.attribute, value)
            except (ValueError, TypeError) as error:
                message = str(error.args[0] if error.args else error)
                inside = f"{path}." if path and message.startswith(option.name) else ""
                return self.problem(entry.node.location, inside + message)
            except Exception:
                return value  # it wants to see the whole object; the constructor calls it again, with one
        return value

    def _written(self, node: Node, kind: type[Written], path: str) -> Any:
        if not isinstance(node, Scalar) or node.value is None:
            return self.problem(node.location, _mismatch(node, kind, path))
        try:
            return kind.from_text(node.raw)
        except ValueError as error:
            return self.problem(node.location, f"{path}: {error}")

    def _union(self, node: Node, kind: Any, members: tuple[Any, ...], path: str) -> Any:
        mark = len(self.problems)
        choosing = next((plugin_kind(m) for m in members if plugin_kind(m) is not None), None)
        if choosing is not None and self.choose is not None and not _is_empty(node):
            return self.choose(node, choosing, path)
        for member in sorted(members, key=_preference):
            value = self.value(node, member, path)
            if value is not MISSING:
                del self.problems[mark:]
                return value
            if attrs.has(member) and isinstance(node, Mapping):
                return MISSING  # its own mistakes say more than "none of these"
            del self.problems[mark:]
        return self.problem(node.location, _mismatch(node, kind, path))


def _lacking(values: Iterable[Any]) -> bool:
    """Say whether any value is MISSING, without asking arrays and tensors whether they are equal to it."""
    return any(value is MISSING for value in values)


def _is_empty(node: Node) -> bool:
    return isinstance(node, Scalar) and node.value is None


def _preference(kind: Any) -> int:
    """Order in which the members of a union are tried: whatever is strict before text, which takes anything."""
    return 1 if kind in (str, Path, Any) else 0


def _scalar(node: Scalar, kind: Any) -> Any:
    """Return a scalar as a value of a simple type, or MISSING."""
    value = node.value
    if kind is Any:
        return value
    if kind is type(None):
        return None if value is None else MISSING
    if value is None:
        return MISSING
    if kind is str:
        return node.raw
    if kind is Path:
        try:
            return (node.location.folder / Path(node.raw).expanduser()).resolve()
        except (OSError, RuntimeError, ValueError):  # no such user; links in a circle; a null character
            return MISSING
    if typing.get_origin(kind) is Literal:
        return next(
            (c for c in typing.get_args(kind) if c == (node.raw if isinstance(c, str) else value)), MISSING
        )
    if isinstance(value, bool) or kind is bool:
        return value if kind is bool and isinstance(value, bool) else MISSING
    if kind is float and isinstance(value, (int, float)):
        return float(value)
    if kind is int and isinstance(value, (int, float)) and math.isfinite(value) and int(value) == value:
        return int(value)
    return MISSING


def _mismatch(node: Node, kind: Any, path: str) -> str:
    got = f"a list of {len(node.items)}" if isinstance(node, Items) else "a mapping"
    got = _shown(node) if isinstance(node, Scalar) else got
    hint = ""
    if isinstance(node, Scalar) and isinstance(node.value, str):
        members = alternatives(kind)
        if bool in members and node.raw.lower() in _YAML_1_1:
            hint = f" (write {_YAML_1_1[node.raw.lower()]})"
        choices = [c for m in members if typing.get_origin(m) is Literal for c in typing.get_args(m)]
        hint = hint or (did_you_mean(node.raw, map(str, choices)) if choices else "")
    return f"{path or 'the recipe'} must be {words(kind)}, got {got}{hint if '; known' not in hint else ''}"


def _shown(node: Node) -> str:
    assert isinstance(node, Scalar)
    if node.value is None:
        return "nothing"
    raw = node.raw if len(node.raw) <= 60 else node.raw[:57] + "..."
    return f"the text {raw!r}" if isinstance(node.value, str) else raw
