"""Projection `conv-stack`: the filters of one unit at the end of a stack of random 3×3 convolutions.

What it is: L = (S−1)/2 layers without nonlinearities make one linear filter of S×S pixels. It is drawn in one
of two ways:

- Directly, the default. The weights that lead from an input pixel to the unit are sums over paths of products
  of independent weights. In the limit of wide layers they are Gaussian and independent, with a variance in
  proportion to the number of paths. Along a row or a column, that number is what (1, 1, 1) convolved with
  itself, L factors in all, has there. So each filter is drawn through the square root of that as a window,
  which fades out towards its rim, is put somewhere on the grid, and is cut off at the border. Another power of
  the number of paths than ½ lets filters fade out faster or more slowly.
- With `width: 20`, as the authors' released code does it. Networks with 20 channels in every layer are drawn,
  and from each of them 10 different units (`units`); a direction is the gradient of a unit with respect to the
  image. Products of narrow layers have a sharper spectrum than Gaussian filters. Every layer is padded with
  zeros, so that paths which leave the image on their way are lost: filters are weaker near a border. A patch
  of one pixel has no layers, and is drawn directly.

A patch as large as the grid is the whole grid; with `covering: placed`, as in the released code, it is a stack
like any other.
Cost: directly as `locally-connected`; with a width w, 9·w² normal numbers for each layer of a network, and for
each layer of each direction 18·w²·S² operations, or fewer in late layers.
When not to use it: to follow the paper's text to the letter; that is `locally-connected`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import attrs
import torch
from torch import Tensor

from cswf_core.errors import DataError
from cswf_core.interfaces import Draw, Projection, ProjectionSampler, Space, parameter
from cswf_core.kernels.patches import around
from cswf_plugins.projections.patches import (
    covers,
    embed,
    embed_at,
    faded,
    patch_covering,
    patch_distance,
    patch_side,
)


@attrs.frozen(kw_only=True)
class ConvStack(ProjectionSampler):
    """Filters of random convolutions: drawn directly through a window, or as gradients of real networks."""

    patch: int = patch_side("S = 2L+1 for L layers of 3×3; a pyramid sets it")
    dilation: int = patch_distance("dilation of every layer")
    power: float = parameter(
        "of the number of paths to a pixel, which gives its standard deviation; ½ is a stack of convolutions, "
        "1 fades out faster, 0 is a flat patch; only without `width`",
        default=0.5,
        at_least=0,
    )
    covering: Literal["whole", "placed"] = patch_covering()
    width: int | None = parameter(
        "w, channels of every layer, for filters of real networks, 20 in the released code; "
        "if left out, filters are drawn directly",
        default=None,
        at_least=1,
        at_most=4096,
    )
    units: int = parameter(
        "directions that share a network, each the filter of another unit; only with `width`",
        default=10,
        at_least=1,
        at_most=1024,
    )

    def __attrs_post_init__(self) -> None:
        """Refuse parameters of the way that is not taken."""
        if self.width is not None and self.power != 0.5:
            raise ValueError(
                f"power belongs to filters that are drawn directly, and width={self.width} draws networks; "
                "leave one of them out"
            )
        if self.width is None and self.units != 10:
            raise ValueError("units belongs to networks, which are drawn only with a width, as in width: 20")

    def sample(self, space: Space, count: int, draw: Draw) -> Tensor | Projection:
        """Return filters of unit length on random patches: count × C·H·W."""
        channels, rows, columns = space.grid("projection 'conv-stack'")
        if self.covering == "whole" and covers(self.patch, rows, columns):
            return draw.sphere(count, space.dimension)
        if self.patch % 2 == 0:
            whole = ", or one as large as the grid" if self.covering == "whole" else ""
            raise DataError(
                f"projection 'conv-stack' has patches of odd size on a grid of {rows}×{columns}{whole}; "
                f"got {self.patch}"
            )
        if self.width is not None and self.patch > 1:
            return self._of_networks(self.width, space, count, draw)
        filters = draw.normal(count, channels, self.patch, self.patch)
        return embed(faded(filters, self.power), space, self.dilation, draw)

    def together(self, space: Space) -> int:
        """Return the number of directions that share a network; 1 without networks."""
        del space
        return 1 if self.width is None else self.units

    def _of_networks(self, width: int, space: Space, count: int, draw: Draw) -> Tensor | Projection:
        """Return gradients of `count` units, `units` of each network and fewer of the last: count × C·H·W."""
        channels, rows, columns = space.shape
        outputs = width * rows * columns
        if outputs < self.units:
            raise DataError(
                f"projection 'conv-stack' takes {self.units} units of each network, and one of width {width} "
                f"has only {outputs} on a grid of {rows}×{columns}"
            )
        networks = -(-count // self.units)
        weights = [
            # Their scale does not matter for the directions; this one keeps products of many layers finite.
            draw.normal(networks, width, inputs, 3, 3) / math.sqrt(9 * inputs)
            for inputs in (channels, *[width] * (self.patch // 2 - 1))
        ]
        unit = distinct(networks, self.units, outputs, draw)
        channel = unit // (rows * columns)
        row = unit // columns % rows
        column = unit % columns
        _, rows_inside = around(row, self.patch, self.dilation, rows)
        _, columns_inside = around(column, self.patch, self.dilation, columns)
        filters = gradients(weights, channel, rows_inside[..., :, None] & columns_inside[..., None, :])
        row = row.flatten()[:count]
        column = column.flatten()[:count]
        return embed_at(filters.flatten(0, 1)[:count], space, self.dilation, row, column)


def distinct(networks: int, units: int, outputs: int, draw: Draw) -> Tensor:
    """Return `units` different numbers of 0 … outputs−1 for each network, in random order: n×u, int64.

    They are the first u of a shuffled row of all outputs. A shuffle swaps the i-th with one that does not lie
    before it, for i = 0, 1, …; instead of the whole row, only these swaps are drawn, and followed backwards.
    """
    swapped = torch.stack([i + draw.integers(outputs - i, networks) for i in range(units)], dim=1)
    origin = swapped.clone()
    for i in reversed(range(units)):
        later = origin[:, i + 1 :]
        later.masked_fill_(later == swapped[:, i : i + 1], i)
    return origin


def gradients(weights: Sequence[Tensor], channel: Tensor, inside: Tensor) -> Tensor:
    """Return the gradients of units with respect to the pixels around them: n×u×C×S×S.

    `weights` are those of L layers of n networks, from the image on: n×w×C×3×3 for the first, n×w×w×3×3 for the
    others. `channel` (n×u) is each unit's channel in the last layer, and `inside` (n×u×S×S) tells which places
    of its window are on the grid. From the unit back to the image, the window grows by a pixel on each side
    with every layer; outside of the grid there are zeros in front of every layer.
    """
    *earlier, last = weights
    network = torch.arange(len(channel), device=channel.device)[:, None]
    g = last[network, channel].transpose(1, 2)  # n×w×u×3×3
    g = g * _middle(inside, g.shape[-1])
    for layer in reversed(earlier):
        g = _before(layer, g)
        g = g * _middle(inside, g.shape[-1])
    return g.transpose(1, 2)


def _middle(inside: Tensor, side: int) -> Tensor:
    """Return the s×s places in the middle of windows (n×u×S×S), for all channels: n×1×u×s×s."""
    margin = (inside.shape[-1] - side) // 2
    return inside[:, None, :, margin : margin + side, margin : margin + side]


def _before(layer: Tensor, g: Tensor) -> Tensor:
    """Return gradients in front of a layer (n×w×v×3×3) of those behind it, n×w×u×s×s: n×v×u×(s+2)×(s+2)."""
    n, outputs, inputs, _, _ = layer.shape
    _, _, units, side, _ = g.shape
    grown = g.new_zeros(n, inputs, units, side + 2, side + 2)
    behind = g.reshape(n, outputs, -1)
    taps = layer.permute(3, 0, 4, 2, 1).reshape(3, n, 3 * inputs, outputs)
    for i in range(3):  # a row of the kernel at a time: fewer products than places, less memory than all nine
        columns = torch.bmm(taps[i], behind).view(n, 3, inputs, units, side, side)
        for j in range(3):
            grown[..., i : i + side, j : j + side] += columns[:, j]
    return grown
