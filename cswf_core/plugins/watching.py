"""Watching hooks: whether an object implements them rightly, and how a flow calls them."""

from __future__ import annotations

from collections.abc import Sequence

import pluggy

from cswf_core import hookspecs
from cswf_core.errors import PluginError, did_you_mean


def hook_fault(plugin: object) -> str:
    """Return what is wrong with a plugin's hooks: an unknown name, a forgotten decorator, none at all."""
    known = hookspecs.NAMES
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
