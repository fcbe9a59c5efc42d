"""A start from a Gaussian with the data's mean and covariance, in place of noise alike in all coordinates."""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import torch
from torch import Tensor

from cswf_core.errors import RunError
from cswf_core.flow.settings import Settings
from cswf_core.interfaces import LinearMap
from cswf_core.kernels.frechet import moments

LARGEST = 4096
"""Up to this d, the covariance is a matrix; above, coordinates that know it are needed."""

RIDGE = 1e-6
"""Added to the covariance, as a share of its mean variance: few data leave directions without any."""


@attrs.frozen(eq=False)
class Gaussian:
    """N(μ, Σ) with the mean and the covariance of the data."""

    mean: Tensor
    """μ, d×1."""
    root: Tensor | None
    """R with RRᵀ = Σ, lower triangular: d×d; None: the flow's coordinates know Σ."""
    W: LinearMap | None = None
    """These coordinates."""

    @classmethod
    def of_data(cls, x: Tensor, bin_width: float, W: LinearMap | None, settings: Settings) -> Gaussian:
        """Fit μ and Σ to data x (d×N), with the noise in their bins."""
        d, count = x.shape
        if count < 2:
            raise RunError(f"a covariance needs two data or more: leave out the {settings.called('start')}")
        mean = x.mean(dim=1, keepdim=True, dtype=torch.float64).add_(bin_width / 2).to(x)
        if d > LARGEST:
            if W is None or W.coloured(torch.zeros_like(mean)) is None:
                raise RunError(
                    f"a covariance of {d:,} dimensions takes too large a matrix: choose "
                    f"{settings.called('coordinates')} that know it, as whitened, or another "
                    f"{settings.called('start')}"
                )
            return cls(mean, None, W)
        covariance = moments(x.T).covariance
        variances = covariance.diagonal()
        variances += bin_width**2 / 12 + RIDGE * variances.mean().clamp_min(torch.finfo(x.dtype).tiny)
        return cls(mean, torch.linalg.cholesky(covariance).to(x))

    def of_noise(self, noise: Tensor) -> Tensor:
        """Return μ + R ε for independent ε ~ N(0, 1): d×n → d×n."""
        if self.root is not None:
            return torch.addmm(self.mean, self.root, noise)
        coloured = None if self.W is None else self.W.coloured(noise)
        assert coloured is not None
        return coloured.add_(self.mean)

    def tensors(self) -> dict[str, Tensor]:
        """Return mean and root by name, for saved models."""
        return {"mean": self.mean} | ({} if self.root is None else {"root": self.root})

    @classmethod
    def of_tensors(cls, tensors: Mapping[str, Tensor], W: LinearMap | None, like: Tensor) -> Gaussian:
        """Return the Gaussian whose tensors a saved model has, on the device and in the numbers of `like`."""
        mean, root = tensors["mean"].to(like), tensors.get("root")
        return cls(mean, None if root is None else root.to(like), W)
