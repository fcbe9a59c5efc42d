"""One measurement: a flow built from a recipe, some of its steps timed whole, some part by part."""

from __future__ import annotations

import math
import platform
from collections.abc import Iterator
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from statistics import median
from typing import Any

import attrs
import torch

from cswf_core.bench.ceilings import Ceilings
from cswf_core.bench.naive import NaiveTimes, time_naive
from cswf_core.bench.single_stage import only_stage
from cswf_core.bench.timing import durations, forget_peak, peak, reserved
from cswf_core.flow.clock import Clock, Share, Stopwatch
from cswf_core.flow.flow import Flow, State
from cswf_core.kernels.memory import is_out_of_memory
from cswf_core.recipe import Recipe, build_flow
from cswf_core.runs.record import describe_device

WARMUP_PARTS = 2
"""Steps with a stopwatch before those that count."""

PART_STEPS = 5
"""Steps that are timed part by part, at least."""


@attrs.frozen
class Effort:
    """How many steps to take."""

    steps: int = 10
    """Timed whole."""
    warmup: int = 3
    """Before those: kernels are compiled, memory is claimed."""


@attrs.frozen(kw_only=True)
class Result:
    """What a step costs."""

    name: str
    """The recipe's."""
    stage: str
    choices: dict[str, str]
    """Names of projection, CDF, condition and precision, and the numbers that products are taken in."""
    sizes: dict[str, Any]
    device: dict[str, Any]
    step_ms_all: list[float]
    """Each of the steps that were timed whole."""
    parts: dict[str, Share]
    """Each part's share of a step, the mean over those that were timed part by part."""
    ceilings: Ceilings
    peak_memory_bytes: int
    peak_reserved_bytes: int | None = None
    naive: NaiveTimes | None = None
    notes: tuple[str, ...] = ()

    @property
    def step_ms(self) -> float:
        """The median time of a step."""
        return median(self.step_ms_all)

    @property
    def naive_ms(self) -> float | None:
        """The median time of the naive step."""
        return None if self.naive is None else median(self.naive.milliseconds)

    @property
    def speedup(self) -> float | None:
        """How many times as long the naive step takes."""
        return None if self.naive_ms is None else self.naive_ms / self.step_ms

    def work(self) -> Share:
        """Return a whole step's time, with the bytes and operations of all its parts."""
        moved = sum(share.bytes for share in self.parts.values())
        return Share(self.step_ms, moved, sum(share.flops for share in self.parts.values()))


def measure(
    recipe: Recipe, stage: int | None, effort: Effort, device: torch.device, ceilings: Ceilings
) -> Result:
    """Time a stage of a recipe (counted from 1; None is the last) on a device."""
    reuse = 1 if recipe.reuse == "all" else recipe.reuse
    part_steps = math.ceil(PART_STEPS / reuse) * reuse  # each set of directions is drawn once in so many steps
    # One step more than are taken: a flow looks at its numbers in the last step of a stage.
    planned = effort.warmup + effort.steps + WARMUP_PARTS * reuse + part_steps + 1
    forget_peak(device)
    flow = build_flow(only_stage(recipe, stage, planned), device=str(device))
    evolution = iter(flow)
    durations(flow.device, partial(next, evolution), effort.warmup)
    step_ms_all = durations(flow.device, partial(next, evolution), effort.steps)
    highest, held = peak(flow.device), reserved(flow.device)
    return Result(
        name=recipe.name,
        stage=flow.stages[0].name,
        choices={
            "projection": recipe.projection.name,
            "cdf": recipe.cdf.name,
            "condition": recipe.condition.name,
            "precision": recipe.particles.precision,
            "products": flow.products,
        },
        sizes=sizes(flow, recipe),
        device=describe_device(flow.device),
        step_ms_all=step_ms_all,
        parts=parts(flow, evolution, part_steps, reuse),
        ceilings=ceilings,
        peak_memory_bytes=highest,
        peak_reserved_bytes=held,
    )


def with_naive(result: Result, device: torch.device) -> Result:
    """Return the result with the time of a naive step of the same sizes, if that fits into memory."""
    found = result.sizes
    d = found["stage_dimension"] + found["condition_length"]
    try:
        times = time_naive(d, found["particles"], found["data"], found["directions"], device)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return attrs.evolve(result, notes=(*result.notes, "the naive step does not fit into memory"))
    return attrs.evolve(result, naive=times)


def parts(flow: Flow, evolution: Iterator[State], steps: int, reuse: int) -> dict[str, Share]:
    """Return what each part of a step takes, by steps with a stopwatch in the flow."""
    flow.clock = Stopwatch(flow.device)
    for _ in range(WARMUP_PARTS * reuse):  # parts that are one kernel otherwise are compiled on their own
        next(evolution)
    watch = flow.clock = Stopwatch(flow.device)
    for _ in range(steps):
        next(evolution)
    flow.clock = Clock()
    return {
        name: Share(share.milliseconds / steps, share.bytes / steps, share.flops / steps)
        for name, share in watch.shares.items()
    }


def sizes(flow: Flow, recipe: Recipe) -> dict[str, Any]:
    """Return everything that a step's cost depends on: M, N, H, d, and the stage's grid, d_k."""
    stage = flow.stages[0]
    grid = (stage.upsampling or flow.data).space
    return {
        "particles": len(flow.particles),
        "data": len(flow.target),
        "directions": stage.directions,
        "shape": list(flow.data.space.shape),
        "dimension": flow.data.space.dimension,
        "resolution": list(grid.shape[1:]) if grid.is_image else None,
        "stage_dimension": grid.dimension,
        "patch": getattr(stage.sampler or recipe.projection.part, "patch", None),
        "classes": len(flow.data.classes),
        "condition_length": flow.condition_length,
        "reuse": recipe.reuse,
    }


def versions() -> dict[str, str | None]:
    """Return the versions that a time depends on."""
    return {
        "python": platform.python_version(),
        "cswf": _version("cswf"),
        "torch": torch.__version__,
        "triton": _version("triton"),
        "cuda": torch.version.cuda,
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
