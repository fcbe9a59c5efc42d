"""Metric `sliced-wasserstein`: the distance that the flow descends, measured along fresh directions.

What it is: SW₂ = √(mean over θ of W₂²(θ·p, θ·q)) with θ uniform on the sphere, in the units of x; or with θ
from another projection plugin, for a distance that looks at patches.
Cost: one step's projections, and twice its sorts: once more for how sure the distance is.
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
from cswf_plugins.metrics.inception import disjoint_parts
from cswf_plugins.references import bibtex

BATCH = 512
PARTS = 10
"""Parts that both sets are cut into, to see how much the distance varies."""


@attrs.frozen(kw_only=True)
class SlicedWasserstein(Metric):
    """SW₂ between generated and real samples."""

    references = bibtex("bonneel2015sliced")
    better = "lower"

    directions: int = parameter("H, the number of random directions", default=1000, at_least=1, at_most=2**40)
    along: ProjectionSampler | None = parameter("where θ comes from; uniform if left out", default=None)
    called: str = parameter("name of the score", default="sliced_wasserstein")

    def compute(self, comparison: Comparison) -> Result:
        """Return the distance; bins of 8-bit images are filled with uniform noise first."""
        generated = comparison.generated
        real = comparison.real
        draw = comparison.draw
        x, target = comparison.alike()
        sampler = None if self.along is None else _knowing(self.along, real.space, x, target, draw)
        together = 1 if sampler is None else sampler.together(real.space)
        squares = []
        in_parts = []
        parts = []
        if min(len(generated), len(real)) >= 5 * PARTS:
            parts = disjoint_parts(comparison, len(generated), len(real), PARTS)
        size = -(-BATCH // together) * together
        for first in range(0, self.directions, size):
            theta = _directions(sampler, real.space, min(size, self.directions - first), draw)
            p = theta.project(x)
            q = theta.project(target)
            weights = 1 if theta.weights is None else theta.weights
            squares.append((_squared_w2(p, q) * weights).double())
            in_parts.append([float((_squared_w2(p[:, i], q[:, j]) * weights).double().sum()) for i, j in parts])
        along = "uniform directions" if self.along is None else "directions of its own sampler"
        protocol = f"SW₂ in the units of x along {self.directions:,} {along}"
        name = self.called
        if generated.bin_width:
            # Another number than that of the particles themselves, which may lie outside of [−1, 1).
            protocol = f"{protocol}, of samples rounded to 8 bits"
            name = f"{name}_8bit"
        distance, spread = _root_mean(
            torch.cat(squares), torch.tensor(in_parts, dtype=torch.float64).sum(dim=0)
        )
        meaning = Meaning(
            "Root mean square distance between the distributions of generated and real samples, seen along "
            "random directions; 0 where they are the same.",
            aspect="quality",
        )
        spreads = {} if spread is None else {name: spread}
        return Result({name: distance}, protocol, spreads=spreads, meanings={name: meaning})


def _squared_w2(p: Tensor, q: Tensor) -> Tensor:
    """Return W₂² between the rows of p (H×M) and q (H×N), some rows at a time: H."""
    rows = max(1, (1 << 22) // (p.shape[1] + q.shape[1]))  # quantiles take several times the memory of values
    pairs = zip(torch.split(p, rows), torch.split(q, rows), strict=True)
    return torch.cat([squared_w2(*pair) for pair in pairs])


def _root_mean(squares: Tensor, in_parts: Tensor) -> tuple[float, Spread | None]:
    """Return the root of the mean of squared distances (H), and how sure it is.

    `in_parts` are the sums over directions within each part. The distances within parts vary more than that of
    the whole, by the root of their number, whether or not both sets are of one distribution. The error of the
    random directions comes on top: √ divides it by twice the root.
    """
    distance = math.sqrt(float(squares.mean()))
    if not len(in_parts) or len(squares) < 2 or distance == 0:
        return distance, None
    own = float(squares.std()) / math.sqrt(len(squares)) / (2 * distance)
    replicates = (in_parts / len(squares)).sqrt()
    method = (
        "standard deviation over 10 disjoint tenths of both sets, over √10, and the error of the directions"
    )
    return distance, Spread(method, own, replicates, 1 / math.sqrt(PARTS))


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
