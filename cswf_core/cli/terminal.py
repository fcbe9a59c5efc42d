"""What commands with work to do have in common: how their process is prepared, and scores on a terminal."""

from __future__ import annotations

import ctypes
import logging
import os
import platform
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from cswf_core.runs.printing import say, start_log
from cswf_core.runs.screen import table, words
from cswf_core.scores.layout import measured


def prepare(*, quiet: bool) -> None:
    """Prepare the process: warnings on the terminal, memory reused."""
    start_log(logging.ERROR if quiet else logging.WARNING)
    keep_freed_memory()


def keep_freed_memory() -> bool:
    """Make glibc reuse freed memory, unless MALLOC_* or GLIBC_TUNABLES are set; return whether that was done.

    Every step of a flow on a CPU allocates and frees the same few megabytes. By default glibc returns them to
    the system each time, and the next step causes a page fault for every page it touches: up to 2,300 in a step
    of the digits demo. The process runs one flow, so that nobody else misses the memory.
    """
    decided = any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ)
    if decided or platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt  # by the numbers of M_TRIM_THRESHOLD and M_MMAP_THRESHOLD in <malloc.h>
    return bool(mallopt(-1, 2**28) and mallopt(-3, 2**26))


def say_facts(facts: Mapping[str, str]) -> None:
    """Print facts by their names, one below the other."""
    width = max(len(name) for name in facts)
    for name, text in facts.items():
        say(f"{name:<{width}}  {text}")


def listed(classes: Sequence[str]) -> str:
    """Return the names of classes; of many, the first twelve and how many there are."""
    return ", ".join(classes[:12]) + (f", … {len(classes)} in all" if classes[12:] else "")


def show_scores(document: Mapping[str, Any], screen: Console) -> None:
    """Print the scores of metrics.json: those against real samples, a column for each set; then the others.

    ± is a score's standard error.
    """
    compared = [score for score in document["scores"] if score["against"]]
    others = [score for score in document["scores"] if not score["against"]]
    for scores in filter(None, (compared, others)):
        columns = list(dict.fromkeys(map(_against, scores)))
        headings = ["score", *(f"against {column}" if column else "value" for column in columns), "samples"]
        rows: dict[tuple[str, int], dict[str, str]] = {}  # a row is a name without its split, and a number
        for score in scores:
            rows.setdefault((score["row"], score["samples"]), {})[_against(score)] = _value(score)
        lines = [
            [name, *(values.get(column, "") for column in columns), f"{count:,}"]
            for (name, count), values in rows.items()
        ]
        screen.print(table(headings, lines, others="right"))
    for note in document["notes"]:
        screen.print(words(f"note: {note}", "bold"), soft_wrap=True)


def _value(score: Mapping[str, Any]) -> str:
    """Return a score with its standard error, where it has one, and in percent if it is a share."""
    share = bool((score.get("meaning") or {}).get("share"))
    return measured(score["value"], score.get("error"), share=share)


def show_protocols(document: Mapping[str, Any], screen: Console) -> None:
    """Print how scores were computed, a line for each metric."""
    protocols: dict[str, list[str]] = {}
    for score in document["scores"]:
        protocols.setdefault(score["protocol"], []).append(score["name"])
    for protocol, names in protocols.items():
        first = names[0] if len(names) == 1 else f"{names[0]}, …"
        if protocol:
            screen.print(words(f"{first}: {protocol}", "dim"), soft_wrap=True)


def _against(score: dict[str, Any]) -> str:
    """Return the name of a score's reference: `data:split`."""
    against = score["against"] or {}
    return ":".join(str(against[key]) for key in ("data", "split") if against.get(key))
