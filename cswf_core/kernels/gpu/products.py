"""Products with directions in boxes, in half precision with float32 sums, and what moves particles (Triton).

Tiles go through the tensor memory accelerator where the card has one. The next box's place is read one round
ahead, which lets the compiler keep several boxes under way.
"""
# mypy: ignore-errors

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from cswf_core.kernels.blocks import BLOCK, TILE
from cswf_core.kernels.boxes import Boxes

AHEAD, BACK, SUMS = 4, 5, 3
"""Boxes under way at a time in a projection, in a back-projection, and in one that writes its sums down.

With more, fewer programs fit on a multiprocessor. Writing sums down takes shared memory of its own, of which
some cards have 99 KB.
"""


@triton.jit
def _project(theta, starts, lengths, z, out, low, high, H, depth, TM: tl.constexpr, TN: tl.constexpr):
    """p[h, j] = Σ_k θ[h, k] z[k, j], and the least and greatest p of each direction in this tile's columns."""
    tile, column = tl.program_id(0), tl.program_id(1)
    total = tl.zeros((TM, TN), tl.float32)
    at = starts + tile * depth
    start = tl.load(at)
    for i in range(tl.load(lengths + tile)):
        total = tl.dot(theta.load([(tile * depth + i) * TM, 0]), z.load([start, column * TN]), total)
        start = tl.load(at + i + 1)
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
    theta, starts, lengths, delta, u, x, rows, factor, half, places, half_width, d, n, depth,
    TM: tl.constexpr, TN: tl.constexpr,
    ADDS: tl.constexpr, MOVES: tl.constexpr, PLACED: tl.constexpr, HALVED: tl.constexpr,
):  # fmt: skip
    """Σ_h θ[h, k] δ[h, j], if ADDS with u[k, j] added, goes to u; or if MOVES to x, times a factor.

    Then x[rows[k], j] is what moves; with HALVED also half[places[rows[k]], j], the same in half precision.
    """
    tile, column = tl.program_id(0), tl.program_id(1)
    total = tl.zeros((TM, TN), tl.float32)
    at = starts + tile * depth
    start = tl.load(at)
    for i in range(tl.load(lengths + tile)):
        total = tl.dot(theta.load([(tile * depth + i) * TM, 0]), delta.load([start, column * TN]), total)
        start = tl.load(at + i + 1)
    if ADDS:
        total += u.load([tile * TM, column * TN])
    if MOVES:
        # One half of the columns after the other: the sums alone take most of the registers.
        left, right = tl.split(tl.permute(tl.reshape(total, (TM, 2, TN // 2)), (0, 2, 1)))
        first = column * TN
        _move(left, tile, first, x, rows, factor, half, places, half_width, d, n, TM, TN // 2, PLACED, HALVED)
        _move(
            right,
            tile,
            first + TN // 2,
            x,
            rows,
            factor,
            half,
            places,
            half_width,
            d,
            n,
            TM,
            TN // 2,
            PLACED,
            HALVED,
        )
    else:
        u.store([tile * TM, column * TN], total)


@triton.jit
def _move(
    u, tile, first, x, rows, factor, half, places, half_width, d, n,
    TM: tl.constexpr, TN: tl.constexpr, PLACED: tl.constexpr, HALVED: tl.constexpr,
):  # fmt: skip
    """x[rows[k], j] += factor · u[k, j], from column `first` on; with HALVED `half` gets it, too."""
    k = tile * TM + tl.arange(0, TM)
    j = first + tl.arange(0, TN)
    row = tl.load(rows + k, mask=k < d, other=0).to(tl.int64) if PLACED else k.to(tl.int64)
    inside = (k < d)[:, None] & (j < n)[None, :]
    at = x + row[:, None] * n + j[None, :]
    value = tl.load(at, mask=inside, other=0.0) + tl.load(factor) * u
    tl.store(at, value, mask=inside)
    if HALVED:
        place = tl.where(k < d, tl.load(places + row).to(tl.int64), k.to(tl.int64)) if PLACED else row
        value = tl.where((k < d)[:, None], value, 0.0)
        tl.store(half + place[:, None] * half_width + j[None, :], value.to(tl.float16))


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


def project(directions: Boxes, z: Tensor, out: Tensor) -> tuple[Tensor, Tensor]:
    """Write θ_h·z (z: d'×n') to `out` (H'×n') and return the least and greatest value of each direction.

    All are filled up to whole tiles, z by copies of a sample, so that extremes are those of the samples.
    """
    H = directions.shape[0]
    grid = (out.shape[0] // TILE, out.shape[1] // TILE)
    low = torch.empty(grid[1], H, device=z.device)
    high = torch.empty_like(low)
    side = directions.across
    _project[grid](
        TensorDescriptor.from_tensor(side.values, [TILE, BLOCK]), side.starts, side.lengths,
        TensorDescriptor.from_tensor(z, [BLOCK, TILE]), TensorDescriptor.from_tensor(out, [TILE, TILE]),
        low, high, H, side.starts.shape[1], TILE, TILE, num_warps=4, num_stages=AHEAD,
    )  # fmt: skip
    ends = torch.empty(2, H, device=z.device)
    _ends[(triton.cdiv(H, 32),)](low, high, ends, H, grid[1], 32, 128, num_warps=8)
    return ends[0], ends[1]


def back_project(directions: Boxes, delta: Tensor, u: Tensor, *, add: bool) -> None:
    """Write Σ_h δ_h θ_h (δ: H'×n') to u (d'×n', float32), or add it to what is there."""
    _back(directions, delta, u if add else None, u=u)


def move(
    directions: Boxes,
    delta: Tensor,
    plus: Tensor | None,
    x: Tensor,
    factor: Tensor,
    places,
    half: Tensor | None,
) -> None:
    """x ← x + factor · (plus + Σ_h δ_h θ_h), in place: x is d×n, δ H'×n', `factor` one number.

    `plus` (d'×n', float32) comes from `back_project`. With `half` (d'×n', float16), also write the new x there
    in half precision, in the order of `places`.
    """
    assert x.is_contiguous()
    _back(directions, delta, plus, x=x, factor=factor, places=places, half=half)
    if half is not None:
        fill_up(half, x.shape[1])


def _back(
    directions: Boxes, delta: Tensor, plus, *, u=None, x=None, factor=None, places=None, half=None
) -> None:
    """Start one program per tile; whatever a form of the kernel does not use points to δ."""
    side, sums = directions.along, u if plus is None else plus
    d, n = (0, 0) if x is None else x.shape
    boxes = TensorDescriptor.from_tensor(delta, [BLOCK, TILE])
    _back_project[(len(side.lengths), delta.shape[1] // TILE)](
        TensorDescriptor.from_tensor(side.values, [TILE, BLOCK]), side.starts, side.lengths, boxes,
        boxes if sums is None else TensorDescriptor.from_tensor(sums, [TILE, TILE]),
        delta if x is None else x, delta if places is None else places.along,
        delta if factor is None else factor, delta if half is None else half,
        delta if places is None else places.place, 0 if half is None else half.shape[1], d, n,
        side.starts.shape[1], TILE, TILE, plus is not None, x is not None, places is not None,
        half is not None, num_warps=4, num_stages=SUMS if x is None and plus is None else BACK,
    )  # fmt: skip


def halve(x: Tensor, places, out: Tensor, plus: Tensor | None = None) -> None:
    """Write x, or x + plus (d×n), to `out` (d'×n', float16), in the order of `places`.

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
