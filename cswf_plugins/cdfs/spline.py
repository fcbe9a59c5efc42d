"""CDF `spline`: a smooth monotone curve through some quantiles of each row.

What it is: a monotone rational-quadratic spline (Gregory and Delbourgo) through K equally spaced quantiles.
With `rule: monotone` the i-th smallest of n values has level (i−1)/(n−1), so that extremes go to extremes, and
a row of fewer than K values has a knot at each of them. With `rule: released` it is what the authors' released
code does where there are 700,000 particles: F_p is a spline of K−1 pieces, 1,000 there (so K is 1,001), and
F_q⁻¹ is that of `sorted` with `rank: released`.
Cost: a sort of each row for its quantiles, then a search among K knots and some arithmetic for each value:
more than `sorted`. It is here to be compared with.
When not to use it: where tails matter. The outermost 1/(K−1) of the values on either side share one piece of
the curve, which knows their extreme and their number but not where they lie.
"""

from __future__ import annotations

from typing import Literal

import attrs
from torch import Tensor

from cswf_core.interfaces import FittedCDF, parameter
from cswf_core.kernels.splines import paces, quantiles, released_spline_cdf, spline_cdf, spline_icdf
from cswf_plugins.cdfs.sorted import PartialFit, ReleasedRows
from cswf_plugins.references import bibtex


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


@attrs.frozen(eq=False)
class ReleasedSplineRows(ReleasedRows):
    """H sorted rows of n values: the released code's spline as the CDF, and its inverse of sorted values."""

    pieces: int
    """B = K−1."""

    def cdf(self, z: Tensor) -> Tensor:
        """Level of z in each row: below 0 if z is below its range, and above 1 if above."""
        return released_spline_cdf(self.ordered, self.pieces, z)


@attrs.frozen(kw_only=True)
class Spline(PartialFit):
    """A monotone spline through quantiles."""

    references = bibtex("gregory1982piecewise")

    knots: int = parameter(
        "K, the number of quantiles, both ends among them: the released code's 1,000 pieces are 1,001 knots",
        default=1000,
        at_least=2,
        at_most=2**20,
    )
    rule: Literal["monotone", "released"] = parameter(
        "'monotone': a spline and its own inverse; 'released': a spline of K−1 pieces forward, and the inverse "
        "of `sorted` with rank 'released', as the released code does",
        default="monotone",
    )

    def fit(self, values: Tensor) -> SplineRows | ReleasedSplineRows:
        """Sort each row of H×n values and lay a spline through its quantiles."""
        ordered = values.sort(dim=1).values
        if self.rule == "released":
            return ReleasedSplineRows(ordered, self.knots - 1)
        knots = quantiles(ordered, max(2, min(self.knots, values.shape[1])))
        return SplineRows(knots, paces(knots))
