"""The report of a measurement: a table for people, JSON for programs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

import attrs
import torch

from cswf_core.bench.measure import Ceilings, StepCost
from cswf_core.bench.request import times
from cswf_core.bench.stopwatch import PartCost
from cswf_core.flow.clock import PARTS
from cswf_core.runs.record import versions
from cswf_core.runs.screen import in_letters, table

WIDTH = 200
"""Letters of a line at most."""

UNITS = ("", "k", "M", "G", "T", "P")


@attrs.frozen(kw_only=True)
class SweepRow:
    """One value of a sweep, and its measurement."""

    key: str
    value: str
    """As written."""
    result: StepCost | None
    """None where it did not fit into memory."""
    error: str = ""

    @property
    def size(self) -> float | None:
        """The number that the cost is expected to grow with: M, N, H, d_k, or the pixels of a patch."""
        if self.result is None:
            return None
        sizes = self.result.sizes
        if self.key == "patch":
            return float(sizes["patch"] ** 2) if sizes["patch"] else None
        return float(sizes["stage_dimension" if self.key in ("shape", "resolution") else self.key])

    def growth(self, first: SweepRow) -> float | None:
        """Return time per size, relative to the first row: 1 is in proportion, less is better than that."""
        if self.result is None or first.result is None or not self.size or not first.size:
            return None
        return (self.result.step_ms / self.size) / (first.result.step_ms / first.size)

    def slope(self, before: SweepRow | None) -> float | None:
        """Return nanoseconds per unit added since the row before: alike in all rows if time is linear."""
        if before is None or self.result is None or before.result is None or not self.size or not before.size:
            return None
        added = self.size - before.size
        return (self.result.step_ms - before.result.step_ms) * 1e6 / added if added else None


def as_json(result: StepCost, command: str) -> dict[str, Any]:
    """Return a result with every figure in basic units: milliseconds, bytes, operations, per second."""
    naive = result.naive
    return {
        "command": command,
        "recipe": result.name,
        "stage": result.stage,
        **result.choices,
        "sizes": result.sizes,
        "device": result.device,
        "versions": {"triton": None, "cuda": None, **versions(), "torch": torch.__version__},
        "step_ms": result.step_ms,
        "step_ms_mean": statistics.fmean(result.step_ms_all),
        "step_ms_all": result.step_ms_all,
        "step": _cost(result.work(), result.ceilings),
        "parts": {name: _cost(result.parts[name], result.ceilings) for name in ordered(result.parts)},
        "copy_bandwidth": result.ceilings.copy_bandwidth,
        "matrix_rate": result.ceilings.matrix_rate,
        "peak_memory_bytes": result.peak_memory_bytes,
        "peak_reserved_bytes": result.peak_reserved_bytes,
        "naive_ms": result.naive_ms,
        "naive_ms_all": None if naive is None else naive.milliseconds,
        "naive_peak_memory_bytes": None if naive is None else naive.peak_memory_bytes,
        "speedup": result.speedup,
        "notes": list(result.notes),
    }


def sweep_as_json(rows: Sequence[SweepRow], command: str) -> list[dict[str, Any]]:
    """Return a result for each value; one that did not fit has `error` in place of figures."""
    return [
        {
            "sweep": {
                "key": row.key,
                "value": row.value,
                "size": row.size,
                "growth": row.growth(rows[0]),
                "ns_per_added": row.slope(before),
            },
            **({"error": row.error} if row.result is None else as_json(row.result, command)),
        }
        for before, row in zip([None, *rows[:-1]], rows, strict=True)
    ]


def ordered(parts: dict[str, PartCost]) -> list[str]:
    """Return the names of parts in the order of a step; unknown ones come last."""
    return sorted(parts, key=lambda name: PARTS.index(name) if name in PARTS else len(PARTS))


def as_text(result: StepCost) -> str:
    """Return a result as lines and a table of parts."""
    sizes, ceilings = result.sizes, result.ceilings
    lines = [
        _title(result),
        f"M {sizes['particles']:,}  N {sizes['data']:,}  H {sizes['directions']:,}  "
        f"d {times(sizes['shape'])}  stage {result.stage}  d_k {sizes['stage_dimension']:,}",
        ", ".join(f"{kind} {name}" for kind, name in result.choices.items()),
        *result.notes,
        "",
        _parts_table(result),
        "",
        f"a step takes {_ms(result.step_ms)} (median of {len(result.step_ms_all)}, without the stopwatch), "
        f"memory {_unit(result.peak_memory_bytes)}B at most",
        f"this device copies {_unit(ceilings.copy_bandwidth)}B/s and multiplies "
        f"{_unit(ceilings.matrix_rate)}FLOP/s, just measured",
    ]
    if result.naive_ms is not None and result.speedup is not None:
        lines.append(f"a naive PyTorch step takes {_ms(result.naive_ms)}: speedup {result.speedup:.2f}")
    return "\n".join(lines)


def sweep_as_text(rows: Sequence[SweepRow]) -> str:
    """Return a table with a line for each value."""
    headings = (rows[0].key, "step", "growth", "per added", "memory", "naive", "speedup")
    lines: list[Sequence[str]] = []
    for before, row in zip([None, *rows[:-1]], rows, strict=True):
        result, growth, slope = row.result, row.growth(rows[0]), row.slope(before)
        if result is None:
            lines.append((row.value, "out of memory"))
            continue
        lines.append(
            (
                row.value,
                _ms(result.step_ms),
                "" if growth is None else f"{growth:.2f}",
                "" if slope is None else _each(slope),
                f"{_unit(result.peak_memory_bytes)}B",
                "" if result.naive_ms is None else _ms(result.naive_ms),
                "" if result.speedup is None else f"{result.speedup:.2f}",
            )
        )
    first = next((row.result for row in rows if row.result is not None), None)
    return "\n".join([*([] if first is None else [_title(first), *first.notes, ""]), _render(headings, lines)])


def _title(result: StepCost) -> str:
    device = result.device
    threads = f", {device['threads']} thread{'s' * (device['threads'] > 1)}" if "threads" in device else ""
    ranks = result.sizes.get("ranks", 1)
    several = f", {ranks} ranks: this is the first's part of a step" if ranks > 1 else ""
    return f"{result.name} on {device['name']}{threads}{several}"


def _parts_table(result: StepCost) -> str:
    headings = ("part", "time", "share", "moved", "of copy rate", "operations", "of matrix rate")
    total = math.fsum(share.milliseconds for share in result.parts.values())
    lines: list[Sequence[str]] = []
    for name in ordered(result.parts):
        share = result.parts[name]
        of_all = f"{share.milliseconds / total:.1%}"
        lines.append((name, _ms(share.milliseconds), of_all, *_work(share, result)))
    whole = result.work()
    lines.append(("whole step", _ms(whole.milliseconds), "", *_work(whole, result)))
    return _render(headings, lines)


def _work(share: PartCost, result: StepCost) -> tuple[str, str, str, str]:
    cost = _cost(share, result.ceilings)
    moved = (f"{_unit(share.bytes)}B", f"{cost['bandwidth_fraction']:.1%}") if share.bytes else ("", "")
    done = (f"{_unit(share.flops)}FLOP", f"{cost['matrix_fraction']:.1%}") if share.flops else ("", "")
    return *moved, *done


def _cost(share: PartCost, ceilings: Ceilings) -> dict[str, float]:
    return {
        "ms": share.milliseconds,
        "bytes": share.bytes,
        "flops": share.flops,
        "bandwidth_fraction": ceilings.bandwidth_fraction(share.bytes, share.milliseconds),
        "matrix_fraction": ceilings.matrix_fraction(share.flops, share.milliseconds),
    }


def _render(headings: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Return a table as text: the first column is of names, the others of numbers."""
    return in_letters(table(headings, lines, others="right"), WIDTH)


def _ms(milliseconds: float) -> str:
    return f"{milliseconds:.3g} ms" if milliseconds < 1000 else f"{milliseconds:,.0f} ms"


def _each(nanoseconds: float) -> str:
    return f"{nanoseconds:.3g} ns" if abs(nanoseconds) < 1000 else f"{nanoseconds / 1000:.3g} µs"


def _unit(amount: float) -> str:
    """Return a number with three digits and a decimal prefix: 1.23 G."""
    power = 0 if amount < 1 else min(int(math.log10(amount) // 3), len(UNITS) - 1)
    return f"{amount / 1000**power:.3g} {UNITS[power]}"
