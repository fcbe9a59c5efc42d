"""Registration: the function that a package's hook is handed, and what may be wrong with what it offers."""

from __future__ import annotations

import inspect
import typing
from pathlib import Path
from typing import Any

import attrs

from cswf_core.checks import undeclared
from cswf_core.errors import PluginError
from cswf_core.interfaces import Owner
from cswf_core.plugins.plugin import KINDS, Plugin

RESERVED = ("use", "reuse")
"""What a section says besides a plugin's parameters."""


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
        if not isinstance(name, str) or not name or ":" in name:
            return f"register() takes a name without ':' and a class, got {name!r}"
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
        fault = undeclared(plugin) or _parameter_fault(plugin)
        return f"{label}: {fault}" if fault else ""


def _parameter_fault(plugin: type[Any]) -> str:
    """Return what is wrong with a plugin's parameters: no type, a taken name, an odd default."""
    try:
        hints = typing.get_type_hints(plugin)
    except Exception as error:
        return f"the types of its parameters cannot be read: {error}"
    for field in attrs.fields(plugin):
        default: Any = field.default
        if field.name in RESERVED:
            return f"a parameter cannot be called '{field.name}', a recipe's own word"
        if field.init and field.name not in hints:
            return f"parameter '{field.name}' has no type"
        if getattr(default, "takes_self", False):
            return f"the default of parameter '{field.name}' depends on the object, so it cannot be shown"
        if hasattr(default, "takes_self"):
            default = default.factory()
        if isinstance(default, tuple(contract for _, contract in KINDS.values())):
            return f"parameter '{field.name}' is a plugin itself and can have no default"
        if default is not attrs.NOTHING and not _is_plain(default):
            return f"the default of parameter '{field.name}' is a {type(default).__name__}, which YAML has not"
    return ""


def _is_plain(value: object) -> bool:
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(item) for key, item in value.items())
    return value is None or isinstance(value, (bool, int, float, str, Path)) or attrs.has(type(value))
