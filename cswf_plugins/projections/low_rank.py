"""Projection `low-rank`: filters with few degrees of freedom, such as edges, lines and one colour at a time.

What it is: a Gaussian filter mixes so many pixels that the data's projection on it is nearly Gaussian and tells
little. Filters that are products of few random lines have projections far from that. Each filter is of one of
four families, in shares that are parameters:

- `plane`: one random colour times a Gaussian plane of S×S pixels;
- `separable`: one random colour times a bᵀ, a and b Gaussian lines along rows and columns;
- `oriented`: one random colour times a random profile along a random angle, times another across; a part of
  them (`flat`) are constant across, such as edges and bars are;
- `dense`: a Gaussian filter of all colours, as `conv-stack` has.

All fade out towards their rim through the window of `conv-stack`, are put somewhere on the grid, and are cut
off at the border. A patch as large as the grid is the whole grid, without a window.
Cost: fewer random numbers than `conv-stack`; oriented filters are looked up in their profiles, pixel by pixel.
When not to use it: to follow the paper, whose filters are dense. Filters that are constant across their angle
weigh coarse structure more than fine: with a `flat` above 0, no step is longer than that allows.
"""

from __future__ import annotations

import math
from typing import Any

import attrs
import torch
from torch import Tensor

from cswf_core.errors import DataError
from cswf_core.interfaces import Draw, Projection, ProjectionSampler, Space, parameter
from cswf_core.kernels.patches import unit
from cswf_plugins.projections.patches import counts, covers, embed, faded, patch_distance, patch_side

FAMILIES = ("plane", "separable", "oriented", "dense")


def _share(help: str, default: float) -> Any:
    return parameter(
        f"share of filters that are {help}; shares count against their sum", default=default, at_least=0
    )


@attrs.frozen(kw_only=True)
class LowRank(ProjectionSampler):
    """Filters that are products of few random lines: a colour, rows and columns, profiles along an angle."""

    patch: int = patch_side("S, the side of a patch in pixels, odd; a pyramid sets it")
    dilation: int = patch_distance()
    power: float = parameter("how fast filters fade out; see `conv-stack`", default=0.5, at_least=0)
    plane: float = _share("one colour times a plane", 0.3)
    separable: float = _share("one colour times rows times columns", 0.25)
    oriented: float = _share("one colour times a profile along an angle", 0.2)
    dense: float = _share("Gaussian in all colours and pixels", 0.25)
    flat: float = parameter(
        "share of the oriented filters that are constant across their angle", default=0.0, at_least=0, at_most=1
    )

    @property
    def tempered(self) -> bool:  # type: ignore[override]
        """Whether filters that are constant across an angle make E[θθᵀ] uneven."""
        return self.oriented * self.flat > 0

    def __attrs_post_init__(self) -> None:
        """Refuse shares that are all 0."""
        if not sum(self.shares):
            raise ValueError(f"one of {', '.join(FAMILIES)} must be above 0")

    @property
    def shares(self) -> tuple[float, ...]:
        """The shares of the families, as they are written."""
        return tuple(getattr(self, family) for family in FAMILIES)

    def sample(self, space: Space, count: int, draw: Draw) -> Tensor | Projection:
        """Return filters of unit length, the families one after the other: count × C·H·W."""
        channels, rows, columns = space.grid("projection 'low-rank'")
        whole = covers(self.patch, rows, columns)
        if not whole and self.patch % 2 == 0:
            raise DataError(
                f"projection 'low-rank' has patches of odd size on a grid of {rows}×{columns}, or one as large "
                f"as the grid; got {self.patch}"
            )
        height, width = (rows, columns) if whole else (self.patch, self.patch)
        if height == width == 1:  # all families are alike, and one that a random 0 made has no direction
            filters = draw.sphere(count, channels)[:, :, None, None]
        else:
            filters = self._filters(channels, height, width, count, draw)
        if whole:
            return unit(filters.reshape(count, -1))
        return embed(faded(filters, self.power), space, self.dilation, draw)

    def _filters(self, channels: int, height: int, width: int, count: int, draw: Draw) -> Tensor:
        """Return filters of any length, the families one after the other: count × C × height × width."""
        plane, separable, oriented, dense = counts(self.shares, count)
        flat, _ = counts((self.flat, 1 - self.flat), oriented)
        planes = torch.cat(
            [
                draw.normal(plane, height, width),
                draw.normal(separable, height, 1) * draw.normal(separable, 1, width),
                profiles(oriented, flat, height, width, draw),
            ]
        )
        colours = draw.sphere(len(planes), channels)
        return torch.cat(
            [colours[:, :, None, None] * planes[:, None], draw.normal(dense, channels, height, width)]
        )


def profiles(count: int, flat: int, height: int, width: int, draw: Draw) -> Tensor:
    """Return planes that are one random profile along a random angle, times another across: count×H×W.

    The first `flat` of them are constant across. A profile has a normal number at every pixel's distance from
    the middle, and is linear in between.
    """
    angle = draw.uniform(count, 1, 1) * math.pi
    row = torch.arange(height, device=draw.device, dtype=draw.dtype)[:, None] - (height - 1) / 2
    column = torch.arange(width, device=draw.device, dtype=draw.dtype) - (width - 1) / 2
    reach = math.ceil(math.hypot(height - 1, width - 1) / 2)
    along = _profile(angle.cos() * row + angle.sin() * column, reach, draw)
    turned = angle[flat:]
    across = _profile(turned.cos() * column - turned.sin() * row, reach, draw)
    return torch.cat([along[:flat], along[flat:] * across])


def _profile(distance: Tensor, reach: int, draw: Draw) -> Tensor:
    """Return random profiles at distances within ±reach from the middle: n×H×W → n×H×W."""
    count = len(distance)
    knots = draw.normal(count, 2 * reach + 2)
    place = (distance + reach).flatten(1).clamp(0, 2 * reach)
    below = place.floor().long()
    part = place - below
    values = knots.gather(1, below) * (1 - part) + knots.gather(1, below + 1) * part
    return values.reshape(distance.shape)
