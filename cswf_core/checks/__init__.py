"""The one door for plugins' answers: a checked adapter for each contract.

An adapter is made once, when a plugin is chosen, and stands in for it: the engine calls it as it would call the
plugin, and gets answers that fit the contract or an error. The error names the plugin, its distribution and
version, what the contract expects and what came. So the engine knows no owner and checks nothing itself.

Shapes, types and devices are checked at every call. Numbers are checked where `check` says so: that reads
back from the device, which takes time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cswf_core.checks.adapter import Adapter, calling, short, undeclared
from cswf_core.checks.cdf import CheckedCDF, CheckedMap
from cswf_core.checks.condition import CheckedCondition
from cswf_core.checks.data import CheckedSource, check_dataset, check_start, check_stored
from cswf_core.checks.projection import CheckedSampler
from cswf_core.checks.scores import CheckedMetric, CheckedObserver
from cswf_core.checks.stages import CheckedCoordinates, CheckedSchedule
from cswf_core.errors import PluginError
from cswf_core.interfaces import (
    CDFEstimator,
    ConditionEncoder,
    Coordinates,
    DatasetSource,
    Metric,
    Observer,
    Owner,
    ProjectionSampler,
    Schedule,
)

__all__ = [
    "ADAPTERS",
    "Adapter",
    "CheckedCDF",
    "CheckedCondition",
    "CheckedCoordinates",
    "CheckedMap",
    "CheckedMetric",
    "CheckedObserver",
    "CheckedSampler",
    "CheckedSchedule",
    "CheckedSource",
    "calling",
    "check_dataset",
    "check_start",
    "check_stored",
    "checked",
    "short",
    "undeclared",
]

ADAPTERS: tuple[tuple[str, type[Any], Callable[[Any, Owner], Any]], ...] = (
    ("projection", ProjectionSampler, CheckedSampler),
    ("cdf", CDFEstimator, CheckedCDF),
    ("condition", ConditionEncoder, CheckedCondition),
    ("schedule", Schedule, CheckedSchedule),
    ("coordinates", Coordinates, CheckedCoordinates),
    ("dataset", DatasetSource, CheckedSource),
    ("metric", Metric, CheckedMetric),
    ("observer", Observer, CheckedObserver),
)
"""Kind of plugin, its contract, and the adapter of that."""


def checked(plugin: object, owner: Owner | None = None, kind: str = "") -> Any:
    """Return a plugin behind the checks of its contract; one that is there already stays as it is.

    Without an owner it is named by its class and module. `kind` says which contract is meant.
    """
    if isinstance(plugin, Adapter):
        return plugin
    kind = kind or (owner.kind if owner is not None else "")
    for name, contract, adapter in ADAPTERS:
        if isinstance(plugin, contract) and kind in ("", name):
            return adapter(plugin, owner if owner is not None else Owner.of(name, plugin))
    hint = " (a class: write the parentheses)" if isinstance(plugin, type) else ""
    raise PluginError(f"{plugin!r} is no {kind or 'plugin'}{hint}")
