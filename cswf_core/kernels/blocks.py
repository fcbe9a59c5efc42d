"""Directions as a block-sparse matrix, so that products skip what a direction does not look at.

Local directions are mostly zeros. Sorted by where they look, along a Hilbert curve, and with the coordinates in
the order of the same curve, their non-zeros gather in few blocks. Nothing has to be known about how they were
drawn, and zeros change no sum. On CUDA, in half precision, Triton kernels go through the blocks with float32
sums; elsewhere a dense product per tile of directions does, over the coordinates that it touches.
"""

from __future__ import annotations

import attrs
import torch
from torch import Tensor

from cswf_core.kernels.hilbert import along_hilbert

TILE = 128
"""Directions, or coordinates, that a tile of a product has; for boxes, see `Side.rows`."""
BLOCK = 32
"""Side of the blocks that are skipped if they are all zero."""


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
class Pattern:
    """Which blocks are not zero, for each tile: where to read, and how many."""

    lists: Tensor
    """tiles × (blocks + 1): indices of blocks that are not zero, then the number of blocks: none of them."""
    lengths: Tensor
    """tiles: how many are not zero."""

    @classmethod
    def of(cls, nonzero: Tensor) -> Pattern:
        """Return the pattern of a matrix of tiles × blocks, true where a block is not zero."""
        count = nonzero.shape[1]
        index = torch.arange(count, dtype=torch.int32, device=nonzero.device)
        lists = torch.where(nonzero, index, count).sort(dim=1).values
        lists = torch.nn.functional.pad(lists, (0, 1), value=count)  # kernels read one ahead
        return cls(lists.contiguous(), nonzero.sum(dim=1, dtype=torch.int32))


@attrs.frozen(eq=False)
class Blocks:
    """H directions in d dimensions, in the order of the curve, filled up with zeros to whole tiles."""

    theta: Tensor
    """H'×d', H' and d' being H and d filled up."""
    shape: tuple[int, int]
    """(H, d)."""
    rows: Pattern
    """For tiles of directions: blocks of coordinates."""
    columns: Pattern
    """For tiles of coordinates: blocks of directions."""
    order: Tensor | None
    """Row → direction, H; None where they kept their order."""
    nonzero: Tensor
    """Which blocks are not zero: H'/32 × d'/32."""

    def part(self, rows: slice) -> Blocks:
        """Return some of the directions, from the beginning of one tile up to another's or to the end."""
        H, d = self.shape
        if (rows.start, rows.stop) == (0, H):
            return self
        assert rows.start % TILE == 0
        last = padded(rows.stop)
        nonzero = self.nonzero[rows.start // BLOCK : last // BLOCK]
        order = None if self.order is None else self.order[rows]
        return blocks(self.theta[rows.start : last], (rows.stop - rows.start, d), nonzero, order)

    def flops(self, samples: int) -> float:
        """Return the operations of one product with `samples` columns; reads back from the device."""
        return 2.0 * TILE * BLOCK * float(self.rows.lengths.sum()) * samples

    def share(self) -> float:
        """Return the share of blocks that are not zero; reads back from the device."""
        return float(self.rows.lengths.double().mean()) * BLOCK / padded(self.shape[1], BLOCK)


def arrange(theta: Tensor, scale: Tensor | None, places: Places | None, dtype: torch.dtype) -> Blocks:
    """Return the directions s_h θ_h (θ: H×d, s: H×1; None is 1) as blocks of numbers of a type.

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
    small = filled.view(filled.shape[0] // BLOCK, BLOCK, filled.shape[1] // BLOCK, BLOCK)
    nonzero = small.abs().amax(dim=(1, 3)) > 0
    return blocks(filled, (H, d), nonzero, order)


def blocks(filled: Tensor, shape: tuple[int, int], nonzero: Tensor, order: Tensor | None) -> Blocks:
    """Put a filled-up matrix and the map of its blocks together."""
    ratio = TILE // BLOCK
    tall = nonzero.view(-1, ratio, nonzero.shape[1]).any(dim=1)
    wide = nonzero.view(nonzero.shape[0], -1, ratio).any(dim=2).T
    return Blocks(filled, shape, Pattern.of(tall), Pattern.of(wide), order, nonzero)


def project(directions: Blocks, z: Tensor) -> Tensor:
    """Return θ_h·z for every direction, in the order of the blocks: z is d×n in the order of the curve; H×n.

    Reads the pattern back from the device: on CUDA, half precision has a kernel that does not.
    """
    H, d = directions.shape
    out = torch.empty(H, z.shape[1], dtype=z.dtype, device=z.device)
    for tile, keep in enumerate(_touched(directions.rows, d)):
        rows = slice(tile * TILE, min((tile + 1) * TILE, H))
        if len(keep) == d:
            torch.mm(directions.theta[rows, :d], z, out=out[rows])
        else:
            torch.mm(directions.theta[rows][:, keep], z[keep], out=out[rows])
    return out


def back_project(directions: Blocks, delta: Tensor) -> Tensor:
    """Return Σ_h δ_h θ_h, in the order of the curve: δ is H×n in the order of the blocks; d×n."""
    H, d = directions.shape
    out = torch.empty(d, delta.shape[1], dtype=delta.dtype, device=delta.device)
    for tile, keep in enumerate(_touched(directions.columns, H)):
        rows = slice(tile * TILE, min((tile + 1) * TILE, d))
        if len(keep) == H:
            torch.mm(directions.theta[:H, rows].T, delta, out=out[rows])
        else:
            torch.mm(directions.theta[keep, rows].T, delta[keep], out=out[rows])
    return out


def _touched(pattern: Pattern, size: int) -> list[Tensor]:
    """Return for each tile the indices below `size` that its blocks cover."""
    inside = torch.arange(BLOCK, device=pattern.lists.device)
    touched = []
    for blocks_of_tile, count in zip(pattern.lists, pattern.lengths.tolist(), strict=True):
        index = (blocks_of_tile[:count, None] * BLOCK + inside).reshape(-1)
        touched.append(index[index < size])
    return touched
