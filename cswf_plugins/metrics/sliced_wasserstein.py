"""Metric `sliced-wasserstein`: the distance that the flow descends, measured along fresh directions.

What it is: SW₂ = √(mean over θ of W₂²(θ·p, θ·q)) with θ uniform on the sphere, in the units of x; or with θ
from another projection plugin, for a distance that looks at patches.
Cost: one step's projections and sorts.
When not to use it: to compare across data sets, or as a stand-in for what people see. Along uniform directions
it hardly notices fine detail in images; `along: {use: locally-connected, patch: 3}` does.
"""

from __future__ import annotations

import math

import attrs
import torch
from torch import Tensor

from cswf_core.interfaces import (
    Comparison,
    DenseProjection,
    Draw,
    Meaning,
    Metric,
    Projection,
    ProjectionSampler,
    Result,
    Space,
    Spread,
    parameter,
)
from cswf_core.kernels.sorting import squared_w2
from cswf_plugins.references import BONNEEL_2015

BATCH = 512

VALUES = 1 << 22
"""Quantiles that are compared at a time: they take several times the memory of the values."""

MEANING = Meaning(
    "Root mean square distance between the distributions of generated and real samples, seen along random "
    "directions; 0 where they are the same.",
    aspect="quality",
)


OVER_DIRECTIONS = "over the random directions only"


@attrs.frozen(kw_only=True)
class SlicedWasserstein(Metric):
    """SW₂ between generated and real samples."""

    references = (BONNEEL_2015,)
    better = "lower"

    directions: int = parameter("H, the number of random directions", default=1000, at_least=1, at_most=2**40)
    along: ProjectionSampler | None = parameter("where θ comes from; uniform if left out", default=None)
    called: str = parameter("name of the score", default="sliced_wasserstein")

    def compute(self, comparison: Comparison) -> Result:
        """Return the distance; bins of 8-bit images are filled with uniform noise first."""
        generated, real, draw = comparison.generated, comparison.real, comparison.draw
        x, target = comparison.alike()
        sampler = None if self.along is None else _knowing(self.along, real.space, x, target, draw)
        together = 1 if sampler is None else sampler.together(real.space)
        squares = []
        size = -(-BATCH // together) * together
        for first in range(0, self.directions, size):
            theta = _directions(sampler, real.space, min(size, self.directions - first), draw)
            p, q = theta.project(x), theta.project(target)
            rows = max(1, VALUES // (p.shape[1] + q.shape[1]))
            parts = zip(torch.split(p, rows), torch.split(q, rows), strict=True)
            each = torch.cat([squared_w2(*part) for part in parts])
            squares.append((each if theta.weights is None else each * theta.weights).double())
        along = "uniform directions" if self.along is None else "directions of its own sampler"
        protocol = f"SW₂ in the units of x along {self.directions:,} {along}"
        name = self.called
        if generated.bin_width:
            # Another number than that of the particles themselves, which may lie outside of [−1, 1).
            protocol, name = f"{protocol}, of samples rounded to 8 bits", f"{name}_8bit"
        distance, spread = _root_mean(torch.cat(squares))
        if spread is not None and self.along is not None:  # directions that depend on the samples pair nothing
            spread = Spread(spread.method, own=spread.error)
        spreads = {} if spread is None else {name: spread}
        return Result({name: distance}, protocol, spreads=spreads, meanings={name: MEANING})


def _root_mean(squares: Tensor) -> tuple[float, Spread | None]:
    """Return the root of the mean of squared distances (H), and how sure it is: √ divides by twice the root.

    Two evaluations with one seed have the same directions, and are compared direction by direction.
    """
    distance = math.sqrt(float(squares.mean()))
    if len(squares) < 2 or distance == 0:
        return distance, None
    replicates = (squares / (2 * distance)).cpu()
    return distance, Spread(OVER_DIRECTIONS, replicates=replicates, scale=1 / math.sqrt(len(squares)))


def _knowing(
    along: ProjectionSampler, space: Space, x: Tensor, target: Tensor, draw: Draw
) -> ProjectionSampler:
    """Return a sampler that has seen all that it wants to see of generated and real samples (d×n each)."""
    fitted = along.fitted(space, target)
    return fitted.adapted(space, x, target, draw) if fitted.adapts else fitted


def _directions(sampler: ProjectionSampler | None, space: Space, count: int, draw: Draw) -> Projection:
    """Return `count` directions, or nonlinear slices."""
    sampled = draw.sphere(count, space.dimension) if sampler is None else sampler.sample(space, count, draw)
    return sampled if isinstance(sampled, Projection) else DenseProjection(sampled)
