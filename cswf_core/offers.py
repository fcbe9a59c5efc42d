"""What a plugin offers: the classes it registers, checked at the desk where it hands them in."""

from __future__ import annotations

import inspect
import sys
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from cswf_core import hookspecs
from cswf_core.errors import PluginError, did_you_mean
from cswf_core.interfaces import (
    CDFEstimator,
    ConditionEncoder,
    DatasetSource,
    Metric,
    Observer,
    Owner,
    ProjectionSampler,
    Schedule,
)

KINDS: Mapping[str, tuple[str, type[Any]]] = {
    "projection": ("register_projections", ProjectionSampler),
    "cdf": ("register_cdfs", CDFEstimator),
    "condition": ("register_conditions", ConditionEncoder),
    "schedule": ("register_schedules", Schedule),
    "dataset": ("register_datasets", DatasetSource),
    "metric": ("register_metrics", Metric),
    "observer": ("register_observers", Observer),
}
"""Kind → (hook that offers it, contract it implements)."""

RESERVED = ("use", "reuse")
"""What a section says besides a plugin's parameters."""


@attrs.frozen
class Plugin:
    """A class that recipes can ask for."""

    owner: Owner
    factory: type[Any]

    @property
    def summary(self) -> str:
        """First line of the class's docstring, or of its module's."""
        module = sys.modules.get(self.factory.__module__)
        text = self.factory.__doc__ or (module.__doc__ if module else "") or ""
        return text.strip().splitlines()[0] if text.strip() else ""


class Desk:
    """Where one distribution offers its plugins of one kind: the `register` that its hook is handed."""

    def __init__(self, kind: str, contract: type[Any], distribution: str, version: str) -> None:
        self.kind = kind
        self.contract = contract
        self.distribution = distribution
        self.version = version
        self.offered: list[Plugin] = []

    def __call__(self, name: str, plugin: type[Any]) -> None:
        """Take an offer, or refuse it with what is wrong."""
        fault = self._fault(name, plugin)
        if fault:
            raise PluginError(fault)
        self.offered.append(Plugin(Owner(self.kind, name, self.distribution, self.version), plugin))

    def _fault(self, name: object, plugin: object) -> str:
        """Return what is wrong with an offer; nothing if it is fine."""
        if not isinstance(name, str) or not name or ":" in name:
            return f"register() takes a name without ':' and a class, got {name!r}"
        what = f"{self.kind} '{name}'"
        if any(name == other.owner.name for other in self.offered):
            return f"{what} is registered twice by one plugin"
        if not inspect.isclass(plugin):
            hint = ": leave out the parentheses" if isinstance(plugin, self.contract) else ""
            return f"{what}: register() takes a class, got {plugin!r}{hint}"
        if not issubclass(plugin, self.contract):
            return f"{what}: {plugin.__name__} does not derive from {self.contract.__name__}"
        missing = sorted(getattr(plugin, "__abstractmethods__", ()))
        if missing:
            return f"{what}: {plugin.__name__} lacks {', '.join(missing)}"
        if "__attrs_attrs__" not in vars(plugin):
            return f"{what}: {plugin.__name__} must be an attrs class (write @attrs.frozen above it)"
        fault = _parameter_fault(plugin)
        return f"{what}: {fault}" if fault else ""


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


def misused_hooks(plugin: object) -> str:
    """Return what is wrong with a plugin's hooks: an unknown name, a forgotten decorator, none at all."""
    known = [n for spec in (hookspecs.Registration, hookspecs.Observation) for n in vars(spec) if n[0] != "_"]
    marked = [n for n in dir(plugin) if hasattr(getattr(plugin, n, None), f"{hookspecs.PROJECT}_impl")]
    for name in marked:
        if name not in known:
            return f"there is no hook '{name}'{did_you_mean(name, known)}"
    for name in known:
        if name not in marked and callable(getattr(plugin, name, None)):
            return f"{name} lacks its decorator: write @hookimpl above it (from cswf_core import hookimpl)"
    return "" if marked else f"it implements no hook; known: {', '.join(known)}"
