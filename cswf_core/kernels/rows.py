"""Projected values as the one-dimensional transport meets them, one row per direction, and their counts.

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

KEPT = 1 << 22
"""Numbers of noise up to which they are kept for the next step, on a CPU."""

ROWS = 256
"""Rows of noise that are made at a time: its whole numbers take several times the memory."""


Columns = Tensor | slice
"""Some columns of rows: their numbers in any order, or a range; only a range without gaps is no copy."""


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
    first: int = 0
    """The number of the first row among all that are drawn together, so that cutting them changes no noise."""

    @classmethod
    def of(cls, values: Tensor, noise: Tensor | None = None, first: int = 0) -> Rows:
        """Return rows with their ends, and noise of some widths (H) or none; `first` is as the field."""
        low, high = values.amin(dim=1), values.amax(dim=1)  # aminmax is ten times as slow on a CPU
        if noise is None:
            return cls(values, low, high)
        return cls(values, low - noise / 2, high + noise / 2, noise=noise, first=first)

    def read(self) -> Tensor:
        """Return the values with all that is added, in the type of the ends: H×n."""
        values = self.values.to(self.low.dtype)
        if self.offsets is not None and self.groups is not None:
            values = values + self.offsets[:, self.groups.long()]
        if self.noise is not None:
            values = torch.addcmul(values, self.noise[:, None], circle(self.first, values))
        return values

    def columns(self, index: Columns) -> Rows:
        """Return the values at some columns; where groups have offsets, their ends are those of all."""
        values = self.values[:, index]
        if values.stride(1) != 1:  # kernels read values that lie side by side
            values = values.contiguous()
        if self.groups is not None:
            return attrs.evolve(self, values=values, groups=self.groups[index].contiguous())
        low, high = (end.to(self.low.dtype) for end in (values.amin(dim=1), values.amax(dim=1)))
        reach = 0 if self.noise is None else self.noise / 2
        return attrs.evolve(self, values=values, low=low - reach, high=high + reach)


@attrs.frozen(eq=False)
class Counted:
    """How many of n values lie below each edge of B equal bins, for H rows."""

    below: Tensor
    """H×(B+1) whole numbers, from 0 to n."""
    count: int
    """n."""
    low: Tensor
    """The first edge of each row: H."""
    high: Tensor
    """The last edge of each row: H."""
    half: bool = False
    """Whether the values were in half precision, so that what is made of them need not be better."""


def outermost(tail: float, count: int) -> int:
    """Return how many of `count` values the tail of a distribution has on either side, at most."""
    return int(tail * count)


def circle(first: int, like: Tensor) -> Tensor:
    """Return the noise of every value, between −½ and ½: H×n, the same at every step."""
    H, n = like.shape
    if like.device.type == "cpu" and H * n <= KEPT:
        return _kept_circle(first, H, n, like.dtype)
    return torch.cat([_circle(first + row, min(ROWS, H - row), n, like) for row in range(0, H, ROWS)])


@lru_cache(maxsize=4)
def _kept_circle(first: int, H: int, n: int, dtype: torch.dtype) -> Tensor:
    return _circle(first, H, n, torch.empty(0, dtype=dtype))


def _circle(first: int, H: int, n: int, like: Tensor) -> Tensor:
    return circle_from(torch.arange(n, device=like.device) * STRIDES[0], first, H, like.dtype)


def circle_from(places: Tensor, first: int, H: int, dtype: torch.dtype) -> Tensor:
    """Return the noise of values whose columns have places (n whole numbers) on the circle of 2³²: H×n."""
    row = torch.arange(first, first + H, device=places.device) * STRIDES[1]
    return ((places + row[:, None] & 0xFFFFFFFF) >> 9).to(dtype) * 2.0**-23 - 0.5
