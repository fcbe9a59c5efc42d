"""What sampling from a saved model needs besides products (Triton): tables of saved maps, and z = z₀ + G S.

Neither kernel mixes samples, and tiles have a fixed size: a sample's numbers are the same to the bit whatever
stands beside it.
"""
# mypy: ignore-errors

from __future__ import annotations

import torch
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
def _between(value, at, delta, K, ROUNDS: tl.constexpr):
    """Return T(v) − v on the lines between K knots; beyond the first and the last, T is constant."""
    below = (value * 0).to(tl.int32)  # knots at or below v
    above = below + K
    for _ in range(ROUNDS):
        middle = (below + above) // 2
        open_ = below < above
        reached = tl.load(at + tl.minimum(middle, K - 1)).to(tl.float32) <= value
        below = tl.where(open_ & reached, middle + 1, below)
        above = tl.where(open_ & (reached == 0), middle, above)
    left = tl.maximum(below - 1, 0)
    right = tl.minimum(below, K - 1)
    start = tl.load(at + left).to(tl.float32)
    height = tl.load(delta + left).to(tl.float32)
    width = tl.load(at + right).to(tl.float32) - start
    rise = (tl.load(delta + right).to(tl.float32) - height) / tl.where(width > 0, width, 1.0)
    slope = tl.where((below == 0) | (below == K), -1.0, tl.where(width > 0, rise, 0.0))
    return height + slope * (value - start)


@triton.jit
def _tabulate(
    positions, displacements, order, low_out, high_out, table, H, K,
    SORTED: tl.constexpr, B: tl.constexpr, ROUNDS: tl.constexpr,
):  # fmt: skip
    """Store a row's ends, and T − identity at both edges of each of B bins between them, for one stratum."""
    h = tl.program_id(0)
    stratum = tl.program_id(1)
    source = tl.load(order + h).to(tl.int64) if SORTED else h.to(tl.int64)
    at = positions + (stratum.to(tl.int64) * H + source) * K
    delta = displacements + (stratum.to(tl.int64) * H + source) * K
    low = tl.load(at).to(tl.float32)
    high = tl.load(at + K - 1).to(tl.float32)
    row = stratum.to(tl.int64) * H + h
    tl.store(low_out + row, low)
    tl.store(high_out + row, high)
    i = tl.arange(0, B)
    width = (high - low) / B
    out = table + row * (2 * B + 2)
    values = _between(low + width * i.to(tl.float32), at, delta, K, ROUNDS)
    tl.store(out + 2 * i, values)
    tl.store(out + 2 * i - 1, values, mask=i > 0)
    last = tl.max(_between(tl.zeros((1,), tl.float32) + (low + width * B), at, delta, K, ROUNDS), 0)
    tl.store(out + 2 * B - 1, last)
    tl.store(out + 2 * B, last)
    tl.store(out + 2 * B + 1, last)


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


def tabulated(
    positions: Tensor, displacements: Tensor, order: Tensor | None, bins: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the first and last positions (S×H each) and the pairs (S×H×(B+1)×2) of maps, in float32.

    Args:
        positions: The positions of S strata, in any floating-point type: S×H×K.
        displacements: The displacements there: S×H×K.
        order: The row that each row of the result is made of: H; None: they keep their order.
        bins: B, a power of two.
    """
    S, H, K = positions.shape
    positions = positions.contiguous()
    displacements = displacements.contiguous()
    low = torch.empty(S, H, device=positions.device)
    high = torch.empty_like(low)
    table = torch.empty(S, H, bins + 1, 2, device=positions.device)
    _tabulate[(H, S)](
        positions, displacements, positions if order is None else order, low, high, table, H, K,
        order is not None, bins, K.bit_length(), num_warps=4,
    )  # fmt: skip
    return low, high, table


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
