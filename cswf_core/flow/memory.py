"""How many directions are transported at a time, so that memory stays bounded and bits stay the same.

Products run over tiles of a fixed number of directions, summed in a fixed order. Inside a tile the
one-dimensional transport, which needs several times the memory, runs over chunks of rows. A row's result
does not depend on its neighbours, so chunks can shrink when memory is short without changing a bit.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from cswf_core.errors import OutOfMemoryError

TILE = 128
"""Directions per tile: fixed, because the order of summation is."""

TEMPORARIES = 12
"""Numbers that a transport keeps at once for each projected value, indices counted double."""

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
    return isinstance(error, RuntimeError) and "alloc" in str(error) and "memory" in str(error)


@contextmanager
def fitting(device: torch.device, d: int, M: int, N: int) -> Iterator[None]:
    """Turn running out of memory into one sentence with the sizes that did not fit."""
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise OutOfMemoryError(
            f"out of memory on {device}: {M:,} particles and {N:,} data in {d:,} dimensions do not fit; "
            "use fewer particles (particles.count) or a device with more memory"
        ) from error


class Chunks:
    """Chooses the chunk from the memory of the device and halves it whenever that was too much."""

    def __init__(self, device: torch.device, values_per_direction: int, itemsize: int) -> None:
        self.device = device
        row = max(1, values_per_direction * itemsize * TEMPORARIES)
        self.rows = max(1, min(TILE, total_memory(device) // 8 // row))

    def map(self, function: Callable[[Tensor, Tensor], Tensor], p: Tensor, q: Tensor) -> Tensor:
        """Replace each row of p (T×M) by `function(p, q)`, chunk by chunk; q is T×N."""
        done = 0
        while done < p.shape[0]:
            rows = slice(done, min(done + self.rows, p.shape[0]))
            if self._attempt(function, p[rows], q[rows]):
                done = rows.stop
        return p

    def _attempt(self, function: Callable[[Tensor, Tensor], Tensor], p: Tensor, q: Tensor) -> bool:
        try:
            p.copy_(function(p, q))
            return True
        except Exception as error:
            if not is_out_of_memory(error):
                raise
        self._shrink(p.shape[0], p.shape[1], q.shape[1])
        return False

    def _shrink(self, tried: int, M: int, N: int) -> None:
        if tried == 1:
            raise OutOfMemoryError(
                f"out of memory on {self.device}: one direction of {M:,} particles and {N:,} data does not "
                "fit; use fewer particles (particles.count) or a device with more memory"
            )
        self.rows = tried // 2
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        log.warning("out of memory on %s: going on with %d directions at a time", self.device, self.rows)


def tiles(directions: int) -> Iterator[tuple[int, int]]:
    """Cut H directions into tiles: pairs of a tile's index and its number of directions."""
    for index, first in enumerate(range(0, directions, TILE)):
        yield index, min(TILE, directions - first)
