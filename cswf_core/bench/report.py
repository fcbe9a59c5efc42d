"""The report of a measurement as text, and the rows of a sweep."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from cswf_core.bench.measure import Document
from cswf_core.bench.request import times
from cswf_core.runs.screen import in_letters, table


def swept(key: str, results: Mapping[str, Document]) -> list[Document]:
    """Return the results of a sweep, by value as written, each with what it says of growth in `sweep`.

    `size` is the number that the cost is expected to grow with: M, N, H, d_k, or the pixels of a patch.
    `growth` is time per size, relative to the first row: 1 is in proportion, less is better than that.
    `ns_per_added` is nanoseconds per unit added since the row before: alike in all rows if time is linear.
    A value that did not fit into memory has `error` in place of figures.
    """
    rows: list[Document] = []
    for value, result in results.items():
        size = _size(key, result)
        row = {
            "sweep": {"key": key, "value": value, "size": size, "growth": None, "ns_per_added": None},
            **result,
        }
        first = rows[0] if rows else row
        before = rows[-1] if rows else row
        rows.append(row)
        if size and first["sweep"]["size"]:
            growth = (result["step_ms"] / size) / (first["step_ms"] / first["sweep"]["size"])
            row["sweep"]["growth"] = growth
        if size and before["sweep"]["size"] and size != before["sweep"]["size"]:
            added = size - before["sweep"]["size"]
            row["sweep"]["ns_per_added"] = (result["step_ms"] - before["step_ms"]) * 1e6 / added
    return rows


def _size(key: str, result: Document) -> float | None:
    if "error" in result:
        return None
    sizes = result["sizes"]
    if key == "patch":
        return float(sizes["patch"] ** 2) if sizes["patch"] else None
    return float(sizes["stage_dimension" if key in ("shape", "resolution") else key])


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


def sweep_as_text(rows: Sequence[Document]) -> str:
    """Return a table with a line for each value."""
    headings = (rows[0]["sweep"]["key"], "step", "growth", "per added", "memory", "naive", "speedup")
    lines: list[Sequence[str]] = []
    for row in rows:
        value = row["sweep"]["value"]
        growth = row["sweep"]["growth"]
        slope = row["sweep"]["ns_per_added"]
        if "error" in row:
            lines.append((value, "out of memory"))
            continue
        lines.append(
            (
                value,
                _ms(row["step_ms"]),
                "" if growth is None else f"{growth:.2f}",
                "" if slope is None else _each(slope),
                f"{_unit(row['peak_memory_bytes'])}B",
                "" if row["naive_ms"] is None else _ms(row["naive_ms"]),
                "" if row["speedup"] is None else f"{row['speedup']:.2f}",
            )
        )
    fitting = [row for row in rows if "error" not in row]
    head = [_title(fitting[0]), *fitting[0]["notes"], ""] if fitting else []
    return "\n".join([*head, _render(headings, lines)])


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


def _each(nanoseconds: float) -> str:
    return f"{nanoseconds:.3g} ns" if abs(nanoseconds) < 1000 else f"{nanoseconds / 1000:.3g} µs"


def _unit(amount: float) -> str:
    """Return a number with three digits and a decimal prefix: 1.23 G."""
    power = 0 if amount < 1 else min(int(math.log10(amount) // 3), 5)
    return f"{amount / 1000**power:.3g} {('', 'k', 'M', 'G', 'T', 'P')[power]}"
