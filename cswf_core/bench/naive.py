"""A step as one writes it first in PyTorch, to measure the engine against.

Directions are a dense matrix of float32, every row of projections is sorted, and ranks are searched for: no
half precision, no patches, no kernel of our own. Directions come some at a time, so that projections fit into
memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

DIRECTIONS_AT_A_TIME = 512


def naive_step(z: Tensor, data: Tensor, thetas: Iterable[Tensor], eta: float) -> Tensor:
    """Return z + (η/H) Σ_h δ_h θ_h, δ_h = F_q⁻¹(F_p(p_h)) − p_h, after the paper's Appendix C.2.

    z is d×M, data d×N, and `thetas` are some of the directions each, as rows (T×d).
    """
    M = z.shape[1]
    N = data.shape[1]
    update = torch.zeros_like(z)
    H = 0
    for theta in thetas:
        p = theta @ z  # project: p_h = θ_h·X
        q = theta @ data
        ordered_p = p.sort(dim=1).values  # fit: F_p and F_q along θ_h
        ordered_q = q.sort(dim=1).values
        rank = torch.searchsorted(ordered_p, p, right=True) - 1
        position = (rank.to(p.dtype) * (N / M)).clamp_(max=N - 1)
        below = position.long()
        low = ordered_q.gather(1, below)
        high = ordered_q.gather(1, (below + 1).clamp_(max=N - 1))
        delta = low + (position - below) * (high - low) - p  # transport: δ_h = F_q⁻¹(F_p(p_h)) − p_h
        update += theta.T @ delta  # back-project: Σ_h δ_h θ_h
        H += theta.shape[0]
    return z + update * (eta / H)  # move: X ← X + η/H Σ_h δ_h θ_h


def random_directions(count: int, d: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Yield `count` directions of ℝ^d, some at a time: normal numbers scaled to unit length."""
    for first in range(0, count, DIRECTIONS_AT_A_TIME):
        rows = min(DIRECTIONS_AT_A_TIME, count - first)
        theta = torch.randn(rows, d, generator=generator, device=generator.device)
        yield theta / torch.linalg.vector_norm(theta, dim=1, keepdim=True)


@contextmanager
def full_float32() -> Iterator[None]:
    """Multiply float32 as float32 and not in the shortened TF32."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
