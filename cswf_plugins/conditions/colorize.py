"""Condition `colorize`: the luminance of every pixel is given, its colour is to be found.

What it is: with weights w for red, green and blue (0.299, 0.587, 0.114, those of ITU-R BT.601), w·(r, g, b) is
known and never changes; the two other dimensions of each pixel flow.
Cost: as a single mask.
When not to use it: for grey images; there is nothing to find.
"""

from __future__ import annotations

from functools import lru_cache

import attrs
import torch
from torch import Tensor

from cswf_core.errors import DataError
from cswf_core.interfaces import Conditions, Dataset, Draw, Observation
from cswf_plugins.conditions.mask import Observing

LUMINANCE = (0.299, 0.587, 0.114)


class Luminance(Observation):
    """O = w wᵀ / |w|² in every pixel."""

    def seen(self, x: Tensor) -> Tensor:
        """Return the part of each pixel's colour that its luminance determines: d×n → d×n."""
        w = _weights(x.dtype, x.device)
        return (w * self._grey(x) / w.square().sum()).reshape(x.shape)

    def shown(self, x: Tensor) -> Tensor:
        """Return the grey image: d×n → d×n."""
        return self._grey(x).expand(3, -1, -1).reshape(x.shape)

    def _grey(self, x: Tensor) -> Tensor:
        return (_weights(x.dtype, x.device) * x.reshape(3, -1, x.shape[1])).sum(dim=0, keepdim=True)


@lru_cache
def _weights(dtype: torch.dtype, device: torch.device) -> Tensor:
    """Keep the weights on their device: a copy there at every step would make it wait."""
    return torch.tensor(LUMINANCE, dtype=dtype, device=device)[:, None, None]


@attrs.frozen(kw_only=True)
class Colorize(Observing):
    """The luminance of every pixel is given."""

    def length(self, data: Dataset) -> int:
        """l = 0; refuse images without colour."""
        channels, _, _ = data.space.grid("condition 'colorize'")
        if channels != 3:
            raise DataError(f"condition 'colorize' needs images with 3 channels, and these have {channels}")
        return super().length(data)

    def observation(self, data: Dataset, conditions: Conditions, draw: Draw) -> Observation:
        """Return the projection onto luminance."""
        del data, conditions, draw
        return Luminance()
