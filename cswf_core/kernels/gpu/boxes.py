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

from cswf_core.kernels.blocks import BLOCK, padded
from cswf_core.kernels.boxes import Boxes, Side, Strips

MOST_COMPARED = 1 << 15
"""Directions up to which each is compared with all others to sort them; digit by digit takes many launches."""

CHUNK = 2048
"""Columns in which boxes are looked for at a time."""


@attrs.frozen(eq=False)
class DrawnDirections:
    """Directions as they were drawn: the rows of a matrix, or filters with a place."""

    values: Tensor
    """H×d; or H×C×S×S of any length."""
    scale: Tensor | None
    """H factors; None is 1."""
    shape: tuple[int, int]
    """(H, d)."""
    row: Tensor | None = None
    """Of filters, the row they stand around: H whole numbers; None: a matrix."""
    column: Tensor | None = None
    grid: tuple[int, int] = (1, 1)
    """Height and width of the image."""
    dilation: int = 1

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
        """Return filters on a grid (C, H, W), as directions of unit length times factors."""
        channels, height, width = shape
        filters, (H, _, side, _) = filters.contiguous(), filters.shape
        scales = torch.empty(H, device=filters.device)
        block = triton.next_power_of_2(filters[0].numel())
        many = max(1, 2048 // block)
        _lengths[(triton.cdiv(H, many),)](
            filters, row, column, scales if scale is None else scale.contiguous(), scales, H,
            channels, side, height, width, dilation, scale is not None, many, block,
        )  # fmt: skip
        return cls(filters, scales, (H, channels * height * width), row, column, (height, width), dilation)

    def arguments(self) -> tuple:
        """Return what the kernels read directions from."""
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
    """One over the length of what a filter has on the grid, times a factor."""
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
    """Where direction h has its value at coordinate k, and whether it looks there; for a matrix, it may."""
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
    """The rank of the middle of what a direction looks at."""
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
    """Put directions in the order of their keys: each goes behind all that are less, or equal and before it."""
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
    """Which coordinates a tile of directions looks at, and which directions look at a piece of the image."""
    tile, piece = tl.program_id(0), tl.program_id(1)
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
    """One box in half precision: directions by coordinates if ACROSS, else coordinates by directions."""
    tile, number = tl.program_id(0), tl.program_id(1)
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
    """Return directions in the order in which strips meet the middle of what they look at; None: as is."""
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
    """Return directions, in an order (None: all, as they are), as boxes in half precision.

    `into` are boxes of the same sizes whose memory may be written over.
    """
    d, device = source.shape[1], source.values.device
    order = torch.arange(source.shape[0], device=device) if order is None else order
    H = len(order)
    rows, columns, (tile, piece) = padded(H), padded(d), where.rows
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
    across, along = (
        _side(source, order, coordinates, touched, height, touched is by_tile, old)
        for coordinates, touched, height, old in (
            (where.order, by_tile, tile, None if into is None else into.across),
            (where.along, by_piece, piece, None if into is None else into.along),
        )
    )
    return Boxes((H, d), across, along, order)


def _side(
    source: DrawnDirections, order: Tensor, coordinates: Tensor, touched: Tensor, rows: int, across: bool,
    old: Side | None,
) -> Side:  # fmt: skip
    tiles, width = touched.shape
    depth = width // BLOCK + 1
    starts = torch.empty(tiles, depth, dtype=torch.int32, device=touched.device)
    lengths = torch.empty(tiles, dtype=torch.int32, device=touched.device)
    _cover[(tiles,)](touched, starts, lengths, width, depth, BLOCK, min(CHUNK, triton.next_power_of_2(width)))
    values = None if old is None else old.values
    if values is None or len(values) != tiles * depth * rows:
        values = torch.empty(tiles * depth * rows, BLOCK, dtype=torch.float16, device=touched.device)
    _pack[(tiles, depth)](
        *source.arguments(), order, coordinates, len(order), starts, lengths, values, depth, across, rows, BLOCK
    )
    return Side(rows, values, starts, lengths)
