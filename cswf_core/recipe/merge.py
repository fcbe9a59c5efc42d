"""From a recipe's name to one tree of located nodes: `extends`, then the command line's overrides.

Mappings merge, lists and single values replace. Where a plugin is chosen (`data`, `projection`, …), the name
of another plugin replaces the whole section, since the parameters of one plugin mean nothing to another.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import attrs

from cswf_core.recipe.nodes import Entry, Items, Location, Mapping, Node, Problem, RecipeError, Scalar, parse
from cswf_core.recipe.sources import Source, locate, read

CHOICES = {
    "data": "dataset",
    "condition": "condition",
    "projection": "projection",
    "cdf": "cdf",
    "schedule": "schedule",
}
"""Top-level keys that choose a plugin → the plugin's kind."""

OWN = ("name", "description", "extends", "variants")
"""Keys that a recipe does not inherit."""

LONGEST_CHAIN = 32
"""How many recipes may extend each other."""

Path_ = tuple[str, ...]


@attrs.define
class Tree:
    """A recipe merged with all it extends."""

    source: Source
    root: Mapping
    variants: dict[str, Mapping]
    """By label, the recipe with a variant's changes, and the overrides last."""
    problems: list[Problem]
    """Mistakes found on the way."""
    complete: bool
    """Whether all it extends was found; if not, a key that is missing proves nothing."""


def resolve_tree(name: str | Path, overrides: Sequence[str]) -> Tree:
    """Return a recipe laid over what it extends, with overrides; raise if there is nothing to go on with."""
    source = locate(str(name), Path.cwd())
    if isinstance(source, str):
        raise RecipeError([Problem(Location(str(name), 1, 1), source)])
    loader = _Loader()
    root = loader.load(source, ())
    if root is None:
        raise RecipeError(loader.problems)
    base = Mapping(root.location, {key: e for key, e in root.entries.items() if key != "variants"})
    trees = {"": base, **_variants(base, root.get("variants"), loader.problems)}
    for number, text in enumerate(overrides, start=1):
        trees = {label: _override(tree, text, number, loader.problems) for label, tree in trees.items()}
    return Tree(source, trees.pop(""), trees, loader.problems, loader.complete)


def _variants(base: Mapping, node: Node | None, problems: list[Problem]) -> dict[str, Mapping]:
    """Return the recipe once for each of its variants, with that one's changes laid over it."""
    if node is None or (isinstance(node, Scalar) and node.value is None):
        return {}
    if not isinstance(node, Mapping):
        problems.append(Problem(node.location, "variants must be a mapping from labels to changes"))
        return {}
    found: dict[str, Mapping] = {}
    for label, entry in node.entries.items():
        changes = entry.node
        if isinstance(changes, Scalar) and changes.value is None:
            changes = Mapping(entry.location, {})
        if not isinstance(changes, Mapping) or not label.strip():
            problems.append(Problem(entry.location, f"variant '{label}' must be a mapping of changes"))
        elif "extends" in changes.entries or "variants" in changes.entries:
            problems.append(Problem(entry.location, f"variant '{label}' can neither extend nor have variants"))
        else:
            whole = merge(base, changes)
            assert isinstance(whole, Mapping)
            found[label] = whole
    return found


def is_choice(path: Path_) -> bool:
    """Say whether a plugin is chosen at a path, going by where it is."""
    return (
        (len(path) == 1 and path[0] in CHOICES)
        or (len(path) == 2 and path[0] == "observers")
        or (len(path) == 3 and path[:2] == ("evaluate", "metrics"))
    )


def may_be_choice(path: Path_, node: Node) -> bool:
    """Say whether a node chooses a plugin: going by where it is, or a parameter that is a plugin itself.

    Inside a plugin's section a name that something is laid over, or a mapping with `use`, can be nothing else.
    """
    if is_choice(path):
        return True
    inside = any(is_choice(path[:depth]) for depth in range(1, len(path)))
    named = isinstance(node, Scalar) and isinstance(node.value, str)
    return inside and (named or (isinstance(node, Mapping) and "use" in node.entries))


def as_choice(node: Node) -> Node:
    """Return a plugin's bare name as a mapping with `use`."""
    if isinstance(node, Scalar) and node.value is not None:
        return Mapping(node.location, {"use": Entry(node.location, node)})
    return node


def merge(base: Node, over: Node, path: Path_ = ()) -> Node:
    """Return `base` with `over` laid on top."""
    if not isinstance(over, Mapping):
        return over
    if may_be_choice(path, base):
        base = as_choice(base)
    if not isinstance(base, Mapping) or (may_be_choice(path, base) and _other_plugin(base, over)):
        return over
    entries = dict(base.entries)
    for key, entry in over.entries.items():
        if key in entries:
            entry = attrs.evolve(entry, node=merge(entries[key].node, entry.node, (*path, key)))
        entries[key] = entry
    return Mapping(over.location, entries)


def _other_plugin(base: Mapping, over: Mapping) -> bool:
    old, new = base.get("use"), over.get("use")
    return isinstance(new, Scalar) and isinstance(old, Scalar) and new.raw != old.raw


class _Loader:
    """Reads a recipe and all that it extends."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.complete = True
        self._loaded: dict[Source, Mapping | None] = {}

    def load(
        self, source: Source, chain: tuple[Source, ...], named_at: Location | None = None
    ) -> Mapping | None:
        """Return a recipe laid over its bases; `chain` are the recipes that led here, by way of `extends`."""
        tree = read(source, self.problems, named_at)
        if tree is None:
            return None
        merged: Node = Mapping(tree.location, {})
        for name in self._extended(tree):
            base = self._base(name, (*chain, source))
            if base is None:
                self.complete = False
                continue
            inherited = {key: entry for key, entry in base.entries.items() if key not in OWN}
            merged = merge(merged, Mapping(base.location, inherited))
        merged = merge(merged, tree)
        assert isinstance(merged, Mapping)
        return merged

    def _base(self, name: Scalar, chain: tuple[Source, ...]) -> Mapping | None:
        found = locate(name.raw, name.location.folder)
        if isinstance(found, str):
            fault = f"extends: {found}"
        elif found in chain:
            circle = " → ".join(source.shown for source in (*chain[chain.index(found) :], found))
            fault = f"extends goes in a circle: {circle}"
        elif len(chain) >= LONGEST_CHAIN:
            fault = f"more than {LONGEST_CHAIN} recipes extend each other"
        else:
            if found not in self._loaded:
                self._loaded[found] = self.load(found, chain, name.location)
            return self._loaded[found]
        self.problems.append(Problem(name.location, fault))
        return None

    def _extended(self, tree: Mapping) -> list[Scalar]:
        node = tree.get("extends")
        nodes = node.items if isinstance(node, Items) else () if node is None else (node,)
        names = [n for n in nodes if isinstance(n, Scalar) and n.value is not None]
        if len(names) != len(nodes) and node is not None:
            self.problems.append(
                Problem(node.location, "extends takes the name of a recipe, or a list of names")
            )
        return names


def _override(tree: Mapping, text: str, number: int, problems: list[Problem]) -> Mapping:
    place = Location("command line", number, 1)
    key, equals, value = text.partition("=")
    if not equals or not re.fullmatch(r"[^.\s]+(\.[^.\s]+)*", key):
        problems.append(Problem(place, f"'{text}' is not of the form key.path=value"))
        return tree
    head = key.split(".")[0]
    if head in ("extends", "variants"):
        problems.append(Problem(place, f"'{head}' cannot be changed here; name another recipe instead"))
        return tree
    found: list[Problem] = []
    node = parse(value, attrs.evolve(place, column=len(key) + 2), found)
    if found:  # a mistake at the end of the text is reported on the line after it
        end = attrs.evolve(place, column=len(text) + 1)
        problems += [p if p.location.line == number else attrs.evolve(p, location=end) for p in found]
        return tree
    if node is None:
        node = Scalar(place, "", None)
    changed = _assign(tree, tuple(key.split(".")), (), node, place, problems)
    assert isinstance(changed, Mapping)
    return changed


def _assign(
    node: Node | None, path: Path_, done: Path_, value: Node, place: Location, problems: list[Problem]
) -> Node:
    """Return `node`, which stands at path `done`, with `value` laid over what is at `path` below it."""
    if not path:
        return value if node is None else merge(node, value, done)
    head, rest = path[0], path[1:]
    if isinstance(node, Items):
        index = int(head) if re.fullmatch(r"[0-9]{1,6}", head) else -1
        if not 0 <= index < len(node.items):
            has = f"has {len(node.items)} entries, counted from 0"
            problems.append(Problem(place, f"'{'.'.join(done)}' {has}, and '{head}' is none of them"))
            return node
        changed = _assign(node.items[index], rest, (*done, head), value, place, problems)
        return attrs.evolve(node, items=(*node.items[:index], changed, *node.items[index + 1 :]))
    if node is None or (isinstance(node, Scalar) and node.value is None):
        node = Mapping(place, {})
    if may_be_choice(done, node):
        node = as_choice(node)
    if not isinstance(node, Mapping):
        problems.append(Problem(place, f"'{'.'.join(done)}' is a single value and has no '{head}'"))
        return node
    old = node.get(head)
    below = _assign(old, rest, (*done, head), value, place, problems)
    return merge(node, Mapping(node.location, {head: Entry(place, below)}), done)
