"""Coordinates `principal`: every principal component of the data gets a gain, so that these vary more evenly.

What it is: W = V diag(gain) Vᵀ, V being the principal axes of all data as columns. With the data's variance v
along an axis, gain = (v + floor·mean v)^(−a/2), times a number that keeps the total variance. Unlike
`whitened`, it knows that pixels in the middle of an image vary more than those at its rim, and points have
principal components too.
Cost: when the flow begins, a covariance, O(N d²), and its decomposition, O(d³); when a stage begins and ends,
products with d×d matrices; a saved model has one of these.
When not to use it: beyond 4,096 dimensions, which are refused; `whitened` has no such bound.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import torch
from torch import Tensor

from cswf_core.errors import DataError
from cswf_core.interfaces import LinearMap, Space
from cswf_core.kernels.frechet import moments
from cswf_plugins.coordinates.whitened import WithGains

LARGEST = 4096
"""Largest d."""


@attrs.frozen(kw_only=True)
class Principal(WithGains):
    """A gain for every principal component of the data."""

    def fit(self, space: Space, x: Tensor) -> LinearMap:
        """Return W for data x (d×N)."""
        if space.dimension > LARGEST:
            raise DataError(
                f"coordinates 'principal' go up to {LARGEST:,} dimensions, and these data have "
                f"{space.dimension:,}; take whitened"
            )
        if x.shape[1] < 2:
            raise DataError("coordinates 'principal' need two data or more for a covariance")
        variances, axes = torch.linalg.eigh(moments(x.T).covariance)
        return self._map(axes.to(x).contiguous(), variances.clamp_min(0).to(x))

    def of_tensors(self, space: Space, tensors: Mapping[str, Tensor], like: Tensor) -> LinearMap:
        """Return W from its axes and variances."""
        del space
        axes, variances = (tensors[name].to(like) for name in ("axes", "variances"))
        return self._map(axes, variances)

    def _map(self, axes: Tensor, variances: Tensor) -> LinearMap:
        return PrincipalMap(axes, variances, self.gains(variances.double()))


class PrincipalMap(LinearMap):
    """W = V diag(gain) Vᵀ, which is its own transpose."""

    def __init__(self, axes: Tensor, variances: Tensor, gains: Tensor) -> None:
        """`axes` are V (d×d), `variances` and `gains` those along each axis (d); gains are in float64."""
        self.axes = axes
        self.variances = variances
        V = axes.double()
        factors = (gains, 1 / gains, variances.double().sqrt())
        self._there, self._back, self._root = (((V * factor) @ V.T).to(axes) for factor in factors)

    def enter(self, x: Tensor) -> Tensor:
        """Return W x: d×n → d×n."""
        return self._there @ x

    def leave(self, w: Tensor) -> Tensor:
        """Return W⁻¹ w: d×n → d×n."""
        return self._back @ w

    def adjoint(self, theta: Tensor) -> Tensor:
        """Return Wᵀθ = W θ: d×n → d×n."""
        return self.enter(theta)

    def tensors(self) -> dict[str, Tensor]:
        """Return the axes and the variances."""
        return {"axes": self.axes, "variances": self.variances}

    def coloured(self, noise: Tensor) -> Tensor:
        """Return V √v Vᵀ ε, of independent ε: d×n → d×n."""
        return self._root @ noise
