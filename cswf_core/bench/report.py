"""The report of a measurement as text."""

from __future__ import annotations

import math
from collections.abc import Sequence

from cswf_core.bench.measure import Document
from cswf_core.bench.request import times
from cswf_core.runs.screen import in_letters, table


def as_text(result: Document) -> str:
    """Return a result as lines and a table of parts."""
    sizes = result["sizes"]
    choices = ("projection", "cdf", "condition", "precision", "products")
    lines = [
        _title(result),
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


def _title(result: Document) -> str:
    device = result["device"]
    threads = f", {device['threads']} thread{'s' * (device['threads'] > 1)}" if "threads" in device else ""
    ranks = result["sizes"]["ranks"]
    several = f", {ranks} ranks: this is the first's part of a step" if ranks > 1 else ""
    return f"{result['recipe']} on {device['name']}{threads}{several}"


def _parts_table(result: Document) -> str:
    headings = ("part", "time", "share", "moved", "of copy rate", "operations", "of matrix rate")
    total = math.fsum(cost["ms"] for cost in result["parts"].values())
    lines = [
        (name, _ms(cost["ms"]), f"{cost['ms'] / total:.1%}", *_work(cost))
        for name, cost in result["parts"].items()
    ]
    whole = result["step"]
    return _render(headings, [*lines, ("whole step", _ms(whole["ms"]), "", *_work(whole))])


def _work(cost: Document) -> tuple[str, str, str, str]:
    moved = (f"{_unit(cost['bytes'])}B", f"{cost['bandwidth_fraction']:.1%}") if cost["bytes"] else ("", "")
    done = (f"{_unit(cost['flops'])}FLOP", f"{cost['matrix_fraction']:.1%}") if cost["flops"] else ("", "")
    return *moved, *done


def _render(headings: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Return a table as text: the first column is of names, the others of numbers."""
    return in_letters(table(headings, lines, others="right"), width=200)


def _ms(milliseconds: float) -> str:
    return f"{milliseconds:.3g} ms" if milliseconds < 1000 else f"{milliseconds:,.0f} ms"


def _unit(amount: float) -> str:
    """Return a number with three digits and a decimal prefix: 1.23 G."""
    power = 0 if amount < 1 else min(int(math.log10(amount) // 3), 5)
    return f"{amount / 1000**power:.3g} {('', 'k', 'M', 'G', 'T', 'P')[power]}"
