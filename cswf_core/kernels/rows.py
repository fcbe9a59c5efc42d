"""Projected values as the one-dimensional transport meets them: one row per direction.

Values may be in half precision, and what is added to each of them stands beside: the offset of its group, which
is ξ θ_y·y for a label, and a uniform noise, the data's dequantisation. So neither is written for every value.
The noise is a sequence of equal steps around a circle, begun elsewhere in each row: as even as can be, and no
draw.
"""

from __future__ import annotations

from functools import lru_cache

import attrs
import torch
from torch import Tensor

STRIDES = (0x9E3779B9, 0x85EBCA6B)
"""Steps around the circle of 2³², per value and per row."""


@attrs.frozen(eq=False)
class Rows:
    """H rows of n values, and what is added to them when they are read."""

    values: Tensor
    """H×n, in any floating-point type."""
    low: Tensor
    """The least value of each row, or less, with all that is added: H, float32 or float64."""
    high: Tensor
    """The greatest value of each row, or more, with all that is added: H."""
    offsets: Tensor | None = None
    """H×groups: the offset of each group."""
    groups: Tensor | None = None
    """The group of each value: n whole numbers."""
    noise: Tensor | None = None
    """The width of the noise: H."""

    @classmethod
    def of(cls, values: Tensor, noise: Tensor | None = None) -> Rows:
        """Return rows with their ends, and noise of some widths (H) or none."""
        low, high = values.amin(dim=1), values.amax(dim=1)  # aminmax is ten times as slow on a CPU
        if noise is None:
            return cls(values, low, high)
        return cls(values, low - noise / 2, high + noise / 2, noise=noise)

    def read(self) -> Tensor:
        """Return the values with all that is added, in the type of the ends: H×n."""
        values = self.values.to(self.low.dtype)
        if self.offsets is not None and self.groups is not None:
            values = values + self.offsets[:, self.groups.long()]
        if self.noise is not None:
            H, n = values.shape
            values = torch.addcmul(values, self.noise[:, None], circle(H, n, values.dtype, values.device))
        return values

    def part(self, rows: slice) -> Rows:
        """Return some of the rows; values are shared, not copied."""
        if rows == slice(0, self.values.shape[0]):
            return self
        cut = (None if field is None else field[rows] for field in (self.offsets, self.noise))
        offsets, noise = cut
        return Rows(self.values[rows], self.low[rows], self.high[rows], offsets, self.groups, noise)

    def columns(self, index: Tensor) -> Rows:
        """Return the values at some columns, copied; where groups have offsets, their ends are those of all."""
        values = self.values[:, index]
        if self.groups is not None:
            return attrs.evolve(self, values=values, groups=self.groups[index])
        low, high = (end.to(self.low.dtype) for end in (values.amin(dim=1), values.amax(dim=1)))
        reach = 0 if self.noise is None else self.noise / 2
        return attrs.evolve(self, values=values, low=low - reach, high=high + reach)


@lru_cache(maxsize=2)
def circle(H: int, n: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the noise of every value, between −½ and ½: H×n, the same at every step."""
    sizes = zip((n, H), STRIDES, strict=True)
    column, row = (torch.arange(size, device=device) * step for size, step in sizes)
    return ((column + row[:, None] & 0xFFFFFFFF) >> 9).to(dtype) * 2.0**-23 - 0.5
