"""Projection `exemplars`: some filters are pieces of the data, evened out; the others are another sampler's.

What it is: a filter that looks like what the data consist of (an edge, a spot, the rim of a shape) answers
strongly to few of them, so that the data's projection on it is far from Gaussian and tells much. When a stage
begins, pieces of S×S pixels are cut out of random samples at random places, their mean is taken away, and the
rest is multiplied by Σ^(−½), Σ being their covariance; it fades out through the window of `conv-stack`. The
stage keeps some of the pieces, chosen in proportion to their squared length, and puts them somewhere on the
grid: so no direction is drawn more often than others, and pieces without content hardly ever. A patch as large
as the grid is the whole grid. Fewer pieces than they have dimensions cannot be even, and their share is lowered
in proportion.
Cost: at the beginning of a stage an eigenvalue decomposition, O(C³S⁶), and memory for up to 50,000 pieces; for
each direction a look-up. A saved model has the pieces that are kept, in float16: 2·C·S² bytes each.
When not to use it: alone, since pieces of the data have less variety than random filters; or where data arrive
later.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import torch
from torch import Tensor

from cswf_core.errors import DataError
from cswf_core.interfaces import (
    Draw,
    Key,
    Projection,
    ProjectionSampler,
    ProjectionWrapper,
    Space,
    parameter,
)
from cswf_core.kernels.patches import unit
from cswf_plugins.projections.patches import (
    counts,
    covers,
    embed,
    faded,
    inverse_root,
    joined,
    patch_distance,
    patch_side,
)

MOST_CUT = 50_000
"""Pieces that are cut out for a stage, at most: what Σ is taken from, and the filters are chosen among."""

RIDGE = 1e-4
"""Added to the covariance, as a share of its mean variance, so that no direction is blown up."""


@attrs.frozen(kw_only=True)
class Exemplars(ProjectionWrapper):
    """Filters cut out of the data and evened out, among those of another sampler."""

    of: ProjectionSampler = parameter("the sampler of the other filters")
    share: float = parameter(
        "share of filters that are cut out of the data", default=0.5, at_least=0, at_most=1
    )
    pieces: int = parameter("number of pieces that are kept for each stage", default=4096, at_least=1)
    power: float = parameter("how fast they fade out; see `conv-stack`", default=0.5, at_least=0)
    patch: int = patch_side("S, the side of a piece in pixels, odd; a pyramid sets it")
    dilation: int = patch_distance("distance between neighbouring pixels of a piece")

    sees_data = True

    def sample(self, space: Space, count: int, draw: Draw) -> Tensor:
        """Refuse: filters are known once the data have been seen, by what `fitted` returns."""
        del space, count, draw
        raise DataError("projection 'exemplars' needs to see the data first: call fitted(space, z)")

    def patched(self, patch: int, dilation: int = 1) -> ProjectionSampler:
        """Take pieces of that size, and hand it on to the other sampler."""
        return attrs.evolve(self, of=self.of.patched(patch, dilation), patch=patch, dilation=dilation)

    def fitted(self, space: Space, z: Tensor) -> ProjectionSampler:
        """Return a sampler with filters made of pieces of the data, in a stage's coordinates (d_k×N)."""
        _, height, width = space.grid("projection 'exemplars'")
        whole = covers(self.patch, height, width)
        if not whole:
            reach = (self.patch - 1) * self.dilation + 1
            if self.patch % 2 == 0 or reach > min(height, width):
                raise DataError(
                    f"projection 'exemplars' has pieces of odd size that fit into a grid of {height}×{width}, "
                    f"or one as large as the grid; got {self.patch}, {self.dilation} apart"
                )
        of = self.of.fitted(space, z) if self.of.sees_data else self.of
        side = None if whole else self.patch
        draw = Key(0, "exemplars").open(z.device, z.dtype)
        cut = cut_out(min(MOST_CUT, 10 * z.shape[1]), z, space, side, self.dilation, draw)
        root = inverse_root(cut, 1.0, RIDGE)
        # A piece without any content would have no direction without a trace of noise.
        filters = (cut - cut.mean(dim=0)) @ root + 1e-4 * draw.normal(*cut.shape) * root.diagonal()
        if side is not None:
            shape = (len(filters), space.shape[0], side, side)
            filters = faded(filters.view(shape), self.power).flatten(1)
        squares = filters.square().sum(dim=1, dtype=torch.float64).cpu()
        halves = unit(filters[in_proportion(squares, self.pieces).to(z.device)]).half()
        different = min(self.pieces, z.shape[1] if whole else len(cut))
        share = self.share * min(1.0, different / cut.shape[1])
        return self._filters(of, halves, share, side, z)

    def of_tensors(self, space: Space, tensors: Mapping[str, Tensor], like: Tensor) -> ProjectionWrapper:
        """Return a sampler with the filters that were kept, and the other one made again."""
        of = super().of_tensors(space, tensors, like).of
        _, height, width = space.grid("projection 'exemplars'")
        side = None if covers(self.patch, height, width) else self.patch
        return self._filters(of, tensors["filters"], float(tensors["share"]), side, like)

    def _filters(
        self, of: ProjectionSampler, halves: Tensor, share: float, side: int | None, like: Tensor
    ) -> ProjectionWrapper:
        """Return a sampler with filters that are in float16, PIECES × C·S²."""
        filters = unit(halves.to(like))
        return _ExemplarFilters(
            of=of, share=share, halves=halves, filters=filters, side=side, dilation=self.dilation
        )


def in_proportion(weights: Tensor, count: int) -> Tensor:
    """Return `count` of the numbers 0 … n−1, each as often as its share of all n weights says, in order."""
    ends = weights.cumsum(dim=0)
    levels = (torch.arange(count, dtype=torch.float64) + 0.5) / count * ends[-1]
    return torch.searchsorted(ends, levels).clamp_max(len(weights) - 1)


def cut_out(count: int, z: Tensor, space: Space, side: int | None, dilation: int, draw: Draw) -> Tensor:
    """Cut pieces out of random samples of z (C·H·W×N), at random places inside the grid: count × C·S².

    Without a side, pieces are the whole grid.
    """
    channels, height, width = space.shape
    sample = draw.integers(z.shape[1], count)
    if side is None:
        return z[:, sample].T
    step = torch.arange(side, device=draw.device) * dilation
    reach = (side - 1) * dilation
    row, column = (draw.integers(length - reach, count)[:, None] + step for length in (height, width))
    channel = torch.arange(channels, device=draw.device)[:, None, None]
    pixels = z.view(channels, height, width, -1)
    cut = pixels[channel, row[:, None, :, None], column[:, None, None, :], sample[:, None, None, None]]
    return cut.reshape(count, -1)


@attrs.frozen(kw_only=True, eq=False)
class _ExemplarFilters(ProjectionWrapper):
    """Filters Σ^(−½) (piece − mean), and those of another sampler behind them."""

    share: float
    halves: Tensor
    """The filters in float16: PIECES × C·S²."""
    filters: Tensor
    """The same of unit length, in the numbers of the flow."""
    side: int | None
    """S; None: the whole grid."""
    dilation: int

    def tensors(self) -> dict[str, Tensor]:
        """Return the filters and their share, and what the other sampler has taken from the data."""
        share = torch.tensor(self.share, dtype=torch.float64)
        return {"filters": self.halves, "share": share, **super().tensors()}

    def sample(self, space: Space, count: int, draw: Draw) -> Tensor | Projection:
        """Return filters of unit length, those of the data first: count × C·H·W."""
        own, others = counts((self.share, 1 - self.share), count)
        parts: list[Tensor | Projection] = []
        if own:
            chosen = draw.integers(len(self.filters), own)
            parts.append(self._placed(self.filters[chosen], space, draw))
        if others:
            parts.append(self.of.sample(space, others, draw))
        return joined(parts)

    def _placed(self, filters: Tensor, space: Space, draw: Draw) -> Tensor | Projection:
        if self.side is None:
            return filters
        square = filters.view(len(filters), space.shape[0], self.side, self.side)
        return embed(square, space, self.dilation, draw)
