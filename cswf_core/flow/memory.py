"""The memory and the time of a step: how much is worked on at a time, and a clock for its parts.

Memory stays bounded, and bits stay the same. A *batch* of directions is drawn with one key; a *slab* is the
part of it whose products are computed at once, the same on any number of ranks. When memory runs short, slabs
are halved, which changes sums by rounding. A *block* is some of the samples.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from traceback import clear_frames
from typing import TypeVar

import torch
from torch import Tensor

from cswf_core.kernels.columns import COLUMNS_AT_A_TIME
from cswf_core.kernels.memory import is_out_of_memory, total_memory

DIRECTIONS_PER_BATCH = 16384
"""Directions that share a key: fixed, or the same seed would draw others."""

LARGEST_SLAB = {"cpu": 2048, "cuda": DIRECTIONS_PER_BATCH}
"""The largest number of directions in a slab: on a GPU small pieces of work take as long to start as to do."""

MEMORY_OVER_VALUES = 8
"""A device's memory is at least this many times as large as the projected values that are worked on at once."""

TEMPORARIES_PER_VALUE = 12
"""Numbers that a transport keeps at once for each projected value, indices counted double."""

MEMORY_OVER_SAMPLES = 4
"""Samples stay on a device with this many times their memory: noise and stages take as much again."""

LARGEST_BLOCK = {"cpu": 8192, "cuda": 131_072}
"""The largest number of samples in a block."""

Result = TypeVar("Result")

log = logging.getLogger("cswf")


def fits_in_memory(size: int, memory: int) -> bool:
    """Return whether samples of `size` bytes can stay on a device that has `memory` bytes."""
    return size <= memory // MEMORY_OVER_SAMPLES


def block_width(like: Tensor, memory: int) -> int:
    """Return the number of samples in a block, of the kind of `like` (d×0), if a device has `memory` bytes."""
    group = COLUMNS_AT_A_TIME[like.device.type]  # products and noise are computed in groups of this size
    # A block takes little of the memory, as the next one is read meanwhile
    groups = memory // 64 // (len(like) * like.dtype.itemsize) // group
    return min(LARGEST_BLOCK[like.device.type], max(1, groups) * group)


class Budget:
    """How many directions fit: chosen from the memory of the device, and halved when that was too much."""

    def __init__(
        self, device: torch.device, values_per_direction: int, itemsize: int, memory: int | None = None
    ) -> None:
        """Choose the sizes; `memory` are the bytes that every rank may use, None: all of the device's."""
        self.device = device
        self.memory = total_memory(device) if memory is None else memory
        row = max(1, values_per_direction * itemsize)
        most = self.memory // MEMORY_OVER_VALUES // (row * TEMPORARIES_PER_VALUE)
        self.slab = max(1, min(LARGEST_SLAB[device.type], most))
        """Directions whose products are computed at once."""
        self.recordable = True
        """Whether steps can be recorded: not once that has failed, which leaves memory behind."""

    @classmethod
    def whole(cls, device: torch.device) -> Budget:
        """Return a budget with the largest slabs, until memory runs short."""
        return cls(device, 1, 1)

    def halve(self, count: int) -> bool:
        """Let half as many of `count` directions be worked on at a time; False: it was only one."""
        most = min(self.slab, count)
        if most == 1:
            return False
        self.slab = most // 2
        self.warn(f"{self.slab} directions at a time; results may differ in the last digits")
        return True

    def warn(self, how: str) -> None:
        """Warn that memory was short, and how the work continues."""
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        log.warning("out of memory on %s: going on with %s", self.device, how)


def batch_size(together: int = 1) -> int:
    """Return the size of all batches but the last: a multiple of `together`."""
    return -(-DIRECTIONS_PER_BATCH // together) * together


def batches(directions: int, together: int = 1) -> Iterator[tuple[int, int]]:
    """Yield the number and the size of each batch, of which all but the last are multiples of `together`."""
    size = batch_size(together)
    for number, first in enumerate(range(0, directions, size)):
        yield number, min(size, directions - first)


def attempted(work: Callable[[], Result], again: Callable[[], bool]) -> Result | None:
    """Return what `work` returns; None if memory was too short, and `again` says that less can be tried.

    The tensors that the error's frames hold are let go before `again` is called.
    """
    try:
        return work()
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        clear_frames(error.__traceback__)
        if not again():
            raise
    return None


def retried(work: Callable[[], Result], smaller: Callable[[], bool]) -> Result:
    """Return what `work` returns, after `smaller` wherever memory was too short, until that returns False."""
    while True:
        result = attempted(work, smaller)
        if result is not None:
            return result


PARTS = ("draw", "read", "project", "count", "communicate", "tables", "lookup", "back-project", "move")
"""The parts of a step, in order; `read` is waiting for streamed data, `communicate` for other ranks."""

Work = Callable[[], tuple[float, float]]
"""() → (bytes that have to be moved, floating-point operations)."""


class Clock:
    """Times nothing, and costs nothing."""

    times = False
    """Whether parts are timed, so that those that could be fused are better run one by one."""

    @contextmanager
    def part(self, name: str, work: Work | None = None) -> Iterator[None]:
        """Bracket a part of a step; `work` is called only by a clock that counts work."""
        del name, work
        yield
