"""Plugins that fail on order: `SOAK_FAULT=projection:nan:7` has the seventh draw of directions be NaN."""

from __future__ import annotations

import os
import time
from pathlib import Path

import attrs
import torch
from torch import Tensor

from cswf_core import hookimpl
from cswf_core.interfaces import (
    CDFEstimator,
    Comparison,
    Draw,
    FittedCDF,
    Metric,
    Observer,
    ProjectionSampler,
    Result,
    Space,
)
from cswf_plugins.cdfs.sorted import Sorted

HANG_S = 600.0
"""How long a call hangs, unless a signal ends it."""

calls: dict[str, int] = {}
"""How often each part was called in this process."""


def ordered(part: str) -> str:
    """Count a call of a part, and fail if that was ordered; return what is to be wrong with the answer."""
    name, fault, number = os.environ.get("SOAK_FAULT", "none:none:0").split(":")
    if name != part:
        return ""
    calls[part] = calls.get(part, 0) + 1
    if calls[part] != int(number):
        return ""
    if fault == "raise":
        raise RuntimeError("as ordered")
    if fault == "exit":
        raise SystemExit(7)
    if fault == "memory":
        raise MemoryError("as ordered")
    if fault == "device memory":
        raise torch.OutOfMemoryError("CUDA out of memory, as ordered")
    if fault == "hang":
        time.sleep(HANG_S)
    return fault


def spoiled(values: Tensor, fault: str) -> Tensor:
    """Return values with what was ordered to be wrong with them."""
    if fault == "nan":
        return values * torch.nan
    return values[1:] if fault == "shape" else values


@attrs.frozen(kw_only=True)
class Directions(ProjectionSampler):
    """Uniform directions."""

    def sample(self, space: Space, count: int, draw: Draw) -> Tensor:
        """Return normalised Gaussian vectors: count × d."""
        return spoiled(draw.sphere(count, space.dimension), ordered("projection"))


@attrs.frozen(kw_only=True)
class Steps(CDFEstimator):
    """Sorted values."""

    def fit(self, values: Tensor) -> FittedCDF:
        """Return the distribution of each row of values."""
        return Sorted().fit(spoiled(values, ordered("cdf")))


@attrs.frozen(kw_only=True)
class Mean(Metric):
    """The distance of the means."""

    better = "lower"

    def compute(self, comparison: Comparison) -> Result:
        """Return the distance."""
        fault = ordered("metric")
        distance = (comparison.generated.x.mean(dim=1) - comparison.real.x.mean(dim=1)).norm()
        scores = [float(distance)] if fault == "shape" else {"means": float(spoiled(distance[None], fault)[0])}
        return Result(scores, "distance of the means")  # type: ignore[arg-type]


class Watcher:
    """Watches every step."""

    @hookimpl
    def after_step(self) -> None:
        """Fail if that was ordered."""
        ordered("observer")


@attrs.frozen(kw_only=True)
class Watching(Observer):
    """Watches every step."""

    def watch(self, folder: Path) -> object:
        """Return the watcher."""
        return Watcher()


@hookimpl
def register_projections(register):
    register("on-order", Directions)


@hookimpl
def register_cdfs(register):
    register("on-order", Steps)


@hookimpl
def register_metrics(register):
    register("on-order", Mean)


@hookimpl
def register_observers(register):
    register("on-order", Watching)
