"""The built-in plugins. They come through the entry-point door like anyone's."""

from __future__ import annotations

from cswf_core.hookspecs import Register, hookimpl
from cswf_plugins.cdfs.sorted import Sorted
from cswf_plugins.conditions.continuous import Continuous
from cswf_plugins.conditions.none import NoCondition
from cswf_plugins.conditions.one_hot import OneHot
from cswf_plugins.conditions.separate import Separate
from cswf_plugins.datasets.digits import Digits
from cswf_plugins.datasets.npz import Npz
from cswf_plugins.datasets.toy_2d import Toy2D
from cswf_plugins.metrics.sliced_wasserstein import SlicedWasserstein
from cswf_plugins.projections.uniform import Uniform
from cswf_plugins.schedules.constant import Constant


@hookimpl
def register_projections(register: Register) -> None:
    """Offer the built-in projections."""
    register("uniform", Uniform)


@hookimpl
def register_cdfs(register: Register) -> None:
    """Offer the built-in CDF estimators."""
    register("sorted", Sorted)


@hookimpl
def register_conditions(register: Register) -> None:
    """Offer the built-in conditions."""
    register("none", NoCondition)
    register("one-hot", OneHot)
    register("continuous", Continuous)
    register("separate", Separate)


@hookimpl
def register_schedules(register: Register) -> None:
    """Offer the built-in schedules."""
    register("constant", Constant)


@hookimpl
def register_datasets(register: Register) -> None:
    """Offer the built-in data sets."""
    register("digits", Digits)
    register("toy-2d", Toy2D)
    register("npz", Npz)


@hookimpl
def register_metrics(register: Register) -> None:
    """Offer the built-in metrics."""
    register("sliced-wasserstein", SlicedWasserstein)
