"""What commands with work to do have in common: processes and ranks prepared, scores on a terminal."""

from __future__ import annotations

import ctypes
import logging
import os
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import attrs
import torch
from rich.console import Console

from cswf_core.errors import RunError
from cswf_core.kernels.memory import memory_limited
from cswf_core.ranks import Ranks
from cswf_core.recipe import choose_device
from cswf_core.runs.folder import RunFolder
from cswf_core.runs.printing import say, start_log
from cswf_core.runs.screen import WorkProgress, table, words
from cswf_core.scores.layout import measured
from cswf_core.session.devices import is_rank, joined, number_from, number_of, one_thread, start

Lead = Callable[[Ranks, str], None]
"""(ranks, device) → the command itself, for rank 0 or one process alone."""


@attrs.frozen(kw_only=True)
class Execution:
    """The options that commands with work to do share: where they compute, what they print, whose plugins."""

    device: str = "auto"
    devices: str | None = None
    """How many processes share the work; None: nobody has said."""
    quiet: bool
    plugins_dir: tuple[Path, ...]

    def say(self, *lines: str) -> None:
        """Print lines, unless nothing but errors is to be printed."""
        if not self.quiet:
            say(*lines)

    def progress(self) -> closing[WorkProgress]:
        """Return the progress of work to enter, and to leave when the work is done."""
        return closing(WorkProgress(silent=self.quiet))

    def on_ranks(self, before: RunFolder | None, *, lead: Lead, follow: Lead) -> int | None:
        """Do the work on as many devices as `--devices` says; return the exit status, None for success.

        `before` is the folder of a run that goes on: on a CPU with as many threads as it began with, as bits
        may depend on their number.
        """

        def begin(ranks: Ranks, device: str) -> None:
            prepare(quiet=self.quiet)
            lead(ranks, device)

        count = number_of(self.devices, self.device)
        if before is not None and before.done:  # there is nothing to share
            if number_from("RANK", 0) == 0:
                begin(Ranks(), self.device)
            return None
        if is_rank():
            size = number_from("WORLD_SIZE", 1)
            if count is not None and count != size:
                raise RunError(
                    f"--devices {count} was asked for, and torchrun started {size} ranks: leave it out"
                )
            with joined(self.device) as (ranks, own), _as_before(before, own):
                if ranks.leads:
                    begin(ranks, own)
                else:
                    start_log(logging.ERROR)
                    follow(ranks, own)
            return None
        if count is not None and count > 1:
            return start(count)
        if count == 1:
            one_thread(self.device)
        with _as_before(before, self.device):
            begin(Ranks(), self.device)
        return None


@contextmanager
def _as_before(before: RunFolder | None, device: str) -> Iterator[None]:
    """Plan with as much memory as a run has begun with and, on a CPU, compute with as many threads."""
    facts = None if before is None else before.facts()
    threads = None if facts is None or facts.device is None else facts.device.threads
    if choose_device(device).type == "cpu" and threads is not None:
        torch.set_num_threads(min(threads, 1024))  # whatever the record says
    with memory_limited(None if facts is None else facts.memory_limit):
        yield


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


def show_scores(document: Mapping[str, Any], screen: Console, *, protocols: bool = False) -> None:
    """Print the scores of metrics.json: those against real samples, a column for each set; then the others.

    ± is a score's standard error. With `protocols`, lines follow that say how scores were computed.
    """
    compared = [score for score in document["scores"] if score["against"]]
    others = [score for score in document["scores"] if not score["against"]]
    for scores in filter(None, (compared, others)):
        columns = list(dict.fromkeys(map(_against, scores)))
        headings = ["score", *(f"against {column}" if column else "value" for column in columns), "samples"]
        rows: dict[tuple[str, int], dict[str, str]] = {}  # a row is a name without its split, and a number
        for score in scores:
            share = bool((score.get("meaning") or {}).get("share"))
            value = measured(score["value"], score.get("error"), share=share)
            rows.setdefault((score["row"], score["samples"]), {})[_against(score)] = value
        lines = [
            [name, *(values.get(column, "") for column in columns), f"{count:,}"]
            for (name, count), values in rows.items()
        ]
        screen.print(table(headings, lines, others="right"))
    for note in document["notes"]:
        screen.print(words(f"note: {note}", "bold"), soft_wrap=True)
    computed: dict[str, list[str]] = {}
    for score in document["scores"] if protocols else ():
        computed.setdefault(score["protocol"], []).append(score["name"])
    for protocol, names in computed.items():
        first = names[0] if len(names) == 1 else f"{names[0]}, …"
        if protocol:
            screen.print(words(f"{first}: {protocol}", "dim"), soft_wrap=True)


def _against(score: dict[str, Any]) -> str:
    """Return the name of a score's reference: `data:split`."""
    against = score["against"] or {}
    return ":".join(str(against[key]) for key in ("data", "split") if against.get(key))
