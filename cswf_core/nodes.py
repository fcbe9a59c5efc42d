"""Located nodes: the values of a YAML text or of a program's mapping, each with the place it was written at.

YAML is read event by event, never through PyYAML's constructors, so that its surprises stay outside:
`no` is a text, `1e-3` is a number, a key written twice is a mistake, and nothing in a recipe can
import or run code. Anchors, aliases and tags are refused.
"""

from __future__ import annotations

import collections.abc
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Union

import attrs
import yaml

from cswf_core.errors import CswfError, printable
from cswf_core.numbers import LARGEST

DEEPEST = 40
"""How deep mappings and lists may be nested."""

TOO_DEEP = f"nested deeper than {DEEPEST} levels"

LONGEST_NUMBER = 40
"""Characters of a number; a longer one is read as text."""

_INT = re.compile(r"[-+]?[0-9]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_WORDS = {"": None, "~": None, "null": None, "true": True, "false": False}
_WORDS |= {form: value for word, value in _WORDS.items() for form in (word.capitalize(), word.upper())}


@attrs.frozen
class Location:
    """A place in a file: line and column, from 1; relative paths written there count from `folder`.

    A mapping that a program hands over has no lines and columns: its places are key paths.
    """

    file: str
    line: int = 1
    column: int = 1
    folder: Path = attrs.field(eq=False, repr=False, factory=Path.cwd)
    keys: tuple[str, ...] | None = None

    def below(self, key: object) -> Location:
        """Return the place of a value under a key, or of an item of a list, in a program's mapping."""
        return attrs.evolve(self, keys=(*(self.keys or ()), str(key)))

    def __str__(self) -> str:
        if self.keys is None:
            return printable(f"{self.file}:{self.line}:{self.column}")
        return printable(f"{self.file}:{'.'.join(self.keys)}" if self.keys else self.file)


@attrs.frozen
class Problem:
    """One mistake and its place."""

    location: Location
    message: str = attrs.field(converter=printable)

    def __str__(self) -> str:
        return f"{self.location}: {self.message}"


class RecipeError(CswfError):
    """Everything that is wrong with a recipe, in one go."""

    def __init__(self, problems: list[Problem]) -> None:
        unique = list(dict.fromkeys(problems))
        super().__init__(*map(str, unique))
        self.problems = unique

    @classmethod
    def at(cls, location: Location, message: str) -> RecipeError:
        """Return the error for one mistake."""
        return cls([Problem(location, message)])


@attrs.frozen
class Scalar:
    """A text, number, truth value or nothing."""

    location: Location
    raw: str
    """The text as it was written."""
    value: str | int | float | bool | None


@attrs.frozen
class Items:
    """A list."""

    location: Location
    items: tuple[Node, ...]


@attrs.frozen
class MappingEntry:
    """A key's place, and the value under it."""

    location: Location
    node: Node


@attrs.frozen
class Mapping:
    """Keys and values."""

    location: Location
    entries: dict[str, MappingEntry]

    def get(self, key: str) -> Node | None:
        """Return the value under a key, if it is there."""
        entry = self.entries.get(key)
        return None if entry is None else entry.node


Node = Union[Scalar, Items, Mapping]  # noqa: UP007 - a forward reference that attrs can resolve on 3.10


def is_null(node: Node | None) -> bool:
    """Say whether there is no node, or one that is nothing: `key:` without a value, or `null`."""
    return node is None or (isinstance(node, Scalar) and node.value is None)


def resolve(raw: str) -> str | int | float | bool | None:
    """Return what an unquoted scalar means: YAML 1.2's core rules, without octal, hexadecimal, inf and nan."""
    if raw in _WORDS:
        return _WORDS[raw]
    if len(raw) <= LONGEST_NUMBER:
        if _INT.fullmatch(raw):
            return int(raw)
        if _FLOAT.fullmatch(raw) and abs(float(raw)) != float("inf"):
            return float(raw)
    return raw


def value_of(node: Node) -> Any:
    """Return a node as Python has it: dictionaries, lists, texts, numbers, truth values and None."""
    if isinstance(node, Mapping):
        return {key: value_of(entry.node) for key, entry in node.entries.items()}
    return [value_of(item) for item in node.items] if isinstance(node, Items) else node.value


def from_value(value: Any, place: Location, problems: list[Problem]) -> Node:
    """Return a program's value as a node that means what it would mean in YAML; add mistakes to `problems`."""
    if len(place.keys or ()) > DEEPEST:
        raise RecipeError.at(place, TOO_DEEP)
    if isinstance(value, collections.abc.Mapping):
        entries: dict[str, MappingEntry] = {}
        for key, item in value.items():
            below = place.below(key)
            if not isinstance(key, str):
                problems.append(Problem(below, "a key must be a text"))
            entries[str(key)] = MappingEntry(below, from_value(item, below, problems))
        return Mapping(place, entries)
    if isinstance(value, (list, tuple)):
        return Items(place, tuple(from_value(v, place.below(i), problems) for i, v in enumerate(value)))
    if isinstance(value, int) and abs(value) > LARGEST:  # Python may refuse to write its digits
        problems.append(Problem(place, f"a whole number is too large: 64 bits hold {LARGEST:,} at most"))
        return Scalar(place, "", None)
    if isinstance(value, (bool, int, float)):
        return Scalar(place, raw := str(value).lower(), resolve(raw))
    if isinstance(value, (str, os.PathLike)):
        return Scalar(place, str(value), str(value))
    if value is not None:
        fault = f"a recipe has texts, numbers, lists and mappings, not values of type {type(value).__name__}"
        problems.append(Problem(place, fault))
    return Scalar(place, "", None)


def parse(text: str, origin: Location, problems: list[Problem]) -> Node | None:
    """Return the one document in `text`, whose first character stands at `origin`.

    Mistakes are added to `problems`; None means there is nothing to go on with.
    """
    try:
        text.encode("utf-8")
        return _NodeReader(text, origin, problems).document()
    except UnicodeEncodeError:
        problems.append(Problem(origin, "the text is not valid UTF-8"))
    except RecipeError as error:
        problems += error.problems
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        reason = getattr(error, "problem", None) or getattr(error, "reason", None) or str(error)
        problems.append(Problem(_place(origin, mark), f"not valid YAML: {reason}"))
    return None


def _place(origin: Location, mark: Any) -> Location:
    """Return the place of one of PyYAML's marks in a text that begins at `origin`."""
    if mark is None:
        return origin
    column = mark.column + (origin.column if mark.line == 0 else 1)
    return attrs.evolve(origin, line=origin.line + mark.line, column=column)


class _NodeReader:
    """Builds nodes from PyYAML's events."""

    def __init__(self, text: str, origin: Location, problems: list[Problem]) -> None:
        loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        self.events: Iterator[yaml.Event] = yaml.parse(text, Loader=loader)
        self.origin = origin
        self.problems = problems

    def document(self) -> Node | None:
        """Read the stream, which must hold one document."""
        root: Node | None = None
        for event in self.events:
            if isinstance(event, yaml.DocumentStartEvent):
                if root is not None:
                    self._problem(event, "a second document begins here; a recipe is one document")
                    return root
                root = self._node(next(self.events), 0)
        return root

    def _node(self, event: yaml.Event, depth: int) -> Node:
        where = _place(self.origin, event.start_mark)
        self._refuse_extras(event)
        if depth > DEEPEST:
            raise RecipeError.at(where, TOO_DEEP)
        if isinstance(event, yaml.SequenceStartEvent):
            return Items(where, tuple(self._items(depth)))
        if isinstance(event, yaml.MappingStartEvent):
            return Mapping(where, self._entries(depth))
        if isinstance(event, yaml.ScalarEvent):
            plain = bool(event.implicit[0])  # PyYAML's C and Python parsers agree on this, not on `style`
            return Scalar(where, event.value, resolve(event.value) if plain else event.value)
        return Scalar(where, "", None)

    def _items(self, depth: int) -> Iterator[Node]:
        while not isinstance(event := next(self.events), yaml.SequenceEndEvent):
            yield self._node(event, depth + 1)

    def _entries(self, depth: int) -> dict[str, MappingEntry]:
        entries: dict[str, MappingEntry] = {}
        while not isinstance(event := next(self.events), yaml.MappingEndEvent):
            key = self._node(event, depth + 1)
            value = self._node(next(self.events), depth + 1)
            if not isinstance(key, Scalar):
                self.problems.append(Problem(key.location, "a key must be a text"))
            elif key.raw in entries:
                fault = f"duplicate key '{key.raw}', first written at {entries[key.raw].location}"
                self.problems.append(Problem(key.location, fault))
            else:
                entries[key.raw] = MappingEntry(key.location, value)
        return entries

    def _refuse_extras(self, event: yaml.Event) -> None:
        if isinstance(event, yaml.AliasEvent):
            self._problem(event, f"alias '*{event.anchor}': write the value out, or use 'extends'")
        elif isinstance(event, yaml.NodeEvent) and event.anchor is not None:
            self._problem(event, f"anchor '&{event.anchor}': recipes have no anchors and aliases")
        if isinstance(event, (yaml.ScalarEvent, yaml.CollectionStartEvent)) and event.tag is not None:
            self._problem(event, f"tag '{event.tag}': recipes have no tags")

    def _problem(self, event: yaml.Event, message: str) -> None:
        self.problems.append(Problem(_place(self.origin, event.start_mark), message))
