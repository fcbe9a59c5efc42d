"""Adapter of CDF estimators: distributions that never fall, and finite displacements."""

from __future__ import annotations

import torch
from torch import Tensor

from cswf_core.checks.adapter import Adapter, calling, greatest_fall
from cswf_core.interfaces import CDFEstimator, FittedCDF, Owner, Part, Rows, TransportMap

CDF_TOLERANCE = 1e-4
"""How far a distribution may fall, or leave [0, 1], by rounding."""


class CheckedCDF(Adapter, CDFEstimator):
    """A CDF estimator whose fits, maps and displacements are what the contract says."""

    def __init__(self, plugin: CDFEstimator, owner: Owner) -> None:
        super().__init__(plugin, owner)
        for side in ("particles", "data"):
            part: object = getattr(plugin, side)
            if part is not None and not isinstance(part, Part):
                raise self._fault(side, "None or a Part", repr(part))
        self._proved = False
        """Whether a fit has been looked at, and was a distribution in every row."""

    def fit(self, values: Tensor) -> FittedCDF:
        """Fit one distribution to each row of H×n values."""
        fitted = self._fitted(self._call("fit", values), "fit")
        if not self._proved and values.numel():
            self._check_distributions(fitted, *torch.aminmax(values, dim=1))
        return fitted

    def fit_rows(self, rows: Rows) -> FittedCDF:
        """Fit one distribution to each row, with all that is added to its values."""
        with calling(self.owner, "fit"):  # the name that plugins define, whether `fit_rows` is theirs or not
            answer = self.plugin.fit_rows(rows)
        fitted = self._fitted(answer, "fit")
        if not self._proved and rows.values.numel() and not _recording(rows.low):
            self._check_distributions(fitted, rows.low, rows.high)
        return fitted

    def _check_distributions(self, fitted: FittedCDF, low: Tensor, high: Tensor) -> None:
        """Raise `PluginError` if F_h falls or leaves [0, 1] between the ends (H each), or its inverse falls."""
        self._proved = True
        levels = torch.linspace(0, 1, 33, dtype=low.dtype, device=low.device)
        width = (high - low).clamp_min(torch.finfo(low.dtype).tiny)
        z = low[:, None] + width[:, None] * levels
        with calling(self.owner, "cdf"):
            heights = fitted.cdf(z)
        self._finite(self._like(heights, "cdf", z), "cdf")
        least = float(heights.min())
        greatest = float(heights.max())
        if least < -CDF_TOLERANCE or greatest > 1 + CDF_TOLERANCE:
            raise self._fault("cdf", "numbers in [0, 1]", f"{least:.4g} … {greatest:.4g}")
        a = levels.expand(len(z), -1).contiguous()
        with calling(self.owner, "icdf"):
            places = fitted.icdf(a)
        self._finite(self._like(places, "icdf", a), "icdf")
        for method, curve, size in (("cdf", heights, 1.0), ("icdf", places, float(width.max()))):
            fall = greatest_fall(curve)
            if fall > CDF_TOLERANCE * size:
                raise self._fault(method, "numbers that never fall from left to right", f"a fall by {fall:.3g}")

    def of_counts(
        self, below: Tensor, count: int, low: Tensor, high: Tensor, *, half: bool = False
    ) -> FittedCDF:
        """Return the distributions of counted values; `half` is passed on only where it is so."""
        extra = {"half": True} if half else {}
        return self._fitted(self._call("of_counts", below, count, low, high, **extra), "of_counts")

    def transport(self, p: Tensor, data: FittedCDF, *, check: bool = True) -> Tensor:
        """Return F_q⁻¹(F_p(p)): H×M → H×M."""
        image = self._like(self._call("transport", p, data), "transport", p)
        return self._finite(image, "transport") if check else image

    def image(self, p: Tensor, F_p: FittedCDF, F_q: FittedCDF, *, check: bool = True) -> Tensor:
        """Return F_q⁻¹(F_p(p)) where F_p was fitted to others than p: H×m → H×m."""
        with calling(self.owner, "icdf"):
            answer = F_q.icdf(F_p.cdf(p))
        image = self._like(answer, "icdf", p)
        return self._finite(image, "icdf") if check else image

    def inverse(self, fitted: FittedCDF, levels: Tensor) -> Tensor:
        """Return F⁻¹ at levels in [0, 1]: H×K → H×K."""
        with calling(self.owner, "icdf"):
            answer = fitted.icdf(levels)
        return self._like(answer, "icdf", levels)

    def levels(self, fitted: FittedCDF, values: Tensor) -> Tensor:
        """Return F at values: H×m → H×m."""
        with calling(self.owner, "cdf"):
            answer = fitted.cdf(values)
        return self._like(answer, "cdf", values)

    def between(self, p: FittedCDF, data: FittedCDF) -> CheckedMap | None:
        """Return T_h = F_q⁻¹∘F_p, checked where it is applied; None if the estimator composes no maps."""
        answer = self._call("between", p, data)
        if answer is not None and not isinstance(answer, TransportMap):
            raise self._fault("between", "a TransportMap", type(answer).__name__)
        return None if answer is None else CheckedMap(answer, self)

    def displace(self, rows: Rows, data: FittedCDF, *, check: bool = True) -> Tensor:
        """Replace p by δ = F_q⁻¹(F_p(p)) − p, in place, and return the sum of δ² of each row: H."""
        return self.sums(self._call("displace", rows, data), rows, check=check)

    def sums(self, squares: object, rows: Rows, *, check: bool) -> Tensor:
        """Return the sums of δ² that displacing rows has given: H."""
        totals = self._like(squares, "displace", rows.low)
        return self._finite(totals, "displace") if check else totals

    def _fitted(self, answer: object, method: str) -> FittedCDF:
        if not isinstance(answer, FittedCDF):
            raise self._fault(method, "a FittedCDF", type(answer).__name__)
        return answer


class CheckedMap(TransportMap):
    """A map of a CDF estimator's, whose sums are checked."""

    def __init__(self, plugin: TransportMap, cdf: CheckedCDF) -> None:
        self.plugin = plugin
        self._cdf = cdf

    def displace(self, rows: Rows, *, check: bool = True) -> Tensor:
        """Replace the values p by δ = T(p) − p, in place, and return the sum of δ² of each row: H."""
        with calling(self._cdf.owner, "displace"):
            squares = self.plugin.displace(rows)
        return self._cdf.sums(squares, rows, check=check)


def _recording(like: Tensor) -> bool:
    """Say whether work is being recorded, so that no number can be read back."""
    return like.is_cuda and torch.cuda.is_current_stream_capturing()
