"""Scores on a terminal: a table, how they were computed, and what nobody should miss."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text


def show_scores(document: Mapping[str, Any], console: Console) -> None:
    """Print what metrics.json says: scores against real samples, a column for each set; then the others."""
    compared = [score for score in document["scores"] if score["against"]]
    others = [score for score in document["scores"] if not score["against"]]
    for scores in filter(None, (compared, others)):
        columns = list(dict.fromkeys(map(_against, scores)))
        table = Table(box=None, pad_edge=False)
        table.add_column("score", overflow="fold")
        for column in columns:
            table.add_column(f"against {column}" if column else "value", justify="right", overflow="fold")
        table.add_column("samples", justify="right")
        for (name, count), values in _rows(scores).items():
            table.add_row(Text(name), *(values.get(column, "") for column in columns), f"{count:,}")
        console.print(table)
    for note in document["notes"]:
        console.print(Text(f"note: {note}", style="bold"), soft_wrap=True)


def show_protocols(document: Mapping[str, Any], console: Console) -> None:
    """Print how scores were computed, a line for each metric."""
    seen: dict[str, list[str]] = {}
    for score in document["scores"]:
        seen.setdefault(score["protocol"], []).append(score["name"])
    for protocol, names in seen.items():
        shown = names[0] if len(names) == 1 else f"{names[0]}, …"
        if protocol:
            console.print(Text(f"{shown}: {protocol}", style="dim"), soft_wrap=True)


def _rows(scores: list[dict[str, Any]]) -> dict[tuple[str, int], dict[str, str]]:
    """Return, for each score's name without its ending and count, the values by what they are against."""
    rows: dict[tuple[str, int], dict[str, str]] = {}
    for score in scores:
        split = (score["against"] or {}).get("split", "")
        name = score["name"].removesuffix("_test") if split == "test" else score["name"]
        rows.setdefault((name, score["samples"]), {})[_against(score)] = f"{score['value']:.4g}"
    return rows


def _against(score: dict[str, Any]) -> str:
    against = score["against"]
    if not against:
        return ""
    return f"{against['data']}:{against['split']}" if against["split"] else str(against["data"])
