"""Parameters and the kinds of types they may have.

A kind of type has a name for people, a JSON Schema, and a function that reads a value from a located node.
`kind_of` finds the kind of a type; `Reader` collects mistakes and places.
"""

from __future__ import annotations

import collections.abc
import types
import typing
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, Union

import attrs

from cswf_core.errors import PluginError, did_you_mean, excerpt, nearest, printable
from cswf_core.files import is_text
from cswf_core.interfaces import Written
from cswf_core.numbers import LARGEST, number_hint
from cswf_core.plugins import KINDS, Registry
from cswf_core.plugins.parameters import CONTRACTS, default_of
from cswf_core.recipe.nodes import DEEPEST, TOO_DEEP, Items, Location, Mapping, Node, Problem, Scalar, is_null

MISSING: Any = object()
"""Stands for a value that could not be read; a problem says why."""

MISMATCH: Any = object()
"""Stands for a value that a node does not have, before a problem says so."""

ChoosePlugin = Callable[[Node, str, str], Any]
"""(node, kind of plugin, key path) → the plugin's object, or MISSING."""

WrittenPlugin = Callable[[Any], Any]
"""A plugin's object → how YAML has it."""

_CONTRACTS = {contract: kind for kind, (_, contract) in KINDS.items()}
BOUNDS = {"at_least": "minimum", "above": "exclusiveMinimum", "at_most": "maximum"}
"""The limits that `parameter` takes, each with its name in JSON Schema."""


@attrs.frozen
class Option:
    """One parameter of an attrs class: its name in recipes, its type, its default and its help."""

    name: str
    type: Any
    attribute: attrs.Attribute[Any] = attrs.field(repr=False)

    @property
    def kind(self) -> Kind:
        """The kind of its type."""
        return kind_of(self.type)

    @property
    def required(self) -> bool:
        """Whether a recipe must give it."""
        return self.attribute.default is attrs.NOTHING

    @property
    def default(self) -> Any:
        """The value it has when left out; only for parameters that are not required."""
        return default_of(self.attribute)

    @property
    def help(self) -> str:
        """A sentence on its meaning."""
        return str(self.attribute.metadata.get("help", ""))

    @property
    def bounds(self) -> dict[str, Any]:
        """The limits of its values: `at_least`, `above`, `at_most`."""
        return {name: self.attribute.metadata[name] for name in BOUNDS if name in self.attribute.metadata}

    def schema(self, written: WrittenPlugin | None = None) -> dict[str, Any]:
        """Return its JSON Schema, with help, bounds and default; `written` as in `plain`."""
        described = self.kind.schema()
        if not self.required:
            described = {"anyOf": [described, {"type": "null"}]}
        if self.help:
            described["description"] = self.help
        described |= {BOUNDS[name]: bound for name, bound in self.bounds.items()}
        return described if self.required else {**described, "default": plain(self.default, written)}


_OPTIONS: dict[type[Any], dict[str, Option]] = {}
"""The parameters of the classes that were asked about: most of a recipe's reading was finding them again."""


def options(cls: type[Any]) -> collections.abc.Mapping[str, Option]:
    """Return the parameters of an attrs class by name."""
    if cls in _OPTIONS:
        return _OPTIONS[cls]
    try:
        hints = typing.get_type_hints(cls)
    except Exception as error:
        raise PluginError(f"the types of {cls.__module__}.{cls.__qualname__} cannot be read: {error}") from None
    names = {a.alias or a.name: a for a in attrs.fields(cls) if a.init}
    _OPTIONS[cls] = {name: Option(name, hints.get(a.name, Any), a) for name, a in names.items()}
    return _OPTIONS[cls]


def object_schema(cls: type[Any], written: WrittenPlugin | None = None) -> dict[str, Any]:
    """Return the JSON Schema of an attrs class: its parameters as properties; `written` as in `plain`."""
    known = options(cls)
    return {
        "type": "object",
        "properties": {name: option.schema(written) for name, option in known.items()},
        "required": [name for name, option in known.items() if option.required],
        "additionalProperties": False,
    }


def plain(value: Any, written: WrittenPlugin | None = None) -> Any:
    """Return a value as YAML and JSON have it: attrs objects as mappings, tuples as lists, paths as texts.

    `written` says how an object is written that is a plugin.
    """
    if isinstance(value, Written):
        return str(value)
    if written is not None and isinstance(value, CONTRACTS):
        return written(value)
    if attrs.has(type(value)):
        return parameters(value, written)
    if isinstance(value, (list, tuple)):
        return [plain(item, written) for item in value]
    if isinstance(value, collections.abc.Mapping):
        return {str(key): plain(item, written) for key, item in value.items()}
    return str(value) if isinstance(value, Path) else value


def parameters(part: Any, written: WrittenPlugin | None = None) -> dict[str, Any]:
    """Return the parameters of an object by name, each as `plain` has it."""
    values = {name: getattr(part, option.attribute.name) for name, option in options(type(part)).items()}
    return {name: plain(value, written) for name, value in values.items()}


def by_name(registry: Registry) -> WrittenPlugin:
    """Return what writes a plugin's object as recipes would: with `use`, its registered name."""

    def written(part: Any) -> dict[str, Any]:
        return {"use": registry.name_of(registry.plugin_of(part).owner), **parameters(part, written)}

    return written


@attrs.frozen
class Kind:
    """A kind of type that a parameter may have."""

    words: str
    """Its name for people: 'a whole number'."""
    schema: Callable[[], dict[str, Any]]
    """Returns its JSON Schema."""
    read: Callable[[Any, str, Reader], Any]
    """(node, key path, reader) → value; MISMATCH if there is none, MISSING if a problem says so already."""
    nodes: Any = Scalar
    """The nodes that it reads: `Scalar`, `Items`, `Mapping`, or all of them."""
    hint: Callable[[str], str] = lambda _: ""
    """A text that is no value of it → a guess at the one that was meant."""
    takes_any_text: bool = False
    """Whether every text is a value of it, so that a union tries it last."""
    explains: bool = False
    """Whether its own mistakes in a mapping say more than that the mapping is none of a union's types."""


def kind_of(type_: Any) -> Kind:
    """Return the kind of a type."""
    origin, arguments = typing.get_origin(type_), typing.get_args(type_)
    if type_ in _SINGLE:
        return _SINGLE[type_]
    if type_ in _CONTRACTS:
        return _plugin(_CONTRACTS[type_])
    if origin in (Union, types.UnionType):
        return _union(arguments)
    if origin is Literal:
        return _one_of(arguments)
    if isinstance(type_, type) and issubclass(type_, Written):
        return _written(type_)
    if origin is tuple and Ellipsis not in arguments:
        return _tuple([kind_of(place) for place in arguments])
    if type_ in (list, tuple) or origin in (list, tuple, Sequence):
        return _list(kind_of(arguments[0] if arguments else Any))
    if type_ is dict or origin in (dict, collections.abc.Mapping):
        return _dictionary(kind_of(arguments[1] if arguments else Any))
    if attrs.has(type_):
        return _object(type_)
    return Kind(str(getattr(type_, "__name__", type_)), dict, lambda *_: MISMATCH)  # recipes cannot write it


def _plugin(kind: str) -> Kind:
    return Kind(
        f"the name of a {kind} or a mapping with 'use'",
        lambda: {"$ref": f"#/$defs/{kind}"},
        lambda node, path, reader: reader.choose_plugin(node, kind, path),
        nodes=object,
    )


def _list(item: Kind) -> Kind:
    return Kind(
        f"a list, each item {item.words}",
        lambda: {"type": "array", "items": item.schema()},
        lambda node, path, reader: reader.items(node, [item] * len(node.items), path),
        nodes=Items,
        hint=lambda text: f" (write [{excerpt(text)}])",
    )


def _tuple(places: Sequence[Kind]) -> Kind:
    sizes = {"minItems": len(places), "maxItems": len(places)}
    return Kind(
        f"a list of {len(places)}: {', '.join(kind.words for kind in places)}",
        lambda: {"type": "array", "prefixItems": [kind.schema() for kind in places], **sizes},
        lambda node, path, reader: reader.items(node, places, path),
        nodes=Items,
    )


def _dictionary(value: Kind) -> Kind:
    def read(node: Mapping, path: str, reader: Reader) -> Any:
        values = {key: reader.value(e.node, value, f"{path}.{key}") for key, e in node.entries.items()}
        return MISSING if _incomplete(values.values()) else values

    return Kind(
        "a mapping", lambda: {"type": "object", "additionalProperties": value.schema()}, read, nodes=Mapping
    )


def _object(cls: type[Any]) -> Kind:
    return Kind(
        f"a mapping with {', '.join(options(cls)) or 'no keys'}",
        lambda: object_schema(cls),
        lambda node, path, reader: reader.object(node, cls, path),
        nodes=object,
        explains=True,
    )


def _union(members: tuple[Any, ...]) -> Kind:
    kinds = {member: kind_of(member) for member in members}
    plugin = next((kind for member, kind in kinds.items() if member in _CONTRACTS), None)

    def read(node: Node, path: str, reader: Reader) -> Any:
        if plugin is not None and not is_null(node):
            return reader.value(node, plugin, path)
        before = len(reader.problems)
        for kind in sorted(kinds.values(), key=lambda kind: kind.takes_any_text):
            value = reader.value(node, kind, path)
            if kind.explains and isinstance(node, Mapping):
                return value  # with what is wrong in the mapping, such as a key that is not known
            del reader.problems[before:]
            if value is not MISSING:
                return value
        return MISMATCH

    return Kind(
        " or ".join(kind.words for member, kind in kinds.items() if member is not type(None)),
        lambda: {"anyOf": [kind.schema() for kind in kinds.values()]},
        read,
        nodes=object,
        hint=lambda text: next(filter(None, (k.hint(text) for k in kinds.values() if k.nodes != Items)), ""),
    )


def _one_of(values: tuple[Any, ...]) -> Kind:
    def read(node: Scalar, *_: object) -> Any:
        matches = (v for v in values if v == (node.raw if isinstance(v, str) else node.value))
        return MISMATCH if node.value is None else next(matches, MISMATCH)

    names = ", ".join(map(repr, values))
    return Kind(
        names if len(values) == 1 else f"one of {names}",
        lambda: {"enum": list(values)},
        read,
        hint=lambda text: nearest(text, (value for value in values if isinstance(value, str))),
    )


def _written(cls: type[Written]) -> Kind:
    def read(node: Scalar, path: str, reader: Reader) -> Any:
        try:
            return MISMATCH if node.value is None else cls.from_text(node.raw)
        except ValueError as error:
            return reader.problem(node.location, f"{path}: {error}")

    return Kind(cls.form, lambda: {"type": "string", "description": cls.form}, read)


def _truth(node: Scalar, *_: object) -> Any:
    return node.value if isinstance(node.value, bool) else MISMATCH


def _number(node: Scalar, *_: object) -> Any:
    value = node.value
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else MISMATCH


def _whole_number(node: Scalar, path: str, reader: Reader) -> Any:
    value = _number(node)
    if value is MISMATCH or not value.is_integer():
        return MISMATCH
    whole = int(node.value)  # type: ignore[arg-type]
    if abs(whole) > LARGEST:
        return reader.problem(
            node.location, f"{path} is too large, {node.raw}: 64 bits hold {LARGEST:,} at most"
        )
    return whole


def _nothing(node: Scalar, *_: object) -> Any:
    return None if node.value is None else MISMATCH


def _text(node: Scalar, *_: object) -> Any:
    return MISMATCH if node.value is None else node.raw


def _path(node: Scalar, path: str, reader: Reader) -> Any:
    try:
        place = (node.location.folder / Path(node.raw).expanduser()).resolve()
    except (OSError, RuntimeError, ValueError):  # no such user; links in a circle; a null character
        return MISMATCH
    if node.value is None:
        return MISMATCH
    if not is_text(str(place)):  # as YAML it could not be read again
        named = f"{path} leads to {printable(str(place))}, a name that is no text (UTF-8)"
        return reader.problem(node.location, f"{named}; rename it, as recipes write it down")
    return place


def _write_true_or_false(text: str) -> str:
    """Return a hint for the truth values of YAML 1.1."""
    meant = {"yes": "true", "on": "true", "no": "false", "off": "false"}.get(text.lower())
    return f" (write {meant})" if meant else ""


_whole_number_hint = partial(number_hint, whole=True)

_SINGLE: dict[Any, Kind] = {
    bool: Kind("true or false", lambda: {"type": "boolean"}, _truth, hint=_write_true_or_false),
    int: Kind("a whole number", lambda: {"type": "integer"}, _whole_number, hint=_whole_number_hint),
    float: Kind("a number", lambda: {"type": "number"}, _number, hint=number_hint),
    str: Kind("a text", lambda: {"type": "string"}, _text, takes_any_text=True),
    Path: Kind("a path", lambda: {"type": "string"}, _path, takes_any_text=True),
    type(None): Kind("nothing", lambda: {"type": "null"}, _nothing),
    Any: Kind("a value", dict, lambda node, *_: node.value, takes_any_text=True),
}


class Reader:
    """Reads nodes as typed values; collects the place of each value and every mistake."""

    def __init__(self, problems: list[Problem], choose_plugin: ChoosePlugin, *, complete: bool = True) -> None:
        """`complete` says whether all keys are there, so that one that is not seen is missing."""
        self.problems = problems
        self.complete = complete
        self.choose_plugin = choose_plugin
        self.origins: dict[str, Location] = {}

    def problem(self, location: Location, message: str) -> Any:
        """Write a mistake down and return MISSING."""
        self.problems.append(Problem(location, message))
        return MISSING

    def missing(self, location: Location, key: str, owner: str = "") -> Any:
        """Write down that a key is missing, if that is certain, and return MISSING."""
        if self.complete:
            self.problem(location, f"missing key '{key}'{f' of {owner}' if owner else ''}")
        return MISSING

    def mismatch(self, node: Node, kind: Kind, path: str) -> Any:
        """Write down that a node has no value of a kind and return MISSING."""
        hint = kind.hint(node.raw) if isinstance(node, Scalar) and node.value is not None else ""
        message = f"{path or 'the recipe'} must be {kind.words}, got {_described(node)}{hint}"
        return self.problem(node.location, message)

    def value(self, node: Node, kind: Kind, path: str) -> Any:
        """Return the value of a kind that a node has; MISSING, with a problem, if it has none."""
        self.origins[path] = node.location
        value = kind.read(node, path, self) if isinstance(node, kind.nodes) else MISMATCH
        return self.mismatch(node, kind, path) if value is MISMATCH else value

    def items(self, node: Items, kinds: Sequence[Kind], path: str) -> Any:
        """Return the values of a list's items, each of its kind, as a tuple; MISSING if one has none."""
        if len(kinds) != len(node.items):
            return MISMATCH
        pairs = zip(node.items, kinds, strict=True)
        values = tuple(self.value(item, kind, f"{path}.{i}") for i, (item, kind) in enumerate(pairs))
        return MISSING if _incomplete(values) else values

    def object(
        self,
        node: Node,
        cls: type[Any],
        path: str,
        owner: str = "",
        extra: Collection[str] = (),
        others: Callable[[str], str] | None = None,
    ) -> Any:
        """Return a mapping as an object of an attrs class; keys in `extra` are read elsewhere.

        `others` says of an unknown key who else would know it, if anyone.
        """
        if is_null(node):
            node = Mapping(node.location, {})
        if not isinstance(node, Mapping):
            return self.mismatch(node, _object(cls), path)
        if path.count(".") + 3 > DEEPEST:  # recipe.yaml has all its parameters, and their items
            return self.problem(node.location, TOO_DEEP)
        known = options(cls)
        owner = owner or (f"'{path}'" if path else "")
        for key, entry in node.entries.items():
            if key not in known and key not in extra:
                near = (others(key) if others else "") or did_you_mean(key, [*known, *extra])
                hint = "; use 'extends' to build on a recipe" if key == "<<" else near
                self.problem(entry.location, f"unknown key '{key}'{f' of {owner}' if owner else ''}{hint}")
        values = {name: self._option(node, option, path, owner) for name, option in known.items()}
        if _incomplete(values.values()):
            return MISSING
        try:
            return cls(**values)
        except Exception as error:
            return self.problem(node.location, f"{owner}: {error}" if owner else str(error))

    def _option(self, node: Mapping, option: Option, path: str, owner: str) -> Any:
        entry = node.entries.get(option.name)
        if entry is None or is_null(entry.node):
            if option.required:
                return self.missing(node.location if entry is None else entry.location, option.name, owner)
            return option.default
        value = self.value(entry.node, option.kind, f"{path}.{option.name}" if path else option.name)
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


def _incomplete(values: Iterable[Any]) -> bool:
    """Say whether any value is MISSING, without asking arrays and tensors whether they are equal to it."""
    return any(value is MISSING for value in values)


def _described(node: Node) -> str:
    if isinstance(node, Items):
        return f"a list of {len(node.items)}"
    if isinstance(node, Mapping):
        return "a mapping"
    if node.value is None:
        return "nothing"
    raw = excerpt(node.raw)
    return f"the text {raw!r}" if isinstance(node.value, str) else raw
