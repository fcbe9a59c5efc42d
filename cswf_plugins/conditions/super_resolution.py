"""Condition `super-resolution`: a small version of the image is given.

What it is: the mean of every block of pixels is known and never changes; what flows is everything that leaves
these means as they are. Downsampling to k×k by block means is an orthogonal projection, so this is inpainting
in other coordinates.
Cost: as a single mask: small in coarse stages, a pass over the particles in fine ones.
When not to use it: where the small image came about in another way than by averaging.
"""

from __future__ import annotations

import attrs
from torch import Tensor

from cswf_core.errors import DataError
from cswf_core.interfaces import Conditions, Dataset, Draw, Observation, Space, parameter
from cswf_plugins.conditions.mask import Observing


class BlockMeans(Observation):
    """O replaces every block of pixels by its mean."""

    def __init__(self, space: Space, size: int) -> None:
        channels, height, width = space.shape
        self._blocks = (channels, size, height // size, size, width // size)

    def seen(self, x: Tensor) -> Tensor:
        """Return the image made of its blocks' means: d×n → d×n."""
        blocks = x.reshape(*self._blocks, x.shape[1])
        return blocks.mean(dim=(2, 4), keepdim=True).expand_as(blocks).reshape(x.shape)


@attrs.frozen(kw_only=True)
class SuperResolution(Observing):
    """A k×k version of the image is given."""

    size: int = parameter("k: the side of the small image that is given; must divide the image's", at_least=1)

    def length(self, data: Dataset) -> int:
        """l = 0; refuse a size that does not divide the image's."""
        _, height, width = data.space.grid("condition 'super-resolution'")
        if height % self.size or width % self.size or self.size >= max(height, width):
            raise DataError(
                f"condition 'super-resolution': size {self.size} must be a proper divisor of the images' "
                f"sides, {height}×{width}"
            )
        return super().length(data)

    def observation(self, data: Dataset, conditions: Conditions, draw: Draw) -> Observation:
        """Return the projection onto block means."""
        del conditions, draw
        return BlockMeans(data.space, self.size)
