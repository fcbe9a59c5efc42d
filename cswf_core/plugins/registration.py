"""Registration: the functions that a package's hooks are handed, and what may be wrong with what they get."""

from __future__ import annotations

import inspect
import os
import re
from pathlib import Path
from typing import Any

import attrs

from cswf_core.checks import undeclared
from cswf_core.errors import PluginError
from cswf_core.hookspecs import Folder
from cswf_core.interfaces import Owner
from cswf_core.plugins.parameters import parameter_fault
from cswf_core.plugins.plugin import Plugin

NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")
NAMES = "a name has small letters a-z, digits, '-', '_' and '.', and begins with a letter or a digit"
"""Names that plugins and recipes may have, and the same in words."""

YAML = (".yaml", ".yml")


class PluginRegister:
    """The `register` that a module's hook of one kind is handed: it takes classes, and checks each."""

    def __init__(self, module: Owner, contract: type[Any], files: tuple[Path, ...] = ()) -> None:
        self.module = module
        self.kind = module.kind
        self.contract = contract
        self.files = files
        self.plugins: list[Plugin] = []

    def __call__(self, name: str, plugin: type[Any]) -> None:
        """Take an offer, or refuse it with what is wrong."""
        fault = self._fault(name, plugin)
        if fault:
            raise PluginError(fault)
        self.plugins.append(Plugin(attrs.evolve(self.module, name=name), plugin, self.files))

    def _fault(self, name: object, plugin: object) -> str:
        """Return what is wrong with an offer; nothing if it is fine."""
        if not isinstance(name, str) or not NAME.fullmatch(name):
            return f"register() takes a name and a class; {NAMES}, got {name!r}"
        label = f"{self.kind} '{name}'"
        if any(name == other.owner.name for other in self.plugins):
            return f"{label} is registered twice by one plugin"
        if not inspect.isclass(plugin):
            hint = ": leave out the parentheses" if isinstance(plugin, self.contract) else ""
            return f"{label}: register() takes a class, got {plugin!r}{hint}"
        if not issubclass(plugin, self.contract):
            return f"{label}: {plugin.__name__} does not derive from {self.contract.__name__}"
        missing = sorted(getattr(plugin, "__abstractmethods__", ()))
        if missing:
            return f"{label}: {plugin.__name__} lacks {', '.join(missing)}"
        if "__attrs_attrs__" not in vars(plugin):
            return f"{label}: {plugin.__name__} must be an attrs class (write @attrs.frozen above it)"
        fault = undeclared(plugin) or parameter_fault(plugin)  # type: ignore[arg-type]  # classes can be hashed
        return f"{label}: {fault}" if fault else ""


class RecipeRegister:
    """The `register` that a module's hook for recipes is handed: it takes files and folders of them."""

    def __init__(self, module: Owner, folder: Path) -> None:
        """Relative paths count from `folder`, the module's own."""
        self.module = module
        self.folder = folder
        self.recipes: dict[str, Path] = {}
        """Name, with its distribution → file."""

    def __call__(self, path: str | os.PathLike[str] | Folder) -> None:
        """Take a recipe's file, or all in a folder."""
        for file in self._files(path):
            name = f"{self.module.distribution}:{file.stem}"
            if not NAME.fullmatch(file.stem):
                raise PluginError(f"recipe '{file.name}': {NAMES}, got {file.stem!r}")
            if name in self.recipes:
                raise PluginError(f"recipe '{name}' is registered twice: by {self.recipes[name]} and by {file}")
            self.recipes[name] = file

    def _files(self, path: str | os.PathLike[str] | Folder) -> list[Path]:
        """Return the files that a path means; those of a folder in the order of their names."""
        if isinstance(path, (str, os.PathLike)):
            place = self.folder / os.fspath(path)
            if place.is_file() and place.suffix in YAML:
                return [place]
            inside: list[object] = list(place.iterdir()) if place.is_dir() else []
        else:
            inside = list(path.iterdir()) if hasattr(path, "iterdir") else []
        files = sorted(file for file in inside if isinstance(file, Path) and file.suffix in YAML)
        if not files:
            raise PluginError(f"register() takes a .yaml file, or a folder with some, got {path!r}")
        return files
