"""Plugins, and the modules that they come from: those of packages, and the .py files of folders.

A plugin is signed with the SHA-256 of its code, so that a record says which code made a result.

A folder is a package of its own, so that files of the same name in two folders do not meet. A file reaches a
module beside it by `import lines` and by `from .lines import x` alike: the first is read as the second.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.machinery
import importlib.util
import os
import shlex
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import accumulate
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import attrs

from cswf_core import hookspecs
from cswf_core.checks import ADAPTERS
from cswf_core.errors import PluginError
from cswf_core.interfaces import Owner

BUILTIN = "cswf"
"""The distribution whose plugins are always loaded."""

KINDS: Mapping[str, tuple[str, type[Any]]] = {
    kind: (f"register_{kind.removesuffix('s')}s", contract) for kind, contract, _ in ADAPTERS
}
"""Kind → (hook that offers it, contract it implements)."""


@attrs.frozen
class Plugin:
    """A class that recipes can ask for."""

    owner: Owner
    factory: type[Any]
    files: tuple[Path, ...] = attrs.field(default=(), eq=False)
    """Of a one-file plugin, its file and the modules beside it that it imports; of a package, none."""

    @property
    def summary(self) -> str:
        """First line of the class's docstring, or of its module's."""
        module = sys.modules.get(self.factory.__module__)
        text = self.factory.__doc__ or (module.__doc__ if module else "") or ""
        return text.strip().splitlines()[0] if text.strip() else ""

    def signed(self) -> Plugin:
        """Return the plugin with the SHA-256 of its code in its owner."""
        if self.files:
            sha256 = digest_of({path.name: path for path in self.files})
        else:
            sha256 = package_digest(self.factory.__module__)
        return attrs.evolve(self, owner=attrs.evolve(self.owner, sha256=sha256))


@attrs.frozen
class PluginModule:
    """A module that plugins come from: that of an entry point, or a file in a folder."""

    name: str
    distribution: str
    """Of a file its name, which recipes write where two plugins share theirs: `strokes.py`."""
    version: str
    load: Callable[[], object]
    """Imports it."""
    source: Callable[[], str]
    """Returns its text, without importing it."""
    files: tuple[Path, ...] = ()
    """As those of `Plugin`."""

    def owner(self, kind: str) -> Owner:
        """Return whose the plugins are that it offers of a kind."""
        return Owner(kind, self.name, self.distribution, self.version)


@attrs.frozen
class Broken:
    """A plugin that could not be loaded, and why; its kind is '' if not even its text tells."""

    owner: Owner
    reason: str


def normal(distribution: str) -> str:
    """Return a distribution's name in the one form that all its spellings share."""
    return distribution.strip().lower().replace("_", "-").replace(".", "-")


def digest_of(files: Mapping[str, Path]) -> str:
    """Return the SHA-256 of files under their relative paths, both hashed; "" if one cannot be read."""
    digest = hashlib.sha256()
    for name in sorted(files):
        try:
            content = files[name].read_bytes()
        except OSError:
            return ""
        digest.update(f"{name}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest() if files else ""


def package_digest(module: str) -> str:
    """Return the SHA-256 of the package or single module at the top of a module's name.

    Of a package, all .py files count. A namespace, which several distributions may share, is no top: the
    package inside it is. Returns "" for code that has no file, as in a notebook.
    """
    for name in accumulate(module.split("."), "{}.{}".format):
        top = sys.modules.get(name)
        if top is not None and getattr(top, "__file__", None):
            return _digest_of_top(top)
    return ""


@cache
def _digest_of_top(top: ModuleType) -> str:
    """Return the SHA-256 of a package or module; imported code does not change, so it is read once."""
    folders = [Path(folder) for folder in getattr(top, "__path__", ())]
    if not folders:
        file = Path(str(top.__file__))
        return digest_of({file.name: file})
    paths = {path.relative_to(f).as_posix(): path for f in reversed(folders) for path in f.rglob("*.py")}
    return digest_of(paths)


PluginFolders = str | Path | Sequence[str | Path] | None
"""One folder of one-file plugins, several, or none."""

OF_EVERYONE = "CSWF_PLUGINS_DIR"
"""The environment variable with folders that are always looked at."""

PACKAGE = "cswf_plugins_dir_"
"""How the names of the packages begin that stand for folders."""


def folders_of(plugins_dir: PluginFolders, environment: Mapping[str, str]) -> list[Path]:
    """Return the folders that a person has named, each once: those of the environment, then `plugins_dir`."""
    always = [folder for folder in environment.get(OF_EVERYONE, "").split(os.pathsep) if folder]
    places = [(OF_EVERYONE, folder) for folder in always]
    places += [("--plugins-dir", str(folder)) for folder in _several(plugins_dir)]
    folders: dict[Path, None] = {}
    for name, folder in places:
        if not Path(folder).expanduser().is_dir():
            raise PluginError(f"{name}: {folder} is not a folder")
        folders[Path(folder).expanduser().resolve()] = None
    return list(folders)


def as_options(plugins_dir: PluginFolders) -> str:
    """Return the options for the same folders, to stand behind a command that a person may paste."""
    return "".join(f" --plugins-dir {shlex.quote(str(folder))}" for folder in _several(plugins_dir))


def _several(plugins_dir: PluginFolders) -> Sequence[str | Path]:
    if plugins_dir is None:
        return ()
    return (plugins_dir,) if isinstance(plugins_dir, (str, Path)) else plugins_dir


def plugin_files(folders: Sequence[Path]) -> list[PluginModule]:
    """Return the files of folders that offer plugins; they and what they import will be imported afresh.

    A file without a hook that one with hooks imports is part of that one. Files whose names begin with `_`
    are nothing else.
    """
    entries: list[tuple[Path, tuple[Path, ...]]] = []
    for folder in folders:
        _open(folder)
        entries += _entries(folder)
    paths = [path for path, _ in entries]
    return [
        PluginModule(
            path.stem, _short(path, paths), "", partial(_load, path), path.read_text, files=(path, *beside)
        )
        for path, beside in entries
    ]


def _load(path: Path) -> ModuleType:
    if "." in path.stem:
        raise PluginError(f"the file's name has a dot before .py: rename {path.name}")
    return importlib.import_module(f"{_package(path.parent)}.{path.stem}")


def _entries(folder: Path) -> Iterator[tuple[Path, tuple[Path, ...]]]:
    """Yield each plugin's file with the modules beside it that it imports."""
    trees = {path: _tree_or_none(path) for path in sorted(folder.glob("*.py")) if path.is_file()}
    arrows = {path: _imports(folder, tree) for path, tree in trees.items()}
    reached = {path: _reachable(arrows, path) for path in trees if not path.name.startswith("_")}
    parts = {part for path, seen in reached.items() if _has_hooks(trees[path]) for part in seen}
    for path, seen in reached.items():
        if _has_hooks(trees[path]) or path not in parts:
            yield path, tuple(sorted(seen - {path}))


def _reachable(arrows: dict[Path, set[Path]], start: Path) -> set[Path]:
    seen: set[Path] = set()
    waiting = [start]
    while waiting:
        new = arrows.get(waiting.pop(), set()) - seen
        seen |= new
        waiting += new
    return seen


def _short(path: Path, others: Sequence[Path]) -> str:
    """Return a file's name, with as many folders before it as tell it apart from the others."""
    for size in range(1, len(path.parts)):
        end = path.parts[-size:]
        if sum(other.parts[-size:] == end for other in others) == 1:
            return "/".join(end)
    return str(path)


def _package(folder: Path) -> str:
    return PACKAGE + hashlib.sha256(str(folder).encode()).hexdigest()[:12]


def _open(folder: Path) -> None:
    """Make a package of a folder, and forget its modules that were imported before."""
    if _Loader not in sys.meta_path:
        sys.meta_path.insert(0, _Loader)
    name = _package(folder)
    for module in [module for module in sys.modules if module.startswith(f"{name}.")]:
        del sys.modules[module]
    package = ModuleType(name)
    package.__path__ = [str(folder)]
    sys.modules[name] = package


class _Loader(importlib.machinery.SourceFileLoader):
    """Finds and imports the modules of folders, and nothing else.

    Imports in a file are read as they are meant, and no compiled file is left in the folder.
    """

    @classmethod
    def find_spec(
        cls, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return how to import a module; None if it is no file of a folder."""
        del target
        package, _, name = fullname.rpartition(".")
        file = Path(path[0]) / f"{name}.py" if path and package.startswith(PACKAGE) else None
        if file is None or not file.is_file():
            return None
        return importlib.util.spec_from_file_location(fullname, file, loader=cls(fullname, str(file)))

    def get_code(self, fullname: str) -> CodeType:
        """Return the compiled module."""
        del fullname
        code: CodeType = compile(_tree(Path(self.path)), self.path, "exec", dont_inherit=True)
        return code


def _tree(path: Path) -> ast.Module:
    """Return a file's syntax tree, in which modules beside it are imported as such."""
    names = {other.stem for other in path.parent.glob("*.py")} - {path.stem} - sys.stdlib_module_names
    tree = ast.parse(path.read_bytes(), str(path))
    return ast.fix_missing_locations(_Beside(names).visit(tree))  # type: ignore[no-any-return]


def _tree_or_none(path: Path) -> ast.Module | None:
    try:
        return _tree(path)
    except (MemoryError, OSError, RecursionError, SyntaxError, ValueError):  # importing it will say so
        return None


class _Beside(ast.NodeTransformer):
    """Writes `import lines` as `from . import lines`, for modules that lie beside a file."""

    def __init__(self, names: Collection[str]) -> None:
        self.names = names

    def visit_Import(self, node: ast.Import) -> Any:
        """Part `import lines, os` in two."""
        beside = [alias for alias in node.names if alias.name in self.names]
        others = [alias for alias in node.names if alias.name not in self.names]
        if not beside:
            return node
        parted: list[ast.stmt] = [ast.copy_location(ast.ImportFrom(None, beside, 1), node)]
        return parted + ([ast.copy_location(ast.Import(others), node)] if others else [])

    def visit_ImportFrom(self, node: ast.ImportFrom) -> Any:
        """Write `from lines import x` as `from .lines import x`."""
        if node.level == 0 and node.module in self.names:
            node.level = 1
        return node


def _imports(folder: Path, tree: ast.Module | None) -> set[Path]:
    """Return the files of a folder that a file imports."""
    names: set[str] = set()
    for node in ast.walk(tree or ast.Module([], [])):
        if isinstance(node, ast.ImportFrom) and node.level == 1:
            names |= {node.module} if node.module else {alias.name for alias in node.names}
    return {path for path in (folder / f"{name}.py" for name in names) if path.is_file()}


def _has_hooks(tree: ast.Module | None) -> bool:
    """Say whether a file seems to have hooks, rightly written or not; one that cannot be read may have some."""
    known = {"hookimpl", *hookspecs.NAMES}
    return tree is None or any(known & names for names in map(_names, ast.walk(tree)))


def _names(node: ast.AST) -> set[str]:
    """Return the names that a node gives or uses."""
    if isinstance(node, ast.alias):
        return {node.name, node.asname or ""}
    return {str(getattr(node, field, "")) for field in ("id", "attr", "name")}
