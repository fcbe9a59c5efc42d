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
import textwrap
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

import attrs
import pluggy

from cswf_core import hookspecs
from cswf_core.checks import undeclared
from cswf_core.errors import CswfError, PluginError, did_you_mean
from cswf_core.fields import default_of, parameter_fault, parameters, plugins_inside
from cswf_core.hookspecs import Folder
from cswf_core.interfaces import Owner
from cswf_core.plugins.plugin import (
    BUILTIN,
    KINDS,
    Broken,
    Plugin,
    PluginFolders,
    PluginModule,
    folders_of,
    normal,
    plugin_files,
)
from cswf_core.plugins.watching import Watcher, hook_fault

LOAD_ONLY = "CSWF_LOAD_PLUGINS"

HOOKS = {kind: hook for kind, (hook, _) in KINDS.items()} | {"recipe": "register_recipes"}
"""What plugins and packages offer → the hook that offers it."""

NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")
NAMES = "a name has small letters a-z, digits, '-', '_' and '.', and begins with a letter or a digit"
"""Names that plugins and recipes may have, and the same in words."""

YAML = (".yaml", ".yml")


class PluginRegister:
    """The `register` that a module's hook of one kind is handed: it takes classes, and checks each."""

    def __init__(self, module: Owner, contract: type[Any], files: tuple[Path, ...] = ()) -> None:
        self.module = module
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
        label = f"{self.module.kind} '{name}'"
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
        fault = "" if normal(self.module.distribution) == BUILTIN else class_fault(plugin)
        return f"{label}: {fault}" if fault else ""


def class_fault(plugin: type[Any]) -> str:
    """Return what is wrong with a plugin's methods or parameters; nothing if they are fine.

    Tests ask this of the built-in plugins: at each start it would take a tenth of the time.
    """
    return undeclared(plugin) or parameter_fault(plugin)  # type: ignore[arg-type]  # classes can be hashed


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


class Registry:
    """All plugins of a session. Make one with `Registry.discover()`."""

    def __init__(self) -> None:
        self.plugins: list[Plugin] = []
        self.broken: list[Broken] = []
        self.recipes: dict[str, Path] = {}
        """Files of the recipes that packages offer, by `distribution:name`."""
        self.watchers: list[Watcher] = []
        """Modules whose hooks watch every run."""
        self.distributions: dict[str, str] = {}
        self._manager = pluggy.PluginManager(hookspecs.PROJECT)
        self._manager.add_hookspecs(hookspecs.Registration)
        self._manager.add_hookspecs(hookspecs.Watching)

    @classmethod
    def discover(
        cls, plugins_dir: PluginFolders = None, environment: Mapping[str, str] | None = None
    ) -> Registry:
        """Load the built-ins, then installed plugins, then the .py files in one folder or several.

        `CSWF_LOAD_PLUGINS=a,b` loads only those distributions besides the built-ins; empty loads no others.
        `CSWF_PLUGINS_DIR` names more folders.
        """
        registry = cls()
        environment = os.environ if environment is None else environment
        only = _names(environment[LOAD_ONLY]) if LOAD_ONLY in environment else None
        seen = set()
        for point in _installed():
            name = point.dist.name if point.dist is not None else "unknown"
            seen.add(normal(name))
            if normal(name) == BUILTIN or only is None or normal(name) in only:
                version = point.dist.version if point.dist is not None else ""
                registry._load(PluginModule(point.name, name, version, point.load, partial(_source, point)))
        for missing in sorted((only or set()) - seen - {BUILTIN}):
            reason = f"{LOAD_ONLY} names it, but no installed distribution of that name offers cswf plugins"
            registry.broken.append(Broken(Owner("", missing, missing, ""), reason))
        for file in plugin_files(folders_of(plugins_dir, environment)):
            registry._load(file)
        registry._refuse_unknown_defaults()
        return registry

    def find(self, kind: str, name: str) -> Plugin:
        """Return the plugin of a kind by `name` or `distribution:name`; one sentence if that can't be done.

        A plain name means the built-in plugin, if there is one, whatever else is installed.
        """
        distribution, _, bare = name.rpartition(":")
        named = [p for p in self.plugins if p.owner.kind == kind and p.owner.name == bare]
        wanted = normal(distribution) if distribution else BUILTIN
        own = [p for p in named if normal(p.owner.distribution) == wanted]
        named = own if own or distribution else named
        if len(named) == 1:
            return named[0]
        if len(named) > 1:
            owners = " and ".join(f"{p.owner.distribution} {p.owner.version}".strip() for p in named)
            choices = " or ".join(f"'{p.owner.distribution}:{bare}'" for p in named)
            raise PluginError(f"{kind} '{bare}' is offered by {owners}: write {choices}")
        others = [p.owner.kind for p in self.plugins if p.owner.name == bare and p.owner.kind != kind]
        elsewhere = f"; another kind has that name: {', '.join(dict.fromkeys(others))}" if others else ""
        meant = did_you_mean(name, self.names(kind))
        blamed = self.blame(name)
        hints = meant + blamed if meant.endswith("?") else blamed + meant  # a list of all comes last
        raise PluginError(f"unknown {kind} '{name}'{elsewhere}{hints}")

    def names(self, kind: str) -> list[str]:
        """Return what recipes can write for a kind; see `name_of`."""
        return [self.name_of(plugin.owner) for plugin in self.plugins if plugin.owner.kind == kind]

    def name_of(self, owner: Owner) -> str:
        """Return what recipes write for a plugin: its name, with its distribution if another has that name."""
        alike = self.namesakes(owner)
        plain = not alike or normal(owner.distribution) == BUILTIN
        return owner.name if plain else f"{owner.distribution}:{owner.name}"

    def written(self, part: object) -> dict[str, Any]:
        """Return a plugin's object as recipes write it: with `use`, its registered name."""
        return {"use": self.name_of(self.plugin_of(part).owner), **parameters(part, self.written)}

    def plugin_of(self, part: object) -> Plugin:
        """Return the plugin that an object was made by; raise `PluginError` if there is none."""
        for plugin in self.plugins:
            if type(part) is plugin.factory:
                return plugin
        raise PluginError(f"{type(part).__name__} is the class of no plugin that is registered")

    def namesakes(self, owner: Owner) -> list[Owner]:
        """Return the other plugins of its kind that have a plugin's name."""
        alike = [p.owner for p in self.plugins if (p.owner.kind, p.owner.name) == (owner.kind, owner.name)]
        return [other for other in alike if other.distribution != owner.distribution]

    def blame(self, name: str) -> str:
        """Return what is known of broken plugins, one of which may have meant to offer `name`."""
        mine = [b for b in self.broken if b.owner.name == name or b.owner.distribution in name.split(":")]
        return "".join(f"; plugin '{b.owner.name}' is broken: {b.reason}" for b in (mine or self.broken)[:3])

    def _load(self, entry: PluginModule) -> None:
        """Import one module and collect what it offers; whatever goes wrong is written down, not raised."""
        self.distributions[entry.distribution] = entry.version
        try:
            module = entry.load()
            self._manager.register(module, name=f"{entry.distribution}:{entry.name}")
            fault = hook_fault(module)
            if fault:
                self._manager.unregister(module)
                raise PluginError(fault)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # SystemExit, and what extension modules raise when they panic
            for kind in _kinds_in(entry.source):
                self._break(entry.owner(kind), error)
            return
        watcher = Watcher(entry.owner("watcher"), module)
        if watcher.hooks:
            self.watchers.append(watcher)
        for kind, (_, contract) in KINDS.items():
            register = PluginRegister(entry.owner(kind), contract, entry.files)
            if self._call(module, register):
                self.plugins.extend(self._without_twins(entry, register.plugins))
        recipes = RecipeRegister(entry.owner("recipe"), Path(getattr(module, "__file__", None) or "").parent)
        if self._call(module, recipes):
            self.recipes |= recipes.recipes

    def _call(self, module: object, register: PluginRegister | RecipeRegister) -> bool:
        """Hand a module's hook what it offers plugins to, and say whether that went well."""
        others = [other for other in self._manager.get_plugins() if other is not module]
        caller = self._manager.subset_hook_caller(HOOKS[register.module.kind], remove_plugins=others)
        try:
            caller(register=register)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            self._break(register.module, error)
            return False
        return True

    def _without_twins(self, entry: PluginModule, plugins: list[Plugin]) -> Iterator[Plugin]:
        """Yield plugins but those whose name another module of their distribution has taken."""
        taken = {plugin.owner for plugin in self.plugins}
        for plugin in plugins:
            if plugin.owner not in taken:
                yield plugin
                continue
            label = f"{plugin.owner.kind} '{plugin.owner.name}'"
            fault = f"{label} is offered by another module of {plugin.owner.distribution} too"
            self._break(entry.owner(plugin.owner.kind), PluginError(fault))

    def _refuse_unknown_defaults(self) -> None:
        """Break plugins with a parameter whose default is a plugin that is not registered: it has no name."""
        checked = [(plugin, self._default_fault(plugin)) for plugin in self.plugins]
        broken = [Broken(plugin.owner, fault) for plugin, fault in checked if fault]
        if broken:
            self.plugins = [plugin for plugin, fault in checked if not fault]
            self.broken += broken
            self._refuse_unknown_defaults()  # those of others may have been among them

    def _default_fault(self, plugin: Plugin) -> str:
        for field in (field for field in attrs.fields(plugin.factory) if field.init):
            for _, part in plugins_inside(default_of(field), field.name):
                if not any(type(part) is other.factory for other in self.plugins):
                    return (
                        f"the default of parameter '{field.name}' is a {type(part).__name__}, which no plugin "
                        "registers, so that recipes have no name for it"
                    )
        return ""

    def _break(self, owner: Owner, error: BaseException) -> None:
        reason = str(error) if isinstance(error, CswfError) else f"{type(error).__name__}: {error}"
        self.broken.append(Broken(owner, textwrap.shorten(reason, 300, placeholder=" …")))


def _installed() -> Iterator[EntryPoint]:
    """Yield the entry points of the group, the built-ins first, each once."""
    points = {(p.dist.name if p.dist else "", p.name): p for p in reversed(list(entry_points(group="cswf")))}
    yield from sorted(
        points.values(), key=lambda p: (p.dist is None or normal(p.dist.name) != BUILTIN, p.value)
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
    return [kind for kind, hook in HOOKS.items() if re.search(rf"\bdef {hook}\b", text)] or [""]


def _names(text: str) -> set[str]:
    return {normal(name) for name in text.split(",") if name.strip()}
