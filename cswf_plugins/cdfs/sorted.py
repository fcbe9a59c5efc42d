"""CDF `sorted`: every value kept, sorted, with linear interpolation between neighbours.

What it is: the estimate of the paper's Appendix C.2, exact in that it uses every particle and every image.
Cost: a sort of each row, O(M log M + N log N) per direction.
With `rank: released` it does what the authors' released code does, and also costs a search for each value.
When not to use it: where speed matters more than the last digit; counting into bins is far cheaper.
"""

from __future__ import annotations

from typing import Literal

import attrs
from torch import Tensor

from cswf_core.interfaces import CDFEstimator, FittedCDF, Part, parameter
from cswf_core.kernels.sorting import (
    interpolated_cdf,
    interpolated_icdf,
    rank_transport,
    released_cdf,
    released_icdf,
)


@attrs.frozen(kw_only=True)
class PartialFit(CDFEstimator):
    """An estimator that says how many particles and data it is fitted to; the engine draws these."""

    particles: Part | None = parameter(
        "the particles that F_p is fitted to: {share: 0.1} or {count: 50000} of them, drawn anew at every "
        "step; all if left out",
        default=None,
    )
    data: Part | None = parameter("the data that F_q is fitted to, likewise; all if left out", default=None)


@attrs.frozen(eq=False)
class SortedRows(FittedCDF):
    """H sorted rows of n values."""

    ordered: Tensor
    shift: float

    def cdf(self, z: Tensor) -> Tensor:
        """Level of z in each row, 0 below its range and 1 above."""
        return interpolated_cdf(self.ordered, z, self.shift)

    def icdf(self, a: Tensor) -> Tensor:
        """Value at level a in each row."""
        return interpolated_icdf(self.ordered, a, self.shift)


@attrs.frozen(eq=False)
class ReleasedRows(FittedCDF):
    """H sorted rows of n values, read as the released code reads them."""

    ordered: Tensor

    def cdf(self, z: Tensor) -> Tensor:
        """Level of z in each row, ½/n below its range and 1 above."""
        return released_cdf(self.ordered, z)

    def icdf(self, a: Tensor) -> Tensor:
        """Value at level a in each row, nearly without interpolation."""
        return released_icdf(self.ordered, a)


@attrs.frozen(kw_only=True)
class Sorted(PartialFit):
    """Sorted values with linear interpolation."""

    rank: Literal["paper", "half", "released"] = parameter(
        "level a of the i-th smallest of n values: 'paper' (i−1)/n, 'half' (i−½)/n, forward and inverse; "
        "'released' (i−½)/n forward, and an inverse that takes the data's y[⌊aN⌋] nearly without "
        "interpolating, as the released code does",
        default="paper",
    )

    @property
    def shift(self) -> float:
        """What `paper` and `half` add to a rank counted from 0."""
        return 0.5 if self.rank == "half" else 0.0

    def fit(self, values: Tensor) -> SortedRows | ReleasedRows:
        """Sort each row of H×n values."""
        ordered = values.sort(dim=1).values
        return ReleasedRows(ordered) if self.rank == "released" else SortedRows(ordered, self.shift)

    def transport(self, p: Tensor, data: FittedCDF) -> Tensor:
        """F_q⁻¹∘F_p at p, by ranks: a sort and no search, except for `released`.

        There equal values have one level, and ranks would tell them apart.
        """
        if self.rank == "released":
            return data.icdf(self.fit(p).cdf(p))
        assert isinstance(data, SortedRows)
        return rank_transport(p, data.ordered, self.shift)
