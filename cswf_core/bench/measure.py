"""Measurements: steps timed whole and part by part, a naive step beside them, and the device's own limits."""

from __future__ import annotations

import contextlib
import gc
import itertools
import math
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import attrs
import torch
from torch import Tensor

from cswf_core.bench.naive import DIRECTIONS_AT_A_TIME, full_float32, naive_step, random_directions
from cswf_core.bench.stopwatch import PartCost, Stopwatch
from cswf_core.errors import RunError
from cswf_core.flow.clock import Clock
from cswf_core.flow.flow import Flow, State
from cswf_core.interfaces import ProjectionSampler, Schedule, Space, Stage
from cswf_core.kernels.memory import is_out_of_memory
from cswf_core.ranks import Ranks
from cswf_core.recipe import Recipe, build_flow
from cswf_core.runs.record import describe_device

WARMUP_PARTS = 2
"""Steps with a stopwatch before those that count."""

PART_STEPS = 5
"""Steps that are timed part by part, at least."""

CEILING_REPEATS = 9
COPIED = {"cuda": 2**30, "cpu": 2**27}
"""Bytes of the buffer that is copied: far more than the caches hold."""
SIDE = {"cuda": 8192, "cpu": 1024}
"""n of the n×n matrices that are multiplied."""

NAIVE_REPEATS = 3
ENOUGH = 5_000.0
"""Milliseconds after which one naive step is enough."""

RESET_PEAK = "5"
"""The number that makes Linux count a process's peak memory afresh."""


@attrs.frozen
class Effort:
    """Numbers of steps to take."""

    steps: int = 10
    """Timed whole."""
    warmup: int = 3
    """Before those: kernels are compiled, memory is claimed."""


@attrs.frozen
class Ceilings:
    """The two rates of a device that no step can exceed, as measured."""

    copy_bandwidth: float
    """Bytes per second of a copy from device memory to device memory, read and written ones together."""
    matrix_rate: float
    """Floating-point operations per second of a large product: float16 summed in float32 on a GPU, float32
    on a CPU."""

    def bandwidth_fraction(self, moved: float, milliseconds: float) -> float:
        """Return the share of the copy bandwidth at which so many bytes were moved in that time."""
        return _rate(moved, milliseconds) / self.copy_bandwidth

    def matrix_fraction(self, flops: float, milliseconds: float) -> float:
        """Return the share of the matrix rate at which so many operations were done in that time."""
        return _rate(flops, milliseconds) / self.matrix_rate


@attrs.frozen
class NaiveTimes:
    """Times and memory of the naive step."""

    milliseconds: list[float]
    peak_memory_bytes: int


@attrs.frozen(kw_only=True)
class StepCost:
    """The cost of a step."""

    name: str
    """The recipe's."""
    stage: str
    choices: dict[str, str]
    """Names of projection, CDF, condition and precision, and the numbers that products are taken in."""
    sizes: dict[str, Any]
    device: dict[str, Any]
    step_ms_all: list[float]
    """Each of the steps that were timed whole."""
    parts: dict[str, PartCost]
    """Each part's share of a step, the mean over those that were timed part by part."""
    ceilings: Ceilings
    peak_memory_bytes: int
    peak_reserved_bytes: int | None = None
    """The most that PyTorch held on a GPU, in use or not; None on a CPU."""
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

    def work(self) -> PartCost:
        """Return a whole step's time, with the bytes and operations of all its parts."""
        moved = sum(share.bytes for share in self.parts.values())
        return PartCost(self.step_ms, moved, sum(share.flops for share in self.parts.values()))


def measure(
    recipe: Recipe,
    stage: int | None,
    effort: Effort,
    device: torch.device,
    ceilings: Ceilings,
    ranks: Ranks | None = None,
) -> StepCost:
    """Time a stage of a recipe (counted from 1; None is the last) on a device; with `ranks`, on all of them."""
    reuse = 1 if recipe.reuse == "all" else recipe.reuse
    part_steps = math.ceil(PART_STEPS / reuse) * reuse  # each set of directions is drawn once in so many steps
    # One step more than are taken: a flow looks at its numbers in the last step of a stage.
    planned = effort.warmup + effort.steps + WARMUP_PARTS * reuse + part_steps + 1
    forget_peak(device)
    flow = build_flow(only_stage(recipe, stage, planned), device=str(device), ranks=ranks)
    evolution = iter(flow)
    durations(flow.device, partial(next, evolution), effort.warmup)
    step_ms_all = durations(flow.device, partial(next, evolution), effort.steps)
    highest = peak(flow.device)
    held = torch.cuda.max_memory_reserved(flow.device) if flow.device.type == "cuda" else None
    return StepCost(
        name=recipe.name,
        stage=flow.stages[0].name,
        choices={
            **{key: getattr(recipe, key).name for key in ("projection", "cdf", "condition")},
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


def with_naive(result: StepCost, device: torch.device) -> StepCost:
    """Return the result with the time of a naive step of the same sizes, if that fits into memory."""
    sizes = result.sizes
    d = sizes["stage_dimension"] + sizes["condition_length"]
    try:
        times = time_naive(d, sizes["particles"], sizes["data"], sizes["directions"], device)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return attrs.evolve(result, notes=(*result.notes, "the naive step does not fit into memory"))
    return attrs.evolve(result, naive=times)


def time_naive(d: int, M: int, N: int, H: int, device: torch.device) -> NaiveTimes:
    """Time the naive step, its draw of directions included, on random particles and data of these sizes."""
    forget_peak(device)
    generator = torch.Generator(device).manual_seed(0)
    z = torch.randn(d, M, generator=generator, device=device)
    data = torch.randn(d, N, generator=generator, device=device)

    def step(count: int) -> Tensor:
        return naive_step(z, data, random_directions(count, d, generator), 0.1)

    with full_float32():
        durations(device, partial(step, min(H, DIRECTIONS_AT_A_TIME)), 1)
        taken = durations(device, partial(step, H), 1)
        if taken[0] < ENOUGH:
            taken += durations(device, partial(step, H), NAIVE_REPEATS - 1)
    return NaiveTimes(taken, peak(device))


def parts(flow: Flow, evolution: Iterator[State], steps: int, reuse: int) -> dict[str, PartCost]:
    """Return each part's share of a step, by steps with a stopwatch in the flow."""
    flow.clock = Stopwatch(flow.device)
    for _ in range(WARMUP_PARTS * reuse):  # parts that are one kernel otherwise are compiled on their own
        next(evolution)
    watch = flow.clock = Stopwatch(flow.device)
    for _ in range(steps):
        next(evolution)
    flow.clock = Clock()
    return {
        name: PartCost(*(total / steps for total in attrs.astuple(share)))
        for name, share in watch.costs.items()
    }


def sizes(flow: Flow, recipe: Recipe) -> dict[str, Any]:
    """Return everything that a step's cost depends on: M, N, H, d, and the stage's grid, d_k."""
    stage = flow.stages[0]
    grid = (stage.upsampling or flow.data).space
    return {
        "particles": flow.count,
        "data": len(flow.balanced_data),
        "directions": stage.directions,
        "shape": list(flow.data.space.shape),
        "dimension": flow.data.space.dimension,
        "resolution": list(grid.shape[1:]) if grid.is_image else None,
        "stage_dimension": grid.dimension,
        "patch": getattr(stage.sampler or recipe.projection.part, "patch", None),
        "classes": len(flow.data.classes),
        "condition_length": flow.setup.condition_length,
        "reuse": recipe.reuse,
        "ranks": flow.ranks.size,
    }


@attrs.frozen
class SingleStage(Schedule):
    """A schedule with one stage of another, which takes all its steps whatever the other's `stop` says."""

    schedule: Schedule
    number: int | None
    """The stage's number, counted from 1 as in the progress of a run; None is the last."""
    steps: int

    def stages(self, space: Space, projection: ProjectionSampler) -> Sequence[Stage]:
        """Return the stage, with one step size throughout: its first, unless so few directions cannot bear it.

        A step takes as long whatever its size, and a flow that runs away would end the measurement.
        """
        every = list(self.schedule.stages(space, projection))
        number = len(every) if self.number is None else self.number
        if not 1 <= number <= len(every):
            raise RunError(f"there is no stage {number}: the schedule has {len(every)}, counted from 1")
        stage = every[number - 1]
        fields = {field.name: getattr(stage, field.name) for field in attrs.fields(Stage)}
        eta = min(stage.eta(0), stage.directions / 2)
        return [Stage(**{**fields, "steps": self.steps, "step_size": eta})]


def only_stage(recipe: Recipe, number: int | None, steps: int) -> Recipe:
    """Return the recipe with one stage of its schedule (None: the last), `steps` long."""
    single = SingleStage(recipe.schedule.part, number, steps)
    return attrs.evolve(recipe, schedule=attrs.evolve(recipe.schedule, part=single))


def measure_ceilings(device: torch.device) -> Ceilings:
    """Measure both, in a second or so."""
    size, n = COPIED[device.type], SIDE[device.type]
    source = torch.zeros(size // 4, device=device)
    target = torch.empty_like(source)
    copying = _seconds(device, partial(target.copy_, source))
    dtype = torch.float16 if device.type == "cuda" else torch.float32
    a, b = (torch.randn(n, n, device=device).to(dtype) for _ in range(2))  # zeros save power, and go faster
    product = torch.empty_like(a)
    multiplying = _seconds(device, partial(torch.mm, a, b, out=product))
    return Ceilings(2 * size / copying, 2 * n**3 / multiplying)  # each byte is read and written


def _seconds(device: torch.device, work: Callable[[], object]) -> float:
    durations(device, work, 2)  # libraries are loaded and caches filled the first time
    return median(durations(device, work, CEILING_REPEATS)) / 1e3


def durations(device: torch.device, work: Callable[[], object], times: int) -> list[float]:
    """Return the milliseconds of each of `times` calls in a row.

    On a GPU the calls follow each other as in a run: nobody waits in between, and marks in the queue of work
    tell the times apart.
    """
    if device.type == "cuda":
        return _on_gpu(device, work, times)
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        work()
        taken.append((time.perf_counter() - began) * 1e3)
    return taken


def _on_gpu(device: torch.device, work: Callable[[], object], times: int) -> list[float]:
    with torch.cuda.device(device):
        event: Any = torch.cuda.Event
        marks = [event(enable_timing=True) for _ in range(times + 1)]
        torch.cuda.synchronize()
        marks[0].record()
        for mark in marks[1:]:
            work()
            mark.record()
        torch.cuda.synchronize()
    return [float(a.elapsed_time(b)) for a, b in itertools.pairwise(marks)]


def forget_peak(device: torch.device) -> None:
    """Give back what is not used any more, and count the peak of memory from here on."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    else:
        with contextlib.suppress(OSError):  # elsewhere the peak is that of the whole process
            Path("/proc/self/clear_refs").write_text(RESET_PEAK, encoding="ascii")


def peak(device: torch.device) -> int:
    """Return the most bytes in use since `forget_peak`: of tensors on a GPU, of the whole process on a CPU."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _rate(amount: float, milliseconds: float) -> float:
    return amount / milliseconds * 1e3 if milliseconds > 0 else 0.0
