"""Curves of one run or several: their place on the page, and the numbers that a script draws there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cswf_core.errors import printable
from cswf_core.report.read import COLUMNS, ReportedRun
from cswf_core.report.section import Section, problems_of


def curves(runs: Sequence[ReportedRun]) -> Section:
    """Return the place for the curves of one run or several; a script draws them from `curve_data`."""
    stages = any(row[1] != run.rows[0][1] for run in runs for row in run.rows)
    content = {"stages": stages} if any(len(run.rows) > 1 for run in runs) else None
    return Section("curves", "Curves", "sections.curves", content, problems_of(runs, "metrics.jsonl"))


def curve_data(runs: Sequence[ReportedRun]) -> dict[str, Any]:
    """Return what the script draws: for each run its label, colour and columns, milliseconds per step too."""
    listed = []
    for run in runs:
        columns: dict[str, list[float | None]] = {
            name: [row[c] for row in run.rows] for c, name in enumerate(COLUMNS)
        }
        columns["milliseconds"] = [None, *(_pace(a, b) for a, b in zip(run.rows, run.rows[1:], strict=False))]
        del columns["seconds"]
        listed.append({"label": printable(run.label), "colour": run.colour, **columns})
    return {"runs": listed}


def _pace(before: list[float | None], after: list[float | None]) -> float | None:
    """Return the milliseconds that a step took between two logged ones."""
    steps, seconds = ((after[c] or 0) - (before[c] or 0) for c in (0, 4))
    return float(f"{1000 * seconds / steps:.5g}") if steps > 0 and after[4] is not None else None
