"""Directions as a sparse matrix, so that products skip what a direction does not look at.

Local directions are mostly zeros. Sorted by where they look, along a Hilbert curve, and with the coordinates in
the order of the same curve, their non-zeros gather in few cells of 32×32 numbers. Nothing has to be known about
how they were drawn, and zeros change no sum. A product of a tile, 128 directions or coordinates, is a dense one
over those on the other side that its cells touch.

On CUDA, half precision has boxes instead. A box is as high as a tile and 32 columns wide, and begins at any
column: the first one that is not zero in the tile and not in a box yet. So boxes have fewer zeros than if they
began at multiples of 32. Both products have boxes of their own. The projection's tiles are directions that look
at nearly the same place, with coordinates row by row, so that what a tile sees of a row of the image is one
box. The back-projection's tiles are coordinates of a small piece of the image, and its columns are directions.
A tile of a product has 128 rows and columns, or 64 and 256 if it then touches so much less that reading more of
the samples pays.
"""

from __future__ import annotations

import math
from functools import lru_cache

import attrs
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

TILE = 128
"""Directions, or coordinates, of a tile of a product; for boxes, see `Side.rows`."""

CELL_SIDE = 32
"""Rows, and columns, of the cells that products skip if they are all zero."""

Pixels = NDArray[np.int64]


def along_hilbert(height: int, width: int) -> Pixels:
    """Return the pixels of a height×width grid (row · width + column) in the order a Hilbert curve meets them.

    The curve, on which neighbours are neighbours in the image, fills the smallest square of side 2^m around the
    grid; pixels of it outside the grid are left out.
    """
    side = 1 << (max(height, width) - 1).bit_length()
    rest = np.arange(side * side)
    row = np.zeros_like(rest)
    column = np.zeros_like(rest)
    step = 1
    while step < side:
        right = rest // 2 & 1
        down = (rest ^ right) & 1
        flip = (down == 0) & (right == 1)
        row = np.where(flip, step - 1 - row, row)
        column = np.where(flip, step - 1 - column, column)
        turned = np.where(down == 0, [column, row], [row, column])
        row = turned[0] + step * right
        column = turned[1] + step * down
        rest //= 4
        step *= 2
    inside = (row < height) & (column < width)
    pixels: Pixels = row[inside] * width + column[inside]
    return pixels


def padded(size: int, step: int = TILE) -> int:
    """Return the next multiple of `step`."""
    return -(-size // step) * step


@attrs.frozen(eq=False)
class Places:
    """The order of a C×H×W grid's coordinates in which neighbours are neighbours."""

    order: Tensor
    """Place on the curve → coordinate: d."""
    rank: Tensor
    """Pixel → its rank on the curve: H·W."""
    position: Tensor
    """Row and column of each coordinate: d×2, in float32."""
    width: int
    """W."""

    @classmethod
    def of(cls, shape: tuple[int, ...], device: torch.device) -> Places:
        """Return the places of a grid (C, H, W)."""
        channels, height, width = shape
        pixels = torch.from_numpy(along_hilbert(height, width))
        rank = torch.empty_like(pixels)
        rank[pixels] = torch.arange(len(pixels))
        order = (pixels[:, None] + torch.arange(channels) * (height * width)).reshape(-1)
        pixel = torch.arange(height * width).repeat(channels)
        position = torch.stack([pixel // width, pixel % width], dim=1).float()
        return cls(order.to(device), rank.to(device), position.to(device), width)

    def sorting(self, theta: Tensor) -> Tensor:
        """Return directions (H×d) in the order in which the curve meets the middle of what they look at: H."""
        seen = (theta != 0).to(self.position.dtype)
        middle = (seen @ self.position / seen.sum(dim=1, keepdim=True).clamp_min(1) + 0.5).long()
        return self.rank[middle[:, 0] * self.width + middle[:, 1]].argsort(stable=True)


@attrs.frozen(eq=False)
class SparseDirections:
    """H directions in d dimensions, in the order of the curve, filled up with zeros to whole tiles."""

    theta: Tensor
    """The directions: H'×d', H' and d' being H and d filled up."""
    shape: tuple[int, int]
    """(H, d)."""
    order: Tensor | None
    """Row → direction: H; None where directions keep their order."""
    across: Tensor
    """Whether each cell of a tile of directions has a number other than zero: H'/128 × d'/32."""
    down: Tensor
    """Whether each cell of a tile of coordinates has a number other than zero: d'/128 × H'/32."""

    def flops(self, samples: int) -> float:
        """Return the operations of one product with `samples` columns; reads back from the device."""
        return 2.0 * TILE * CELL_SIDE * float(self.across.sum()) * samples

    def share(self) -> float:
        """Return the share of cells that are not zero; reads back from the device."""
        cells = self.across.sum(dim=1).double().mean()
        return float(cells) * CELL_SIDE / padded(self.shape[1], CELL_SIDE)


def arrange(theta: Tensor, scale: Tensor | None, places: Places | None, dtype: torch.dtype) -> SparseDirections:
    """Return the directions s_h θ_h (θ: H×d, s: H×1; None is 1) as a sparse matrix of a type.

    With `places`, directions and coordinates are sorted along the curve; without, they keep their order.
    """
    H, d = theta.shape
    order = None
    if scale is not None:
        theta = theta * scale
    if places is not None:
        order = places.sorting(theta)
        theta = theta[order][:, places.order]
    filled = torch.zeros(padded(H), padded(d), dtype=dtype, device=theta.device)
    filled[:H, :d] = theta
    cells = filled.view(filled.shape[0] // CELL_SIDE, CELL_SIDE, filled.shape[1] // CELL_SIDE, CELL_SIDE)
    nonzero = cells.abs().amax(dim=(1, 3)) > 0
    ratio = TILE // CELL_SIDE
    across = nonzero.view(-1, ratio, nonzero.shape[1]).any(dim=1)
    down = nonzero.view(nonzero.shape[0], -1, ratio).any(dim=2).T
    return SparseDirections(filled, (H, d), order, across, down)


def project(directions: SparseDirections, z: Tensor) -> Tensor:
    """Return θ_h·z for every direction, in the order of the rows: z is d×n in the order of the curve; H×n.

    This reads the pattern back from the device.
    """
    H, d = directions.shape
    out = torch.empty(H, z.shape[1], dtype=z.dtype, device=z.device)
    for tile, keep in enumerate(_touched(directions.across, d)):
        rows = slice(tile * TILE, min((tile + 1) * TILE, H))
        if len(keep) == d:
            torch.mm(directions.theta[rows, :d], z, out=out[rows])
        else:
            torch.mm(directions.theta[rows][:, keep], z[keep], out=out[rows])
    return out


def back_project(directions: SparseDirections, delta: Tensor) -> Tensor:
    """Return Σ_h δ_h θ_h, in the order of the curve: δ is H×n in the order of the rows; d×n."""
    H, d = directions.shape
    out = torch.empty(d, delta.shape[1], dtype=delta.dtype, device=delta.device)
    for tile, keep in enumerate(_touched(directions.down, H)):
        rows = slice(tile * TILE, min((tile + 1) * TILE, d))
        if len(keep) == H:
            torch.mm(directions.theta[:H, rows].T, delta, out=out[rows])
        else:
            torch.mm(directions.theta[keep, rows].T, delta[keep], out=out[rows])
    return out


def _touched(cells: Tensor, size: int) -> list[Tensor]:
    """Return for each tile the indices below `size` that its cells (tiles×cells, true if not zero) cover."""
    covered = cells.repeat_interleave(CELL_SIDE, dim=1)[:, :size]
    return [tile.nonzero()[:, 0] for tile in covered]


BOX_WIDTH = 32
"""Columns of a box."""

LOW_TILE = 64
"""Rows of a low tile; others have 128."""

WIDEST_TILE = TILE * TILE // LOW_TILE
"""Columns of a low tile, to multiples of which samples are filled up. All tiles have as many sums."""


@attrs.frozen(eq=False)
class Strips:
    """The orders of a C×H×W grid's coordinates, and of directions, in which products skip most."""

    order: Tensor
    """Place → coordinate, where samples are projected: d. Row by row, the channels of a pixel side by side."""
    place: Tensor
    """Coordinate → its place: d."""
    along: Tensor
    """Place → coordinate in the back-projection: d. Strips of the image, each row by row."""
    rank: Tensor | None
    """Pixel → its rank in the order of directions: H·W; None if directions keep their order."""
    position: Tensor
    """Row and column of each coordinate: d×2, in float32."""
    width: int
    """W."""
    side: int
    """Rows, or columns if these are more, that most directions look at; it decides about the rest."""
    rows: tuple[int, int]
    """Rows of a tile of directions in the projection, and of a tile of coordinates in the back-projection."""

    @classmethod
    def of(cls, shape: tuple[int, ...], directions: int, side: int, device: torch.device) -> Strips:
        """Return the orders for a grid.

        Args:
            shape: The grid, (C, H, W).
            directions: How many directions there are.
            side: Rows, or columns if these are more, that most directions look at.
            device: Where the orders are kept, and the products computed.
        """
        channels, height, width = shape
        pixels = torch.arange(height * width).view(height, width)
        planes = torch.arange(channels) * (height * width)
        order = (pixels.reshape(-1, 1) + planes).reshape(-1)
        heights: tuple[int, ...] = (LOW_TILE, TILE)
        # Cards without a tensor memory accelerator have too few registers for low tiles
        if device.type == "cuda" and torch.cuda.get_device_capability(device) < (9, 0):
            heights = (TILE,)
        boxes = {rows: box_cost(shape, directions, side, rows) for rows in heights}
        # With more, δ of all samples that are worked on at a time no longer fits into the cache of an H200, and
        # low tiles read it more often
        if directions > 4 * len(order):
            heights = (TILE,)
        tiles = {rows: tile_cost(channels, side, rows) for rows in heights}
        rows = (rows_of_tile(boxes), rows_of_tile(tiles))
        across = in_strips(pixels, strips(width, boxes[rows[0]]))
        along = in_strips(pixels, strips(width, tiles[rows[1]]))
        rank = torch.empty(height * width, dtype=torch.int64)
        rank[across] = torch.arange(height * width)
        pixel = torch.arange(height * width).repeat(channels)
        position = torch.stack([pixel // width, pixel % width], dim=1).float()
        along = (along[:, None] + planes).reshape(-1)
        return cls(
            order=order.to(device),
            place=order.argsort().to(device),
            along=along.to(device),
            rank=rank.to(device),
            position=position.to(device),
            width=width,
            side=side,
            rows=rows,
        )

    @classmethod
    @lru_cache(maxsize=8)
    def unsorted(cls, d: int, device: torch.device) -> Strips:
        """Return the orders that change nothing, for d coordinates of any kind."""
        same = torch.arange(d, device=device)
        return cls(same, same, same, None, torch.zeros(d, 2, device=device), d, d, (TILE, TILE))


def rows_of_tile(costs: dict[int, list[float]]) -> int:
    """Return the best height of tiles by what those of each height touch, for strips of 1, 2, … columns."""
    # On an H200, a low tile takes 1.15 times as long as another one that touches as much
    return min(costs, key=lambda rows: min(costs[rows]) * (1.15 if rows == LOW_TILE else 1))


def in_strips(pixels: Tensor, count: int) -> Tensor:
    """Return pixels (H×W) strip by strip, each row by row, downwards and upwards in turn: H·W."""
    height, width = pixels.shape
    strip = torch.arange(width) * count // width
    turned = torch.where(
        strip % 2 == 1, height - 1 - torch.arange(height)[:, None], torch.arange(height)[:, None]
    )
    key = (strip * height + turned) * width + torch.arange(width)
    return pixels.reshape(-1)[key.reshape(-1).argsort()]


def strips(width: int, costs: list[float]) -> int:
    """Return into how many strips to cut `width` columns; `costs` are those of strips of 1, 2, … columns."""
    best = min(range(1, width + 1), key=lambda wide: costs[min(wide, len(costs)) - 1])
    return -(-width // best)


def box_cost(shape: tuple[int, ...], directions: int, side: int, rows: int) -> list[float]:
    """Return how many columns the boxes of a tile of directions have, for strips of 1, 2, … columns.

    Args:
        shape: The grid, (C, H, W).
        directions: How many directions there are.
        side: Rows and columns that each direction looks at.
        rows: Directions of a tile.
    """
    channels, height, width = shape
    density = directions / (height * width)
    return [
        BOX_WIDTH
        * math.ceil(min(wide + side - 1, width) * channels / BOX_WIDTH)
        * min(rows / (density * wide) + side, height)
        for wide in range(1, width + 1)
    ]


def tile_cost(channels: int, side: int, rows: int) -> list[float]:
    """Return how many places look at a tile of coordinates, for strips of 1, 2, … columns."""
    return [(wide + side - 1) * (rows / (channels * wide) + side) for wide in range(1, rows + 1)]


def side_of(theta: Tensor, shape: tuple[int, ...]) -> int:
    """Return how many rows, or columns if these are more, most directions (H×d) on a grid look at."""
    seen = (theta != 0).view(-1, *shape).any(dim=1)
    lengths = []
    for axis in (1, 2):
        line = seen.any(dim=axis).float()
        index = torch.arange(1, line.shape[1] + 1, device=theta.device)
        last = (line * index).amax(dim=1)
        first = (line * index.flip(0)).amax(dim=1)
        lengths.append((last + first - line.shape[1]).clamp_min(1).median())
    return int(torch.stack(lengths).max())


@attrs.frozen(eq=False)
class Side:
    """A matrix as boxes: tiles of some rows, 32 columns each."""

    rows: int
    """Rows of a tile: R."""
    values: Tensor
    """The numbers, (tiles · depth · R)×32, float16: box s of tile t begins at row (t · depth + s) · R."""
    starts: Tensor
    """The first column of each box, and a 0 behind the last: tiles×depth."""
    lengths: Tensor
    """How many boxes there are: tiles."""

    @property
    def samples(self) -> int:
        """The samples of a tile of a product with this matrix."""
        return TILE * TILE // self.rows

    def flops(self, samples: int) -> float:
        """Return the operations of a product with `samples` samples; reads back from the device."""
        return 2.0 * self.rows * BOX_WIDTH * float(self.lengths.sum()) * samples


@attrs.frozen(eq=False)
class Boxes:
    """H directions in d dimensions, for both products."""

    shape: tuple[int, int]
    """(H, d)."""
    across: Side
    """Rows are directions, in their order; columns are coordinates, in the order of `Strips.order`."""
    along: Side
    """Rows are coordinates, in the order of `Strips.along`; columns are directions."""
    order: Tensor
    """Row → direction: H."""

    def flops(self, samples: int) -> float:
        """Return the operations of one projection of `samples` samples; reads back from the device."""
        return self.across.flops(samples)

    def back_flops(self, samples: int) -> float:
        """Return the operations of one back-projection of `samples` samples; reads back from the device."""
        return self.along.flops(samples)

    def share(self) -> float:
        """Return the share of the matrix that lies in boxes; reads back from the device."""
        return float(self.across.lengths.double().mean()) * BOX_WIDTH / padded(self.shape[1], BOX_WIDTH)
