"""How long work takes on a device, and how much memory it takes at most."""

from __future__ import annotations

import contextlib
import gc
import itertools
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

RESET_PEAK = "5"
"""What Linux wants written to have a process's peak memory counted afresh."""


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


def reserved(device: torch.device) -> int | None:
    """Return the most bytes that PyTorch held on a GPU since `forget_peak`, in use or not; None on a CPU."""
    return int(torch.cuda.max_memory_reserved(device)) if device.type == "cuda" else None
