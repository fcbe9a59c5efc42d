"""CDF `histogram`: values counted into equal bins, with linear interpolation inside a bin.

What it is: B bins between the least and the greatest value of each row. Every particle and every image counts.
F_q⁻¹∘F_p is composed once per direction, at both edges of the particles' bins, and each particle looks its
image up; bins are not stretched over gaps in the data. With a `tail` of 0.01, T is a straight line beyond the
first and the last hundredth of the particles.
Cost: two passes over the particles' values and one over the data's; no sort. On a GPU little more than it takes
to read them.
When not to use it: for a handful of particles, where sorting is as quick, or to follow the paper to the
letter; `sorted` does both.
"""

from __future__ import annotations

from typing import Any

import attrs
import torch
from torch import Tensor

from cswf_core.interfaces import FittedCDF, Rows, TransportMap, parameter
from cswf_core.kernels.histogram import composed, counted, displaced, inverse, looked_up, positions
from cswf_core.kernels.rows import Counted
from cswf_plugins.cdfs.sorted import PartialFit


def _power_of_two(_instance: Any, attribute: attrs.Attribute[Any], value: int) -> None:
    if value & (value - 1):
        nearest = 1 << value.bit_length() - 1
        raise ValueError(f"{attribute.name} must be a power of two, such as {nearest}, got {value}")


@attrs.frozen(eq=False)
class CountedCDF(Counted, FittedCDF):
    """Counts as distributions, linear inside a bin."""

    def cdf(self, z: Tensor) -> Tensor:
        """Level of z in each row, 0 below its range and 1 above."""
        position = positions(z, self.low, self.high, self.bins).clamp_(0, self.bins)
        place = position.long().clamp_(0, self.bins - 1)
        lower, upper = (self.below.gather(1, place + side).to(z.dtype) for side in (0, 1))
        level = (lower + (position - place) * (upper - lower)) / self.count
        return torch.where(z < self.low[:, None], 0, torch.where(z > self.high[:, None], 1, level)).to(z.dtype)

    def icdf(self, a: Tensor) -> Tensor:
        """Value at level a in each row."""
        return inverse(self, a.double().clamp(0, 1) * self.count)


@attrs.frozen(eq=False)
class Tables(TransportMap):
    """T − identity at both edges of each bin of the particles that were counted."""

    table: Tensor
    p: CountedCDF
    """Their counts."""

    def displace(self, rows: Rows) -> Tensor:
        """Look every value up, once; values beyond the ends, which only others can have, go as the ends do."""
        return looked_up(attrs.evolve(rows, low=self.p.low, high=self.p.high), self.table, rows.values)[1]


@attrs.frozen(kw_only=True)
class Histogram(PartialFit):
    """Counts in equal bins."""

    bins: int = parameter(
        "B, the number of bins of each direction, a power of two",
        default=512,
        at_least=2,
        at_most=4096,
        validator=_power_of_two,
    )

    tail: float = parameter(
        "share of particles on either side of each direction that move by a straight line, so that the "
        "outermost of them do not all go to the outermost image; 0: none",
        default=0.0,
        at_least=0,
        at_most=0.25,
    )

    displaces = True
    compact = True

    @property
    def extrapolates(self) -> bool:  # type: ignore[override]
        """Whether tails are straight lines."""
        return self.tail > 0

    def fit(self, values: Tensor) -> CountedCDF:
        """Count each row of H×n values between its ends."""
        return self.fit_rows(Rows.of(values))

    def fit_rows(self, rows: Rows) -> CountedCDF:
        """Count each row between its ends, with all that is added to its values."""
        return CountedCDF(
            counted(rows, self.bins),
            rows.values.shape[1],
            rows.low,
            rows.high,
            rows.values.dtype == torch.float16,
        )

    def of_counts(
        self, below: Tensor, count: int, low: Tensor, high: Tensor, *, half: bool = False
    ) -> CountedCDF:
        """Take the counts as they are."""
        return CountedCDF(below, count, low, high, half)

    def transport(self, p: Tensor, data: FittedCDF) -> Tensor:
        """F_q⁻¹∘F_p at p, through the table."""
        rows = Rows.of(p)
        delta, _ = looked_up(rows, self.between(self.fit_rows(rows), data).table)
        return delta.add_(p)

    def displace(self, rows: Rows, data: FittedCDF) -> Tensor:
        """Count, compose and look up, without leaving the values alone in between."""
        assert isinstance(data, CountedCDF)
        return displaced(rows, data, self.tail)

    def between(self, p: FittedCDF, data: FittedCDF) -> Tables:
        """Compose F_q⁻¹∘F_p at both edges of the particles' bins."""
        assert isinstance(p, CountedCDF)
        assert isinstance(data, CountedCDF)
        return Tables(composed(p, data, self.tail), p)
