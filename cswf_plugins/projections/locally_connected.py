"""Projection `locally-connected`: each direction looks at one patch of S×S pixels.

What it is: the paper's section 5.1. θ_patch is uniform on the sphere of C·S·S dimensions and embedded at a
place uniform over the grid; what lies outside the image is cut off. A patch as large as the grid is the
whole grid; with `covering: placed` it is placed and cut off like any other, as in the authors' released code.
Cost: C·S² normal numbers per direction; products are still dense.
When not to use it: alone, for images with a global structure. Patches get texture right and nothing beyond
them, so a `pyramid` has to come first. Placed patches as large as the grid see its middle about twice as often
as its rim; where a pyramid's step size C·k² is too long for that, the engine shortens the steps and says so.
"""

from __future__ import annotations

from typing import Literal

import attrs
from torch import Tensor

from cswf_core.interfaces import Draw, Projection, ProjectionSampler, Space
from cswf_plugins.projections.patches import covers, embed, patch_covering, patch_distance, patch_side


@attrs.frozen(kw_only=True)
class LocallyConnected(ProjectionSampler):
    """Uniform filters on patches of the image."""

    patch: int = patch_side()
    dilation: int = patch_distance()
    covering: Literal["whole", "placed"] = patch_covering()

    def sample(self, space: Space, count: int, draw: Draw) -> Tensor | Projection:
        """Return filters of unit length on random patches: count × C·H·W."""
        channels, height, width = space.grid("projection 'locally-connected'")
        if self.covering == "whole" and covers(self.patch, height, width):
            return draw.sphere(count, space.dimension)
        filters = draw.normal(count, channels, self.patch, self.patch)
        return embed(filters, space, self.dilation, draw)
