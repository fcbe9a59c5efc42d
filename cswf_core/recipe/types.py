"""The types a parameter may have: how each is named, read from a node, and written in a JSON Schema."""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Union

import attrs

from cswf_core.errors import PluginError
from cswf_core.interfaces import Written
from cswf_core.plugins import KINDS


@attrs.frozen
class Option:
    """One parameter of an attrs class: its name in recipes, its type, and what is said about it."""

    name: str
    type: Any
    attribute: attrs.Attribute[Any] = attrs.field(repr=False)

    @property
    def required(self) -> bool:
        """Whether a recipe must give it."""
        return self.attribute.default is attrs.NOTHING

    @property
    def default(self) -> Any:
        """The value it has when left out; only for parameters that are not required."""
        value: Any = self.attribute.default
        return value.factory() if hasattr(value, "takes_self") else value

    @property
    def help(self) -> str:
        """What it means."""
        return str(self.attribute.metadata.get("help", ""))


def options(cls: type[Any]) -> dict[str, Option]:
    """Return the parameters of an attrs class by name."""
    try:
        hints = typing.get_type_hints(cls)
    except Exception as error:
        raise PluginError(f"the types of {cls.__module__}.{cls.__qualname__} cannot be read: {error}") from None
    found = {}
    for attribute in attrs.fields(cls):
        if attribute.init:
            name = attribute.alias or attribute.name
            found[name] = Option(name, hints.get(attribute.name, Any), attribute)
    return found


def alternatives(kind: Any) -> tuple[Any, ...]:
    """Return the members of a union, or the type itself."""
    if typing.get_origin(kind) in (Union, types.UnionType):
        return typing.get_args(kind)
    return (kind,)


def item_type(kind: Any) -> Any | None:
    """Return what a list or tuple type holds; None for any other type."""
    if kind in (list, tuple):
        return Any
    if typing.get_origin(kind) in (list, tuple, Sequence):
        arguments = typing.get_args(kind)
        return arguments[0] if arguments else Any
    return None


def fixed_length(kind: Any) -> int | None:
    """Return how many items a tuple type has; None if any number."""
    arguments = typing.get_args(kind)
    fixed = typing.get_origin(kind) is tuple and Ellipsis not in arguments
    return len(arguments) if fixed else None


def item_types(kind: Any, count: int) -> tuple[Any, ...]:
    """Return the type of each of `count` items of a list or tuple type."""
    return (item_type(kind),) * count if fixed_length(kind) is None else typing.get_args(kind)


def value_type(kind: Any) -> Any | None:
    """Return what a mapping type holds under its texts; None for any other type."""
    if kind is dict:
        return Any
    if typing.get_origin(kind) in (dict, Mapping):
        return typing.get_args(kind)[1]
    return None


def plugin_kind(kind: Any) -> str | None:
    """Return the kind of plugin that a parameter of this type chooses; None for any other type."""
    return next((name for name, (_, contract) in KINDS.items() if kind is contract), None)


def is_written(kind: Any) -> bool:
    """Say whether values of a type are written as a text of their own form."""
    return isinstance(kind, type) and issubclass(kind, Written)


_WORDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    Path: "a path",
    type(None): "nothing",
    Any: "a value",
}


def words(kind: Any) -> str:
    """Name a type for people: 'a whole number', "one of 'a', 'b'"."""
    members = [member for member in alternatives(kind) if member is not type(None)]
    if len(members) > 1:
        return " or ".join(words(member) for member in members)
    kind = members[0] if members else kind
    if kind in _WORDS:
        return _WORDS[kind]
    plugin = plugin_kind(kind)
    if plugin is not None:
        return f"the name of a {plugin} or a mapping with 'use'"
    if is_written(kind):
        return str(kind.form)
    if typing.get_origin(kind) is Literal:
        choices = [repr(choice) for choice in typing.get_args(kind)]
        return choices[0] if len(choices) == 1 else "one of " + ", ".join(choices)
    item = item_type(kind)
    if item is not None:
        if fixed_length(kind) is None:
            return f"a list, each item {words(item)}"
        return f"a list of {fixed_length(kind)}: {', '.join(map(words, typing.get_args(kind)))}"
    if value_type(kind) is not None:
        return "a mapping"
    if attrs.has(kind):
        return f"a mapping with {', '.join(options(kind)) or 'no keys'}"
    return getattr(kind, "__name__", str(kind))


def schema(kind: Any) -> dict[str, Any]:
    """Return the JSON Schema of a type."""
    members = alternatives(kind)
    if len(members) > 1:
        return {"anyOf": [schema(member) for member in members]}
    simple = {
        bool: "boolean",
        int: "integer",
        float: "number",
        str: "string",
        Path: "string",
        type(None): "null",
    }
    if kind in simple:
        return {"type": simple[kind]}
    if plugin_kind(kind) is not None:
        return {"$ref": f"#/$defs/{plugin_kind(kind)}"}
    if is_written(kind):
        return {"type": "string", "description": kind.form}
    if typing.get_origin(kind) is Literal:
        return {"enum": list(typing.get_args(kind))}
    item = item_type(kind)
    if item is not None:
        length = fixed_length(kind)
        if length is None:
            return {"type": "array", "items": schema(item)}
        places = [schema(place) for place in item_types(kind, length)]
        return {"type": "array", "prefixItems": places, "minItems": length, "maxItems": length}
    held = value_type(kind)
    if held is not None:
        return {"type": "object", "additionalProperties": schema(held)}
    return object_schema(kind) if attrs.has(kind) else {}


def object_schema(cls: type[Any]) -> dict[str, Any]:
    """Return the JSON Schema of an attrs class: its parameters as properties."""
    properties: dict[str, Any] = {}
    for name, option in options(cls).items():
        bounds = {"at_least": "minimum", "above": "exclusiveMinimum", "at_most": "maximum"}
        described = schema(option.type)
        if not option.required:
            described = {"anyOf": [described, {"type": "null"}]}
        if option.help:
            described["description"] = option.help
        for ours, theirs in bounds.items():
            if ours in option.attribute.metadata:
                described[theirs] = option.attribute.metadata[ours]
        properties[name] = described
        if not option.required:
            described["default"] = plain(option.default)
    required = [name for name, option in options(cls).items() if option.required]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def plain(value: Any) -> Any:
    """Return a value as what YAML and JSON know: attrs objects as mappings, tuples as lists, paths as texts."""
    if isinstance(value, Written):
        return str(value)
    if attrs.has(type(value)):
        return {
            name: plain(getattr(value, option.attribute.name)) for name, option in options(type(value)).items()
        }
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    return str(value) if isinstance(value, Path) else value
