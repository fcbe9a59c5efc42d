"""From a recipe's name, path or mapping to one tree of nodes: `extends`, then the command line's overrides.

Mappings merge, lists and single values replace. Where a plugin is chosen (`data`, `projection`, …), the name
of another plugin replaces the whole section, since the parameters of one plugin mean nothing to another.
"""

from __future__ import annotations

import collections.abc
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs

from cswf_core.errors import DataError, did_you_mean, excerpt
from cswf_core.files import open_file
from cswf_core.nodes import (
    DEEPEST,
    TOO_DEEP,
    Items,
    Location,
    Mapping,
    MappingEntry,
    Node,
    Problem,
    RecipeError,
    Scalar,
    from_value,
    is_null,
    parse,
)
from cswf_core.plugins import Registry
from cswf_core.plugins.plugin import normal
from cswf_core.recipe.sections import CHOICES

LARGEST = 256 * 1024
"""Bytes a recipe may have."""

LONGEST_CHAIN = 32
"""How many recipes may extend each other, and how many one may extend."""

KeyPath = tuple[str, ...]


@attrs.frozen
class RecipeFile:
    """A recipe's file."""

    path: Path

    def __str__(self) -> str:
        """Return the path as people see it: from the current folder if it lies below."""
        try:
            return str(self.path.relative_to(Path.cwd()))
        except ValueError:
            return str(self.path)

    @property
    def top(self) -> Location:
        """The file's first character. Paths in a built-in recipe count from the current folder."""
        folder = Path.cwd() if self.path.parent == builtin_folder() else self.path.parent
        return Location(str(self), 1, 1, folder)

    def read(self, problems: list[Problem], named_at: Location | None = None) -> Mapping | None:
        """Return the mapping in the file; None, with a problem, if there is none.

        A file that cannot be opened is a mistake of the place that names it, `named_at`, if there is one.
        """
        try:
            with open_file(Path(str(self))) as file:
                content = file.read(LARGEST + 1)
        except (DataError, OSError) as error:
            subject = "" if named_at is None else "extends: "
            problems.append(Problem(named_at or self.top, f"{subject}{error}"))
            return None
        if len(content) > LARGEST:
            fault = f"the file is larger than {LARGEST // 1024} KB, the most a recipe may have"
            problems.append(Problem(self.top, fault))
            return None
        try:
            text = content.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            line = content.count(b"\n", 0, error.start) + 1
            problems.append(Problem(attrs.evolve(self.top, line=line), "the text is not valid UTF-8"))
            return None
        node = parse(text, self.top, problems)
        if isinstance(node, Mapping):
            return node
        if node is not None or not problems:
            place = self.top if node is None else node.location
            problems.append(Problem(place, "a recipe is a mapping of keys to values"))
        return None


def builtin_folder() -> Path:
    """Return the folder of built-in recipes: in an installed package, or beside it in a checkout."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "builtin_recipes"
    return installed if installed.is_dir() else package.parent / "recipes"


def builtin_recipes() -> dict[str, RecipeFile]:
    """Return the built-in recipes by name."""
    return {p.stem: RecipeFile(p) for p in sorted(builtin_folder().glob("*.yaml"), key=lambda p: p.stem)}


def known_recipes(registry: Registry) -> dict[str, RecipeFile]:
    """Return the recipes that have a name: the built-in ones, and those of packages as `distribution:name`."""
    return builtin_recipes() | {name: RecipeFile(registry.recipes[name]) for name in sorted(registry.recipes)}


def locate(name: str, folder: Path, registry: Registry) -> RecipeFile | str:
    """Return the source that a name means: a path counted from `folder`, or a known recipe; else the fault.

    All spellings of a distribution's name mean the same: `A_b:c` and `a-b:c`.
    """
    if "\0" in name:
        return "a recipe's name has no null characters"
    known = known_recipes(registry)
    distribution = name.rpartition(":")[0]
    for other, source in known.items():
        if other == name or (distribution and normal(other) == normal(name)):
            return source
    if "/" not in name and not name.endswith((".yaml", ".yml")):
        elsewhere = [other for other in known if other.endswith(f":{name}")]
        near = did_you_mean(elsewhere[0] if elsewhere else name, elsewhere or known)
        broken = [b.reason for b in registry.broken if normal(b.owner.distribution) == normal(distribution)]
        blame = f"; '{distribution}' is broken: {broken[0]}" if broken else ""
        sort = "recipe" if distribution else "built-in recipe"
        return f"there is no {sort} '{name}'{near}{blame} (a path ends in .yaml)"
    try:
        return RecipeFile((folder / Path(name).expanduser()).resolve())
    except (OSError, RuntimeError) as error:  # no such user; links in a circle
        return f"'{name}' is no usable path: {error}"


def is_choice(path: KeyPath) -> bool:
    """Say whether a plugin is chosen at a path, going by where it is."""
    listed = ("observers",), ("evaluate", "metrics")
    return (len(path) == 1 and path[0] in CHOICES) or path[:-1] in listed


def may_be_choice(path: KeyPath, node: Node) -> bool:
    """Say whether a node chooses a plugin: going by where it is, or a parameter that is a plugin itself.

    Inside a plugin's section a name that something is laid over, or a mapping with `use`, can be nothing else.
    """
    if is_choice(path):
        return True
    named = isinstance(node, Scalar) and isinstance(node.value, str)
    inside = any(is_choice(path[:depth]) for depth in range(1, len(path)))
    return inside and (named or (isinstance(node, Mapping) and "use" in node.entries))


def as_choice(node: Node) -> Node:
    """Return a plugin's bare name as a mapping with `use`."""
    if isinstance(node, Scalar) and node.value is not None:
        return Mapping(node.location, {"use": MappingEntry(node.location, node)})
    return node


def merge(base: Node, over: Node, path: KeyPath = ()) -> Node:
    """Return `base` with `over` laid on top."""
    chooses = may_be_choice(path, base)
    base = as_choice(base) if chooses else base
    if not isinstance(over, Mapping) or not isinstance(base, Mapping):
        return over
    old = base.get("use")
    new = over.get("use")
    if chooses and isinstance(new, Scalar) and isinstance(old, Scalar) and new.raw != old.raw:
        return over  # another plugin
    return _merge_entries(base, over, path)


def _merge_entries(base: Mapping, over: Mapping, path: KeyPath = ()) -> Mapping:
    entries = dict(base.entries)
    for key, entry in over.entries.items():
        if key in entries:
            entry = attrs.evolve(entry, node=merge(entries[key].node, entry.node, (*path, key)))
        entries[key] = entry
    return Mapping(over.location, entries)


class Tree:
    """A recipe, from its name, path or mapping, laid over all that it extends, with overrides."""

    def __init__(
        self,
        origin: str | Path | collections.abc.Mapping[str, Any],
        overrides: Sequence[str],
        registry: Registry,
    ) -> None:
        """Raise `RecipeError` if there is nothing to go on with; `registry` knows the recipes of packages."""
        self._registry = registry
        self.path: Path | None = None
        """Its file; None for a mapping."""
        self.problems: list[Problem] = []
        """Mistakes on the way."""
        self.complete = True
        """Whether all it extends could be read; if not, no key is known to be missing."""
        self._loaded: dict[RecipeFile, Mapping | None] = {}
        root = self._begin(origin)
        if root is None:
            raise RecipeError(self.problems)
        base = Mapping(root.location, {key: e for key, e in root.entries.items() if key != "variants"})
        self.variants = {"": base, **self._variants(base, root.get("variants"))}
        """By label, the recipe with a variant's changes, and the overrides last; under "" without any."""
        for number, text in enumerate(overrides, start=1):
            self.variants = {key: self._override(tree, text, number) for key, tree in self.variants.items()}

    def _problem(self, place: Location, message: str) -> None:
        self.problems.append(Problem(place, message))

    def _begin(self, origin: str | Path | collections.abc.Mapping[str, Any]) -> Mapping | None:
        """Return the tree of the recipe that all begins with."""
        if isinstance(origin, collections.abc.Mapping):
            node = from_value(origin, Location("mapping", keys=()), self.problems)
            assert isinstance(node, Mapping)
            return self._extend(node, ())
        source = locate(str(origin), Path.cwd(), self._registry)
        if isinstance(source, str):
            self._problem(Location(str(origin)), source)
            return None
        self.path = source.path
        tree = source.read(self.problems)
        return None if tree is None else self._extend(tree, (source,))

    def _variants(self, base: Mapping, node: Node | None) -> dict[str, Mapping]:
        """Return the recipe once for each of its variants, with that one's changes laid over it."""
        variants: dict[str, Mapping] = {}
        if node is None or is_null(node):
            return variants
        if not isinstance(node, Mapping):
            self._problem(node.location, "variants must be a mapping from labels to changes")
            return variants
        for label, entry in node.entries.items():
            changes = Mapping(entry.location, {}) if is_null(entry.node) else entry.node
            if not isinstance(changes, Mapping) or not label.strip():
                self._problem(entry.location, f"variant '{label}' must be a mapping of changes")
            elif "extends" in changes.entries or "variants" in changes.entries:
                self._problem(entry.location, f"variant '{label}' can neither extend nor have variants")
            else:
                variants[label] = _merge_entries(base, changes)
        return variants

    def _extend(self, tree: Mapping, chain: tuple[RecipeFile, ...]) -> Mapping:
        """Return a tree laid over the recipes that it extends; `chain` are those that led here."""
        merged = Mapping(tree.location, {})
        for name in self._bases(tree):
            base = self._base(name, chain)
            if base is None:
                self.complete = False
                continue
            own = ("name", "description", "extends", "variants")
            inherited = {key: entry for key, entry in base.entries.items() if key not in own}
            merged = _merge_entries(merged, Mapping(base.location, inherited))
        return _merge_entries(merged, tree)

    def _base(self, name: Scalar, chain: tuple[RecipeFile, ...]) -> Mapping | None:
        source = locate(name.raw, name.location.folder, self._registry)
        if isinstance(source, str):
            fault = f"extends: {source}"
        elif source in chain:
            circle = " → ".join(map(str, (*chain[chain.index(source) :], source)))
            fault = f"extends goes in a circle: {circle}"
        elif len(chain) >= LONGEST_CHAIN:
            fault = f"more than {LONGEST_CHAIN} recipes extend each other"
        else:
            if source not in self._loaded:
                tree = source.read(self.problems, name.location)
                self._loaded[source] = None if tree is None else self._extend(tree, (*chain, source))
            return self._loaded[source]
        self._problem(name.location, fault)
        return None

    def _bases(self, tree: Mapping) -> list[Scalar]:
        """Return the names after `extends`."""
        node = tree.get("extends")
        nodes = node.items if isinstance(node, Items) else () if node is None else (node,)
        names = [n for n in nodes if isinstance(n, Scalar) and n.value is not None]
        if (len(names) != len(nodes) or len(names) > LONGEST_CHAIN) and node is not None:
            self.complete = False
            self._problem(node.location, f"extends takes a recipe's name, or a list of at most {LONGEST_CHAIN}")
        return names[:LONGEST_CHAIN]

    def _override(self, tree: Mapping, text: str, number: int) -> Mapping:
        place = Location("command line", number)
        key, equals, value = text.partition("=")
        if not equals or not re.fullmatch(r"[^.\s]+(\.[^.\s]+)*", key):
            self._problem(place, f"'{excerpt(text)}' is not of the form key.path=value")
            return tree
        path = tuple(key.split("."))
        if len(path) > DEEPEST:
            self._problem(place, TOO_DEEP)
            return tree
        if path[0] in ("extends", "variants"):
            self._problem(place, f"'{path[0]}' cannot be changed here; name another recipe instead")
            return tree
        mistakes: list[Problem] = []
        node = parse(value, attrs.evolve(place, column=len(key) + 2), mistakes)
        if mistakes:  # one at the end of the text is reported on the line after it
            end = attrs.evolve(place, column=len(text) + 1)
            self.problems += [
                p if p.location.line == number else attrs.evolve(p, location=end) for p in mistakes
            ]
            return tree
        changed = self._assign(tree, path, (), node or Scalar(place, "", None), place)
        assert isinstance(changed, Mapping)
        return changed

    def _assign(self, node: Node | None, path: KeyPath, done: KeyPath, value: Node, place: Location) -> Node:
        """Return `node`, which stands at path `done`, with `value` laid over what is at `path` below it."""
        if not path:
            return value if node is None else merge(node, value, done)
        head = path[0]
        rest = path[1:]
        if isinstance(node, Items):
            index = int(head) if re.fullmatch(r"[0-9]{1,6}", head) else -1
            if not 0 <= index < len(node.items):
                has = f"has {len(node.items)} entries, counted from 0"
                self._problem(place, f"'{'.'.join(done)}' {has}, and '{head}' is none of them")
                return node
            changed = self._assign(node.items[index], rest, (*done, head), value, place)
            return attrs.evolve(node, items=(*node.items[:index], changed, *node.items[index + 1 :]))
        if node is None or is_null(node):
            node = Mapping(place, {})
        if may_be_choice(done, node):
            node = as_choice(node)
        if not isinstance(node, Mapping):
            self._problem(place, f"'{'.'.join(done)}' is a single value and has no '{head}'")
            return node
        below = self._assign(node.get(head), rest, (*done, head), value, place)
        return merge(node, Mapping(node.location, {head: MappingEntry(place, below)}), done)
