"""The Fréchet distance between two clouds of features, taken as Gaussians: what FID is made of."""

from __future__ import annotations

import attrs
import torch
from torch import Tensor

ROWS = 8192
"""Features that are turned into float64 at a time."""


@attrs.frozen(eq=False)
class Moments:
    """Mean and covariance of n feature vectors, in float64."""

    mean: Tensor
    """D."""
    covariance: Tensor
    """D×D, divided by n − 1."""
    count: int

    def to(self, device: torch.device) -> Moments:
        """Return them on another device."""
        return Moments(self.mean.to(device), self.covariance.to(device), self.count)


def moments(features: Tensor) -> Moments:
    """Return mean and covariance of at least two feature vectors: n×D."""
    count, width = features.shape
    total = torch.zeros(width, dtype=torch.float64, device=features.device)
    for first in range(0, count, ROWS):
        total += features[first : first + ROWS].double().sum(dim=0)
    mean = total / count
    scatter = torch.zeros(width, width, dtype=torch.float64, device=features.device)
    for first in range(0, count, ROWS):
        centred = features[first : first + ROWS].double() - mean
        scatter += centred.T @ centred
    return Moments(mean, scatter / (count - 1), count)


def frechet_distance(p: Moments, q: Moments) -> float:
    """Return |μ_p − μ_q|² + tr(Σ_p + Σ_q − 2 (Σ_p Σ_q)^½).

    With Σ_p = A Aᵀ, Σ_p Σ_q has the eigenvalues of the symmetric Aᵀ Σ_q A besides 0, so the trace of its root
    is the sum of their roots; nothing complex arises, also where a covariance is singular. A has a column for
    each eigenvalue of Σ_p above rounding: few, where there are few samples. Rounding may leave eigenvalues of
    the product just below 0, which count as 0.
    """
    values, vectors = torch.linalg.eigh(p.covariance)
    some = values > values[-1] * len(values) * torch.finfo(values.dtype).eps
    A = vectors[:, some] * values[some].sqrt()
    product = A.T @ q.covariance @ A
    eigenvalues = torch.linalg.eigvalsh((product + product.T) / 2)
    between = (p.mean - q.mean).square().sum()
    traces = p.covariance.trace() + q.covariance.trace()
    return float(between + traces - 2 * eigenvalues.clamp_min(0).sqrt().sum())
