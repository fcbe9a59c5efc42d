"""The one door for plugins' answers: a checked adapter for each contract.

An adapter is made once, when a plugin is chosen, and stands in for it: the engine calls it as it would call the
plugin, and gets answers that fit the contract or an error. The error names the plugin, its distribution and
version, what the contract expects and what came. So the engine knows no owner and checks nothing itself.

Shapes, types and devices are checked at every call. Numbers are checked where `check` says so: that reads
back from the device, which takes time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from cswf_core.checks.adapter import Adapter, calling, short, undeclared
from cswf_core.checks.data import CheckedSource, check_dataset, check_start
from cswf_core.checks.parts import (
    CheckedCDF,
    CheckedCondition,
    CheckedMap,
    CheckedSampler,
    CheckedSchedule,
    checked_cdf,
    checked_condition,
    checked_sampler,
    checked_schedule,
)
from cswf_core.checks.scores import CheckedMetric, CheckedObserver
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

ADAPTERS: Mapping[type[Any], Callable[[Any, Owner], Any]] = {
    ProjectionSampler: CheckedSampler,
    CDFEstimator: CheckedCDF,
    ConditionEncoder: CheckedCondition,
    Schedule: CheckedSchedule,
    DatasetSource: CheckedSource,
    Metric: CheckedMetric,
    Observer: CheckedObserver,
}
"""Contract → its adapter."""


def checked(plugin: object, owner: Owner) -> Any:
    """Return a plugin behind the checks of its contract."""
    return next(adapter(plugin, owner) for kind, adapter in ADAPTERS.items() if isinstance(plugin, kind))


__all__ = [
    "Adapter",
    "CheckedCDF",
    "CheckedCondition",
    "CheckedMap",
    "CheckedMetric",
    "CheckedObserver",
    "CheckedSampler",
    "CheckedSchedule",
    "CheckedSource",
    "calling",
    "check_dataset",
    "check_start",
    "checked",
    "checked_cdf",
    "checked_condition",
    "checked_sampler",
    "checked_schedule",
    "short",
    "undeclared",
]
