"""A step as one writes it first in PyTorch, to measure the engine against.

Directions are a dense matrix of float32, every row of projections is sorted, and ranks are searched for: no
half precision, no patches, no kernel of our own. Directions come in chunks only so that projections fit into
memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial

import attrs
import torch
from torch import Tensor

from cswf_core.bench.timing import durations, forget_peak, peak

ROWS = 512
"""Directions at a time."""
REPEATS = 3
ENOUGH = 5_000.0
"""Milliseconds after which one repetition is enough."""


@attrs.frozen
class NaiveTimes:
    """How the naive step did."""

    milliseconds: list[float]
    peak_memory_bytes: int


def naive_step(z: Tensor, data: Tensor, thetas: Iterable[Tensor], eta: float) -> Tensor:
    """Return z + (η/H) Σ_h δ_h θ_h, δ_h = F_q⁻¹(F_p(p_h)) − p_h, after the paper's Appendix C.2.

    z is d×M, data d×N, and `thetas` are some of the directions each, as rows (T×d).
    """
    M, N = z.shape[1], data.shape[1]
    total, H = torch.zeros_like(z), 0
    for theta in thetas:
        p, q = theta @ z, theta @ data
        ordered_p, ordered_q = p.sort(dim=1).values, q.sort(dim=1).values
        rank = torch.searchsorted(ordered_p, p, right=True) - 1
        position = (rank.to(p.dtype) * (N / M)).clamp_(max=N - 1)
        below = position.long()
        low = ordered_q.gather(1, below)
        high = ordered_q.gather(1, (below + 1).clamp_(max=N - 1))
        delta = low + (position - below) * (high - low) - p
        total += theta.T @ delta
        H += theta.shape[0]
    return z + total * (eta / H)


def random_directions(count: int, d: int, generator: torch.Generator, rows: int = ROWS) -> Iterator[Tensor]:
    """Yield `count` directions of ℝ^d, at most `rows` at a time: normal numbers scaled to unit length."""
    for first in range(0, count, rows):
        size = min(rows, count - first), d
        theta = torch.randn(size, generator=generator, device=generator.device)
        yield theta / torch.linalg.vector_norm(theta, dim=1, keepdim=True)


def time_naive(d: int, M: int, N: int, H: int, device: torch.device) -> NaiveTimes:
    """Time the naive step, its draw of directions included, on random particles and data of these sizes."""
    forget_peak(device)
    generator = torch.Generator(device).manual_seed(0)
    z = torch.randn(d, M, generator=generator, device=device)
    data = torch.randn(d, N, generator=generator, device=device)

    def step(count: int) -> Tensor:
        return naive_step(z, data, random_directions(count, d, generator), 0.1)

    with full_float32():
        durations(device, partial(step, min(H, ROWS)), 1)
        taken = durations(device, partial(step, H), 1)
        if taken[0] < ENOUGH:
            taken += durations(device, partial(step, H), REPEATS - 1)
    return NaiveTimes(taken, peak(device))


@contextmanager
def full_float32() -> Iterator[None]:
    """Multiply float32 as float32 and not in the shortened TF32."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
