"""Plugins as the registry knows them: classes that recipes can ask for, and those that could not be loaded.

A plugin is signed with the SHA-256 of its code, so that a record says which code made a result.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Mapping
from functools import cache
from itertools import accumulate
from pathlib import Path
from types import ModuleType
from typing import Any

import attrs

from cswf_core.checks import ADAPTERS
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
