"""Plugins as the registry knows them: classes that recipes can ask for, and those that could not be loaded."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from cswf_core.checks import ADAPTERS
from cswf_core.interfaces import Owner
from cswf_core.plugins.digests import digest_of, package_digest

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
class Broken:
    """A plugin that could not be loaded, and why; its kind is '' if not even its text tells."""

    owner: Owner
    reason: str


def normal(distribution: str) -> str:
    """Return a distribution's name in the one form that all its spellings share."""
    return distribution.strip().lower().replace("_", "-").replace(".", "-")
