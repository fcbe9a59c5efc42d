"""How many directions and samples are worked on at a time, so that memory stays bounded and bits stay the same.

A *batch* is the unit in which directions are drawn: one key, fixed size. A *slab* is the part of a batch whose
products are computed at once: all of it on a GPU, unless its memory is too small. With several ranks a slab has
as many directions as with one, because sums would be rounded in other places otherwise.

When memory runs short, fewer rows are transported at a time: a row's transport does not depend on its
neighbours, so this changes no bit. If that is not enough, slabs are halved, which changes sums by rounding, and
a warning is logged. It is an error only if a single direction does not fit.

Data and particles that take too much of the memory are processed in *blocks* of samples.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import Tensor

from cswf_core.errors import OutOfMemoryError
from cswf_core.kernels.columns import WIDTH
from cswf_core.kernels.memory import is_out_of_memory, total_memory

DIRECTIONS_PER_BATCH = 16384
"""Directions that share a key: fixed, or the same seed would draw others. Large, because on a GPU small pieces
of work take as long to start as to do."""

LARGEST_SLAB = {"cpu": 2048, "cuda": DIRECTIONS_PER_BATCH}
"""The largest number of directions in a slab: on a CPU few are as fast as many, and while counts of one slab
are summed over several devices, the next is worked on."""

MEMORY_OVER_VALUES = 8
"""A device's memory is at least this many times as large as the projected values that are worked on at once."""

TEMPORARIES_PER_VALUE = 12
"""Numbers that a transport keeps at once for each projected value, indices counted double."""

MEMORY_OVER_SAMPLES = 4
"""Samples stay on the device if its memory is at least this many times as large as their numbers: in a stage's
coordinates, and with noise, they take as much again."""

LARGEST_BLOCK = {"cpu": 8192, "cuda": 131_072}
"""The largest number of samples in a block."""

MEMORY_OVER_BLOCK = 64
"""A device's memory is at least this many times as large as a block, as the next one is read meanwhile."""

Result = TypeVar("Result")

log = logging.getLogger("cswf")


@contextmanager
def explain_out_of_memory(device: torch.device, d: int, M: int, N: int, remedy: str) -> Iterator[None]:
    """Raise `OutOfMemoryError`, which names the sizes that did not fit, if memory runs out inside.

    Args:
        device: where the flow works.
        d: the dimension of the data.
        M: the number of particles.
        N: the number of data.
        remedy: what to do, for the message.
    """
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise OutOfMemoryError(
            f"out of memory on {device}: {M:,} particles and {N:,} data in {d:,} dimensions do not fit, "
            f"not even with one direction at a time; {remedy}"
        ) from error


def fits_in_memory(size: int, memory: int) -> bool:
    """Return whether samples of `size` bytes can stay on a device that has `memory` bytes."""
    return size <= memory // MEMORY_OVER_SAMPLES


def block_width(like: Tensor, memory: int) -> int:
    """Return the number of samples in a block, of the kind of `like` (d×0), if a device has `memory` bytes."""
    group = WIDTH[like.device.type]  # products and noise are computed in groups of this size
    groups = memory // MEMORY_OVER_BLOCK // (len(like) * like.dtype.itemsize) // group
    return min(LARGEST_BLOCK[like.device.type], max(1, groups) * group)


class Budget:
    """How many directions fit: chosen from the memory of the device, and halved when that was too much."""

    def __init__(
        self, device: torch.device, values_per_direction: int, itemsize: int, memory: int | None = None
    ) -> None:
        """Choose the sizes.

        Args:
            device: where directions are worked on.
            values_per_direction: the number of particles and data that are projected at once.
            itemsize: the bytes of a projected value.
            memory: the bytes that every rank may use; None: all of the device's.
        """
        self.device = device
        self.memory = total_memory(device) if memory is None else memory
        row = max(1, values_per_direction * itemsize)
        most = self.memory // MEMORY_OVER_VALUES // (row * TEMPORARIES_PER_VALUE)
        self.slab = max(1, min(LARGEST_SLAB[device.type], most))
        """Directions whose products are computed at once."""
        self.rows = self.slab
        """Directions along which values are transported at once."""
        self.recordable = True
        """Whether steps can be recorded: not once that has failed, which leaves memory behind."""

    @classmethod
    def whole(cls, device: torch.device) -> Budget:
        """Return a budget without limits, until memory runs short."""
        budget = cls(device, 1, 1)
        budget.slab = budget.rows = sys.maxsize
        return budget

    def slabs(self, count: int) -> Iterator[slice]:
        """Yield slices of `count` directions, a slab at a time."""
        for first in range(0, count, self.slab):
            yield slice(first, min(first + self.slab, count))

    def over_slabs(self, count: int, work: Callable[[slice], Result]) -> Iterator[Result]:
        """Yield what `work` returns for slices of `count` directions, a slab at a time."""
        done = 0
        while done < count:
            slab = slice(done, min(done + self.slab, count))
            result = _attempt(work, slab)
            if result is None:
                self.slab = (slab.stop - slab.start) // 2
                self.rows = min(self.rows, self.slab)
                self.warn(f"{self.slab} directions at a time; results may differ in the last digits")
                continue
            yield result[0]
            done = slab.stop

    def over_rows(self, count: int, work: Callable[[slice], None]) -> None:
        """Call `work` with slices of `count` rows, as many as are transported at once."""
        done = 0
        while done < count:
            rows = slice(done, min(done + self.rows, count))
            if _attempt(work, rows) is None:
                self.rows = (rows.stop - rows.start) // 2
                self.warn(f"{self.rows} directions sorted at a time")
                continue
            done = rows.stop

    def warn(self, how: str) -> None:
        """Warn that memory was short, and how the work continues."""
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        log.warning("out of memory on %s: going on with %s", self.device, how)


def batches(directions: int, together: int = 1) -> Iterator[tuple[int, int]]:
    """Yield the number and the size of each batch of H directions.

    A batch is a multiple of the number of directions that have to be drawn `together`.
    """
    size = -(-DIRECTIONS_PER_BATCH // together) * together
    for number, first in enumerate(range(0, directions, size)):
        yield number, min(size, directions - first)


def _attempt(work: Callable[[slice], Result], part: slice) -> tuple[Result] | None:
    """Return what `work` returns, as a tuple of one; None if memory was too small for more than one direction.

    When this returns, the error is gone, and with it the tensors that its frames held.
    """
    try:
        return (work(part),)
    except Exception as error:
        if not is_out_of_memory(error) or part.stop - part.start == 1:
            raise
    return None
