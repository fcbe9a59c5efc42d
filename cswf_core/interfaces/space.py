"""The space 𝒳 that particles live in."""

from __future__ import annotations

import math

import attrs

from cswf_core.errors import DataError


@attrs.frozen
class Space:
    """ℝ^d with a shape: `(C, H, W)` for images, `(d,)` for points."""

    shape: tuple[int, ...]
    """`(C, H, W)` of images: channels, rows, columns; `(d,)` of points."""

    @property
    def dimension(self) -> int:
        """d, the number of coordinates."""
        return math.prod(self.shape)

    @property
    def is_image(self) -> bool:
        """Whether coordinates are pixels of a C×H×W grid."""
        return len(self.shape) == 3

    def grid(self, who: str) -> tuple[int, int, int]:
        """Return (C, H, W); raise `DataError`, in the name of a plugin that needs images, for points."""
        if not self.is_image:
            raise DataError(f"{who} needs images, and these data are points in {self} dimensions")
        channels, height, width = self.shape
        return channels, height, width

    def __str__(self) -> str:
        return "×".join(str(n) for n in self.shape)
