"""Where recipes come from: built-in ones by name, others by path."""

from __future__ import annotations

from pathlib import Path

import attrs

from cswf_core.errors import did_you_mean
from cswf_core.recipe.nodes import Location, Mapping, Node, Problem, parse

LARGEST = 256 * 1024
"""Bytes a recipe may have."""


@attrs.frozen
class Source:
    """A recipe's file."""

    path: Path

    @property
    def shown(self) -> str:
        """The path as people see it: from the current folder if it lies below."""
        try:
            return str(self.path.relative_to(Path.cwd()))
        except ValueError:
            return str(self.path)

    @property
    def top(self) -> Location:
        """The file's first character. Paths in a built-in recipe count from the current folder."""
        folder = Path.cwd() if self.path.parent == builtin_folder() else self.path.parent
        return Location(self.shown, 1, 1, folder)


def builtin_folder() -> Path:
    """Return the folder of built-in recipes: in an installed package, or beside it in a checkout."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "builtin_recipes"
    return installed if installed.is_dir() else package.parent / "recipes"


def builtin_recipes() -> dict[str, Source]:
    """Return the built-in recipes by name."""
    return {p.stem: Source(p) for p in sorted(builtin_folder().glob("*.yaml"), key=lambda p: p.stem)}


def locate(name: str, folder: Path) -> Source | str:
    """Return the source that `name` means: a path counted from `folder`, or a built-in; else what is wrong."""
    if "\0" in name:
        return "a recipe's name has no null characters"
    looks_like_path = "/" in name or name.endswith((".yaml", ".yml"))
    if not looks_like_path:
        known = builtin_recipes()
        if name in known:
            return known[name]
        return f"there is no built-in recipe '{name}'{did_you_mean(name, known)} (a path ends in .yaml)"
    try:
        return Source((folder / Path(name).expanduser()).resolve())
    except (OSError, RuntimeError) as error:  # no such user; links in a circle
        return f"'{name}' is no usable path: {error}"


def read(source: Source, problems: list[Problem], named_at: Location | None = None) -> Mapping | None:
    """Return the mapping in a recipe's file; None, with a problem, if there is none.

    A file that cannot be opened is a mistake of the place that names it, `named_at`, if there is one.
    """
    top = source.top
    try:
        with source.path.open("rb") as file:
            content = file.read(LARGEST + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        what = "the file" if named_at is None else f"extends: {source.shown}"
        problems.append(Problem(named_at or top, f"{what} cannot be read: {reason}"))
        return None
    if len(content) > LARGEST:
        problems.append(
            Problem(top, f"the file is larger than {LARGEST // 1024} KB, the most a recipe may have")
        )
        return None
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        problems.append(Problem(attrs.evolve(top, line=line), "the text is not valid UTF-8"))
        return None
    node: Node | None = parse(text, top, problems)
    if isinstance(node, Mapping):
        return node
    if node is not None or not problems:
        problems.append(
            Problem(top if node is None else node.location, "a recipe is a mapping of keys to values")
        )
    return None
