"""Projection `conv-stack`: the filters of one unit at the end of a stack of random 3×3 convolutions.

What it is: the directions of the authors' released code, L = (S−1)/2 layers for a patch of S×S. The weights
that lead from an input pixel to the unit are sums over paths of products of independent weights: nearly
Gaussian, with a variance in proportion to the number of paths. Along a row or a column that number is what
(1, 1, 1) convolved with itself, L factors in all, has there. So the filter is drawn directly, through the
square root of that as a window, and no network is built. Filters fade out towards their rim instead of
ending there. Another power of that number than ½ lets them fade out faster or more slowly.
Cost: as `locally-connected`.
When not to use it: to follow the paper's text to the letter; that is `locally-connected`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

import attrs
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cswf_core.errors import DataError
from cswf_core.interfaces import Draw, ProjectionSampler, Space, parameter
from cswf_plugins.projections.patches import covers, embed


@lru_cache
def window(layers: int, power: float) -> NDArray[np.float64]:
    """Return the standard deviation of a filter's entries along one axis: 2L+1 numbers, the largest is 1."""
    paths = np.ones(1)
    for _ in range(layers):
        paths = np.convolve(paths, np.ones(3))
    deviations: NDArray[np.float64] = (paths / paths.max()) ** power
    return deviations


@lru_cache
def _window_on(layers: int, power: float, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Keep the window on its device: a copy there at every step would make it wait."""
    return torch.from_numpy(window(layers, power)).to(device, dtype)


@attrs.frozen(kw_only=True)
class ConvStack(ProjectionSampler):
    """Filters of the released code: random convolutions, drawn directly through their window."""

    patch: int = parameter("S = 2L+1 for L layers of 3×3; a pyramid sets it", default=7, at_least=1)
    dilation: int = parameter("dilation of every layer", default=1, at_least=1)
    power: float = parameter(
        "of the number of paths to a pixel, which gives its standard deviation; ½ is a stack of convolutions, "
        "1 fades out faster, 0 is a flat patch",
        default=0.5,
        at_least=0,
    )
    covering: Literal["whole", "placed"] = parameter(
        "a patch as large as the grid, or larger: the 'whole' grid, or 'placed' and cut off like any other",
        default="whole",
    )

    def sample(self, space: Space, count: int, draw: Draw) -> Tensor:
        """Return windowed Gaussian filters of unit length on random patches: count × C·H·W."""
        channels, height, width = space.grid("projection 'conv-stack'")
        if self.covering == "whole" and covers(self.patch, height, width):
            return draw.sphere(count, space.dimension)
        if self.patch % 2 == 0:
            whole = ", or one as large as the grid" if self.covering == "whole" else ""
            raise DataError(
                f"projection 'conv-stack' has patches of odd size on a grid of {height}×{width}{whole}; "
                f"got {self.patch}"
            )
        line = _window_on(self.patch // 2, self.power, draw.device, draw.dtype)
        filters = draw.normal(count, channels, self.patch, self.patch) * line[:, None] * line
        return embed(filters, space, self.dilation, draw)
