"""Projection `pairs`: two coordinates at a time.

What it is: θ = (e_i − e_j)/√2 for a random pair of coordinates, or (e_i + e_j)/√2 for a share of them.
Cost: that of a dense product, although only two entries of each direction are not zero.
When not to use it: alone. It sees pairs of pixels and nothing of what three or more do together; and with a
share of 0 not even the mean of all, along which particles then never move.
"""

from __future__ import annotations

import math

import attrs
import torch
from torch import Tensor

from cswf_core import hookimpl
from cswf_core.errors import DataError
from cswf_core.hookspecs import Register
from cswf_core.interfaces import Draw, ProjectionSampler, Space, parameter


@attrs.frozen(kw_only=True)
class Pairs(ProjectionSampler):
    """The difference of two random coordinates."""

    share: float = parameter("share of directions that are sums instead", default=0.0, at_least=0, at_most=1)

    def sample(self, space: Space, count: int, draw: Draw) -> Tensor:
        """Return directions with two entries of ±1/√2 each: count × d."""
        if space.dimension < 2:
            raise DataError("projection 'pairs' needs two coordinates or more, and these data have one")
        order = draw.uniform(count, space.dimension).argsort(dim=1)
        sign = torch.where(draw.uniform(count, 1) < self.share, 1.0, -1.0).to(draw.dtype)
        theta = torch.zeros(count, space.dimension, dtype=draw.dtype, device=draw.device)
        theta.scatter_(1, order[:, :1], math.sqrt(0.5))
        return theta.scatter_(1, order[:, 1:2], sign * math.sqrt(0.5))


@hookimpl
def register_projections(register: Register) -> None:
    """Offer `pairs`."""
    register("pairs", Pairs)
