"""Measurements: steps timed whole and part by part, a naive step beside them, the device's limits; as text."""

from __future__ import annotations

import contextlib
import gc
import itertools
import math
import resource
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import torch

from cswf_core.bench.naive import DIRECTIONS_AT_A_TIME, full_float32, naive_step, random_directions
from cswf_core.bench.request import times
from cswf_core.errors import RunError
from cswf_core.flow.flow import Flow, State
from cswf_core.flow.memory import PARTS, Clock, Work
from cswf_core.interfaces import ProjectionSampler, Schedule, Space, Stage
from cswf_core.kernels.memory import is_out_of_memory
from cswf_core.ranks import Ranks
from cswf_core.recipe import Recipe, build_flow
from cswf_core.runs.record import describe_device, versions
from cswf_core.runs.screen import in_letters, table

WARMUP_PARTS = 2
"""Steps with a stopwatch before those that count."""

Document = dict[str, Any]
"""A result as `--json` has it, every figure in basic units: milliseconds, bytes, operations, per second."""


@attrs.define
class PartCost:
    """The time and work of one part of the steps so far."""

    milliseconds: float = 0.0
    bytes: float = 0.0
    flops: float = 0.0

    def document(self, ceilings: Document, steps: int = 1) -> Document:
        """Return the cost of one of `steps` steps, and what share of the device's limits it reaches."""
        ms = self.milliseconds / steps
        moved = self.bytes / steps
        flops = self.flops / steps
        return {
            "ms": ms,
            "bytes": moved,
            "flops": flops,
            "bandwidth_fraction": (moved / ms * 1e3 if ms > 0 else 0.0) / ceilings["copy_bandwidth"],
            "matrix_fraction": (flops / ms * 1e3 if ms > 0 else 0.0) / ceilings["matrix_rate"],
        }


class Stopwatch(Clock):
    """Times each part, without the parts inside it, by waiting for the device, and adds up its work."""

    times = True

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.costs: dict[str, PartCost] = {}
        self._inside = 0.0
        """Milliseconds of parts that have ended inside the part that is under way."""

    @contextmanager
    def part(self, name: str, work: Work | None = None) -> Iterator[None]:
        """Add the time inside, and the work, to the part's cost."""
        self._wait()
        before = self._inside
        self._inside = 0.0
        began = time.perf_counter()
        yield
        self._wait()
        elapsed = (time.perf_counter() - began) * 1e3
        cost = self.costs.setdefault(name, PartCost())
        cost.milliseconds += elapsed - self._inside
        self._inside = before + elapsed
        if work is not None:
            moved, flops = work()
            cost.bytes += moved
            cost.flops += flops

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


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


def measure(
    recipe: Recipe,
    stage: int | None,
    steps: int,
    warmup: int,
    device: torch.device,
    ceilings: Document,
    ranks: Ranks | None = None,
) -> Document:
    """Time a stage of a recipe (counted from 1; None is the last) on a device; with `ranks`, on all of them.

    `steps` are timed whole, after `warmup` steps in which kernels are compiled and memory is claimed; then five
    or a few more are timed part by part. `ceilings` are those of `measure_ceilings`.
    """
    reuse = 1 if recipe.reuse == "all" else recipe.reuse
    part_steps = math.ceil(5 / reuse) * reuse  # each set of directions is drawn once in `reuse` steps
    # One step more than are taken: a flow looks at its numbers in the last step of a stage.
    planned = warmup + steps + WARMUP_PARTS * reuse + part_steps + 1
    single = SingleStage(recipe.schedule.part, stage, planned)
    recipe = attrs.evolve(recipe, schedule=attrs.evolve(recipe.schedule, part=single))
    forget_peak(device)
    flow = build_flow(recipe, device=str(device), ranks=ranks)
    evolution = iter(flow)
    durations(flow.device, partial(next, evolution), warmup)
    step_ms_all = durations(flow.device, partial(next, evolution), steps)
    highest = peak(flow.device)
    held = torch.cuda.max_memory_reserved(flow.device) if flow.device.type == "cuda" else None
    costs = time_parts(flow, evolution, part_steps, reuse)
    parts = {name: cost.document(ceilings, part_steps) for name, cost in costs.items()}
    step_ms = statistics.median(step_ms_all)
    whole = PartCost(step_ms, sum(p["bytes"] for p in parts.values()), sum(p["flops"] for p in parts.values()))
    return {
        "recipe": recipe.name,
        "stage": flow.stages[0].name,
        **{key: getattr(recipe, key).name for key in ("projection", "cdf", "condition")},
        "precision": recipe.particles.precision,
        "products": flow.products,
        "sizes": sizes(flow, recipe),
        "device": describe_device(flow.device),
        "versions": {"triton": None, "cuda": None, **versions(), "torch": torch.__version__},
        "step_ms": step_ms,
        "step_ms_mean": statistics.fmean(step_ms_all),
        "step_ms_all": step_ms_all,
        "step": whole.document(ceilings),
        "parts": parts,
        **ceilings,
        "peak_memory_bytes": highest,
        "peak_reserved_bytes": held,
        **dict.fromkeys(("naive_ms", "naive_ms_all", "naive_peak_memory_bytes", "speedup")),
        "notes": [],
    }


def with_naive(document: Document, device: torch.device) -> Document:
    """Return the result with the time of a naive step of the same sizes, if that fits into memory."""
    sizes = document["sizes"]
    d = sizes["stage_dimension"] + sizes["condition_length"]
    try:
        taken, highest = time_naive(d, sizes["particles"], sizes["data"], sizes["directions"], device)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return {**document, "notes": [*document["notes"], "the naive step does not fit into memory"]}
    naive_ms = statistics.median(taken)
    return {
        **document,
        "naive_ms": naive_ms,
        "naive_ms_all": taken,
        "naive_peak_memory_bytes": highest,
        "speedup": naive_ms / document["step_ms"],
    }


def time_naive(d: int, M: int, N: int, H: int, device: torch.device) -> tuple[list[float], int]:
    """Time the naive step, its draw of directions included, on random particles and data of these sizes.

    Return the milliseconds of three steps, or of one if it takes 5 seconds, and the most bytes in use.
    """
    forget_peak(device)
    generator = torch.Generator(device).manual_seed(0)
    z = torch.randn(d, M, generator=generator, device=device)
    data = torch.randn(d, N, generator=generator, device=device)

    def step(count: int) -> torch.Tensor:
        return naive_step(z, data, random_directions(count, d, generator), 0.1)

    with full_float32():
        durations(device, partial(step, min(H, DIRECTIONS_AT_A_TIME)), 1)
        taken = durations(device, partial(step, H), 1)
        if taken[0] < 5_000:
            taken += durations(device, partial(step, H), 2)
    return taken, peak(device)


def time_parts(flow: Flow, evolution: Iterator[State], steps: int, reuse: int) -> dict[str, PartCost]:
    """Return the cost of each part of `steps` steps, by a stopwatch in the flow, in the order of a step."""
    flow.clock = Stopwatch(flow.device)
    for _ in range(WARMUP_PARTS * reuse):  # parts that are one kernel otherwise are compiled on their own
        next(evolution)
    watch = flow.clock = Stopwatch(flow.device)
    for _ in range(steps):
        next(evolution)
    flow.clock = Clock()
    order = [*PARTS, *watch.costs]  # parts of others come last
    return {name: watch.costs[name] for name in sorted(watch.costs, key=order.index)}


def sizes(flow: Flow, recipe: Recipe) -> Document:
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


def measure_ceilings(device: torch.device) -> Document:
    """Measure, in a second or so, the two rates of a device that no step can exceed.

    `copy_bandwidth` is bytes per second of a copy from device memory to device memory, read and written ones
    together; `matrix_rate` is floating-point operations per second of a large product: float16 summed in
    float32 on a GPU, float32 on a CPU.
    """
    on_gpu = device.type == "cuda"
    size = 2**30 if on_gpu else 2**27  # far more than the caches hold
    n = 8192 if on_gpu else 1024
    source = torch.zeros(size // 4, device=device)
    target = torch.empty_like(source)
    copying = _seconds(device, partial(target.copy_, source))
    dtype = torch.float16 if on_gpu else torch.float32
    a, b = (torch.randn(n, n, device=device).to(dtype) for _ in range(2))  # zeros save power, and go faster
    product = torch.empty_like(a)
    multiplying = _seconds(device, partial(torch.mm, a, b, out=product))
    return {"copy_bandwidth": 2 * size / copying, "matrix_rate": 2 * n**3 / multiplying}


def _seconds(device: torch.device, work: Callable[[], object]) -> float:
    """Return the median time of some work."""
    durations(device, work, 2)  # libraries are loaded and caches filled the first time
    return statistics.median(durations(device, work, 9)) / 1e3


def durations(device: torch.device, work: Callable[[], object], times: int) -> list[float]:
    """Return the milliseconds of each of `times` calls in a row.

    On a GPU the calls follow each other as in a run: nobody waits in between, and marks in the queue of work
    tell the times apart.
    """
    if device.type != "cuda":
        moments = [time.perf_counter()]
        for _ in range(times):
            work()
            moments.append(time.perf_counter())
        return [(end - begin) * 1e3 for begin, end in itertools.pairwise(moments)]
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
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # Linux counts the peak afresh


def peak(device: torch.device) -> int:
    """Return the most bytes in use since `forget_peak`: of tensors on a GPU, of the whole process on a CPU."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def as_text(result: Document) -> str:
    """Return a result as lines and a table of parts."""
    sizes = result["sizes"]
    device = result["device"]
    threads = f", {device['threads']} thread{'s' * (device['threads'] > 1)}" if "threads" in device else ""
    several = f", {sizes['ranks']} ranks: this is the first's part of a step" if sizes["ranks"] > 1 else ""
    choices = ("projection", "cdf", "condition", "precision", "products")
    lines = [
        f"{result['recipe']} on {device['name']}{threads}{several}",
        f"M {sizes['particles']:,}  N {sizes['data']:,}  H {sizes['directions']:,}  "
        f"d {times(sizes['shape'])}  stage {result['stage']}  d_k {sizes['stage_dimension']:,}",
        ", ".join(f"{kind} {result[kind]}" for kind in choices),
        *result["notes"],
        "",
        _parts_table(result),
        "",
        f"a step takes {_ms(result['step_ms'])} (median of {len(result['step_ms_all'])}, without the "
        f"stopwatch), memory {_unit(result['peak_memory_bytes'])}B at most",
        f"this device copies {_unit(result['copy_bandwidth'])}B/s and multiplies "
        f"{_unit(result['matrix_rate'])}FLOP/s, just measured",
    ]
    if result["naive_ms"] is not None:
        lines.append(f"a naive PyTorch step takes {_ms(result['naive_ms'])}: speedup {result['speedup']:.2f}")
    return "\n".join(lines)


def _parts_table(result: Document) -> str:
    headings = ("part", "time", "share", "moved", "of copy rate", "operations", "of matrix rate")
    total = math.fsum(cost["ms"] for cost in result["parts"].values())
    lines = [
        (name, _ms(cost["ms"]), f"{cost['ms'] / total:.1%}", *_work(cost))
        for name, cost in result["parts"].items()
    ]
    whole = ("whole step", _ms(result["step"]["ms"]), "", *_work(result["step"]))
    return in_letters(table(headings, [*lines, whole], others="right"), width=200)


def _work(cost: Document) -> tuple[str, str, str, str]:
    moved = (f"{_unit(cost['bytes'])}B", f"{cost['bandwidth_fraction']:.1%}") if cost["bytes"] else ("", "")
    done = (f"{_unit(cost['flops'])}FLOP", f"{cost['matrix_fraction']:.1%}") if cost["flops"] else ("", "")
    return *moved, *done


def _ms(milliseconds: float) -> str:
    return f"{milliseconds:.3g} ms" if milliseconds < 1000 else f"{milliseconds:,.0f} ms"


def _unit(amount: float) -> str:
    """Return a number with three digits and a decimal prefix: 1.23 G."""
    power = 0 if amount < 1 else min(int(math.log10(amount) // 3), 5)
    return f"{amount / 1000**power:.3g} {('', 'k', 'M', 'G', 'T', 'P')[power]}"
