"""The Fréchet distance between two clouds of features, taken as Gaussians: what FID is made of."""

from __future__ import annotations

import attrs
import torch
from torch import Tensor

FEATURES_AT_A_TIME = 8192
"""Feature vectors that are converted to float64 at a time."""


@attrs.frozen(eq=False)
class Moments:
    """Mean and covariance of n feature vectors, in float64."""

    mean: Tensor
    """The mean: D."""
    covariance: Tensor
    """The covariance, the sum of squares over n − 1: D×D."""
    count: int
    """n."""

    def to(self, device: torch.device) -> Moments:
        """Return them on another device."""
        return Moments(self.mean.to(device), self.covariance.to(device), self.count)


def moments(features: Tensor) -> Moments:
    """Return mean and covariance of at least two feature vectors: n×D."""
    count, width = features.shape
    total = torch.zeros(width, dtype=torch.float64, device=features.device)
    for part in torch.split(features, FEATURES_AT_A_TIME):
        total += part.double().sum(dim=0)
    mean = total / count
    scatter = torch.zeros(width, width, dtype=torch.float64, device=features.device)
    for part in torch.split(features, FEATURES_AT_A_TIME):
        centred = part.double() - mean
        scatter += centred.T @ centred
    return Moments(mean, scatter / (count - 1), count)


def frechet_distance(p: Moments, q: Moments, root: Tensor | None = None) -> float:
    """Return |μ_p − μ_q|² + tr(Σ_p + Σ_q − 2 (Σ_p Σ_q)^½).

    With Σ_p = A Aᵀ, Σ_p Σ_q has the eigenvalues of the symmetric Aᵀ Σ_q A besides 0, so the trace of its root
    is the sum of their roots; nothing complex arises, also where a covariance is singular. Rounding may leave
    eigenvalues of the product just below 0, which count as 0. `root` is A, if it is known (`root_of`).
    """
    A = root_of(p) if root is None else root
    return _distance(p, q, torch.linalg.eigvalsh(_product(A, q)))


def root_of(p: Moments) -> Tensor:
    """Return A with Σ_p = A Aᵀ: D×r, a column for each eigenvalue of Σ_p above rounding.

    These are few where there are few samples.
    """
    values, vectors = _range(*torch.linalg.eigh(p.covariance))
    return vectors * values.sqrt()


@attrs.frozen(eq=False)
class Frechet:
    """The distance between two Gaussians, and what each feature vector of either set does to it.

    The *influence* of a vector is n times the change of the distance when its weight grows by 1/n, to first
    order: the standard deviation of the influences over √n is the distance's standard error, the limit of a
    bootstrap without its repetitions. Moving the covariance of p costs I − T, where T is the optimal map from p
    to q, and likewise for q with the map back. Both maps are kept as roots, T = B Bᵀ on the range of the
    covariance, so a singular covariance needs no care.
    """

    p: Moments
    q: Moments
    distance: float
    forth: Tensor
    """The root of the map from p to q: D×r."""
    back: Tensor
    """The root of the map from q to p: D×r'."""

    @classmethod
    def between(cls, p: Moments, q: Moments) -> Frechet:
        """Return the distance of p and q with both maps."""
        values, vectors = _range(*torch.linalg.eigh(p.covariance))
        A = vectors * values.sqrt()
        eigenvalues, axes = torch.linalg.eigh(_product(A, q))
        distance = _distance(p, q, eigenvalues)
        eigenvalues, axes = _range(eigenvalues, axes)
        forth = (vectors / values.sqrt()) @ axes * eigenvalues.pow(1 / 4)
        return cls(p, q, distance, forth, A @ axes * eigenvalues.pow(-1 / 4))

    def influences_of_p(self, features: Tensor) -> Tensor:
        """Return the influence of each vector that p is of (n×D): n, in float64, with mean 0."""
        return _influences(features, self.p, self.q, self.forth)

    def influences_of_q(self, features: Tensor) -> Tensor:
        """Return the influence of each vector that q is of (m×D): m, in float64, with mean 0."""
        return _influences(features, self.q, self.p, self.back)


def _influences(features: Tensor, own: Moments, other: Moments, root: Tensor) -> Tensor:
    """Return the influence of each vector that `own` is of (n×D), with the root of the map to `other`: n."""
    away = 2 * (own.mean - other.mean)
    influences = []
    for part in torch.split(features, FEATURES_AT_A_TIME):
        centred = part.double() - own.mean
        squares = centred.square().sum(dim=1) - (centred @ root).square().sum(dim=1)
        influences.append(squares + centred @ away)
    each = torch.cat(influences)
    return each - each.mean()


def _range(values: Tensor, vectors: Tensor) -> tuple[Tensor, Tensor]:
    """Return the eigenvalues above rounding, of rising ones (D), and their vectors (D×D): r and D×r."""
    some = values > values[-1:].clamp_min(0) * len(values) * torch.finfo(values.dtype).eps
    return values[some], vectors[:, some]


def _product(A: Tensor, q: Moments) -> Tensor:
    """Return Aᵀ Σ_q A, symmetric to the bit: r×r."""
    product = A.T @ q.covariance @ A
    return (product + product.T) / 2


def _distance(p: Moments, q: Moments, eigenvalues: Tensor) -> float:
    """Return the distance of p and q by the eigenvalues of Σ_p Σ_q, those of 0 left out or not."""
    between = (p.mean - q.mean).square().sum()
    traces = p.covariance.trace() + q.covariance.trace()
    return float(between + traces - 2 * eigenvalues.clamp_min(0).sqrt().sum())


def distance_of_few(features: Tensor, q: Moments) -> float:
    """Return the Fréchet distance of n feature vectors (n×D) to moments, quickly where n is less than D.

    With X the centred vectors over √(n − 1), Σ_p Σ_q = Xᵀ X Σ_q has the eigenvalues of X Σ_q Xᵀ (n×n) and 0.
    """
    rows = features.double()
    mean = rows.mean(dim=0)
    X = (rows - mean) / (len(rows) - 1) ** 0.5
    eigenvalues = torch.linalg.eigvalsh(X @ q.covariance @ X.T)
    between = (mean - q.mean).square().sum()
    traces = X.square().sum() + q.covariance.trace()
    return float(between + traces - 2 * eigenvalues.clamp_min(0).sqrt().sum())
