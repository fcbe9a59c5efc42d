"""What commands do that can run on several devices: start ranks, lead them, or follow."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from cswf_core.errors import RunError
from cswf_core.kernels.memory import memory_limited
from cswf_core.ranks import Ranks
from cswf_core.recipe import choose_device
from cswf_core.runs.folder import RunFolder
from cswf_core.runs.printing import start_log
from cswf_core.session.devices import is_rank, joined, number_from, number_of, one_thread, start

Lead = Callable[[Ranks, str], None]
"""(ranks, device) → the command itself, for rank 0 or one process alone."""


def on_ranks(
    devices: str | None, device: str, before: RunFolder | None, *, lead: Lead, follow: Lead
) -> int | None:
    """Do a command's work on as many devices as `--devices` says; return the exit status, None for success.

    `before` is the folder of a run that goes on: on a CPU with as many threads as it began with, as bits may
    depend on their number.
    """
    count = number_of(devices, device)
    if before is not None and before.done:  # there is nothing to share
        if number_from("RANK", 0) == 0:
            lead(Ranks(), device)
        return None
    if is_rank():
        size = number_from("WORLD_SIZE", 1)
        if count is not None and count != size:
            raise RunError(f"--devices {count} was asked for, and torchrun started {size} ranks: leave it out")
        with joined(device) as (ranks, own), _as_before(before, own):
            if ranks.leads:
                lead(ranks, own)
            else:
                start_log(logging.ERROR)
                follow(ranks, own)
        return None
    if count is not None and count > 1:
        return start(count)
    if count == 1:
        one_thread(device)
    with _as_before(before, device):
        lead(Ranks(), device)
    return None


MOST_THREADS = 1024
"""Threads that a run goes on with at most, whatever its record says."""


@contextmanager
def _as_before(before: RunFolder | None, device: str) -> Iterator[None]:
    """Plan with as much memory as a run has begun with and, on a CPU, compute with as many threads."""
    facts = None if before is None else before.facts()
    threads = None if facts is None or facts.device is None else facts.device.threads
    if choose_device(device).type == "cpu" and threads is not None:
        torch.set_num_threads(min(threads, MOST_THREADS))
    with memory_limited(None if facts is None else facts.memory_limit):
        yield
