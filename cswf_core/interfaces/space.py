"""The space 𝒳 that particles live in."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Integral

import attrs

from cswf_core.errors import DataError


def _shape(shape: object) -> tuple[int, ...]:
    """Return the shape of a space; raise `DataError` with one sentence for what is none."""
    sizes = tuple(shape) if isinstance(shape, Sequence) and not isinstance(shape, str) else ()
    whole = all(isinstance(size, Integral) and not isinstance(size, bool) and int(size) >= 0 for size in sizes)
    if len(sizes) == 2 and whole:
        raise DataError(f"the space of images has channels too: write (1, {sizes[0]}, {sizes[1]}), not {shape}")
    if len(sizes) not in (1, 3) or not whole or (len(sizes) == 3 and min(sizes) < 1):
        raise DataError(f"a space is (d,) for points or (C, H, W) for images, in whole numbers; got {shape!r}")
    return tuple(int(size) for size in sizes)


@attrs.frozen
class Space:
    """ℝ^d with a shape: `(C, H, W)` for images, `(d,)` for points."""

    shape: tuple[int, ...] = attrs.field(converter=_shape)
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
