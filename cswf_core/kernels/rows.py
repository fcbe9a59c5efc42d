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

Columns = Tensor | slice
"""Some columns of rows: their numbers in any order, or a slice, which copies nothing if its step is 1."""


@attrs.frozen(eq=False)
class Rows:
    """H rows of n values, and what is added to them when they are read."""

    values: Tensor
    """The values, in any floating-point type: H×n."""
    low: Tensor
    """The least value of each row, or less, with all that is added: H, float32 or float64."""
    high: Tensor
    """The greatest value of each row, or more, with all that is added: H."""
    offsets: Tensor | None = None
    """The offset of each group: H×groups."""
    groups: Tensor | None = None
    """The group of each value: n whole numbers."""
    noise: Tensor | None = None
    """The width of the noise: H."""
    first: int = 0
    """The number of the first row among all that are drawn together, by which noise is computed."""
    column: int = 0
    """The number of the first column among those of all devices, by which noise is computed."""
    places: Tensor | None = None
    """The numbers of all columns, in place of `column` if they are not consecutive: n."""

    @classmethod
    def of(cls, values: Tensor, noise: Tensor | None = None, first: int = 0, column: int = 0) -> Rows:
        """Return rows of values (H×n) with their ends.

        Args:
            values: The values: H×n.
            noise: The width of the noise: H; None if there is none.
            first: The number of the first row.
            column: The number of the first column.
        """
        low, high = _ends(values)
        if noise is None:
            return cls(values, low, high)
        return cls(values, low - noise / 2, high + noise / 2, noise=noise, first=first, column=column)

    def read(self) -> Tensor:
        """Return the values with all that is added, in the type of the ends: H×n."""
        values = self.values.to(self.low.dtype)
        if self.offsets is not None and self.groups is not None:
            values = values + self.offsets[:, self.groups.long()]
        if self.noise is not None:
            values = torch.addcmul(values, self.noise[:, None], self._circle(values))
        return values

    def _circle(self, like: Tensor) -> Tensor:
        """Return the noise of every value, between −½ and ½: H×n, the same at every step."""
        H, n = like.shape
        if self.places is None and like.device.type == "cpu" and H * n <= 1 << 22:
            return _cached_circle(self.first, self.column, H, n, like.dtype)
        places = self.places
        if places is None:
            places = torch.arange(self.column, self.column + n, device=like.device)
        places = places * STRIDES[0]
        # Rows at a time: their whole numbers take several times the memory
        many = 256
        parts = [
            circle_from(places, self.first + row, min(many, H - row), like.dtype) for row in range(0, H, many)
        ]
        return torch.cat(parts)

    def part(self, cut: slice) -> Rows:
        """Return some of the rows."""
        if (cut.start, cut.stop) == (0, len(self.values)):
            return self
        return attrs.evolve(
            self,
            values=self.values[cut],
            low=self.low[cut],
            high=self.high[cut],
            offsets=None if self.offsets is None else self.offsets[cut],
            noise=None if self.noise is None else self.noise[cut],
            first=self.first + cut.start,
        )

    def columns(self, index: Columns, places: Tensor | None = None) -> Rows:
        """Return the values at some columns; where groups have offsets, their ends are those of all.

        They are numbered anew, from 0, for the noise; `places` are their numbers if other devices have more.
        """
        values = self.values[:, index]
        if values.stride(1) != 1:  # kernels read values that lie side by side
            values = values.contiguous()
        if self.groups is not None:
            groups = self.groups[index].contiguous()
            return attrs.evolve(self, values=values, groups=groups, column=0, places=places)
        low, high = _ends(values)
        reach = 0 if self.noise is None else self.noise / 2
        return attrs.evolve(
            self,
            values=values,
            low=low.to(self.low.dtype) - reach,
            high=high.to(self.low.dtype) + reach,
            column=0,
            places=places,
        )


@attrs.frozen(eq=False)
class Counted:
    """How many of n values lie below each edge of B equal bins, for H rows."""

    below: Tensor
    """The counts, whole numbers from 0 to n: H×(B+1)."""
    count: int
    """n."""
    low: Tensor
    """The first edge of each row: H."""
    high: Tensor
    """The last edge of each row: H."""
    half: bool = False
    """Whether the values were in half precision, so that tables made of the counts may be, too."""

    @property
    def bins(self) -> int:
        """B."""
        return self.below.shape[1] - 1


def outermost(tail: float, count: int) -> int:
    """Return how many of `count` values the tail of a distribution has on either side, at most."""
    return int(tail * count)


def _ends(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return the least and the greatest value of each row (H×n → 2×H); of no values, ∞ and −∞."""
    if values.shape[1] == 0:
        return values.new_full((len(values),), torch.inf), values.new_full((len(values),), -torch.inf)
    return values.amin(dim=1), values.amax(dim=1)  # aminmax is ten times as slow on a CPU


@lru_cache(maxsize=4)
def _cached_circle(first: int, column: int, H: int, n: int, dtype: torch.dtype) -> Tensor:
    """Return the noise of H×n values from a row and a column on: H×n, on the CPU."""
    return circle_from(torch.arange(column, column + n) * STRIDES[0], first, H, dtype)


def circle_from(places: Tensor, first: int, H: int, dtype: torch.dtype) -> Tensor:
    """Return the noise of values whose columns have places (n whole numbers) on the circle of 2³²: H×n."""
    row = torch.arange(first, first + H, device=places.device) * STRIDES[1]
    return ((places + row[:, None] & 0xFFFFFFFF) >> 9).to(dtype) * 2.0**-23 - 0.5
