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

from cswf_core.kernels.memory import shared_memory
from cswf_core.kernels.sparse import BOX_WIDTH, LOW_TILE, TILE, Boxes, Strips

BOXES_AHEAD = {TILE: 4, LOW_TILE: 3}
"""Boxes under way at a time in a projection, by the rows of a tile.

With more, fewer programs fit on a multiprocessor."""

ROOMY_SHARED_MEMORY = 128 * 1024
"""Bytes of shared memory; with fewer, the sums of a wide tile are written down with fewer boxes under way."""

COLUMNS_MOVED = tl.constexpr(64)
"""Columns that are moved at a time."""

MINIMUM = tl.constexpr("min.f16x2 $0, $1, $2;")
MAXIMUM = tl.constexpr("max.f16x2 $0, $1, $2;")
"""PTX for two numbers in half precision at a time, which Triton has no name for."""


@triton.jit
def _extreme(x, PTX: tl.constexpr, TM: tl.constexpr, TN: tl.constexpr):
    """Return the least or greatest of columns that lie TN/2, TN/4, … and 8 apart: TM×8."""
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
    """Store p[h, j] = Σ_k θ[h, k] z[k, j], and the extremes of each direction's p in the tile's columns."""
    tile = tl.program_id(0)
    column = tl.program_id(1)
    total = tl.zeros((TM, TN), tl.float32)
    at = starts + tile * depth
    start = tl.load(at)
    for i in range(tl.load(lengths + tile)):
        total = tl.dot(theta.load([(tile * depth + i) * TM, 0]), z.load([start, column * TN]), total)
        start = tl.load(at + i + 1)
    h = tile * TM + tl.arange(0, TM)
    values = total.to(tl.float16)
    out.store([tile * TM, column * TN], values)
    least = _extreme(values, MINIMUM, TM, TN) if PACKED else values
    greatest = _extreme(values, MAXIMUM, TM, TN) if PACKED else values
    tl.store(low + column * H + h, tl.min(least, 1).to(tl.float32), mask=h < H)
    tl.store(high + column * H + h, tl.max(greatest, 1).to(tl.float32), mask=h < H)


@triton.jit
def _ends(low, high, ends, H, columns, BLOCK_H: tl.constexpr, BLOCK_C: tl.constexpr):
    """Store the least and the greatest of the extremes in tiles, for each direction: 2×H."""
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
    """Store Σ_h θ[h, k] δ[h, j] in u[k, j], with u[k, j] added if ADDS; or move x by it if MOVES.

    Then x[rows[k], j] grows by a factor times the sum; if HALVED, half[places[rows[k]], j] gets the same number
    in half precision.
    """
    tile = tl.program_id(0)
    column = tl.program_id(1)
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
    """Call `_move` for some columns after the others: the sums alone take most of the registers."""
    if TN <= COLUMNS_MOVED:
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
    """Add factor · u[k, j] to x[rows[k], j], from column `first` on; if HALVED, `half` gets the sum, too."""
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
    """Store x[rows[k], j] in out[k, j], with `plus` added if ADDS, in half precision; rows from d on are 0."""
    k = tl.program_id(0) * BM + tl.arange(0, BM)
    j = tl.program_id(1) * BN + tl.arange(0, BN)
    row = tl.load(rows + k, mask=k < d, other=0).to(tl.int64) if PLACED else k.to(tl.int64)
    at = row[:, None] * n + j[None, :]
    inside = (k < d)[:, None] & (j < n)[None, :]
    value = tl.load(x + at, mask=inside, other=0.0)
    if ADDS:
        value += tl.load(plus + at, mask=inside, other=0.0)
    tl.store(out + k.to(tl.int64)[:, None] * out_width + j[None, :], value.to(tl.float16))


def project(directions: Boxes, z: Tensor, out: Tensor) -> tuple[Tensor, Tensor]:
    """Write θ_h·z (z: d'×n') to `out` (H'×n') and return the least and greatest value of each direction.

    All are filled up to whole tiles, z by copies of a sample, so that extremes are those of the samples.
    """
    H = directions.shape[0]
    side = directions.across
    R = side.rows
    C = side.samples
    assert z.shape[1] == out.shape[1]
    assert out.shape[1] % C == 0
    grid = (out.shape[0] // R, out.shape[1] // C)
    low = torch.empty(grid[1], H, device=z.device)
    high = torch.empty_like(low)
    _project[grid](
        TensorDescriptor.from_tensor(side.values, [R, BOX_WIDTH]), side.starts, side.lengths,
        TensorDescriptor.from_tensor(z, [BOX_WIDTH, C]), TensorDescriptor.from_tensor(out, [R, C]),
        low, high, H, side.starts.shape[1], R, C, z.is_cuda, num_warps=4, num_stages=BOXES_AHEAD[R],
    )  # fmt: skip
    ends = torch.empty(2, H, device=z.device)
    _ends[(triton.cdiv(H, 32),)](low, high, ends, H, grid[1], 32, 128, num_warps=8)
    return ends[0], ends[1]


def under_way(rows: int, available: int, *, sums: bool) -> int:
    """Return how many boxes of a back-projection to have under way, by the rows of a tile.

    Writing `sums` down takes shared memory, too, of which `available` bytes can be had.
    """
    if sums:
        return 3 if rows == TILE or available >= ROOMY_SHARED_MEMORY else 2
    return 5


def back_project(directions: Boxes, delta: Tensor, u: Tensor, *, add: bool) -> None:
    """Write Σ_h δ_h θ_h (δ: H'×n') to u (d'×n', float32), or add it to what is there."""
    _back(directions, delta, u, adds=add)


def move(
    directions: Boxes,
    delta: Tensor,
    plus: Tensor | None,
    x: Tensor,
    factor: Tensor,
    places: Strips | None,
    half: Tensor | None,
) -> None:
    """Replace x by x + factor · (plus + Σ_h δ_h θ_h).

    Args:
        directions: The directions θ.
        delta: δ: H'×n'.
        plus: What `back_project` has written for other directions: d'×n', float32; None is 0.
        x: The samples: d×n.
        factor: One number.
        places: The order of coordinates in `plus` and `half`; None: that of x.
        half: Where the new samples are written in half precision, too: d'×n', float16.
    """
    assert x.is_contiguous()
    _back(directions, delta, plus, adds=plus is not None, moved=(x, factor, places, half))
    if half is not None:
        fill_up(half, x.shape[1])


def _back(
    directions: Boxes,
    delta: Tensor,
    sums: Tensor | None,
    *,
    adds: bool,
    moved: tuple[Tensor, Tensor, Strips | None, Tensor | None] | None = None,
) -> None:
    """Start one program per tile; whatever a form of the kernel does not use points to δ.

    `moved` are the last arguments of `move`; None: the sums are written down.
    """
    side = directions.along
    R = side.rows
    C = side.samples
    moves = moved is not None
    x, factor, places, half = moved if moves else (delta, delta, None, None)
    d, n = x.shape if moves else (0, 0)
    assert delta.shape[1] % C == 0
    assert half is None or half.shape[1] == delta.shape[1]
    boxes = TensorDescriptor.from_tensor(delta, [BOX_WIDTH, C])
    _back_project[(len(side.lengths), delta.shape[1] // C)](
        TensorDescriptor.from_tensor(side.values, [R, BOX_WIDTH]), side.starts, side.lengths, boxes,
        boxes if sums is None else TensorDescriptor.from_tensor(sums, [R, C]),
        x, delta if places is None else places.along, factor,
        delta if half is None else half, delta if places is None else places.place,
        0 if half is None else half.shape[1], d, n, side.starts.shape[1], R, C,
        adds, moves, places is not None, half is not None, num_warps=4,
        num_stages=under_way(R, shared_memory(delta.device), sums=not (moves or adds)),
    )  # fmt: skip


def halve(x: Tensor, places: Strips | None, out: Tensor, plus: Tensor | None = None) -> None:
    """Write x, or x + plus (d×n), to `out` (d'×n', float16), in the order of `places`.

    The last sample fills the rest.
    """
    assert x.is_contiguous()
    assert plus is None or plus.is_contiguous()
    d, n = x.shape
    grid = (triton.cdiv(out.shape[0], 16), triton.cdiv(out.shape[1], 128))
    _halve[grid](
        x, x if plus is None else plus, x if places is None else places.order, out, d, n, out.shape[1],
        plus is not None, places is not None, 16, 128,
    )  # fmt: skip
    fill_up(out, n)


def fill_up(half: Tensor, n: int) -> None:
    """Fill the columns from n on (of d'×n') with copies of the one before, which change no extremes."""
    if n < half.shape[1]:
        half[:, n:] = half[:, n - 1 : n]
