"""How many directions are worked on at a time, so that memory stays bounded and bits stay the same.

Products run over slabs of directions, summed in order. A slab is a whole tile, the unit in which directions
are drawn, unless the device's memory is too small for so many rows. Inside a slab the one-dimensional
transport, which needs several times the memory, runs over chunks of rows.

When memory runs short, chunks are halved first: a row's transport does not depend on its neighbours, so this
changes no bit. If that is not enough, slabs are halved, which changes sums by rounding; a warning says so.
Only a single direction that does not fit is an error.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch

from cswf_core.errors import OutOfMemoryError

TILE = 16384
"""Directions per tile, which share a key: fixed, or the same seed would draw others. Large, because on a GPU
small pieces of work take as long to start as to do."""

SHARE = 8
"""Projected values that are worked on at once may take this part of a device's memory."""

TEMPORARIES = 12
"""Numbers that a transport keeps at once for each projected value, indices counted double."""

SIGNS = ("can't allocate memory", "cuda error: out of memory", "status_alloc_failed", "cannot allocate memory")
"""What errors say that mean a lack of memory but have no class of their own."""

Result = TypeVar("Result")

log = logging.getLogger("cswf")


def total_memory(device: torch.device) -> int:
    """Return the bytes of memory that a device has; what is free just now would change from run to run."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def is_out_of_memory(error: BaseException) -> bool:
    """Say whether an error means that an allocation did not fit (PyTorch's CPU one has no class of its own)."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and any(sign in text for sign in SIGNS)


@contextmanager
def fitting(device: torch.device, d: int, M: int, N: int) -> Iterator[None]:
    """Turn running out of memory into one sentence with the sizes that did not fit."""
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise OutOfMemoryError(
            f"out of memory on {device}: {M:,} particles and {N:,} data in {d:,} dimensions do not fit, "
            "not even with one direction at a time; use fewer particles (particles.count) or a larger device"
        ) from error


class Chunks:
    """Sizes of slabs and chunks, chosen from the memory of the device and halved when that was too much."""

    def __init__(self, device: torch.device, values_per_direction: int, itemsize: int) -> None:
        self.device = device
        row = max(1, values_per_direction * itemsize)
        share = total_memory(device) // SHARE
        self.slab = max(1, min(TILE, share // row))
        self.rows = max(1, min(self.slab, share // (row * TEMPORARIES)))
        self.recordable = True
        """Whether steps can be recorded: not once that has failed, which leaves memory behind."""

    def over(self, count: int, work: Callable[[slice], None]) -> None:
        """Call `work` with slices of `count` rows, a chunk at a time, and smaller ones when memory is short."""
        done = 0
        while done < count:
            rows = slice(done, min(done + self.rows, count))
            if self._worked(work, rows):
                done = rows.stop

    def _worked(self, work: Callable[[slice], None], rows: slice) -> bool:
        size = rows.stop - rows.start
        try:
            work(rows)
            return True
        except Exception as error:
            if not is_out_of_memory(error) or size == 1:
                raise
        self.rows = size // 2
        self.tell(f"{self.rows} directions sorted at a time")
        return False

    def attempt(self, work: Callable[[], Result], rows: int) -> Result | None:
        """Return what `work` on `rows` directions gives; None if it did not fit and slabs were halved."""
        try:
            return work()
        except Exception as error:
            if not is_out_of_memory(error) or rows == 1:
                raise
        self.slab = rows // 2
        self.rows = min(self.rows, self.slab)
        self.tell(f"{self.slab} directions at a time; results may differ in the last digits")
        return None

    def tell(self, how: str) -> None:
        """Warn that memory was short, and how the work goes on."""
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        log.warning("out of memory on %s: going on with %s", self.device, how)


def tiles(directions: int, together: int = 1) -> Iterator[tuple[int, int]]:
    """Cut H directions into tiles: pairs of a tile's index and its number of directions.

    A tile is a multiple of the number that has to be drawn together.
    """
    size = -(-TILE // together) * together
    for index, first in enumerate(range(0, directions, size)):
        yield index, min(size, directions - first)
