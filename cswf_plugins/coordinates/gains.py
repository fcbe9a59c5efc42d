"""Gains for axes of the data, and the parameters of coordinates that have them."""

from __future__ import annotations

import attrs
import torch
from torch import Tensor

from cswf_core.interfaces import Coordinates, parameter


@attrs.frozen(kw_only=True)
class WithGains(Coordinates):
    """Base of coordinates that give each of some axes a gain by the data's variance along it."""

    exponent: float = parameter(
        "a: gains are the variance to the power of −a/2; 0 is plain, 1 makes all variances equal",
        default=0.3,
        at_least=0,
        at_most=1,
    )
    floor: float = parameter(
        "added to each variance, as a share of the mean variance, so that no noise is blown up",
        default=1e-5,
        above=0,
    )

    def gains(self, variances: Tensor) -> Tensor:
        """Return (v + floor·mean v)^(−a/2) for variances v, scaled to Σ gain² v = Σ v: d → d.

        If nothing varies, gains are 1.
        """
        mean = variances.mean()
        gains = (variances + self.floor * mean).pow(-self.exponent / 2)
        total = (gains.square() * variances).mean() / mean
        return torch.where(mean > 0, gains * total.rsqrt(), 1.0)
