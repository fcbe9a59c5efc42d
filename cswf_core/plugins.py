"""Discovery of plugins: the registry of those that recipes can name, and what is wrong with the broken ones.

Every plugin, the built-ins included, is an entry point of the group `cswf` that names a module with hook
implementations, or a single .py file in a folder. One that cannot be imported stays on the list with what
went wrong, and everything else goes on without it.
"""

from __future__ import annotations

import importlib.util
import inspect
import os
import re
import sys
import textwrap
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

import attrs
import pluggy

from cswf_core import hookspecs
from cswf_core.checks import ADAPTERS, undeclared
from cswf_core.errors import CswfError, PluginError, did_you_mean
from cswf_core.interfaces import Owner

BUILTIN = "cswf"
"""The distribution whose plugins are always loaded."""

LOAD_ONLY = "CSWF_LOAD_PLUGINS"

KINDS: Mapping[str, tuple[str, type[Any]]] = {
    kind: (f"register_{kind.removesuffix('s')}s", contract) for kind, contract, _ in ADAPTERS
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


@attrs.frozen
class Broken:
    """A plugin that could not be loaded, and why; its kind is '' if not even its text tells."""

    owner: Owner
    reason: str


class Registry:
    """All plugins of a session. Make one with `Registry.discover()`."""

    def __init__(self) -> None:
        self.plugins: list[Plugin] = []
        self.broken: list[Broken] = []
        self.distributions: dict[str, str] = {}
        self._manager = pluggy.PluginManager(hookspecs.PROJECT)
        self._manager.add_hookspecs(hookspecs.Registration)
        self._manager.add_hookspecs(hookspecs.Watching)

    @classmethod
    def discover(
        cls, plugins_dir: str | Path | None = None, environment: Mapping[str, str] | None = None
    ) -> Registry:
        """Load the built-ins, then installed plugins, then the .py files of `plugins_dir`.

        `CSWF_LOAD_PLUGINS=a,b` loads only those distributions besides the built-ins; empty loads no others.
        """
        registry = cls()
        environment = os.environ if environment is None else environment
        only = _names(environment[LOAD_ONLY]) if LOAD_ONLY in environment else None
        seen = set()
        for point in _installed():
            name = point.dist.name if point.dist is not None else "unknown"
            seen.add(_normal(name))
            if _normal(name) == BUILTIN or only is None or _normal(name) in only:
                version = point.dist.version if point.dist is not None else ""
                registry._load(point.name, name, version, point.load, partial(_source, point))
        for missing in sorted((only or set()) - seen - {BUILTIN}):
            reason = f"{LOAD_ONLY} names it, but no installed distribution of that name offers cswf plugins"
            registry.broken.append(Broken(Owner("", missing, missing, ""), reason))
        if plugins_dir is not None:
            for path in _files(Path(plugins_dir)):
                registry._load(path.stem, path.name, "", partial(_import_file, path), path.read_text)
        return registry

    def find(self, kind: str, name: str) -> Plugin:
        """Return the plugin of a kind by `name` or `distribution:name`; one sentence if that can't be done."""
        distribution, _, bare = name.rpartition(":")
        named = [p for p in self.plugins if p.owner.kind == kind and p.owner.name == bare]
        if distribution:
            named = [p for p in named if _normal(p.owner.distribution) == _normal(distribution)]
        if len(named) == 1:
            return named[0]
        if len(named) > 1:
            owners = " and ".join(f"{p.owner.distribution} {p.owner.version}".strip() for p in named)
            choices = " or ".join(f"'{p.owner.distribution}:{bare}'" for p in named)
            raise PluginError(f"{kind} '{bare}' is offered by {owners}: write {choices}")
        raise PluginError(f"unknown {kind} '{name}'{did_you_mean(name, self.names(kind))}{self._blame(name)}")

    def names(self, kind: str) -> list[str]:
        """Return what recipes can write for a kind: plain names, and qualified ones where two share a name."""
        owners = [p.owner for p in self.plugins if p.owner.kind == kind]
        plain = [owner.name for owner in owners]
        return [o.name if plain.count(o.name) == 1 else f"{o.distribution}:{o.name}" for o in owners]

    def observers(self) -> list[object]:
        """Return the loaded plugin modules; flows call those of their hooks that watch."""
        return [plugin for plugin in self._manager.get_plugins() if self._watches(plugin)]

    def _watches(self, plugin: object) -> bool:
        callers = self._manager.get_hookcallers(plugin) or []
        return any(hasattr(hookspecs.Watching, caller.name) for caller in callers)

    def _blame(self, name: str) -> str:
        """Return what is known of broken plugins, one of which may have meant to offer `name`."""
        mine = [b for b in self.broken if b.owner.name == name or b.owner.distribution in name.split(":")]
        return "".join(f"; plugin '{b.owner.name}' is broken: {b.reason}" for b in (mine or self.broken)[:3])

    def _load(
        self,
        entry: str,
        distribution: str,
        version: str,
        load: Callable[[], object],
        source: Callable[[], str],
    ) -> None:
        """Import one plugin and collect what it offers; whatever goes wrong is written down, not raised."""
        self.distributions[distribution] = version
        try:
            plugin = load()
            self._manager.register(plugin, name=f"{distribution}:{entry}")
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # SystemExit, and what extension modules raise when they panic
            for kind in _kinds_in(source):
                self._break(kind, entry, distribution, version, error)
            return
        wrong = hook_fault(plugin)
        if wrong:
            self._manager.unregister(plugin)
            for kind in _kinds_in(source):
                self._break(kind, entry, distribution, version, PluginError(wrong))
            return
        others = [other for other in self._manager.get_plugins() if other is not plugin]
        for kind, (hook, contract) in KINDS.items():
            register = Register(kind, contract, distribution, version)
            try:
                self._manager.subset_hook_caller(hook, remove_plugins=others)(register=register)
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                self._break(kind, entry, distribution, version, error)
            else:
                self.plugins.extend(register.plugins)

    def _break(self, kind: str, entry: str, distribution: str, version: str, error: BaseException) -> None:
        reason = str(error) if isinstance(error, CswfError) else f"{type(error).__name__}: {error}"
        reason = textwrap.shorten(reason, 300, placeholder=" …")
        self.broken.append(Broken(Owner(kind, entry, distribution, version), reason))


def _installed() -> Iterator[EntryPoint]:
    """Yield the entry points of the group, the built-ins first, each once."""
    points = {(p.dist.name if p.dist else "", p.name): p for p in reversed(list(entry_points(group="cswf")))}
    yield from sorted(
        points.values(), key=lambda p: (p.dist is None or _normal(p.dist.name) != BUILTIN, p.value)
    )


def _source(point: EntryPoint) -> str:
    """Return the text of an entry point's module, without importing it."""
    spec = importlib.util.find_spec(point.module)
    return Path(spec.origin).read_text() if spec is not None and spec.origin else ""


def _kinds_in(source: Callable[[], str]) -> list[str]:
    """Return the kinds that a plugin seems to offer, by the hooks in its text; '' if none is seen."""
    try:
        text = source()
    except Exception:  # no such file, not a text, a parent package that fails too
        return [""]
    return [kind for kind, (hook, _) in KINDS.items() if re.search(rf"\bdef {hook}\b", text)] or [""]


def _files(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise PluginError(f"--plugins-dir: {folder} is not a folder")
    return sorted(path for path in folder.glob("*.py") if not path.name.startswith("_"))


def _import_file(path: Path) -> ModuleType:
    name = f"cswf_file_plugin_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise PluginError(f"{path} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # attrs and dataclasses look a class's module up there
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _names(text: str) -> set[str]:
    return {_normal(name) for name in text.split(",") if name.strip()}


def _normal(distribution: str) -> str:
    return distribution.strip().lower().replace("_", "-").replace(".", "-")


class Register:
    """The `register` that a distribution's hook of one kind is handed: it takes classes, and checks each."""

    def __init__(self, kind: str, contract: type[Any], distribution: str, version: str) -> None:
        self.kind = kind
        self.contract = contract
        self.distribution = distribution
        self.version = version
        self.plugins: list[Plugin] = []

    def __call__(self, name: str, plugin: type[Any]) -> None:
        """Take an offer, or refuse it with what is wrong."""
        fault = self._fault(name, plugin)
        if fault:
            raise PluginError(fault)
        self.plugins.append(Plugin(Owner(self.kind, name, self.distribution, self.version), plugin))

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


def hook_fault(plugin: object) -> str:
    """Return what is wrong with a plugin's hooks: an unknown name, a forgotten decorator, none at all."""
    known = [n for spec in (hookspecs.Registration, hookspecs.Watching) for n in vars(spec) if n[0] != "_"]
    marked = [n for n in dir(plugin) if hasattr(getattr(plugin, n, None), f"{hookspecs.PROJECT}_impl")]
    for name in marked:
        if name not in known:
            return f"there is no hook '{name}'{did_you_mean(name, known)}"
    for name in known:
        if name not in marked and callable(getattr(plugin, name, None)):
            return f"{name} lacks its decorator: write @hookimpl above it (from cswf_core import hookimpl)"
    return "" if marked else f"it implements no hook; known: {', '.join(known)}"


def watching(observers: Sequence[object]) -> pluggy.HookRelay:
    """Return the hooks of all observers; raise `PluginError` for one that implements them wrongly."""
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs.Watching)
    for observer in observers:
        fault = hook_fault(observer)
        if fault:
            raise PluginError(f"observer {type(observer).__name__}: {fault}")
        manager.register(observer)
    return manager.hook
