"""Those who watch a flow, and how they are called."""

from __future__ import annotations

from collections.abc import Sequence

import pluggy

from cswf_core.errors import PluginError
from cswf_core.hookspecs import PROJECT, Observation
from cswf_core.offers import misused_hooks


def hooks(observers: Sequence[object]) -> pluggy.HookRelay:
    """Return the hooks of all observers; raise `PluginError` for one that implements them wrongly."""
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(Observation)
    for observer in observers:
        wrong = misused_hooks(observer)
        if wrong:
            raise PluginError(f"observer {type(observer).__name__}: {wrong}")
        manager.register(observer)
    return manager.hook
