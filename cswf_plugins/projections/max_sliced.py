"""Projection `max-sliced`: directions along which particles and data are far apart.

What it is: most random directions see little difference between particles and data. Here some directions of
another sampler are turned, at every step, towards those that see the most (max-sliced Wasserstein): with
particles and data sorted along θ, the gradient of W₂² is Σ_i (p_(i) − q_(i)) (x_(i) − y_(i)), and θ becomes
this vector, scaled to unit length. A few rounds of this are a power iteration whose matrix changes with the
order. Pixels that a filter does not see stay unseen, so that patches stay patches.
Cost: for each round as much as a step with `samples` particles and data along the turned directions. Steps are
no longer than 1/λ, λ being that of the step's own directions: the more alike these are, the shorter.
When not to use it: to save a model, to learn online, on several devices or with `reuse`, all of which need
directions that do not depend on the particles; or where a random direction is as good as any, as for points in
few dimensions.
"""

from __future__ import annotations

import attrs
import torch
from torch import Tensor

from cswf_core.interfaces import (
    DenseProjection,
    Draw,
    Projection,
    ProjectionSampler,
    ProjectionWrapper,
    Space,
    parameter,
)
from cswf_core.kernels.patches import unit
from cswf_plugins.projections.patches import counts
from cswf_plugins.projections.uniform import Uniform
from cswf_plugins.references import bibtex


@attrs.frozen(kw_only=True)
class MaxSliced(ProjectionWrapper):
    """Another sampler's directions, some of them turned to where particles and data are far apart."""

    of: ProjectionSampler = parameter("the sampler whose directions are turned", default=Uniform())
    share: float = parameter("share of the directions that are turned", default=0.25, above=0, at_most=1)
    rounds: int = parameter("rounds of turning", default=2, at_least=1, at_most=1000)
    samples: int = parameter("particles, and data, that are looked at in a step", default=1024, at_least=2)

    adapts = True
    tempered = False  # λ is that of each step's own directions
    references = bibtex("deshpande2019max")

    @property
    def looks_at(self) -> int:  # type: ignore[override]
        """As many as `samples` says."""
        return self.samples

    def sample(self, space: Space, count: int, draw: Draw) -> Tensor | Projection:
        """Return the other sampler's directions: nothing is known of particles and data yet."""
        return self.of.sample(space, count, draw)

    def adapted(self, space: Space, particles: Tensor, data: Tensor, draw: Draw) -> ProjectionSampler:
        """Return a sampler that turns its directions by these particles and data (d×n each)."""
        inner = self.of.adapted(space, particles, data, draw) if self.of.adapts else self.of
        n = min(particles.shape[1], data.shape[1])
        x = evenly(particles, n)
        y = evenly(data, n)
        return _Turned(of=inner, share=self.share, rounds=self.rounds, x=x, y=y)


@attrs.frozen(kw_only=True, eq=False)
class _Turned(ProjectionWrapper):
    """Directions of a step, of which the first are turned."""

    share: float
    rounds: int
    x: Tensor
    """Particles: d×n."""
    y: Tensor
    """Data, as many."""

    def sample(self, space: Space, count: int, draw: Draw) -> DenseProjection:
        """Return directions of unit length, those that are turned first: count × d."""
        inner = self.inner(space, count, draw)
        theta = inner.theta.clone()
        own, _ = counts((self.share, 1 - self.share), count)
        for _ in range(self.rounds):
            theta[:own] = turned(theta[:own], self.x, self.y)
        return DenseProjection(theta, inner.weights)


def turned(theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Return each direction (H×d) turned towards the gradient of W₂² from x to y (d×n each) along it: H×d."""
    p, q = (torch.sort(theta @ samples, dim=1) for samples in (x, y))
    gap = p.values - q.values
    gradient = torch.zeros_like(theta)
    for samples, indices, sign in ((x, p.indices, 1), (y, q.indices, -1)):
        gradient += sign * torch.zeros_like(gap).scatter_(1, indices, gap) @ samples.T
    gradient = torch.where(theta == 0, torch.zeros_like(gradient), gradient)
    lengths = torch.linalg.vector_norm(gradient, dim=1, keepdim=True)
    # Where there is no difference to see, a direction stays as it is.
    return torch.where(lengths > torch.finfo(theta.dtype).eps * gap.shape[1], unit(gradient), theta)


def evenly(z: Tensor, count: int) -> Tensor:
    """Return `count` samples of z (d×n), evenly spread over all: d×count."""
    return z if z.shape[1] == count else z[:, torch.arange(count, device=z.device) * z.shape[1] // count]
