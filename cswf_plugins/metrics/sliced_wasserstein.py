"""Metric `sliced-wasserstein`: the distance that the flow descends, measured along fresh directions.

What it is: SW₂ = √(mean over θ of W₂²(θ·p, θ·q)) with θ uniform on the sphere, in the units of x.
Cost: one step's projections and sorts.
When not to use it: to compare across data sets, or as a stand-in for what people see; it hardly notices
fine detail in images.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import attrs
import torch
from torch import Tensor

from cswf_core.interfaces import Dataset, Draw, Metric, parameter
from cswf_core.kernels.sorting import at_positions

TILE = 128


@attrs.frozen(kw_only=True)
class SlicedWasserstein(Metric):
    """SW₂ between generated and real samples."""

    directions: int = parameter("H, the number of random directions", default=1000, at_least=1, at_most=2**40)

    def compute(self, generated: Dataset, real: Dataset, draw: Draw) -> Mapping[str, float]:
        """Return `sliced_wasserstein`; bins of real data are filled with uniform noise first."""
        noise = draw.uniform(*real.x.shape) * real.bin_width
        x = generated.x.to(draw.device, draw.dtype)
        target = real.x.to(draw.device, draw.dtype) + noise
        squares = 0.0
        for first in range(0, self.directions, TILE):
            theta = draw.sphere(min(TILE, self.directions - first), real.space.dimension)
            squares += float(_squared_w2(theta @ x, theta @ target).sum())
        return {"sliced_wasserstein": math.sqrt(squares / self.directions)}


def _squared_w2(p: Tensor, q: Tensor) -> Tensor:
    """Return W₂² between the rows of p (H×M) and q (H×N), from quantiles at max(M, N) levels: H."""
    count = max(p.shape[1], q.shape[1])
    levels = (torch.arange(count, dtype=p.dtype, device=p.device) + 0.5) / count

    def quantiles(values: Tensor) -> Tensor:
        n = values.shape[1]
        position = (levels * n - 0.5).expand(values.shape[0], count)
        return at_positions(values.sort(dim=1).values, position)

    return (quantiles(p) - quantiles(q)).square().mean(dim=1)
