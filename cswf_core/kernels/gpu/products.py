"""Products with block-sparse directions in half precision with float32 sums, and what moves particles (Triton).

Tiles go through the tensor memory accelerator where the card has one. The next block's index is read one round
ahead, which lets the compiler keep several blocks under way.
"""
# mypy: ignore-errors

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from cswf_core.kernels.blocks import BLOCK, TILE, Blocks, blocks, padded

AHEAD, BACK, SUMS = 4, 5, 3
"""Blocks under way at a time in a projection, in a back-projection, and in one that writes its sums down.

With more, fewer programs fit on a multiprocessor. Writing sums down takes shared memory of its own, of which
some cards have 99 KB.
"""


@triton.jit
def _project(
    theta, lists, lengths, z, out, low, high, H, depth, TM: tl.constexpr, TN: tl.constexpr, BK: tl.constexpr
):
    """p[h, j] = Σ_k θ[h, k] z[k, j], and the least and greatest p of each direction in this tile's columns."""
    tile, column = tl.program_id(0), tl.program_id(1)
    total = tl.zeros((TM, TN), tl.float32)
    at = lists + tile * depth
    block = tl.load(at) * BK
    for i in range(tl.load(lengths + tile)):
        total = tl.dot(theta.load([tile * TM, block]), z.load([block, column * TN]), total)
        block = tl.load(at + i + 1) * BK
    h = tile * TM + tl.arange(0, TM)
    out.store([tile * TM, column * TN], total.to(tl.float16))
    tl.store(low + column * H + h, tl.min(total, 1), mask=h < H)
    tl.store(high + column * H + h, tl.max(total, 1), mask=h < H)


@triton.jit
def _ends(low, high, ends, H, columns, BLOCK_H: tl.constexpr, BLOCK_C: tl.constexpr):
    """The least and the greatest of what the tiles of a product found for each direction: 2×H."""
    h = tl.program_id(0) * BLOCK_H + tl.arange(0, BLOCK_H)
    least = tl.full((BLOCK_C, BLOCK_H), float("inf"), tl.float32)
    greatest = tl.full((BLOCK_C, BLOCK_H), float("-inf"), tl.float32)
    for first in range(0, columns, BLOCK_C):
        c = first + tl.arange(0, BLOCK_C)
        inside = (c < columns)[:, None] & (h < H)[None, :]
        at = c[:, None] * H + h[None, :]
        least = tl.minimum(least, tl.load(low + at, mask=inside, other=float("inf")))
        greatest = tl.maximum(greatest, tl.load(high + at, mask=inside, other=float("-inf")))
    # Rounded as the values are, so that these are the extremes of what is written.
    tl.store(ends + h, tl.min(least, 0).to(tl.float16).to(tl.float32), mask=h < H)
    tl.store(ends + H + h, tl.max(greatest, 0).to(tl.float16).to(tl.float32), mask=h < H)


@triton.jit
def _back_project(
    theta, lists, lengths, delta, u, x, rows, factor, half, d, n, depth,
    TM: tl.constexpr, TN: tl.constexpr, BK: tl.constexpr,
    ADDS: tl.constexpr, MOVES: tl.constexpr, PLACED: tl.constexpr, HALVED: tl.constexpr,
):  # fmt: skip
    """Σ_h θ[h, k] δ[h, j], if ADDS with u[k, j] added, goes to u; or if MOVES to x, times a factor.

    Then x[rows[k], j] is what moves; with HALVED also half[k, j], the same in half precision.
    """
    tile, column = tl.program_id(0), tl.program_id(1)
    total = tl.zeros((TM, TN), tl.float32)
    at = lists + tile * depth
    block = tl.load(at) * BK
    for i in range(tl.load(lengths + tile)):
        total = tl.dot(tl.trans(theta.load([block, tile * TM])), delta.load([block, column * TN]), total)
        block = tl.load(at + i + 1) * BK
    if ADDS:
        total += u.load([tile * TM, column * TN])
    if MOVES:
        # One half of the columns after the other: the sums alone take most of the registers.
        left, right = tl.split(tl.permute(tl.reshape(total, (TM, 2, TN // 2)), (0, 2, 1)))
        first = column * TN
        _move(left, tile, first, x, rows, factor, half, d, n, TM, TN // 2, PLACED, HALVED)
        _move(right, tile, first + TN // 2, x, rows, factor, half, d, n, TM, TN // 2, PLACED, HALVED)
    else:
        u.store([tile * TM, column * TN], total)


@triton.jit
def _move(
    u, tile, first, x, rows, factor, half, d, n,
    TM: tl.constexpr, TN: tl.constexpr, PLACED: tl.constexpr, HALVED: tl.constexpr,
):  # fmt: skip
    """x[rows[k], j] += factor · u[k, j], from column `first` on; with HALVED half[k, j] is the same."""
    k = tile * TM + tl.arange(0, TM)
    j = first + tl.arange(0, TN)
    row = tl.load(rows + k, mask=k < d, other=0).to(tl.int64) if PLACED else k.to(tl.int64)
    inside = (k < d)[:, None] & (j < n)[None, :]
    at = x + row[:, None] * n + j[None, :]
    value = tl.load(at, mask=inside, other=0.0) + tl.load(factor) * u
    tl.store(at, value, mask=inside)
    if HALVED:
        half.store([tile * TM, first], tl.where((k < d)[:, None], value, 0.0).to(tl.float16))


@triton.jit
def _middle(theta, position, rank, key, d, width, BLOCK_D: tl.constexpr):
    """The rank on the curve of the middle of what a direction looks at."""
    h = tl.program_id(0)
    count = 0.0
    row = 0.0
    column = 0.0
    for k in range(0, d, BLOCK_D):
        i = k + tl.arange(0, BLOCK_D)
        inside = i < d
        seen = (tl.load(theta + h.to(tl.int64) * d + i, mask=inside, other=0.0) != 0).to(tl.float32)
        count += tl.sum(seen)
        row += tl.sum(seen * tl.load(position + 2 * i, mask=inside, other=0.0))
        column += tl.sum(seen * tl.load(position + 2 * i + 1, mask=inside, other=0.0))
    count = tl.maximum(count, 1.0)
    pixel = tl.floor(row / count + 0.5).to(tl.int32) * width + tl.floor(column / count + 0.5).to(tl.int32)
    tl.store(key + h, tl.load(rank + pixel))


@triton.jit
def _pack(
    theta, scale, order, places, out, nonzero, H, d, width,
    SORTED: tl.constexpr, SCALED: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """One block of the matrix: sorted, scaled, in half precision; and whether anything in it is not zero."""
    tile, block = tl.program_id(0), tl.program_id(1)
    h = tile * BK + tl.arange(0, BK)
    k = block * BK + tl.arange(0, BK)
    if SORTED:
        row = tl.load(order + h, mask=h < H, other=0)
        column = tl.load(places + k, mask=k < d, other=0)
    else:
        row = h
        column = k
    inside = (h < H)[:, None] & (k < d)[None, :]
    value = tl.load(theta + row.to(tl.int64)[:, None] * d + column[None, :], mask=inside, other=0.0).to(
        tl.float32
    )
    if SCALED:
        value *= tl.load(scale + row, mask=h < H, other=0.0)[:, None]
    half = value.to(tl.float16)
    tl.store(out + h.to(tl.int64)[:, None] * width + k[None, :], half)
    tl.store(nonzero + tile * tl.num_programs(1) + block, tl.sum((half != 0).to(tl.int32)) > 0)


@triton.jit
def _halve(
    x, plus, rows, out, d, n, out_width,
    ADDS: tl.constexpr, PLACED: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """out[k, j] = x[rows[k], j] in half precision, if ADDS with `plus` added; rows from d on are 0."""
    k = tl.program_id(0) * BM + tl.arange(0, BM)
    j = tl.program_id(1) * BN + tl.arange(0, BN)
    row = tl.load(rows + k, mask=k < d, other=0).to(tl.int64) if PLACED else k.to(tl.int64)
    at, inside = row[:, None] * n + j[None, :], (k < d)[:, None] & (j < n)[None, :]
    value = tl.load(x + at, mask=inside, other=0.0)
    if ADDS:
        value += tl.load(plus + at, mask=inside, other=0.0)
    tl.store(out + k.to(tl.int64)[:, None] * out_width + j[None, :], value.to(tl.float16))


def arrange(theta: Tensor, scale: Tensor | None, places) -> Blocks:
    """Return the directions s_h θ_h (θ: H×d float32, s: H×1) as blocks in half precision."""
    H, d = theta.shape
    theta = theta.contiguous()
    order = None
    if places is not None:
        key = torch.empty(H, dtype=torch.int64, device=theta.device)
        _middle[(H,)](
            theta, places.position, places.rank, key, d, places.width, min(1024, triton.next_power_of_2(d))
        )
        order = key.argsort(stable=True)
    filled = torch.empty(padded(H), padded(d), dtype=torch.float16, device=theta.device)
    grid = (filled.shape[0] // BLOCK, filled.shape[1] // BLOCK)
    nonzero = torch.empty(grid, dtype=torch.bool, device=theta.device)
    scale = scale.contiguous() if scale is not None else None
    _pack[grid](
        theta, theta if scale is None else scale, theta if order is None else order,
        theta if order is None else places.order, filled, nonzero, H, d, filled.shape[1],
        order is not None, scale is not None, BLOCK,
    )  # fmt: skip
    return blocks(filled, (H, d), nonzero, order)


def project(directions: Blocks, z: Tensor, out: Tensor) -> tuple[Tensor, Tensor]:
    """Write θ_h·z (z: d'×n') to `out` (H'×n') and return the least and greatest value of each direction.

    All are filled up to whole tiles, z by copies of a sample, so that extremes are those of the samples.
    """
    H = directions.shape[0]
    grid = (out.shape[0] // TILE, out.shape[1] // TILE)
    low = torch.empty(grid[1], H, device=z.device)
    high = torch.empty_like(low)
    pattern = directions.rows
    _project[grid](
        TensorDescriptor.from_tensor(directions.theta, [TILE, BLOCK]), pattern.lists, pattern.lengths,
        TensorDescriptor.from_tensor(z, [BLOCK, TILE]), TensorDescriptor.from_tensor(out, [TILE, TILE]),
        low, high, H, pattern.lists.shape[1], TILE, TILE, BLOCK, num_warps=4, num_stages=AHEAD,
    )  # fmt: skip
    ends = torch.empty(2, H, device=z.device)
    _ends[(triton.cdiv(H, 32),)](low, high, ends, H, grid[1], 32, 32)
    return ends[0], ends[1]


def back_project(directions: Blocks, delta: Tensor, u: Tensor, *, add: bool) -> None:
    """Write Σ_h δ_h θ_h (δ: H'×n') to u (d'×n', float32), or add it to what is there."""
    _back(directions, delta, u if add else None, u=u)


def move(
    directions: Blocks,
    delta: Tensor,
    plus: Tensor | None,
    x: Tensor,
    factor: Tensor,
    places,
    half: Tensor | None,
) -> None:
    """x ← x + factor · (plus + Σ_h δ_h θ_h), in place: x is d×n, δ H'×n', `factor` one number.

    `plus` (d'×n', float32) comes from `back_project`. With `half` (d'×n', float16), also write the new x there
    in half precision, in the order of the curve.
    """
    assert x.is_contiguous()
    _back(directions, delta, plus, x=x, factor=factor, places=places, half=half)
    if half is not None:
        fill_up(half, x.shape[1])


def _back(
    directions: Blocks, delta: Tensor, plus, *, u=None, x=None, factor=None, places=None, half=None
) -> None:
    """Start one program per tile; whatever a form of the kernel does not use points to δ."""
    pattern, sums = directions.columns, u if plus is None else plus
    d, n = (0, 0) if x is None else x.shape
    unused = TensorDescriptor.from_tensor(delta, [BLOCK, TILE])
    _back_project[(directions.theta.shape[1] // TILE, delta.shape[1] // TILE)](
        TensorDescriptor.from_tensor(directions.theta, [BLOCK, TILE]), pattern.lists, pattern.lengths, unused,
        unused if sums is None else TensorDescriptor.from_tensor(sums, [TILE, TILE]),
        delta if x is None else x, delta if places is None else places.order,
        delta if factor is None else factor,
        unused if half is None else TensorDescriptor.from_tensor(half, [TILE, TILE // 2]), d, n,
        pattern.lists.shape[1], TILE, TILE, BLOCK, plus is not None, x is not None, places is not None,
        half is not None, num_warps=4, num_stages=SUMS if x is None and plus is None else BACK,
    )  # fmt: skip


def halve(x: Tensor, places, out: Tensor, plus: Tensor | None = None) -> None:
    """Write x, or x + plus (d×n), to `out` (d'×n', float16), in the order of the curve.

    The last sample fills the rest.
    """
    assert x.is_contiguous()
    assert plus is None or plus.is_contiguous()
    d, n = x.shape
    grid = (triton.cdiv(out.shape[0], 16), triton.cdiv(out.shape[1], 128))
    rows = x if places is None else places.order
    _halve[grid](
        x,
        x if plus is None else plus,
        rows,
        out,
        d,
        n,
        out.shape[1],
        plus is not None,
        places is not None,
        16,
        128,
    )
    fill_up(out, n)


def fill_up(half: Tensor, n: int) -> None:
    """Let the columns from n on (of d'×n') repeat the one before: they then change no extremes."""
    if n < half.shape[1]:
        half[:, n:] = half[:, n - 1 : n]
