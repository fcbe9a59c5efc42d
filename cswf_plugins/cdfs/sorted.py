"""CDF `sorted`: every value kept, sorted, with linear interpolation between neighbours.

What it is: the estimate of the paper's Appendix C.2, exact in that it uses every particle and every image.
Cost: a sort of each row, O(M log M + N log N) per direction.
When not to use it: where speed matters more than the last digit; counting into bins is far cheaper.
"""

from __future__ import annotations

from typing import Literal

import attrs
from torch import Tensor

from cswf_core.interfaces import CDFEstimator, FittedCDF, parameter
from cswf_core.kernels.sorting import interpolated_cdf, interpolated_icdf, rank_transport


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


@attrs.frozen(kw_only=True)
class Sorted(CDFEstimator):
    """Sorted values with linear interpolation."""

    rank: Literal["paper", "half"] = parameter(
        "level of the i-th smallest of n values: (i−1)/n as in the paper, or (i−½)/n as in the released code",
        default="paper",
    )

    @property
    def shift(self) -> float:
        """What is added to a rank counted from 0."""
        return 0.5 if self.rank == "half" else 0.0

    def fit(self, values: Tensor) -> SortedRows:
        """Sort each row of H×n values."""
        return SortedRows(values.sort(dim=1).values, self.shift)

    def transport(self, p: Tensor, data: FittedCDF) -> Tensor:
        """F_q⁻¹∘F_p at p, by ranks: a sort and no search."""
        assert isinstance(data, SortedRows)
        return rank_transport(p, data.ordered, self.shift)
