"""Particles of a stage with coordinates of its own, in half precision (Triton): z = z₀ + G S.

The kernel mixes no samples, and tiles have a fixed size: a sample's numbers are the same to the bit whatever
stands beside it, in a run and in its model.
"""
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

TILE_COORDINATES = 64
"""Coordinates of a tile of G S."""

TILE_SAMPLES = 128
"""Samples of a tile of G S."""

TILE_TERMS = 32
"""Terms that a tile of G S adds at a time."""


@triton.jit
def _follow(
    G, S, z, rank, half, side, n, half_width,
    PLACED: tl.constexpr, TM: tl.constexpr, TN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Store z[k, j] + Σ_m G[k, m] S[m, j] in half[rank[k], j], for a tile of one channel's coordinates."""
    tile = tl.program_id(0)
    column = tl.program_id(1)
    channel = tl.program_id(2)
    k = tile * TM + tl.arange(0, TM)
    j = column * TN + tl.arange(0, TN)
    first = channel.to(tl.int64) * side
    total = tl.zeros((TM, TN), tl.float32)
    for begin in range(0, side, BK):
        m = begin + tl.arange(0, BK)
        g = tl.load(
            G + (first + k)[:, None] * side + m[None, :],
            mask=(k < side)[:, None] & (m < side)[None, :],
            other=0.0,
        )
        s = tl.load(
            S + (first + m)[:, None] * n + j[None, :], mask=(m < side)[:, None] & (j < n)[None, :], other=0.0
        )
        total = tl.dot(g, s, total, input_precision="tf32")
    inside = (k < side)[:, None] & (j < n)[None, :]
    value = tl.load(z + (first + k)[:, None] * n + j[None, :], mask=inside, other=0.0) + total
    row = tl.load(rank + first + k, mask=k < side, other=0).to(tl.int64) if PLACED else first + k
    tl.store(half + row[:, None] * half_width + j[None, :], value.to(tl.float16), mask=inside)


def follow(G: Tensor, S: Tensor, z: Tensor, rank: Tensor | None, half: Tensor) -> None:
    """Write z + G S to `half`, with factors rounded to TF32, and sums in float32.

    Args:
        G: The matrix of each channel: C×(d/C)×(d/C).
        S: The sum of updates: d×n.
        z: The particles before: d×n.
        rank: The row of `half` that each coordinate goes to: d; None: they keep their order.
        half: The result, d'×n', float16; rows from d on and columns from n on stay as they are.
    """
    assert S.is_contiguous()
    assert z.is_contiguous()
    channels, side, _ = G.shape
    n = S.shape[1]
    grid = (triton.cdiv(side, TILE_COORDINATES), triton.cdiv(n, TILE_SAMPLES), channels)
    _follow[grid](
        G, S, z, z if rank is None else rank, half, side, n, half.shape[1], rank is not None,
        TILE_COORDINATES, TILE_SAMPLES, TILE_TERMS, num_warps=4, num_stages=3,
    )  # fmt: skip
