"""Parameters of a plugin class: the fields that recipes write, and what may be wrong with them."""

from __future__ import annotations

import collections.abc
import functools
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, Union

import attrs

from cswf_core.interfaces import Written
from cswf_core.plugins.plugin import KINDS

RESERVED = ("use", "reuse")
"""What a section says besides a plugin's parameters."""

CONTRACTS = tuple(contract for _, contract in KINDS.values())

SINGLE = (bool, int, float, str, Path, type(None), Any)
"""Types of single values."""


@functools.cache
def parameter_fault(plugin: type[Any]) -> str:
    """Return what is wrong with a class's parameters: a taken name, no type, an odd type or default."""
    try:
        hints = typing.get_type_hints(plugin)
    except Exception as error:
        return f"the types of its parameters cannot be read: {error}"
    for field in attrs.fields(plugin):
        fault = _field_fault(field, hints) if field.init else ""
        if fault:
            return fault
    return ""


def _field_fault(field: attrs.Attribute[Any], hints: dict[str, Any]) -> str:
    if (field.alias or field.name) in RESERVED:
        return f"a parameter cannot be called '{field.name}', a recipe's own word"
    if field.name not in hints:
        return f"parameter '{field.name}' has no type"
    odd = unsupported(hints[field.name])
    if odd:
        return (
            f"parameter '{field.name}' has the type {odd}, which recipes cannot write: take int, float, bool, "
            "str, Path, Literal, attrs classes, contracts, or tuples, lists, unions or mappings of these"
        )
    if getattr(field.default, "takes_self", False):
        return f"the default of parameter '{field.name}' depends on the object, so it cannot be shown"
    default = default_of(field)
    if default is not attrs.NOTHING and not _is_plain(default):
        return f"the default of parameter '{field.name}' is a {type(default).__name__}, which YAML has not"
    return ""


def default_of(field: attrs.Attribute[Any]) -> Any:
    """Return a field's default, made if it has to be; `attrs.NOTHING` if there is none."""
    default: Any = field.default
    return default.factory() if hasattr(default, "takes_self") else default


def unsupported(type_: Any, seen: tuple[Any, ...] = ()) -> str:
    """Return the name of a type, or of one inside it, that recipes cannot write; "" if they can."""
    origin, inside = typing.get_origin(type_), typing.get_args(type_)
    if any(type_ is known for known in (*SINGLE, *CONTRACTS, *seen, list, tuple, dict)) or origin is Literal:
        return ""
    if isinstance(type_, type) and issubclass(type_, (Written, *CONTRACTS)):
        return (
            "" if issubclass(type_, Written) else _name(type_)
        )  # a recipe would choose any plugin of the kind
    if origin in (Union, types.UnionType, tuple, list, collections.abc.Sequence):
        return _first(tuple(each for each in inside if each is not Ellipsis), seen)
    if origin in (dict, collections.abc.Mapping) and inside[0] is str:
        return unsupported(inside[1], seen)
    if isinstance(type_, type) and attrs.has(type_):
        try:
            hints = typing.get_type_hints(type_)
        except Exception:
            return _name(type_)
        return _first(tuple(hints.get(f.name, Any) for f in attrs.fields(type_) if f.init), (*seen, type_))
    return _name(type_)


def _first(types_: tuple[Any, ...], seen: tuple[Any, ...]) -> str:
    return next(filter(None, (unsupported(each, seen) for each in types_)), "")


def _name(type_: Any) -> str:
    return type_.__name__ if isinstance(type_, type) and not typing.get_args(type_) else str(type_)


def _is_plain(value: object) -> bool:
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(item) for key, item in value.items())
    return value is None or isinstance(value, (bool, int, float, str, Path)) or attrs.has(type(value))


def plugins_inside(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield the key path and the object of each plugin in a parameter's value, but those inside another."""
    if isinstance(value, CONTRACTS):
        yield path, value
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from plugins_inside(item, f"{path}.{index}")
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from plugins_inside(item, f"{path}.{key}")
    elif attrs.has(type(value)):
        yield from plugins_below(value, f"{path}.")


def plugins_below(part: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the key path and the object of each plugin among the parameters of an object, and inside these."""
    for field in attrs.fields(type(part)):
        if field.init:
            yield from plugins_inside(getattr(part, field.name), f"{prefix}{field.alias or field.name}")
