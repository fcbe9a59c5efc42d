"""Registration: the function that a package's hook is handed, and what may be wrong with what it offers."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import attrs

from cswf_core.checks import undeclared
from cswf_core.errors import PluginError
from cswf_core.interfaces import Owner
from cswf_core.plugins.parameters import parameter_fault
from cswf_core.plugins.plugin import Plugin

NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")
"""Names that plugins may have."""


class Register:
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
            return (
                "register() takes a name and a class; a name has small letters a-z, digits, '-', '_' and '.', "
                f"and begins with a letter or a digit, got {name!r}"
            )
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
        fault = undeclared(plugin) or parameter_fault(plugin)
        return f"{label}: {fault}" if fault else ""
