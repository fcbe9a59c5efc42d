"""Contract of CDF estimators: H one-dimensional distributions at a time, one per row."""

from __future__ import annotations

import abc

from torch import Tensor


class FittedCDF(abc.ABC):
    """H estimated distributions F_1 … F_H."""

    @abc.abstractmethod
    def cdf(self, z: Tensor) -> Tensor:
        """Return F_h(z) in [0, 1] for every entry of row h: H×m → H×m."""

    @abc.abstractmethod
    def icdf(self, a: Tensor) -> Tensor:
        """Return F_h⁻¹(a) for every entry of row h, a in [0, 1]: H×m → H×m."""

    @abc.abstractmethod
    def merge(self, other: FittedCDF) -> FittedCDF:
        """Return the estimate from both samples together, as if they had been fitted at once."""

    @abc.abstractmethod
    def knots(self, count: int) -> Tensor:
        """Return F_h⁻¹ at `count` equally spaced levels from 0 to 1, for a saved model: H×count."""


class CDFEstimator(abc.ABC):
    """Fits distributions to samples. Subclasses are attrs classes whose fields are the parameters."""

    @abc.abstractmethod
    def fit(self, values: Tensor) -> FittedCDF:
        """Fit one distribution to each row of `values` (H×n)."""

    def transport(self, p: Tensor, q: Tensor) -> Tensor:
        """Return F_q⁻¹(F_p(p)), the one-dimensional optimal transport map at p: (H×M, H×N) → H×M.

        The default composes `fit`, `cdf` and `icdf`; override it where composing once is cheaper.
        """
        return self.fit(q).icdf(self.fit(p).cdf(p))
