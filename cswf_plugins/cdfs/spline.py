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
from torch import Tensor

from cswf_core.interfaces import CDFEstimator, FittedCDF, parameter
from cswf_core.kernels.splines import paces, quantiles, spline_cdf, spline_icdf


@attrs.frozen(eq=False)
class SplineRows(FittedCDF):
    """H splines through equally spaced quantiles: `values` (H×K), with F⁻¹'s derivative (`pace`) at each."""

    values: Tensor
    pace: Tensor

    def cdf(self, z: Tensor) -> Tensor:
        """Level of z in each row, 0 below its range and 1 above."""
        return spline_cdf(self.values, self.pace, z)

    def icdf(self, a: Tensor) -> Tensor:
        """Value at level a in each row."""
        return spline_icdf(self.values, self.pace, a)


@attrs.frozen(kw_only=True)
class Spline(CDFEstimator):
    """A monotone spline through quantiles."""

    knots: int = parameter("K, the number of quantiles", default=1000, at_least=2, at_most=2**20)

    def fit(self, values: Tensor) -> SplineRows:
        """Sort each row of H×n values and lay a spline through its quantiles."""
        knots = quantiles(values.sort(dim=1).values, max(2, min(self.knots, values.shape[1])))
        return SplineRows(knots, paces(knots))
