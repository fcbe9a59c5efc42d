"""Directions packed into boxes (Triton), from a dense matrix or straight from small filters.

Few launches, and none that a CUDA graph would record as a copy or a fill: those have no priority, and would
wait until the large products beside them end.
"""
# mypy: ignore-errors
# ruff: noqa: ARG001  (kernels have the arguments of a source in common)

from __future__ import annotations

import attrs
import torch
import triton
import triton.language as tl
from torch import Tensor

from cswf_core.kernels.sparse import BOX_WIDTH, Boxes, Side, Strips, padded

MOST_COMPARED = 1 << 15
"""Directions up to which each is compared with all others to sort them; digit by digit takes many launches."""

COLUMNS_SEARCHED = 2048
"""Columns that are searched for boxes at a time."""


@attrs.frozen(eq=False)
class DrawnDirections:
    """Directions as they were drawn: the rows of a matrix, or filters with a place."""

    values: Tensor
    """The matrix, H×d, or the filters, of any length: H×C×S×S."""
    scale: Tensor | None
    """The factor of each direction: H; None is 1."""
    shape: tuple[int, int]
    """(H, d)."""
    row: Tensor | None = None
    """The row of the image that each filter stands around: H whole numbers; None for a matrix."""
    column: Tensor | None = None
    """The column of the image that each filter stands around: H whole numbers; None for a matrix."""
    grid: tuple[int, int] = (1, 1)
    """Height and width of the image."""
    dilation: int = 1
    """Pixels from one pixel of a filter to the next."""

    @classmethod
    def of_matrix(cls, theta: Tensor, scale: Tensor | None) -> DrawnDirections:
        """Return rows of a matrix (H×d) times factors (H×1; None is 1)."""
        return cls(theta.contiguous(), None if scale is None else scale.contiguous(), tuple(theta.shape))

    @classmethod
    def of_filters(
        cls,
        filters: Tensor,
        row: Tensor,
        column: Tensor,
        dilation: int,
        shape: tuple[int, ...],
        scale: Tensor | None,
    ) -> DrawnDirections:
        """Return filters on a grid of `shape` (C, H, W) as directions of unit length times factors.

        All else is as in the fields.
        """
        channels, height, width = shape
        filters = filters.contiguous()
        H, _, side, _ = filters.shape
        scales = torch.empty(H, device=filters.device)
        block = triton.next_power_of_2(filters[0].numel())
        many = max(1, 2048 // block)
        _lengths[(triton.cdiv(H, many),)](
            filters, row, column, scales if scale is None else scale.contiguous(), scales, H,
            channels, side, height, width, dilation, scale is not None, many, block,
        )  # fmt: skip
        return cls(filters, scales, (H, channels * height * width), row, column, (height, width), dilation)

    def arguments(self) -> tuple:
        """Return the arguments by which kernels read directions; what is unused points to the values."""
        nothing = self.values
        patches = self.row is not None
        return (
            self.values, nothing if self.scale is None else self.scale,
            self.row if patches else nothing, self.column if patches else nothing,
            *self.shape, *self.grid, self.dilation, self.values.shape[-1] if patches else 1,
            patches, self.scale is not None,
        )  # fmt: skip


@triton.jit
def _lengths(
    filters, row, column, factor, scales, H, channels, side, height, width, dilation,
    SCALED: tl.constexpr, MANY: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Store one over the length of what a filter has on the grid, times a factor."""
    h = tl.program_id(0) * MANY + tl.arange(0, MANY)
    e = tl.arange(0, BLOCK)
    size = channels * side * side
    r = (
        tl.load(row + h, mask=h < H, other=0).to(tl.int32)[:, None]
        + (e // side % side - side // 2)[None, :] * dilation
    )
    c = (
        tl.load(column + h, mask=h < H, other=0).to(tl.int32)[:, None]
        + (e % side - side // 2)[None, :] * dilation
    )
    inside = (h < H)[:, None] & (e < size)[None, :] & (r >= 0) & (r < height) & (c >= 0) & (c < width)
    value = tl.load(filters + h[:, None] * size + e[None, :], mask=inside, other=0.0)
    scale = 1.0 / tl.maximum(tl.sqrt(tl.sum(value * value, 1)), 1e-38)
    if SCALED:
        scale *= tl.load(factor + h, mask=h < H, other=0.0)
    tl.store(scales + h, scale, mask=h < H)


@triton.jit
def _seen(h, k, inside, values, row, column, H, d, height, width, dilation, side, PATCHES: tl.constexpr):
    """Return where direction h has its value at coordinate k, and whether it looks, or may look, there."""
    if PATCHES:
        pixel = k % (height * width)
        i = pixel // width - tl.load(row + h).to(tl.int32) + side // 2 * dilation
        j = pixel % width - tl.load(column + h).to(tl.int32) + side // 2 * dilation
        inside = inside & (i >= 0) & (i < side * dilation) & (j >= 0) & (j < side * dilation)
        inside = inside & (i % dilation == 0) & (j % dilation == 0)
        channels = d // (height * width)
        channel = k // (height * width)
        at = ((h.to(tl.int64) * channels + channel) * side + i // dilation) * side + j // dilation
    else:
        at = h.to(tl.int64) * d + k
    return values + at, inside


@triton.jit
def _keys(
    values, scale, row, column, H, d, height, width, dilation, side,
    PATCHES: tl.constexpr, SCALED: tl.constexpr,
    position, rank, key, grid_width, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Store the rank of the middle of what a direction looks at."""
    h = tl.program_id(0)
    count = 0.0
    at_row = 0.0
    at_column = 0.0
    size = d // (height * width) * side * side if PATCHES else d
    for first in range(0, size, BLOCK_D):
        e = first + tl.arange(0, BLOCK_D)
        if PATCHES:
            r = tl.load(row + h).to(tl.int32) + (e // side % side - side // 2) * dilation
            c = tl.load(column + h).to(tl.int32) + (e % side - side // 2) * dilation
            seen = ((e < size) & (r >= 0) & (r < height) & (c >= 0) & (c < width)).to(tl.float32)
            at_row += tl.sum(seen * r.to(tl.float32))
            at_column += tl.sum(seen * c.to(tl.float32))
        else:
            inside = e < size
            seen = (tl.load(values + h.to(tl.int64) * d + e, mask=inside, other=0.0) != 0).to(tl.float32)
            at_row += tl.sum(seen * tl.load(position + 2 * e, mask=inside, other=0.0))
            at_column += tl.sum(seen * tl.load(position + 2 * e + 1, mask=inside, other=0.0))
        count += tl.sum(seen)
    count = tl.maximum(count, 1.0)
    pixel = tl.floor(at_row / count + 0.5).to(tl.int32) * grid_width + tl.floor(at_column / count + 0.5).to(
        tl.int32
    )
    tl.store(key + h, tl.load(rank + pixel).to(tl.int32))


@triton.jit
def _order(key, order, H, MANY: tl.constexpr, OTHERS: tl.constexpr):
    """Sort directions by their keys: each goes behind those of a lower key, or of the same if before it."""
    h = tl.program_id(0) * MANY + tl.arange(0, MANY)
    mine = tl.load(key + h, mask=h < H, other=0)
    before = tl.zeros((MANY,), tl.int32)
    for first in range(0, H, OTHERS):
        g = first + tl.arange(0, OTHERS)
        others = tl.load(key + g, mask=g < H, other=0x7FFFFFFF)
        less = (others[None, :] < mine[:, None]) | (
            (others[None, :] == mine[:, None]) & (g[None, :] < h[:, None])
        )
        before += tl.sum(less.to(tl.int32), 1)
    tl.store(order + before, h.to(tl.int64), mask=h < H)


@triton.jit
def _touched(
    values, scale, row, column, H, d, height, width, dilation, side,
    PATCHES: tl.constexpr, SCALED: tl.constexpr,
    order, along, place, count, by_tile, by_piece, tile_width, piece_width,
    TILE: tl.constexpr, PIECE: tl.constexpr,
):  # fmt: skip
    """Mark the coordinates that a tile of directions looks at, and the directions that look at a piece."""
    tile = tl.program_id(0)
    piece = tl.program_id(1)
    a = tile * TILE + tl.arange(0, TILE)
    b = piece * PIECE + tl.arange(0, PIECE)
    h = tl.load(order + a, mask=a < count, other=0).to(tl.int32)
    k = tl.load(along + b, mask=b < d, other=0).to(tl.int32)
    inside = (a < count)[:, None] & (b < d)[None, :]
    at, seen = _seen(
        h[:, None], k[None, :], inside, values, row, column, H, d, height, width, dilation, side, PATCHES
    )
    if not PATCHES:
        seen = tl.load(at, mask=seen, other=0.0) != 0
    there = seen.to(tl.int32)
    to = tl.where(b < d, tl.load(place + k).to(tl.int32), b)
    tl.store(by_tile + tile * tile_width + to, tl.max(there, 0).to(tl.int8))
    tl.store(by_piece + piece * piece_width + a, tl.max(there, 1).to(tl.int8))


@triton.jit
def _cover(touched, starts, lengths, width, depth, WIDE: tl.constexpr, CHUNK: tl.constexpr):
    """Cover what is touched in a tile by boxes, from left to right."""
    tile = tl.program_id(0)
    never = 0x7FFFFFFF
    count = 0
    end = 0
    for first in range(0, width, CHUNK):
        i = first + tl.arange(0, CHUNK)
        seen = tl.load(touched + tile * width + i, mask=i < width, other=0) != 0
        start = tl.min(tl.where(seen & (i >= end), i, never), 0)
        while start < never:
            tl.store(starts + tile * depth + count, start)
            count += 1
            end = start + WIDE
            start = tl.min(tl.where(seen & (i >= end), i, never), 0)
    tl.store(starts + tile * depth + count, 0)
    tl.store(lengths + tile, count)


@triton.jit
def _pack(
    values, scale, row, column, H, d, height, width, dilation, side,
    PATCHES: tl.constexpr, SCALED: tl.constexpr,
    order, coordinates, count, starts, lengths, out, depth,
    ACROSS: tl.constexpr, ROWS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Store a box in half precision: directions by coordinates if ACROSS, else coordinates by directions."""
    tile = tl.program_id(0)
    number = tl.program_id(1)
    if number < tl.load(lengths + tile):
        a = tile * ROWS + tl.arange(0, ROWS)[:, None]
        b = tl.load(starts + tile * depth + number) + tl.arange(0, WIDE)[None, :]
        if ACROSS:
            h = tl.load(order + a, mask=a < count, other=0).to(tl.int32)
            k = tl.load(coordinates + b, mask=b < d, other=0).to(tl.int32)
            inside = (a < count) & (b < d)
        else:
            h = tl.load(order + b, mask=b < count, other=0).to(tl.int32)
            k = tl.load(coordinates + a, mask=a < d, other=0).to(tl.int32)
            inside = (b < count) & (a < d)
        at, seen = _seen(h, k, inside, values, row, column, H, d, height, width, dilation, side, PATCHES)
        value = tl.load(at, mask=seen, other=0.0).to(tl.float32)
        if SCALED:
            value *= tl.load(scale + h)
        slot = (tile * depth + number).to(tl.int64) * ROWS
        to = out + (slot + tl.arange(0, ROWS)[:, None]) * WIDE + tl.arange(0, WIDE)[None, :]
        tl.store(to, value.to(tl.float16))


def sorting(source: DrawnDirections, where: Strips) -> Tensor | None:
    """Return the order in which strips meet the middle of what directions look at: H; None: they stay."""
    if where.rank is None:
        return None
    H = source.shape[0]
    key = torch.empty(H, dtype=torch.int32, device=source.values.device)
    each = source.values[0].numel()
    _keys[(H,)](
        *source.arguments(),
        where.position,
        where.rank,
        key,
        where.width,
        min(1024, triton.next_power_of_2(each)),
    )
    if H > MOST_COMPARED:
        return key.argsort(stable=True)
    order = torch.empty(H, dtype=torch.int64, device=key.device)
    _order[(triton.cdiv(H, 32),)](key, order, H, 32, 256)
    return order


def packed(source: DrawnDirections, order: Tensor | None, where: Strips, into: Boxes | None = None) -> Boxes:
    """Return directions as boxes in half precision.

    Args:
        source: The directions.
        order: The directions to take, in this order; None: all, as they are.
        where: The orders of coordinates.
        into: Boxes of the same sizes, whose memory may be written over.
    """
    d = source.shape[1]
    device = source.values.device
    order = torch.arange(source.shape[0], device=device) if order is None else order
    H = len(order)
    rows = padded(H)
    columns = padded(d)
    tile, piece = where.rows
    by_tile = torch.empty(rows // tile, columns, dtype=torch.int8, device=device)
    by_piece = torch.empty(columns // piece, rows, dtype=torch.int8, device=device)
    _touched[(rows // tile, columns // piece)](
        *source.arguments(),
        order,
        where.along,
        where.place,
        H,
        by_tile,
        by_piece,
        columns,
        rows,
        tile,
        piece,
        num_warps=8,
    )
    old = (None, None) if into is None else (into.across.values, into.along.values)
    across = _covered(by_tile, tile, old[0])
    along = _covered(by_piece, piece, old[1])
    for side, coordinates in ((across, where.order), (along, where.along)):
        _pack[tuple(side.starts.shape)](
            *source.arguments(), order, coordinates, H, side.starts, side.lengths, side.values,
            side.starts.shape[1], side is across, side.rows, BOX_WIDTH,
        )  # fmt: skip
    return Boxes((H, d), across, along, order)


def _covered(touched: Tensor, rows: int, values: Tensor | None) -> Side:
    """Return the boxes of what tiles of some rows touch (tiles×width), with numbers still to be written.

    `values` is memory for these, which is taken if it has the size.
    """
    tiles, width = touched.shape
    depth = width // BOX_WIDTH + 1
    starts = torch.empty(tiles, depth, dtype=torch.int32, device=touched.device)
    lengths = torch.empty(tiles, dtype=torch.int32, device=touched.device)
    searched = min(COLUMNS_SEARCHED, triton.next_power_of_2(width))
    _cover[(tiles,)](touched, starts, lengths, width, depth, BOX_WIDTH, searched)
    if values is None or len(values) != tiles * depth * rows:
        values = torch.empty(tiles * depth * rows, BOX_WIDTH, dtype=torch.float16, device=touched.device)
    return Side(rows, values, starts, lengths)
