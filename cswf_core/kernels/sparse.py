"""Directions as a sparse matrix, so that products skip what a direction does not look at.

Local directions are mostly zeros. Sorted by where they look, along a Hilbert curve, and with the coordinates in
the order of the same curve, their non-zeros gather in few cells of 32×32 numbers. Nothing has to be known about
how they were drawn, and zeros change no sum. A product of a tile, 128 directions or coordinates, is a dense one
over those on the other side that its cells touch. On CUDA, half precision has boxes instead: see `boxes.py`.
"""

from __future__ import annotations

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
