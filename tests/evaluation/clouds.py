"""Synthetic features whose distributions are known, for tests of scores and of how sure these are."""

from __future__ import annotations

import attrs
import torch

from cswf_core.interfaces import Comparison, Dataset
from cswf_core.kernels.frechet import Moments
from tests.evaluation.conftest import compare
from tests.evaluation.test_metrics import images, with_features


@attrs.frozen(eq=False)
class Cloud:
    """A Gaussian of `width` features with falling variances, as real features have them."""

    width: int
    unlike: float = 0.0
    """How much it differs from the one of 0, in mean and in variances."""
    fall: float = 1.2
    """The i-th variance is i to the power of minus this."""

    @property
    def moments(self) -> Moments:
        """The true mean and covariance."""
        generator = torch.Generator().manual_seed(7)
        mean, logarithms = torch.randn(2, self.width, generator=generator, dtype=torch.float64)
        variances = torch.arange(1, self.width + 1, dtype=torch.float64) ** -self.fall
        own = variances * torch.exp(self.unlike * logarithms)
        return Moments(self.unlike * mean * variances.sqrt(), torch.diag(own), 0)

    def draw(self, count: int, seed: int) -> torch.Tensor:
        """Feature vectors: count×width, float32."""
        z = torch.randn(count, self.width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        return (z * self.moments.covariance.diagonal().sqrt() + self.moments.mean).float()


def compared(p: torch.Tensor, q: torch.Tensor) -> Comparison:
    """A comparison of images that have these features (n×D and m×D)."""
    generated, real = blank(len(p)), blank(len(q))
    return compare(generated, real, bench=with_features({generated: p, real: q}))


def blank(count: int) -> Dataset:
    """So many images, of which only the number matters."""
    return images(count, 0)
