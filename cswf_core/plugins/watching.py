"""Watching hooks: whether an object implements them rightly, and how a flow calls them.

Watchers are called one by one, so that one that fails can be named. One that a recipe lists, or that a program
hands to a flow, ends the run. One that is there only because its package is installed is switched off: the run
was not made for it.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import attrs
import pluggy

from cswf_core import hookspecs
from cswf_core.checks import calling
from cswf_core.errors import LostRankError, NotFiniteError, OutOfMemoryError, PluginError, did_you_mean
from cswf_core.interfaces import Owner
from cswf_core.plugins.plugin import PACKAGE

log = logging.getLogger("cswf")

Call = Callable[..., Any]


@attrs.frozen
class Watcher:
    """A module of a package, or a file, whose hooks watch every run."""

    owner: Owner
    module: object

    @property
    def hooks(self) -> list[str]:
        """The watching hooks that it implements."""
        return [name for name in marked(self.module) if hasattr(hookspecs.Watching, name)]


class Watchers:
    """Everything that watches a flow."""

    def __init__(self, observers: Sequence[object]) -> None:
        """Each of `observers` is an object with hooks or a `Watcher`; raise `PluginError` for a wrong one."""
        self._bystanders = {id(each.module): each for each in observers if isinstance(each, Watcher)}
        """Those that no recipe and no program has named."""
        plugins = [each.module if isinstance(each, Watcher) else each for each in observers]
        for plugin in plugins:
            fault = hook_fault(plugin)
            if fault:
                raise PluginError(f"observer {type(plugin).__name__}: {fault}")
        callers = [(plugin, _callers(plugin)) for plugin in plugins]
        self._calls = {hook: _in_order(hook, callers) for hook in vars(hookspecs.Watching) if hook[0] != "_"}
        """Hook → those that implement it in the order of calls, each with what calls it alone."""

    def tell(self, hook: str, **arguments: object) -> None:
        """Call a hook of each that implements it."""
        for plugin, call in list(self._calls[hook]):
            watcher = self._bystanders.get(id(plugin))
            if watcher is not None:
                self._try(watcher, hook, call, arguments)
                continue
            try:
                call(**arguments)
            except (Exception, SystemExit):
                with calling(_owner_of(plugin), hook):
                    raise

    def _try(self, watcher: Watcher, hook: str, call: Call, arguments: Mapping[str, object]) -> None:
        """Call a hook; if it fails, say whose it is, and call this watcher no more."""
        try:
            with calling(watcher.owner, hook):
                call(**arguments)
        except (LostRankError, NotFiniteError, OutOfMemoryError):  # the flow's own, whoever looked at it
            raise
        except Exception as error:
            own = isinstance(error, PluginError) and str(error).startswith(f"{watcher.owner}:")
            reason = str(error) if own else f"{watcher.owner}: {hook} raised {type(error).__name__}: {error}"
            log.warning("%s; it is switched off for the rest of this run", reason)
            for calls in self._calls.values():
                calls[:] = [(plugin, other) for plugin, other in calls if plugin is not watcher.module]


def _callers(plugin: object) -> pluggy.HookRelay:
    """Return what calls the hooks of a plugin alone."""
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs.Watching)
    manager.register(plugin)
    return manager.hook


def _in_order(hook: str, callers: Sequence[tuple[object, pluggy.HookRelay]]) -> list[tuple[object, Call]]:
    """Return the plugins that implement a hook, each with what calls it alone.

    They come in pluggy's order: those that try to be first, those that do not say, the last of both before the
    others; then those that try to be last.
    """
    first: list[tuple[object, Call]] = []
    usual: list[tuple[object, Call]] = []
    last: list[tuple[object, Call]] = []
    for plugin, calls in callers:
        caller = getattr(calls, hook)
        for implementation in caller.get_hookimpls():
            group = first if implementation.tryfirst else last if implementation.trylast else usual
            group.append((plugin, caller))
    return [*reversed(first), *reversed(usual), *last]


def _owner_of(observer: object) -> Owner:
    """Return whose an observer is: that of the distribution or the file that its class comes from."""
    owner = Owner.of("observer", observer)
    module = owner.distribution
    if module.startswith(PACKAGE):
        file = getattr(sys.modules.get(module), "__file__", None)
        return attrs.evolve(owner, distribution=Path(file).name if file else module)
    for point in entry_points(group=hookspecs.PROJECT):
        if point.dist is not None and point.module.partition(".")[0] == module.partition(".")[0]:
            return attrs.evolve(owner, distribution=point.dist.name, version=point.dist.version)
    return owner


def marked(plugin: object) -> list[str]:
    """Return the names that `@hookimpl` stands above in a module or an object."""
    return [name for name in dir(plugin) if hasattr(getattr(plugin, name, None), f"{hookspecs.PROJECT}_impl")]


def hook_fault(plugin: object) -> str:
    """Return what is wrong with a plugin's hooks: an unknown name, a forgotten decorator, none at all."""
    known = hookspecs.NAMES
    hooks = marked(plugin)
    for name in hooks:
        if name not in known:
            return f"there is no hook '{name}'{did_you_mean(name, known)}"
    for name in known:
        if name not in hooks and callable(getattr(plugin, name, None)):
            return f"{name} lacks its decorator: write @hookimpl above it (from cswf_core import hookimpl)"
    return "" if hooks else f"it implements no hook; known: {', '.join(known)}"
