"""The space 𝒳 that particles live in."""

from __future__ import annotations

import math

import attrs


@attrs.frozen
class Space:
    """ℝ^d with a shape: `(C, H, W)` for images, `(d,)` for points."""

    shape: tuple[int, ...]

    @property
    def dimension(self) -> int:
        """d, the number of coordinates."""
        return math.prod(self.shape)

    @property
    def is_image(self) -> bool:
        """Whether coordinates are pixels of a C×H×W grid."""
        return len(self.shape) == 3

    def __str__(self) -> str:
        return "×".join(str(n) for n in self.shape)
