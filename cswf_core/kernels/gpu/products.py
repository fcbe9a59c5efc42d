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
from cswf_core.kernels.boxes import LOW, Boxes
from cswf_core.kernels.memory import shared_memory

AHEAD = {TILE: 4, LOW: 3}
"""Boxes under way at a time in a projection, by the rows of a tile.

With more, fewer programs fit on a multiprocessor."""

ROOMY = 128 * 1024
"""Bytes of shared memory; with fewer, the sums of a wide tile are written down with fewer boxes under way."""

MOVED = tl.constexpr(64)
"""Columns that are moved at a time."""

LEAST, GREATEST = (tl.constexpr(f"{name}.f16x2 $0, $1, $2;") for name in ("min", "max"))
"""PTX for two numbers in half precision at a time, which Triton has no name for."""


@triton.jit
def _extreme(x, PTX: tl.constexpr, TM: tl.constexpr, TN: tl.constexpr):
    """The least or greatest of columns that lie TN/2, TN/4, … and 8 apart: TM×8."""
    if TN == 8:
        return x
    else:
        left, right = tl.split(tl.permute(tl.reshape(x, (TM, 2, TN // 2)), (0, 2, 1)))
        both = tl.inline_asm_elementwise(PTX, "=r,r,r", [left, right], dtype=tl.float16, is_pure=True, pack=2)
        return _extreme(both, PTX, TM, TN // 2)


@triton.jit
def _project(
    theta, starts, lengths, z, out, low, high, H, depth,
    TM: tl.constexpr, TN: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """p[h, j] = Σ_k θ[h, k] z[k, j], and the least and greatest p of each direction in this tile's columns."""
    tile, column = tl.program_id(0), tl.program_id(1)
    total = tl.zeros((TM, TN), tl.float32)
    at = starts + tile * depth
    start = tl.load(at)
    for i in range(tl.load(lengths + tile)):
        total = tl.dot(theta.load([(tile * depth + i) * TM, 0]), z.load([start, column * TN]), total)
        start = tl.load(at + i + 1)
    h = tile * TM + tl.arange(0, TM)
    values = total.to(tl.float16)
    out.store([tile * TM, column * TN], values)
    least = _extreme(values, LEAST, TM, TN) if PACKED else values
    greatest = _extreme(values, GREATEST, TM, TN) if PACKED else values
    tl.store(low + column * H + h, tl.min(least, 1).to(tl.float32), mask=h < H)
    tl.store(high + column * H + h, tl.max(greatest, 1).to(tl.float32), mask=h < H)


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
    tl.store(ends + h, tl.min(least, 0), mask=h < H)
    tl.store(ends + H + h, tl.max(greatest, 0), mask=h < H)


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
        _move_parts(
            total, tile, column * TN, x, rows, factor, half, places, half_width, d, n, TM, TN, PLACED, HALVED
        )  # fmt: skip
    else:
        u.store([tile * TM, column * TN], total)


@triton.jit
def _move_parts(
    u, tile, first, x, rows, factor, half, places, half_width, d, n,
    TM: tl.constexpr, TN: tl.constexpr, PLACED: tl.constexpr, HALVED: tl.constexpr,
):  # fmt: skip
    """`_move`, some columns after the others: the sums alone take most of the registers."""
    if TN <= MOVED:
        _move(u, tile, first, x, rows, factor, half, places, half_width, d, n, TM, TN, PLACED, HALVED)
    else:
        left, right = tl.split(tl.permute(tl.reshape(u, (TM, 2, TN // 2)), (0, 2, 1)))
        _move_parts(
            left, tile, first, x, rows, factor, half, places, half_width, d, n, TM, TN // 2, PLACED, HALVED
        )  # fmt: skip
        second = first + TN // 2
        _move_parts(
            right, tile, second, x, rows, factor, half, places, half_width, d, n, TM, TN // 2, PLACED, HALVED
        )  # fmt: skip


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
    H, side = directions.shape[0], directions.across
    R, C = side.rows, side.samples
    assert z.shape[1] == out.shape[1]
    assert out.shape[1] % C == 0
    grid = (out.shape[0] // R, out.shape[1] // C)
    low = torch.empty(grid[1], H, device=z.device)
    high = torch.empty_like(low)
    _project[grid](
        TensorDescriptor.from_tensor(side.values, [R, BLOCK]), side.starts, side.lengths,
        TensorDescriptor.from_tensor(z, [BLOCK, C]), TensorDescriptor.from_tensor(out, [R, C]),
        low, high, H, side.starts.shape[1], R, C, z.is_cuda, num_warps=4, num_stages=AHEAD[R],
    )  # fmt: skip
    ends = torch.empty(2, H, device=z.device)
    _ends[(triton.cdiv(H, 32),)](low, high, ends, H, grid[1], 32, 128, num_warps=8)
    return ends[0], ends[1]


def under_way(rows: int, available: int, *, sums: bool) -> int:
    """Return how many boxes of a back-projection to have under way, by the rows of a tile.

    Writing sums down takes shared memory of its own, of which so many bytes are available.
    """
    if sums:
        return 3 if rows == TILE or available >= ROOMY else 2
    return 5


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
    R, C = side.rows, side.samples
    assert delta.shape[1] % C == 0
    assert half is None or half.shape[1] == delta.shape[1]
    boxes = TensorDescriptor.from_tensor(delta, [BLOCK, C])
    _back_project[(len(side.lengths), delta.shape[1] // C)](
        TensorDescriptor.from_tensor(side.values, [R, BLOCK]), side.starts, side.lengths, boxes,
        boxes if sums is None else TensorDescriptor.from_tensor(sums, [R, C]),
        delta if x is None else x, delta if places is None else places.along,
        delta if factor is None else factor, delta if half is None else half,
        delta if places is None else places.place, 0 if half is None else half.shape[1], d, n,
        side.starts.shape[1], R, C, plus is not None, x is not None, places is not None,
        half is not None, num_warps=4,
        num_stages=under_way(R, shared_memory(delta.device), sums=x is None and plus is None),
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
