"""Projection `energy`: uniform directions that count the more, the farther apart particles and data are along
them.

What it is: energy-based slicing (Nguyen and Ho, 2023). A direction has the weight exp(β W₂²/mean of W₂²),
scaled so that weights are 1 on average; W₂ is estimated from some particles and data at each step. Cost: beside
that of `uniform`, a step along all directions with as many particles and data as are looked at. When not to use
it: to save a model or to learn online, which need directions that do not depend on the particles.
"""

from __future__ import annotations

import attrs
import torch
from torch import Tensor

from cswf_core import hookimpl
from cswf_core.hookspecs import Register
from cswf_core.interfaces import DenseProjection, Draw, Projection, ProjectionSampler, Space, parameter


@attrs.frozen(kw_only=True)
class Energy(ProjectionSampler):
    """Uniform directions, weighted by the distance along them."""

    beta: float = parameter("β: how much distance counts; 0 is `uniform`", default=1.0, at_least=0)

    adapts = True
    looks_at = 512

    def sample(self, space: Space, count: int, draw: Draw) -> Tensor:
        """Return directions that all count alike, as nothing is known of distances yet: count × d."""
        return draw.sphere(count, space.dimension)

    def adapted(self, space: Space, particles: Tensor, data: Tensor, draw: Draw) -> ProjectionSampler:
        """Return a sampler that weighs directions by the distance between these (d×n and d×m)."""
        return _Weighted(self.beta, particles, data)


@attrs.frozen(eq=False)
class _Weighted(ProjectionSampler):
    """Uniform directions with weights."""

    beta: float
    particles: Tensor
    data: Tensor

    def sample(self, space: Space, count: int, draw: Draw) -> Projection:
        """Return directions and their weights."""
        theta = draw.sphere(count, space.dimension)
        levels = (torch.arange(64, device=theta.device, dtype=theta.dtype) + 0.5) / 64
        p, q = (torch.quantile(theta @ z, levels, dim=1) for z in (self.particles, self.data))
        squares = (p - q).square().mean(dim=0)
        energy = self.beta * squares / squares.mean().clamp_min(torch.finfo(theta.dtype).tiny)
        return DenseProjection(theta, torch.softmax(energy, dim=0) * count)


@hookimpl
def register_projections(register: Register) -> None:
    """Offer `energy`."""
    register("energy", Energy)
