"""What a device can do at most, measured here and now: how fast it copies, how fast it multiplies."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from statistics import median

import attrs
import torch

from cswf_core.bench.timing import durations

REPEATS = 9

COPIED = {"cuda": 2**30, "cpu": 2**27}
"""Bytes of the buffer that is copied: far more than the caches hold."""
SIDE = {"cuda": 8192, "cpu": 1024}
"""n of the n×n matrices that are multiplied."""


@attrs.frozen
class Ceilings:
    """The two rates that no step can pass."""

    copy_bandwidth: float
    """Bytes per second of a copy from device memory to device memory, read and written ones together."""
    matrix_rate: float
    """Floating-point operations per second of a large product: float16 summed in float32 on a GPU, float32
    on a CPU."""

    def bandwidth_fraction(self, moved: float, milliseconds: float) -> float:
        """Return which part of the copy bandwidth it is to move so many bytes in that time."""
        return _rate(moved, milliseconds) / self.copy_bandwidth

    def matrix_fraction(self, flops: float, milliseconds: float) -> float:
        """Return which part of the matrix rate it is to do so many operations in that time."""
        return _rate(flops, milliseconds) / self.matrix_rate


def measure_ceilings(device: torch.device) -> Ceilings:
    """Measure both, in a second or so."""
    return Ceilings(copy_bandwidth(device), matrix_rate(device))


def copy_bandwidth(device: torch.device) -> float:
    """Return bytes per second, counting each byte that is read and each that is written."""
    size = COPIED[device.type]
    source = torch.zeros(size // 4, device=device)
    target = torch.empty_like(source)
    return 2 * size / _seconds(device, partial(target.copy_, source))


def matrix_rate(device: torch.device) -> float:
    """Return floating-point operations per second. Entries are random: zeros save power, and go faster."""
    n = SIDE[device.type]
    dtype = torch.float16 if device.type == "cuda" else torch.float32
    a, b = (torch.randn(n, n, device=device).to(dtype) for _ in range(2))
    product = torch.empty_like(a)
    return 2 * n**3 / _seconds(device, partial(torch.mm, a, b, out=product))


def _seconds(device: torch.device, work: Callable[[], object]) -> float:
    durations(device, work, 2)  # libraries are loaded and caches filled the first time
    return median(durations(device, work, REPEATS)) / 1e3


def _rate(amount: float, milliseconds: float) -> float:
    return amount / milliseconds * 1e3 if milliseconds > 0 else 0.0
