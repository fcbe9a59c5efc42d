"""Projection `circular`: distances from random points, in the place of projections on lines.

What it is: a nonlinear slice of the generalised sliced Wasserstein distance (Kolouri et al., 2019),
g(x) = |x − r θ| with θ on the unit sphere. A level set of g is a sphere and not a plane; for large r it is
nearly a plane. The gradient has length 1 everywhere, as a direction has, and the engine finds it by
differentiating `project`. Cost: several times that of `uniform`, and no half precision on a GPU. When not to
use it: in a pyramid, or where a part of an image is observed; with saved models of many particles.
"""

from __future__ import annotations

import attrs
from torch import Tensor

from cswf_core import hookimpl
from cswf_core.hookspecs import Register
from cswf_core.interfaces import Draw, NonlinearProjection, ProjectionSampler, Space, parameter


class Distances(NonlinearProjection):
    """g_h(x) = |x − c_h| for centres c (H×d)."""

    def __init__(self, centres: Tensor) -> None:
        self.centres = centres

    @property
    def shape(self) -> tuple[int, int]:
        """(H, d)."""
        return self.centres.shape[0], self.centres.shape[1]

    def project(self, x: Tensor) -> Tensor:
        """Return the distance of every sample from every centre: d×n → H×n."""
        squares = self.centres.square().sum(dim=1)[:, None] + x.square().sum(dim=0) - 2 * self.centres @ x
        return squares.clamp_min(1e-12).sqrt()


@attrs.frozen(kw_only=True)
class Circular(ProjectionSampler):
    """Distances from random points on a sphere."""

    radius: float = parameter("r, in units of √d: how far the points are from the middle", default=1.0, above=0)

    def sample(self, space: Space, count: int, draw: Draw) -> NonlinearProjection:
        """Return `count` slices."""
        return Distances(draw.sphere(count, space.dimension) * self.radius * space.dimension**0.5)


@hookimpl
def register_projections(register: Register) -> None:
    """Offer `circular`."""
    register("circular", Circular)
