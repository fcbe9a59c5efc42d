"""Fields of attrs classes, and values read as the types of these fields say: from recipes and from JSON.

A kind of type has a name for people, a JSON Schema, and a function that reads a value; `kind_of` finds the kind
of a type. A `Decoder` goes through what is written: nodes of recipes, which have places, or plain JSON.
"""

from __future__ import annotations

import collections.abc
import json
import sys
import types
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Annotated, Any, Literal, Union

import attrs

from cswf_core import nodes
from cswf_core.checks import ADAPTERS
from cswf_core.errors import PluginError, did_you_mean, excerpt, nearest, printable
from cswf_core.files import is_text
from cswf_core.interfaces import Written
from cswf_core.nodes import DEEPEST, TOO_DEEP, Items, Location, RecipeError, Scalar, is_null
from cswf_core.numbers import LARGEST, number_hint

MISMATCH: Any = object()
"""Stands for a value that is not there, before an error says so."""

CONTRACTS = {contract: kind for kind, contract, _ in ADAPTERS}

BOUNDS = {"at_least": "minimum", "above": "exclusiveMinimum", "at_most": "maximum"}
"""The limits that `parameter` takes, each with its name in JSON Schema."""

WrittenPlugin = Callable[[Any], Any]
"""A plugin's object → how YAML has it."""


class MisfitError(ValueError):
    """A value that does not fit: where it stands, what it should be, and what it is."""


@attrs.frozen
class Rule:
    """What a value must be beyond its type, as in `Annotated[int, Rule("1 or more", …)]`."""

    words: str
    """As a sentence goes on: '1 or more'."""
    holds: Callable[[Any], bool]


@attrs.frozen(eq=False)
class Kind:
    """A kind of type that a field may have."""

    words: str
    """Its name for people: 'a whole number'."""
    schema: Callable[[], dict[str, Any]]
    """Returns its JSON Schema."""
    read: Callable[[Any, str, Any], Any]
    """(what is written, key path, decoder) → value; MISMATCH if it has none."""
    form: Literal["single", "any text", "list", "mapping", "object", "plugin", "union", "unsupported"] = (
        "single"
    )
    """What is written for it. Every text is a value of 'any text', so that a union tries it last."""
    in_json: str = ""
    """Its name in errors about JSON, if that is another."""
    hint: Callable[[str], str] = lambda _: ""
    """A text that is no value of it → a guess at the one that was meant."""
    inside: Callable[[], Iterable[Any]] = tuple
    """Returns the types of the values inside."""


@attrs.frozen
class Option:
    """One parameter of an attrs class: its name in recipes, its type, its default and its help."""

    name: str
    type: Any
    attribute: attrs.Attribute[Any] = attrs.field(repr=False)

    @cached_property
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


_OPTIONS: dict[type[Any], Mapping[str, Option]] = {}
"""The parameters of the classes that were asked about: most of a recipe's reading was finding them again."""


def options(cls: type[Any]) -> Mapping[str, Option]:
    """Return the parameters of an attrs class by name."""
    if cls in _OPTIONS:
        return _OPTIONS[cls]
    try:
        hints = typing.get_type_hints(cls, include_extras=True)
    except Exception as error:
        raise PluginError(f"the types of {cls.__module__}.{cls.__qualname__} cannot be read: {error}") from None
    names = {a.alias or a.name: a for a in attrs.fields(cls) if a.init}
    _OPTIONS[cls] = {name: Option(name, hints.get(a.name, Any), a) for name, a in names.items()}
    return _OPTIONS[cls]


def default_of(field: attrs.Attribute[Any]) -> Any:
    """Return a field's default, made if it has to be; `attrs.NOTHING` if there is none."""
    default: Any = field.default
    return default.factory() if hasattr(default, "takes_self") else default


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
    if written is not None and isinstance(value, tuple(CONTRACTS)):
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
    known = options(type(part))
    return {name: plain(getattr(part, option.attribute.name), written) for name, option in known.items()}


def plugins_inside(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield the key path and the object of each plugin in a parameter's value, but those inside another."""
    if isinstance(value, tuple(CONTRACTS)):
        yield path, value
    elif isinstance(value, (list, tuple, dict)):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from plugins_inside(item, f"{path}.{key}")
    elif attrs.has(type(value)):
        yield from plugins_below(value, f"{path}.")


def plugins_below(part: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the key path and the object of each plugin among the parameters of an object, and inside these."""
    for field in attrs.fields(type(part)):
        if field.init:
            yield from plugins_inside(getattr(part, field.name), f"{prefix}{field.alias or field.name}")


@cache
def parameter_fault(plugin: type[Any]) -> str:
    """Return what is wrong with a class's parameters: a taken name, no type, an odd type or default."""
    try:
        hints = typing.get_type_hints(plugin)
    except Exception as error:
        return f"the types of its parameters cannot be read: {error}"
    faults = (_field_fault(field, hints) for field in attrs.fields(plugin) if field.init)
    return next(filter(None, faults), "")


def _field_fault(field: attrs.Attribute[Any], hints: dict[str, Any]) -> str:
    if (field.alias or field.name) in ("use", "reuse"):
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


def _is_plain(value: object) -> bool:
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(item) for key, item in value.items())
    return value is None or isinstance(value, (bool, int, float, str, Path)) or attrs.has(type(value))


def unsupported(type_: Any, seen: tuple[Any, ...] = ()) -> str:
    """Return the name of a type, or of one inside it, that recipes cannot write; "" if they can."""
    if any(type_ is known for known in seen):
        return ""
    kind = kind_of(type_)
    if kind.form == "unsupported":
        return type_.__name__ if isinstance(type_, type) and not typing.get_args(type_) else str(type_)
    return next(filter(None, (unsupported(each, (*seen, type_)) for each in kind.inside())), "")


def kind_of(type_: Any) -> Kind:
    """Return the kind of a type."""
    origin = typing.get_origin(type_)
    arguments = typing.get_args(type_)
    if type_ in SINGLE:
        return SINGLE[type_]
    if type_ in CONTRACTS:
        return _plugin(CONTRACTS[type_])
    if origin is Annotated:
        return _ruled(kind_of(arguments[0]), type_.__metadata__)
    if origin in (Union, types.UnionType):
        return _union(arguments)
    if origin is Literal:
        return _one_of(arguments)
    if origin is tuple and Ellipsis not in arguments:
        return _tuple(arguments)
    if type_ in (list, tuple) or origin in (list, tuple, Sequence):
        return _list(arguments[0] if arguments else Any, list if list in (type_, origin) else tuple)
    if type_ is dict or (origin in (dict, Mapping) and kind_of(arguments[0]).words == SINGLE[str].words):
        return _dictionary(*(arguments or (str, Any)))
    if isinstance(type_, type) and issubclass(type_, Written):
        return _written(type_)
    if isinstance(type_, type) and attrs.has(type_) and not issubclass(type_, tuple(CONTRACTS)):
        with suppress(PluginError):  # types that cannot be read
            return _object(type_)
    # Recipes cannot write it: nor one class of a contract, as they would choose any plugin of the kind.
    return Kind(str(getattr(type_, "__name__", type_)), dict, lambda *_: MISMATCH, "unsupported")


def _plugin(kind: str) -> Kind:
    return Kind(
        f"the name of a {kind} or a mapping with 'use'",
        lambda: {"$ref": f"#/$defs/{kind}"},
        lambda node, path, decoder: decoder.inner_plugin(node, kind, path),
        "plugin",
    )


def _ruled(kind: Kind, rules: Iterable[object]) -> Kind:
    def read(node: Any, path: str, decoder: Decoder) -> Any:
        value = kind.read(node, path, decoder)
        for rule in rules:
            if value is not MISMATCH and isinstance(rule, Rule) and not rule.holds(value):
                raise decoder.misfit(value if decoder.strict else node, path, rule.words)
        return value

    return attrs.evolve(kind, read=read)


def _list(type_: Any, container: type[Any]) -> Kind:
    item = kind_of(type_)

    def read(node: Any, path: str, decoder: Decoder) -> Any:
        items = items_of(node)
        if items is None:
            return MISMATCH
        values = decoder.values(dict(enumerate(items)), [item] * len(items), path)
        return values if container is list and decoder.strict else tuple(values)

    return Kind(
        f"a list, each item {item.words}",
        lambda: {"type": "array", "items": item.schema()},
        read,
        "list",
        "a list",
        lambda text: f" (write [{excerpt(text)}])",
        lambda: (type_,),
    )


def _tuple(places: Sequence[Any]) -> Kind:
    kinds = [kind_of(place) for place in places]
    sizes = {"minItems": len(kinds), "maxItems": len(kinds)}

    def read(node: Any, path: str, decoder: Decoder) -> Any:
        items = items_of(node)
        if items is None or len(items) != len(kinds):
            return MISMATCH
        return tuple(decoder.values(dict(enumerate(items)), kinds, path))

    return Kind(
        f"a list of {len(kinds)}: {', '.join(kind.words for kind in kinds)}",
        lambda: {"type": "array", "prefixItems": [kind.schema() for kind in kinds], **sizes},
        read,
        "list",
        inside=lambda: places,
    )


def _dictionary(keys: Any, values: Any) -> Kind:
    key_kind = kind_of(keys)
    kind = kind_of(values)

    def read(node: Any, path: str, decoder: Decoder) -> Any:
        entries = entries_of(node)
        if entries is None:
            return MISMATCH
        if decoder.strict:  # those of recipes are texts, and no rules are made for them
            decoder.every(partial(decoder.value, key, key_kind, path) for key in entries)
        return dict(zip(entries, decoder.values(entries, [kind] * len(entries), path), strict=True))

    return Kind(
        "a mapping",
        lambda: {"type": "object", "additionalProperties": kind.schema()},
        read,
        "mapping",
        "an object",
        inside=lambda: (values,),
    )


def _object(cls: type[Any]) -> Kind:
    return Kind(
        f"a mapping with {', '.join(options(cls)) or 'no keys'}",
        lambda: object_schema(cls),
        lambda node, path, decoder: decoder.object(node, cls, path),
        "object",
        "an object",
        inside=lambda: [option.type for option in options(cls).values()],
    )


def _union(members: tuple[Any, ...]) -> Kind:
    kinds = [kind_of(member) for member in members]
    return Kind(
        " or ".join(kind.words for kind in kinds if kind is not NOTHING),
        lambda: {"anyOf": [kind.schema() for kind in kinds]},
        lambda node, path, decoder: decoder.member(node, kinds, path),
        "union",
        hint=lambda text: next(filter(None, (k.hint(text) for k in kinds if k.form != "list")), ""),
        inside=lambda: members,
    )


def _one_of(values: tuple[Any, ...]) -> Kind:
    def read(node: Any, _: str, decoder: Decoder) -> Any:
        meant = single(node)
        for value in values:
            alike = value == (text_of(node) if isinstance(value, str) else meant)
            if alike and meant is not None and (type(meant) is type(value) or not decoder.strict):
                return value
        return MISMATCH

    names = ", ".join(map(repr, values))
    return Kind(
        names if len(values) == 1 else f"one of {names}",
        lambda: {"enum": list(values)},
        read,
        in_json=f"one of {', '.join(map(json.dumps, values))}",
        hint=lambda text: nearest(text, (value for value in values if isinstance(value, str))),
    )


def _written(cls: type[Written]) -> Kind:
    def read(node: Any, path: str, decoder: Decoder) -> Any:
        text = text_of(node)
        try:
            return MISMATCH if text is None else cls.from_text(text)
        except ValueError as error:
            raise decoder.fault(node, f"{path}: {error}") from None

    return Kind(cls.form, lambda: {"type": "string", "description": cls.form}, read)


def _truth(node: Any, *_: object) -> Any:
    value = single(node)
    return value if isinstance(value, bool) else MISMATCH


def _number(node: Any, *_: object) -> Any:
    value = single(node)
    fits = type(value) in (int, float) and abs(value) <= sys.float_info.max
    return float(value) if fits else MISMATCH


def _whole_number(node: Any, path: str, decoder: Decoder) -> Any:
    value = single(node)
    if type(value) is float and value.is_integer() and not decoder.strict:  # such as 1e3
        value = int(value)
    if type(value) is int and abs(value) > LARGEST and not decoder.strict:
        fault = f"{path} is too large, {node.raw}: 64 bits hold {LARGEST:,} at most"
        raise decoder.fault(node, fault)
    return value if type(value) is int and abs(value) <= LARGEST else MISMATCH


def _path(node: Any, path: str, decoder: Decoder) -> Any:
    """Return a path; one that is not absolute counts from the folder of the file that it is written in."""
    text = text_of(node)
    try:
        place = (node.location.folder / Path(text or "").expanduser()).resolve()
    except (OSError, RuntimeError, ValueError):  # no such user; links in a circle; a null character
        return MISMATCH
    if text is not None and not is_text(str(place)):  # as YAML it could not be read again
        named = f"{path} leads to {printable(str(place))}, a name that is no text (UTF-8)"
        raise decoder.fault(node, f"{named}; rename it, as recipes write it down")
    return MISMATCH if text is None else place


def _nothing(node: Any, *_: object) -> Any:
    return None if single(node) is None else MISMATCH


def _text(node: Any, path: str, decoder: Decoder) -> Any:
    text = text_of(node)
    if text is not None and not is_text(text):
        raise decoder.misfit(node, path, "a text that UTF-8 can hold")
    return MISMATCH if text is None else text


def _write_true_or_false(text: str) -> str:
    """Return a hint for the truth values of YAML 1.1."""
    meant = {"yes": "true", "on": "true", "no": "false", "off": "false"}.get(text.lower())
    return f" (write {meant})" if meant else ""


NOTHING = Kind("nothing", lambda: {"type": "null"}, _nothing, in_json="null")

SINGLE: dict[Any, Kind] = {
    bool: Kind("true or false", lambda: {"type": "boolean"}, _truth, hint=_write_true_or_false),
    int: Kind(
        "a whole number",
        lambda: {"type": "integer"},
        _whole_number,
        hint=partial(number_hint, whole=True),
    ),
    float: Kind("a number", lambda: {"type": "number"}, _number, hint=number_hint),
    str: Kind("a text", lambda: {"type": "string"}, _text, "any text"),
    Path: Kind("a path", lambda: {"type": "string"}, _path, "any text"),
    type(None): NOTHING,
    Any: Kind("a value", dict, lambda node, *_: single(node), "any text"),
}
"""The kinds of single values."""


def _below(path: str, key: object) -> str:
    return f"{path}.{key}" if path else str(key)


def single(node: Any) -> Any:
    """Return what a single value means; MISMATCH for a list or mapping of a recipe."""
    if isinstance(node, Scalar):
        return node.value
    return MISMATCH if isinstance(node, (Items, nodes.Mapping)) else node


def text_of(node: Any) -> str | None:
    """Return what is written as a text, if it can be one: of a recipe, a number is a text too."""
    if isinstance(node, Scalar):
        return None if node.value is None else node.raw
    return node if isinstance(node, str) else None


def items_of(node: Any) -> Sequence[Any] | None:
    """Return the items of a list."""
    if isinstance(node, Items):
        return node.items
    return node if isinstance(node, list) else None


def entries_of(node: Any) -> Mapping[str, Any] | None:
    """Return what is under the keys of a mapping."""
    if isinstance(node, nodes.Mapping):
        return {key: entry.node for key, entry in node.entries.items()}
    return node if isinstance(node, dict) else None


class Decoder:
    """Reads nodes of recipes as types say, and notes where values stand; or JSON, which has no places.

    Of a recipe every mistake is told. JSON is read up to the first one, and as a program has written it
    (`strict`): 1.0 is no whole number there, and null is a value.
    """

    def __init__(self, *, strict: bool = False, complete: bool = True) -> None:
        """`complete` says whether all keys are there, so that one that is not seen is missing."""
        self.strict = strict
        self.complete = complete
        self.origins: dict[str, Location] = {}

    def value(self, node: Any, kind: Kind, path: str) -> Any:
        """Return the value of a kind that is written; raise `RecipeError` if there is none."""
        if not self.strict:
            self.origins[path] = node.location
        value = kind.read(node, path, self)
        if value is MISMATCH:
            text = None if self.strict else text_of(node)
            words = (kind.in_json if self.strict else "") or kind.words
            raise self.misfit(node, path, words, "" if text is None else kind.hint(text))
        return value

    def every(self, readings: Iterable[Callable[[], Any]]) -> list[Any]:
        """Return what is read; raise `RecipeError` with the mistakes in all of it, if there are any."""
        values: list[Any] = []
        faults: list[RecipeError] = []
        for read in readings:
            try:
                values.append(read())
            except RecipeError as error:
                if self.strict:
                    raise
                faults.append(error)
        if faults:
            raise RecipeError([problem for fault in faults for problem in fault.problems])
        return values

    def values(self, entries: Mapping[Any, Any], kinds: Sequence[Kind], path: str) -> list[Any]:
        """Return what is under the keys of a mapping, or at the places of a list, each of its kind."""
        pairs = zip(entries.items(), kinds, strict=True)
        return self.every(partial(self.value, node, kind, _below(path, key)) for (key, node), kind in pairs)

    def member(self, node: Any, kinds: Sequence[Kind], path: str) -> Any:
        """Return a value as the first kind of a union that it fits, those that take any text coming last."""
        others = [kind for kind in kinds if kind is not NOTHING]
        if self.strict and len(others) == 1:
            return None if node is None else self.value(node, others[0], path)
        for kind in others:
            if kind.form == "plugin" and not is_null(node):
                return self.value(node, kind, path)
        for kind in sorted(kinds, key=lambda kind: kind.form == "any text"):
            try:
                return self.value(node, kind, path)
            except RecipeError:
                if kind.form == "object" and entries_of(node) is not None:
                    raise  # it says what is wrong in the mapping, such as a key that is not known
        return MISMATCH

    def object(self, node: Any, cls: type[Any], path: str, owner: str = "", extra: Collection[str] = ()) -> Any:
        """Return a mapping as an object of an attrs class; keys in `extra` are read elsewhere.

        Keys that the class does not know are refused, unless one of ours says otherwise: `open_ended = True`.
        """
        if not self.strict:
            node = nodes.Mapping(node.location, {}) if is_null(node) else node
        entries = entries_of(node)
        if entries is None:
            return MISMATCH
        if path.count(".") + 3 > DEEPEST and not self.strict:  # recipe.yaml has parameters, and their items
            raise self.fault(node, TOO_DEEP)
        owner = owner or (path if self.strict else path and f"'{path}'")
        known = options(cls)
        open_ended = self.strict and getattr(cls, "open_ended", False)
        unknown = [] if open_ended else [key for key in entries if key not in known and key not in extra]
        refusing = [partial(self._refuse_key, node, key, path, owner, [*known, *extra]) for key in unknown]
        # Of JSON, what is missing first.
        order = sorted(known, key=lambda name: self.strict and name in entries)
        reading = [partial(self._field, node, entries, known[name], path, owner) for name in order]
        values = self.every([*refusing, *reading])
        try:
            return cls(**dict(zip(order, values, strict=True)))
        except Exception as error:
            if self.strict and not isinstance(error, MisfitError):
                raise
            raise self.fault(node, f"{owner}: {error}" if owner else str(error)) from None

    def _field(self, node: Any, entries: Mapping[str, Any], option: Option, path: str, owner: str) -> Any:
        """Return the value of one parameter of an object."""
        if option.name not in entries or (not self.strict and is_null(entries[option.name])):
            if option.required:
                raise self.missing(node, option.name, owner)
            return option.default
        inner = entries[option.name]
        value = self.value(inner, option.kind, _below(path, option.name))
        validator = option.attribute.validator
        if validator is None or self.strict:
            return value
        try:
            validator(None, option.attribute, value)
        except (ValueError, TypeError) as error:
            message = str(error.args[0] if error.args else error)
            inside = f"{path}." if path and message.startswith(option.name) else ""
            raise self.fault(inner, inside + message) from None
        except Exception:
            return value  # it wants to see the whole object; the constructor calls it again, with one
        return value

    def _refuse_key(self, node: Any, key: str, path: str, owner: str, known: Collection[str]) -> None:
        if self.strict:
            near = did_you_mean(key[:60], known)
            raise self.fault(node, f"{owner or 'it'} has an unknown key {json.dumps(key[:60])}{near}")
        hint = "; use 'extends' to build on a recipe" if key == "<<" else self.near(key, path, known)
        whose = f" of {owner}" if owner else ""
        raise self.fault(node.entries[key], f"unknown key '{key}'{whose}{hint}")

    def near(self, key: str, path: str, known: Collection[str]) -> str:
        """Return a guess at what an unknown key of an object means, as the end of a sentence."""
        del path
        return did_you_mean(key, known)

    def missing(self, node: Any, key: str, owner: str = "") -> RecipeError:
        """Return the error for a missing key, which says nothing unless that is certain."""
        if self.strict:
            return self.fault(node, f"{owner or 'it'} lacks '{key}'")
        fault = self.fault(node.entries.get(key, node), f"missing key '{key}'{f' of {owner}' if owner else ''}")
        return fault if self.complete else RecipeError([])

    def misfit(self, node: Any, path: str, words: str, hint: str = "") -> RecipeError:
        """Return the error for a value: where it stands, what it should be, and what it is."""
        whole = "it" if self.strict else "the recipe"
        return self.fault(node, f"{path or whole} must be {words}, got {_described(node)}{hint}")

    def fault(self, node: Any, message: str) -> RecipeError:
        """Return the error for a mistake in a node; JSON has no places."""
        return RecipeError.at(Location("JSON", folder=Path()) if self.strict else node.location, message)


def _described(node: Any) -> str:
    """Return what is written, or some of it, for an error."""
    if isinstance(node, Items):
        return f"a list of {len(node.items)}"
    if isinstance(node, nodes.Mapping):
        return "a mapping"
    if isinstance(node, dict):
        return "an object"
    if isinstance(node, list):
        return "a list"
    if not isinstance(node, Scalar):
        text = json.dumps(node)
        return text if len(text) <= 60 else text[:57] + "..."
    if node.value is None:
        return "nothing"
    raw = excerpt(node.raw)
    return f"the text {raw!r}" if isinstance(node.value, str) else raw
