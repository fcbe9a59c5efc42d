"""Projection `high-pass`: another sampler's filters with some of their smooth part taken away.

What it is: natural images have little energy in fine detail and in differences of colour, so that a random
filter hardly sees those. Each filter loses a share b of what it is on average over 3×3 pixels, and a share g
of its mean over channels, b and g drawn anew for each direction, so that some filters stay as they were
and others look at detail only.
Cost: a small convolution per direction, and at the beginning of a stage some rounds of drawing directions to
find the largest eigenvalue of E[θθᵀ]. Such directions are uneven, and the engine lets no step be longer
than that eigenvalue allows.
When not to use it: for few steps, or grey images without texture such as MNIST; the shorter steps then cost
more than the detail brings.
"""

from __future__ import annotations

from typing import Any

import attrs
import torch
from torch import Tensor

from cswf_core.interfaces import (
    DenseProjection,
    Draw,
    ProjectionSampler,
    ProjectionWrapper,
    Space,
    parameter,
)
from cswf_core.kernels.patches import unit


def _range(_instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    if not 0 <= value[0] <= value[1] <= 1:
        raise ValueError(f"{attribute.name} must be a range [low, high] within [0, 1], got {list(value)}")


@attrs.frozen(kw_only=True)
class HighPass(ProjectionWrapper):
    """Filters that look at detail more than another sampler's do."""

    of: ProjectionSampler = parameter("the sampler whose filters are changed")
    local: tuple[float, float] = parameter(
        "range of b, the share of its local mean taken from a filter", default=(0.0, 0.5), validator=_range
    )
    channel: tuple[float, float] = parameter(
        "range of g, the share of its mean over channels taken from a filter",
        default=(0.0, 0.5),
        validator=_range,
    )

    tempered = True

    def sample(self, space: Space, count: int, draw: Draw) -> DenseProjection:
        """Return the inner sampler's filters, made rougher and scaled to unit length: count × C·H·W."""
        channels, height, width = space.grid("projection 'high-pass'")
        inner = self.inner(space, count, draw)
        filters = inner.theta.reshape(count, channels, height, width)
        b = self._share(self.local, count, draw)
        g = self._share(self.channel, count, draw)
        if min(height, width) > 1:
            filters = filters - b * torch.nn.functional.avg_pool2d(filters, 3, stride=1, padding=1)
        if channels > 1:
            filters = filters - g * filters.mean(dim=1, keepdim=True)
        # A filter of nothing but a mean would vanish at b = g = 1; a trace of the original keeps its length.
        return DenseProjection(unit(filters.reshape(count, -1) + 1e-6 * inner.theta), inner.weights)

    @staticmethod
    def _share(between: tuple[float, float], count: int, draw: Draw) -> Tensor:
        low, high = between
        return low + (high - low) * draw.uniform(count, 1, 1, 1)
