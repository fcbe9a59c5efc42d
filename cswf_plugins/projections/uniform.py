"""Projection `uniform`: directions spread evenly over the whole sphere.

What it is: θ ~ Uniform(S^{d−1}), the projections of the original SWF and of Algorithm 1.
Cost: H·d normal numbers a step, and dense products of H·d·(M + N).
When not to use it: for images of more than a few hundred pixels. A random direction sees every pixel and no
structure, and its projections of natural images are nearly Gaussian, so the flow gets the
covariance right and little else.
"""

from __future__ import annotations

import attrs
from torch import Tensor

from cswf_core.interfaces import Draw, ProjectionSampler, Space


@attrs.frozen(kw_only=True)
class Uniform(ProjectionSampler):
    """Uniform on the unit sphere of the whole space."""

    isotropic = True

    def sample(self, space: Space, count: int, draw: Draw) -> Tensor:
        """Return normalised Gaussian vectors: count × d."""
        return draw.sphere(count, space.dimension)
