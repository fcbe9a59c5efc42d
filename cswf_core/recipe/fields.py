"""Parameters and the kinds of types they may have.

Each kind of type is a class with three methods: it tells people its name, reads a value from a located node,
and describes itself in JSON Schema. `kind_of` finds the kind of a type; `Reader` collects mistakes and places.
"""

from __future__ import annotations

import abc
import collections.abc
import types
import typing
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, Union

import attrs

from cswf_core.errors import PluginError, did_you_mean
from cswf_core.interfaces import Written
from cswf_core.plugins import KINDS
from cswf_core.recipe.nodes import Items, Location, Mapping, Node, Problem, Scalar

MISSING: Any = object()
"""Stands for a value that could not be read; a problem says why."""

ChoosePlugin = Callable[[Node, str, str], Any]
"""(node, kind of plugin, key path) → the plugin's object, or MISSING."""

_BOUNDS = {"at_least": "minimum", "above": "exclusiveMinimum", "at_most": "maximum"}


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
        value: Any = self.attribute.default
        return value.factory() if hasattr(value, "takes_self") else value

    @property
    def help(self) -> str:
        """A sentence on its meaning."""
        return str(self.attribute.metadata.get("help", ""))

    def schema(self) -> dict[str, Any]:
        """Return its JSON Schema, with help, bounds and default."""
        described = self.kind.schema()
        if not self.required:
            described = {"anyOf": [described, {"type": "null"}]}
        if self.help:
            described["description"] = self.help
        metadata = self.attribute.metadata
        described |= {theirs: metadata[ours] for ours, theirs in _BOUNDS.items() if ours in metadata}
        return described if self.required else {**described, "default": plain(self.default)}


def options(cls: type[Any]) -> dict[str, Option]:
    """Return the parameters of an attrs class by name."""
    try:
        hints = typing.get_type_hints(cls)
    except Exception as error:
        raise PluginError(f"the types of {cls.__module__}.{cls.__qualname__} cannot be read: {error}") from None
    names = {a.alias or a.name: a for a in attrs.fields(cls) if a.init}
    return {name: Option(name, hints.get(a.name, Any), a) for name, a in names.items()}


def object_schema(cls: type[Any]) -> dict[str, Any]:
    """Return the JSON Schema of an attrs class: its parameters as properties."""
    known = options(cls)
    return {
        "type": "object",
        "properties": {name: option.schema() for name, option in known.items()},
        "required": [name for name, option in known.items() if option.required],
        "additionalProperties": False,
    }


def plain(value: Any) -> Any:
    """Return a value as YAML and JSON have it: attrs objects as mappings, tuples as lists, paths as texts."""
    if isinstance(value, Written):
        return str(value)
    if attrs.has(type(value)):
        return {
            name: plain(getattr(value, option.attribute.name)) for name, option in options(type(value)).items()
        }
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, collections.abc.Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    return str(value) if isinstance(value, Path) else value


class Kind(abc.ABC):
    """A kind of type that a parameter may have."""

    takes_any_text = False
    """Whether every text is a value of this kind, so that a union tries it last."""

    @abc.abstractmethod
    def words(self) -> str:
        """Return the type's name for people: 'a whole number'."""

    @abc.abstractmethod
    def schema(self) -> dict[str, Any]:
        """Return the type's JSON Schema."""

    @abc.abstractmethod
    def read(self, node: Node, path: str, reader: Reader) -> Any:
        """Return the value of the node at a key path; MISSING, with a problem, if it has none of this type."""

    def hint(self, text: str) -> str:  # noqa: ARG002 - most kinds have none
        """Return a guess at the value that was meant by a text which is none of this type."""
        return ""


@attrs.frozen
class _Single(Kind):
    """A type of single values: numbers, texts, one of several names."""

    name: str
    json: dict[str, Any]
    convert: Callable[[Scalar], Any]
    """Scalar → value, or MISSING; may raise `ValueError` with a sentence."""
    guess: Callable[[str], str] = lambda _: ""
    takes_any_text: bool = False

    def words(self) -> str:
        return self.name

    def schema(self) -> dict[str, Any]:
        return dict(self.json)

    def read(self, node: Node, path: str, reader: Reader) -> Any:
        try:
            value = self.convert(node) if isinstance(node, Scalar) else MISSING
        except ValueError as error:
            return reader.problem(node.location, f"{path}: {error}")
        return reader.mismatch(node, self, path) if value is MISSING else value

    def hint(self, text: str) -> str:
        return self.guess(text)


@attrs.frozen
class _Plugin(Kind):
    """A plugin, chosen by a parameter of another plugin."""

    kind: str

    def words(self) -> str:
        return f"the name of a {self.kind} or a mapping with 'use'"

    def schema(self) -> dict[str, Any]:
        return {"$ref": f"#/$defs/{self.kind}"}

    def read(self, node: Node, path: str, reader: Reader) -> Any:
        return reader.choose_plugin(node, self.kind, path)


@attrs.frozen
class _List(Kind):
    """A list of any length, whose items have one type."""

    item: Kind

    def words(self) -> str:
        return f"a list, each item {self.item.words()}"

    def schema(self) -> dict[str, Any]:
        return {"type": "array", "items": self.item.schema()}

    def read(self, node: Node, path: str, reader: Reader) -> Any:
        if not isinstance(node, Items):
            return reader.mismatch(node, self, path)
        return reader.items(node, [self.item] * len(node.items), path)


@attrs.frozen
class _Tuple(Kind):
    """A list of a fixed length, whose items have a type each."""

    places: tuple[Kind, ...]

    def words(self) -> str:
        return f"a list of {len(self.places)}: {', '.join(kind.words() for kind in self.places)}"

    def schema(self) -> dict[str, Any]:
        places, length = [kind.schema() for kind in self.places], len(self.places)
        return {"type": "array", "prefixItems": places, "minItems": length, "maxItems": length}

    def read(self, node: Node, path: str, reader: Reader) -> Any:
        if not isinstance(node, Items) or len(node.items) != len(self.places):
            return reader.mismatch(node, self, path)
        return reader.items(node, self.places, path)


@attrs.frozen
class _Dictionary(Kind):
    """A mapping from texts to values of one type."""

    value: Kind

    def words(self) -> str:
        return "a mapping"

    def schema(self) -> dict[str, Any]:
        return {"type": "object", "additionalProperties": self.value.schema()}

    def read(self, node: Node, path: str, reader: Reader) -> Any:
        if not isinstance(node, Mapping):
            return reader.mismatch(node, self, path)
        values = {key: reader.value(e.node, self.value, f"{path}.{key}") for key, e in node.entries.items()}
        return MISSING if _incomplete(values.values()) else values


@attrs.frozen
class _Object(Kind):
    """An object of an attrs class, written as a mapping of its parameters."""

    cls: type[Any]

    def words(self) -> str:
        return f"a mapping with {', '.join(options(self.cls)) or 'no keys'}"

    def schema(self) -> dict[str, Any]:
        return object_schema(self.cls)

    def read(self, node: Node, path: str, reader: Reader) -> Any:
        return reader.object(node, self.cls, path)


@attrs.frozen
class _Union(Kind):
    """A value of one of several types."""

    members: tuple[Kind, ...]

    def words(self) -> str:
        return " or ".join(kind.words() for kind in self.members if kind is not _SINGLE[type(None)])

    def schema(self) -> dict[str, Any]:
        return {"anyOf": [kind.schema() for kind in self.members]}

    def read(self, node: Node, path: str, reader: Reader) -> Any:
        plugin = next((kind for kind in self.members if isinstance(kind, _Plugin)), None)
        if plugin is not None and not _is_empty(node):
            return plugin.read(node, path, reader)
        before = len(reader.problems)
        for kind in sorted(self.members, key=lambda kind: kind.takes_any_text):
            value = kind.read(node, path, reader)
            if value is MISSING and isinstance(kind, _Object) and isinstance(node, Mapping):
                return MISSING  # its own mistakes say more than "none of these"
            del reader.problems[before:]
            if value is not MISSING:
                return value
        return reader.mismatch(node, self, path)

    def hint(self, text: str) -> str:
        return next(filter(None, (kind.hint(text) for kind in self.members)), "")


def kind_of(type_: Any) -> Kind:
    """Return the kind of a type."""
    origin, arguments = typing.get_origin(type_), typing.get_args(type_)
    plugin = next((kind for kind, (_, contract) in KINDS.items() if type_ is contract), None)
    if type_ in _SINGLE:
        return _SINGLE[type_]
    if plugin is not None:
        return _Plugin(plugin)
    if origin in (Union, types.UnionType):
        return _Union(tuple(map(kind_of, arguments)))
    if origin is Literal:
        return _one_of(arguments)
    if isinstance(type_, type) and issubclass(type_, Written):
        return _written(type_)
    if origin is tuple and Ellipsis not in arguments:
        return _Tuple(tuple(map(kind_of, arguments)))
    if type_ in (list, tuple) or origin in (list, tuple, Sequence):
        return _List(kind_of(arguments[0] if arguments else Any))
    if type_ is dict or origin in (dict, collections.abc.Mapping):
        return _Dictionary(kind_of(arguments[1] if arguments else Any))
    if attrs.has(type_):
        return _Object(type_)
    return _Single(str(getattr(type_, "__name__", type_)), {}, lambda _: MISSING)  # recipes cannot write it


def _one_of(values: tuple[Any, ...]) -> Kind:
    """Return the kind of a `Literal`."""

    def convert(node: Scalar) -> Any:
        matches = (v for v in values if v == (node.raw if isinstance(v, str) else node.value))
        return MISSING if node.value is None else next(matches, MISSING)

    def guess(text: str) -> str:
        near = did_you_mean(text, map(str, values))
        return "" if near.startswith("; known") else near  # the sentence lists the values already

    names = ", ".join(map(repr, values))
    return _Single(names if len(values) == 1 else f"one of {names}", {"enum": list(values)}, convert, guess)


def _written(cls: type[Written]) -> Kind:
    """Return the kind of a type whose values are texts of a form of its own."""
    json = {"type": "string", "description": cls.form}
    return _Single(cls.form, json, lambda node: MISSING if node.value is None else cls.from_text(node.raw))


def _number(node: Scalar) -> Any:
    value = node.value
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else MISSING


def _whole_number(node: Scalar) -> Any:
    value = _number(node)
    return int(node.value) if value is not MISSING and value.is_integer() else MISSING  # type: ignore[arg-type]


def _path(node: Scalar) -> Any:
    try:
        path = node.location.folder / Path(node.raw).expanduser()
        return MISSING if node.value is None else path.resolve()
    except (OSError, RuntimeError, ValueError):  # no such user; links in a circle; a null character
        return MISSING


_YAML_1_1 = {"yes": "true", "on": "true", "no": "false", "off": "false"}

_SINGLE: dict[Any, Kind] = {
    bool: _Single(
        "true or false",
        {"type": "boolean"},
        lambda node: node.value if isinstance(node.value, bool) else MISSING,
        lambda text: f" (write {_YAML_1_1[text.lower()]})" if text.lower() in _YAML_1_1 else "",
    ),
    int: _Single("a whole number", {"type": "integer"}, _whole_number),
    float: _Single("a number", {"type": "number"}, _number),
    str: _Single(
        "a text",
        {"type": "string"},
        lambda node: MISSING if node.value is None else node.raw,
        takes_any_text=True,
    ),
    Path: _Single("a path", {"type": "string"}, _path, takes_any_text=True),
    type(None): _Single("nothing", {"type": "null"}, lambda node: None if node.value is None else MISSING),
    Any: _Single("a value", {}, lambda node: node.value, takes_any_text=True),
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
        hint = kind.hint(node.raw) if isinstance(node, Scalar) and isinstance(node.value, str) else ""
        message = f"{path or 'the recipe'} must be {kind.words()}, got {_described(node)}{hint}"
        return self.problem(node.location, message)

    def value(self, node: Node, kind: Kind, path: str) -> Any:
        """Return the value of a kind that a node has; MISSING, with a problem, if it has none."""
        self.origins[path] = node.location
        return kind.read(node, path, self)

    def items(self, node: Items, kinds: Sequence[Kind], path: str) -> Any:
        """Return the values of a list's items, each of its kind, as a tuple; MISSING if one has none."""
        pairs = zip(node.items, kinds, strict=True)
        values = tuple(self.value(item, kind, f"{path}.{i}") for i, (item, kind) in enumerate(pairs))
        return MISSING if _incomplete(values) else values

    def object(
        self, node: Node, cls: type[Any], path: str, owner: str = "", extra: Collection[str] = ()
    ) -> Any:
        """Return a mapping as an object of an attrs class; keys in `extra` are read elsewhere."""
        if _is_empty(node):
            node = Mapping(node.location, {})
        if not isinstance(node, Mapping):
            return self.mismatch(node, _Object(cls), path)
        known = options(cls)
        owner = owner or (f"'{path}'" if path else "")
        self.unknown_keys(node, [*known, *extra], owner)
        values = {name: self._option(node, option, path, owner) for name, option in known.items()}
        if _incomplete(values.values()):
            return MISSING
        try:
            return cls(**values)
        except Exception as error:
            return self.problem(node.location, f"{owner}: {error}" if owner else str(error))

    def unknown_keys(self, node: Mapping, known: Collection[str], owner: str) -> None:
        """Write down every key that is not known, with the nearest one that is."""
        for key, entry in node.entries.items():
            if key not in known:
                hint = "; use 'extends' to build on a recipe" if key == "<<" else did_you_mean(key, known)
                self.problem(entry.location, f"unknown key '{key}'{f' of {owner}' if owner else ''}{hint}")

    def _option(self, node: Mapping, option: Option, path: str, owner: str) -> Any:
        entry = node.entries.get(option.name)
        if entry is None or _is_empty(entry.node):
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


def _is_empty(node: Node) -> bool:
    return isinstance(node, Scalar) and node.value is None


def _described(node: Node) -> str:
    if isinstance(node, Items):
        return f"a list of {len(node.items)}"
    if isinstance(node, Mapping):
        return "a mapping"
    if node.value is None:
        return "nothing"
    raw = node.raw if len(node.raw) <= 60 else node.raw[:57] + "..."
    return f"the text {raw!r}" if isinstance(node.value, str) else raw
