"""How many directions are worked on at a time, so that memory stays bounded and bits stay the same.

A *batch* is the unit in which directions are drawn: one key, fixed size. A *slab* is the part of a batch whose
products are taken at once: all of it on a GPU, unless its memory is too small for so many rows. With several
ranks a slab has as many directions as with one, or sums would be rounded in other places.

When memory runs short, fewer rows are transported at a time: a row's transport does not depend on its
neighbours, so this changes no bit. If that is not enough, slabs are halved, which changes sums by rounding; a
warning says so. Only a single direction that does not fit is an error.

Data and particles that take too much of the memory are worked on in *blocks*, some samples at a time.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol, TypeVar

import torch

from cswf_core.errors import OutOfMemoryError
from cswf_core.kernels.columns import COLUMNS_AT_A_TIME
from cswf_core.kernels.memory import is_out_of_memory, total_memory

BATCH = 16384
"""Directions that share a key: fixed, or the same seed would draw others. Large, because on a GPU small pieces
of work take as long to start as to do."""

MOST = {"cpu": 2048, "cuda": BATCH}
"""Directions of a slab, at most: on a CPU few are as quick as many, and while counts of one slab are summed
over several devices, the next is worked on."""

SHARE = 8
"""Projected values that are worked on at once may take one part in so many of a device's memory."""

TEMPORARIES = 12
"""Numbers that a transport keeps at once for each projected value, indices counted double."""

RESIDENT = 4
"""Samples stay on the device if their numbers take one part in so many of its memory, or less: in a stage's
coordinates, and with noise, they take as much again."""

BLOCK = {"cpu": 8192, "cuda": 131_072}
"""Samples that are brought to the device at a time, at most."""

BLOCK_SHARE = 64
"""A block's numbers may take one part in so many of the memory; the next is read meanwhile."""

Result = TypeVar("Result")


class Batch(Protocol):
    """Directions that can be cut into slabs."""

    @property
    def count(self) -> int:
        """The number of directions."""

    def rows(self, cut: slice) -> Any:
        """Return some of the directions."""


Cuttable = TypeVar("Cuttable", bound=Batch)

log = logging.getLogger("cswf")


@contextmanager
def fitting(device: torch.device, d: int, M: int, N: int, remedy: str) -> Iterator[None]:
    """Turn running out of memory into one sentence with the sizes that did not fit, and a remedy."""
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise OutOfMemoryError(
            f"out of memory on {device}: {M:,} particles and {N:,} data in {d:,} dimensions do not fit, "
            f"not even with one direction at a time; {remedy}"
        ) from error


def fits(dimension: int, count: int, dtype: torch.dtype, memory: int) -> bool:
    """Say whether so many samples can stay on a device with so many bytes of memory."""
    return dimension * count * dtype.itemsize <= memory // RESIDENT


def block_width(dimension: int, dtype: torch.dtype, memory: int, device: torch.device) -> int:
    """Return how many samples come to a device at a time, of which there are so many bytes of memory."""
    group = COLUMNS_AT_A_TIME[device.type]  # products and noise go by these
    groups = memory // BLOCK_SHARE // (dimension * dtype.itemsize) // group
    return min(BLOCK[device.type], max(1, groups) * group)


class Budget:
    """How many directions fit: chosen from the memory of the device, and halved when that was too much."""

    def __init__(
        self, device: torch.device, values_per_direction: int, itemsize: int, memory: int | None = None
    ) -> None:
        """`memory` is the least that any rank has; that of the device if left out."""
        self.device = device
        row = max(1, values_per_direction * itemsize)
        self.memory = total_memory(device) if memory is None else memory
        share = self.memory // SHARE
        self.slab = max(1, min(MOST[device.type], share // (row * TEMPORARIES)))
        """Directions whose products are taken at once."""
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

    def slabs_of(self, directions: Iterable[Cuttable]) -> Iterator[Cuttable]:
        """Yield slabs of batches of directions."""
        for batch in directions:
            for cut in self.slabs(batch.count):
                yield batch.rows(cut)

    def halve(self, count: int) -> bool:
        """Let half as many of `count` directions be worked on at a time; False: it was only one."""
        most = min(self.slab, count)
        if most == 1:
            return False
        self.slab = most // 2
        self.rows = min(self.rows, self.slab)
        self.warn(f"{self.slab} directions at a time; results may differ in the last digits")
        return True

    def over_rows(self, count: int, work: Callable[[slice], None]) -> None:
        """Call `work` with slices of `count` rows, as many as are transported at once."""
        done = 0
        while done < count:
            rows = slice(done, min(done + self.rows, count))
            if attempted(partial(_done, work, rows), lambda: rows.stop - rows.start > 1) is None:  # noqa: B023
                self.rows = (rows.stop - rows.start) // 2
                self.warn(f"{self.rows} directions sorted at a time")
                continue
            done = rows.stop

    def warn(self, how: str) -> None:
        """Warn that memory was short, and how the work goes on."""
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        log.warning("out of memory on %s: going on with %s", self.device, how)


def batches(directions: int, together: int = 1) -> Iterator[tuple[int, int]]:
    """Cut H directions into batches: pairs of a batch's number and its size.

    A batch is a multiple of the number of directions that have to be drawn together.
    """
    size = -(-BATCH // together) * together
    for number, first in enumerate(range(0, directions, size)):
        yield number, min(size, directions - first)


def attempted(work: Callable[[], Result], again: Callable[[], bool]) -> Result | None:
    """Return what `work` returns; None if memory was too short, and `again` says that less can be tried.

    When this returns, the error is gone, and with it the tensors that its frames held.
    """
    try:
        return work()
    except Exception as error:
        if not is_out_of_memory(error) or not again():
            raise
    return None


def _done(work: Callable[[slice], None], rows: slice) -> bool:
    work(rows)
    return True
