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


@triton.jit
def _project(
    theta, lists, lengths, z, out, low, high, H, depth, TM: tl.constexpr, TN: tl.constexpr, BK: tl.constexpr
):
    """p[h, j] = Σ_k θ[h, k] z[k, j], and the least and greatest p of each direction in this tile's columns.

    Two blocks a round; after the last one, an index beyond the matrix stands for zeros.
    """
    tile, column = tl.program_id(0), tl.program_id(1)
    total = tl.zeros((TM, TN), tl.float32)
    at = lists + tile * depth
    one = tl.load(at) * BK
    other = tl.load(at + 1) * BK
    for i in range(0, tl.load(lengths + tile), 2):
        a = theta.load([tile * TM, one])
        b = z.load([one, column * TN])
        c = theta.load([tile * TM, other])
        d = z.load([other, column * TN])
        total = tl.dot(a, b, total)
        total = tl.dot(c, d, total)
        one = tl.load(at + i + 2) * BK
        other = tl.load(at + i + 3) * BK
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
    theta, lists, lengths, delta, out, depth,
    TM: tl.constexpr, TN: tl.constexpr, BK: tl.constexpr, ADD: tl.constexpr,
):  # fmt: skip
    """u[k, j] = Σ_h θ[h, k] δ[h, j], added to what is there if ADD."""
    tile, column = tl.program_id(0), tl.program_id(1)
    total = tl.zeros((TM, TN), tl.float32)
    at = lists + tile * depth
    one = tl.load(at) * BK
    other = tl.load(at + 1) * BK
    for i in range(0, tl.load(lengths + tile), 2):
        a = theta.load([one, tile * TM])
        b = delta.load([one, column * TN])
        c = theta.load([other, tile * TM])
        d = delta.load([other, column * TN])
        total = tl.dot(tl.trans(a), b, total)
        total = tl.dot(tl.trans(c), d, total)
        one = tl.load(at + i + 2) * BK
        other = tl.load(at + i + 3) * BK
    if ADD:
        total += out.load([tile * TM, column * TN])
    out.store([tile * TM, column * TN], total)


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
    theta,
    scale,
    order,
    places,
    out,
    nonzero,
    H,
    d,
    width,
    SORTED: tl.constexpr,
    SCALED: tl.constexpr,
    BK: tl.constexpr,
):
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
def _halve(x, rows, out, d, n, out_width, PLACED: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    """out[k, j] = x[rows[k], j] in half precision; rows from d on are 0."""
    k = tl.program_id(0) * BM + tl.arange(0, BM)
    j = tl.program_id(1) * BN + tl.arange(0, BN)
    row = tl.load(rows + k, mask=k < d, other=0).to(tl.int64) if PLACED else k.to(tl.int64)
    value = tl.load(x + row[:, None] * n + j[None, :], mask=(k < d)[:, None] & (j < n)[None, :], other=0.0)
    tl.store(out + k.to(tl.int64)[:, None] * out_width + j[None, :], value.to(tl.float16))


@triton.jit
def _add(
    x, u, factor, rows, out, d, n, u_width,
    PLACED: tl.constexpr, HALVED: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """x[rows[k], j] += factor · u[k, j]; with HALVED also out[k, j], the same in half precision."""
    k = tl.program_id(0) * BM + tl.arange(0, BM)
    j = tl.program_id(1) * BN + tl.arange(0, BN)
    row = tl.load(rows + k, mask=k < d, other=0).to(tl.int64) if PLACED else k.to(tl.int64)
    inside = (k < d)[:, None] & (j < n)[None, :]
    at = x + row[:, None] * n + j[None, :]
    value = tl.load(at, mask=inside, other=0.0)
    value += tl.load(factor) * tl.load(u + k.to(tl.int64)[:, None] * u_width + j[None, :])
    tl.store(at, value, mask=inside)
    if HALVED:
        value = tl.where((k < d)[:, None], value, 0.0)
        tl.store(out + k.to(tl.int64)[:, None] * u_width + j[None, :], value.to(tl.float16))


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
        low, high, H, pattern.lists.shape[1], TILE, TILE, BLOCK, num_warps=4, num_stages=3,
    )  # fmt: skip
    ends = torch.empty(2, H, device=z.device)
    _ends[(triton.cdiv(H, 32),)](low, high, ends, H, grid[1], 32, 32)
    return ends[0], ends[1]


def back_project(directions: Blocks, delta: Tensor, out: Tensor, *, add: bool) -> None:
    """Write Σ_h δ_h θ_h (δ: H'×n') to `out` (d'×n', float32), or add it to what is there."""
    pattern = directions.columns
    grid = (out.shape[0] // TILE, out.shape[1] // TILE)
    _back_project[grid](
        TensorDescriptor.from_tensor(directions.theta, [BLOCK, TILE]), pattern.lists, pattern.lengths,
        TensorDescriptor.from_tensor(delta, [BLOCK, TILE]), TensorDescriptor.from_tensor(out, [TILE, TILE]),
        pattern.lists.shape[1], TILE, TILE, BLOCK, add, num_warps=4, num_stages=3 if add else 4,
    )  # fmt: skip


def add(x: Tensor, u: Tensor, factor: Tensor, places, half: Tensor | None) -> None:
    """x ← x + factor · u, in place: x is d×n, u d'×n' in the order of the curve, `factor` one number.

    With `half` (d'×n', float16), also write the new x there in half precision, in the order of the curve.
    """
    assert x.is_contiguous()
    d, n = x.shape
    grid = (u.shape[0] // 16, u.shape[1] // 128)
    _add[grid](
        x, u, factor, x if places is None else places.order, u if half is None else half, d, n, u.shape[1],
        places is not None, half is not None, 16, 128,
    )  # fmt: skip
    if half is not None:
        fill_up(half, n)


def halve(x: Tensor, places, out: Tensor) -> None:
    """Write x (d×n) to `out` (d'×n', float16), in the order of the curve; the last sample fills the rest."""
    assert x.is_contiguous()
    d, n = x.shape
    grid = (triton.cdiv(out.shape[0], 16), triton.cdiv(out.shape[1], 128))
    rows = x if places is None else places.order
    _halve[grid](x, rows, out, d, n, out.shape[1], places is not None, 16, 128)
    fill_up(out, n)


def fill_up(half: Tensor, n: int) -> None:
    """Let the columns from n on (of d'×n') repeat the one before: they then change no extremes."""
    if n < half.shape[1]:
        half[:, n:] = half[:, n - 1 : n]
