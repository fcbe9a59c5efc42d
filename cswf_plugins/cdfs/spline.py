"""CDF `spline`: a smooth monotone curve through some quantiles of each row.

What it is: a monotone rational-quadratic spline (Gregory and Delbourgo) through K equally spaced quantiles, in
the spirit of the released code, which takes one through 1,000 quantiles of the particles where there are
700,000. The i-th smallest of n values has level (i−1)/(n−1), so that extremes go to extremes. A row of
fewer than K values has a knot at each of them.
Cost: a sort of each row for its quantiles, then a search among K knots and some arithmetic for each value:
more than `sorted`. It is here to be compared with.
When not to use it: where tails matter. The outermost 1/(K−1) of the values on either side share one piece of
the curve, which knows their extreme and their number but not where they lie.
"""

from __future__ import annotations

import attrs
import torch
from torch import Tensor

from cswf_core.interfaces import CDFEstimator, FittedCDF, parameter
from cswf_core.kernels.splines import inverted, paces, quantiles, spline_cdf, spline_icdf


@attrs.frozen(eq=False)
class SplineRows(FittedCDF):
    """H splines through equally spaced quantiles (`values`, H×K) of rows of `count` values."""

    values: Tensor
    pace: Tensor
    count: int
    most: int
    """K where there are values enough."""

    @classmethod
    def through(cls, ordered: Tensor, most: int) -> SplineRows:
        """Return the splines through at most `most` quantiles of sorted rows (H×n)."""
        count = ordered.shape[1]
        values = quantiles(ordered, max(2, min(most, count)))
        return cls(values, paces(values), count, most)

    @property
    def whole(self) -> bool:
        """Whether every value of the sample is a knot."""
        return self.count <= self.most

    def cdf(self, z: Tensor) -> Tensor:
        """Level of z in each row, 0 below its range and 1 above."""
        return spline_cdf(self.values, self.pace, z)

    def icdf(self, a: Tensor) -> Tensor:
        """Value at level a in each row."""
        return spline_icdf(self.values, self.pace, a)

    def merge(self, other: FittedCDF) -> SplineRows:
        """Return the spline through the quantiles of both samples together.

        While every value is a knot, they are sorted together and nothing is lost. Afterwards the samples are
        known by their splines alone: the new knots are the quantiles, found by halving, of the mixture
        (n₁F₁ + n₂F₂)/(n₁ + n₂), exact for these splines, so each merge adds the error of a fit.
        """
        if not isinstance(other, SplineRows) or other.most != self.most:
            raise TypeError("splines merge with splines of the same number of knots")
        if self.whole and other.whole:
            both = [self.values[:, : self.count], other.values[:, : other.count]]
            return self.through(torch.cat(both, dim=1).sort(dim=1).values, self.most)
        count = self.count + other.count
        share = self.count / count
        breaks = torch.cat([self.values, other.values], dim=1).sort(dim=1).values
        values = inverted(lambda z: torch.lerp(other.cdf(z), self.cdf(z), share), breaks, self.most)
        return SplineRows(values, paces(values), count, self.most)


@attrs.frozen(kw_only=True)
class Spline(CDFEstimator):
    """A monotone spline through quantiles."""

    knots: int = parameter("K, the number of quantiles", default=1000, at_least=2, at_most=2**20)

    def fit(self, values: Tensor) -> SplineRows:
        """Sort each row of H×n values and lay a spline through its quantiles."""
        return SplineRows.through(values.sort(dim=1).values, self.knots)
