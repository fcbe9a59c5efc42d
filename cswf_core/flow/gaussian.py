"""A start from a Gaussian with the data's mean and covariance, in place of noise alike in all coordinates.

Where particles have labels, the mean is that of their class, and the covariance that within classes. Where a
part of the image is seen, the rest begins as the Gaussian has it given that part.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import attrs
import torch
from torch import Tensor

from cswf_core.errors import RunError
from cswf_core.flow.settings import Settings
from cswf_core.interfaces import LinearMap, Observation
from cswf_core.kernels.columns import columnwise
from cswf_core.kernels.frechet import moments

LARGEST_COVARIANCE = 4096  # d up to which it is a matrix; above, coordinates that know it are needed


@attrs.frozen(eq=False)
class Gaussian:
    """N(μ, Σ) with the mean and the covariance of the data, or N(μ_y, Σ) for each class y."""

    mean: Tensor
    """μ of all data, and then of each class (of all again if it is empty): d×(1 + classes)."""
    root: Tensor | None
    """R with RRᵀ = Σ, lower triangular: d×d; None: the coordinates W know Σ, that of all data together."""
    W: LinearMap | None = None
    samples: int = 0
    """N, how many data it was fitted to."""

    @classmethod
    def of_data(
        cls, x: Tensor, bin_width: float, W: LinearMap | None, settings: Settings, labels: Tensor | None = None
    ) -> Gaussian:
        """Fit μ and Σ to data x (d×N), with the noise in their bins; with labels (N), μ of each class too."""
        d, count = x.shape
        classes = 1 if labels is None else len(torch.unique(labels))
        if count < 2 * classes:  # too few for a mean of each class
            labels = None
            classes = 1
        if count < 2:
            raise RunError(f"a covariance needs two data or more: leave out the {settings.called('start')}")
        means = x.mean(dim=1, keepdim=True, dtype=torch.float64).to(x)
        if labels is not None:
            labels = labels.to(x.device)
            counts = torch.bincount(labels)
            sums = torch.zeros(d, len(counts), dtype=torch.float64, device=x.device)
            sums.index_add_(1, labels, x.double())
            own = torch.where(counts > 0, sums / counts.clamp_min(1), means.double())
            means = torch.cat([means, own.to(x)], dim=1)
        mean = means + bin_width / 2
        if d > LARGEST_COVARIANCE:
            if W is None or W.coloured(torch.zeros_like(mean)) is None:
                raise RunError(
                    f"a covariance of {d:,} dimensions takes too large a matrix: choose another "
                    f"{settings.called('start')} or, unless a part of the image is seen, "
                    f"{settings.called('coordinates')} that know it, as whitened"
                )
            return cls(mean, None, W, count)
        centred = x if labels is None else x - means[:, labels + 1]
        covariance = moments(centred.T).covariance * ((count - 1) / (count - classes))
        variances = covariance.diagonal()
        # Few data leave directions without any variance: some of the mean variance is added to all
        variances += bin_width**2 / 12 + 1e-6 * variances.mean().clamp_min(torch.finfo(x.dtype).tiny)
        # Row by row, as a saved model has it: products with it then have the same bits
        root = torch.linalg.cholesky(covariance).to(x).contiguous()
        return cls(mean, root, samples=count)

    def of_noise(self, noise: Tensor, labels: Tensor | None = None) -> Tensor:
        """Return μ + R ε for independent ε ~ N(0, 1): d×n → d×n. With labels (n), μ is that of a class."""
        classes = self.mean.shape[1] - 1
        mean = self.mean[:, :1]
        if labels is not None and classes:  # one that the data did not have begins at the mean of all
            labels = labels.to(mean.device)
            mean = self.mean[:, torch.where(labels < classes, labels + 1, 0)]
        return columnwise(self._coloured, noise) + mean

    def _coloured(self, noise: Tensor) -> Tensor:
        """Return R ε: d×n → d×n."""
        if self.root is not None:
            return torch.matmul(self.root, noise)
        coloured = None if self.W is None else self.W.coloured(noise)
        assert coloured is not None
        return coloured

    def tensors(self) -> dict[str, Tensor]:
        """Return mean, root and N by name, for saved models."""
        tensors = {"mean": self.mean, "samples": torch.tensor(self.samples), "root": self.root}
        return {name: tensor for name, tensor in tensors.items() if tensor is not None}

    @classmethod
    def of_tensors(cls, tensors: Mapping[str, Tensor], W: LinearMap | None, like: Tensor) -> Gaussian:
        """Return the Gaussian whose tensors a saved model has, on the device and in the numbers of `like`."""
        root = tensors.get("root")
        root = None if root is None else root.to(like)
        return cls(tensors["mean"].to(like), root, W, int(tensors["samples"]))


Regression = Callable[[Tensor, Tensor], Tensor]
"""(draws x of a Gaussian, what is seen of each: O y) → draws given that: d×n each."""


def regression_of(
    gaussian: Gaussian | None, observation: Observation | None, amplifier: float
) -> Regression | None:
    """Return how the rest of x follows what is seen of it, O x, in a Gaussian: by B = Σ O (O Σ O)⁻¹.

    The inverse is that on what is seen. If x ~ N(μ, Σ), then x + B (O y − O x) has the distribution of x given
    that O x = O y, whatever μ is. None: Σ is no matrix, or not all particles see the same part.
    """
    if gaussian is None or gaussian.root is None or observation is None:
        return None
    # With fewer data, the rest of an image would follow a part of it as a copy.
    few = gaussian.samples < 5 * len(gaussian.mean)
    if few or not observation.shared or amplifier == 0:  # ξ = 0 ignores what is seen
        return None
    root = gaussian.root
    unit = torch.eye(len(root)).to(root)
    covariance = root.double() @ root.double().T
    apart = observation.seen(covariance).T  # Σ O
    seen = observation.seen(apart)  # O Σ O
    whole = (seen + seen.T) / 2 + observation.free(unit).double()  # and 1 where nothing is seen
    B = torch.linalg.solve(whole, apart.T).T.to(root)
    return lambda x, Oy: x + columnwise(B.matmul, Oy - observation.seen(x))
