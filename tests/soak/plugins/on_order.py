"""Plugins that fail on order: `SOAK_FAULT=projection:nan:7` has the seventh draw of directions be NaN."""

from __future__ import annotations

import os
import time
from pathlib import Path

import attrs
import torch
from torch import Tensor

from cswf_core import hookimpl
from cswf_core.interfaces import CDFEstimator, Metric, Observer, ProjectionSampler, Result
from cswf_plugins.cdfs.sorted import Sorted

HANG_S = 600.0
"""How long a call hangs, unless a signal ends it."""

calls: dict[str, int] = {}
"""How often each part was called in this process."""

ERRORS = {
    "raise": RuntimeError("as ordered"),
    "exit": SystemExit(7),
    "memory": MemoryError("as ordered"),
    "device memory": torch.OutOfMemoryError("CUDA out of memory, as ordered"),
}


def ordered(part: str) -> str:
    """Count a call of a part, and fail if that was ordered; return what is to be wrong with the answer."""
    name, fault, number = os.environ.get("SOAK_FAULT", "none:none:0").split(":")
    calls[part] = calls.get(part, 0) + 1
    if name != part or calls[part] != int(number):
        return ""
    if fault in ERRORS:
        raise ERRORS[fault]
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

    def sample(self, space, count, draw) -> Tensor:
        return spoiled(draw.sphere(count, space.dimension), ordered("projection"))


@attrs.frozen(kw_only=True)
class Steps(CDFEstimator):
    """Sorted values."""

    def fit(self, values: Tensor):
        return Sorted().fit(spoiled(values, ordered("cdf")))


@attrs.frozen(kw_only=True)
class Mean(Metric):
    """The distance of the means."""

    better = "lower"

    def compute(self, comparison) -> Result:
        fault = ordered("metric")
        distance = (comparison.generated.x.mean(dim=1) - comparison.real.x.mean(dim=1)).norm()
        scores = [float(distance)] if fault == "shape" else {"means": float(spoiled(distance[None], fault)[0])}
        return Result(scores, "distance of the means")  # type: ignore[arg-type]


class Watcher:
    """Watches every step."""

    @hookimpl
    def after_step(self) -> None:
        ordered("observer")


@attrs.frozen(kw_only=True)
class Watching(Observer):
    """Watches every step."""

    def watch(self, folder: Path) -> object:
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
