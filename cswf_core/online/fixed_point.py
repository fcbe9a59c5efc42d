"""Projections in fixed-point arithmetic: the same whole numbers in any batch, by any library, on any device.

θ_x is rounded to multiples of 2^(D−26) and x to multiples of 2^(E−24), with 2^E ≥ √d max|x|. In coordinates
w = W x, θ_x = WᵀU t is up to 2^D long; in the data's own, D is 0. So θ_x·x is a sum of multiples of
2^(E+D−50), none of whose parts is above 2^(E+D): float64, with its 53 bits, adds them up exactly in any order.
With θ_y·y it is the same. What is added then is added value by value. In the end a value is cut down to a
multiple of 2^(E+D−32), a whole number that can be counted.

Noise in the data's bins must not depend on the order of samples either. Each sample has its place on the
circle of `kernels.rows` by what it is: a random linear function of its pixels, modulo 2³².
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated

import attrs
import torch
from torch import Tensor

from cswf_core.documents import Rule
from cswf_core.errors import DataError, RunError
from cswf_core.flow.coordinates import StageCoordinates
from cswf_core.flow.directions import Directions, DirectionSampler
from cswf_core.interfaces import Conditions, Dataset, DenseProjection, Key, LinearMap, NonlinearProjection
from cswf_core.kernels.rows import circle_from

THETA = -26
X = -24
VALUE = -32
"""Directions are multiples of 2^(D+THETA), samples of 2^(E+X), and values of 2^(E+D+VALUE)."""

LARGEST_GROWTH = 4
"""Samples may lie this many times farther out than the first ones: two of three bits that float64 has left.
The third is for directions a little longer than 2^D, by rounding or as |W| is estimated from below."""

SAMPLES_AT_A_TIME = 8192
"""Samples that are counted at a time."""

POWER_VECTORS = 16
POWER_STEPS = 32
"""To find how much W stretches at most, power iteration applies WᵀW `POWER_STEPS` times to random vectors."""

Exponent = Annotated[int, Rule("a power of two that float64 has", lambda power: abs(power) <= 900)]


@attrs.frozen(eq=False)
class FixedSamples:
    """Some samples in fixed point."""

    x: Tensor
    """The middle of each pixel's bin: d×n, float64."""
    conditions: Conditions
    places: Tensor | None
    """Where each sample's noise begins on the circle of 2³²: n whole numbers; None where there is no noise."""


@attrs.frozen
class FixedPoint:
    """The fixed point of samples: how finely they are taken."""

    x: Exponent
    """E: 2^E ≥ √d max|x|."""
    y: Exponent
    """The same for vectors of conditions; 0 where there are none."""
    theta: Exponent = 0
    """D: 2^D ≥ |W|, so that no direction is longer than 2^D; 0 in the data's own coordinates."""

    @classmethod
    def of(cls, data: Dataset, W: LinearMap | None = None, like: Tensor | None = None) -> FixedPoint:
        """Return the fixed point for such data: for images, of all pixels from −1 to 1; W works on `like`."""
        reach = torch.ones(1) if data.space.is_image else data.x
        vectors = data.conditions.vectors
        d = data.space.dimension
        y = 0 if vectors is None else _exponent(vectors, len(vectors))
        return cls(_exponent(reach, d), y, 0 if W is None or like is None else _stretch(W, d, like))

    @property
    def unit(self) -> float:
        """What a value of 1 stands for."""
        return 2.0 ** (self.x + self.theta + VALUE)

    def check(self, data: Dataset) -> None:
        """Refuse data that lie too far out for exact counts."""
        vectors = data.conditions.vectors
        parts = [("x", data.x, self.x)] if data.stored is None else []  # grey levels lie in [−1, 1)
        parts += [] if vectors is None else [("y", vectors, self.y)]
        for name, part, exponent in parts:
            if part.numel():
                most = float(part.abs().amax())
                reach = 2.0**exponent / math.sqrt(len(part))
                if most > LARGEST_GROWTH * reach:
                    raise DataError(
                        f"new data have |{name}| up to {most:.4g}, and counts that began with data up to "
                        f"{reach:.4g} go up to {LARGEST_GROWTH * reach:.4g}"
                    )

    def pieces(self, data: Dataset, device: torch.device) -> Iterator[FixedSamples]:
        """Yield the data in fixed point, on a device, some samples at a time."""
        width = data.bin_width
        for first in range(0, len(data), SAMPLES_AT_A_TIME):
            columns = slice(first, first + SAMPLES_AT_A_TIME)
            x = data.columns(columns).to(device, torch.float64) + width / 2
            x.mul_(2.0 ** -(self.x + X)).round_()
            places = None
            if width:
                factors = Key(0, "places").open(device).integers(2**61, len(x))
                places = (x.long() * factors[:, None]).sum(dim=0) >> 32 & 0xFFFFFFFF
            conditions = data.conditions.take(columns).to(device, torch.float64)
            if conditions.vectors is not None:
                conditions = attrs.evolve(conditions, vectors=_rounded(conditions.vectors, self.y + X))
            yield FixedSamples(x.mul_(2.0 ** (self.x + X)), conditions, places)

    def directions(
        self, batch: Directions, sampler: DirectionSampler, width: float, W: LinearMap | None = None
    ) -> Directions:
        """Return a batch of directions in fixed point, at full resolution and in float64.

        Data have bins of `width`; W is in float64.
        """
        if isinstance(batch.projection, NonlinearProjection):
            raise RunError(
                f"{sampler.sampler.owner} has nonlinear slices, and online learning counts data along "
                "directions only: take another projection"
            )
        coordinates = sampler.coordinates
        exact = StageCoordinates(coordinates.full, upsampling=coordinates.upsampling, W=W)
        theta = exact.of_pixels(batch.projection.dense().double().T).T
        if batch.scale is not None:
            theta = theta * batch.scale.double()
        theta_y = None
        if batch.theta_y is not None:
            stretch = math.ceil(math.log2(max(1.0, abs(sampler.condition.amplifier))))
            theta_y = _rounded(batch.theta_y.double(), THETA + stretch)
        noise = sampler.noise_widths(batch, width)
        return attrs.evolve(
            batch,
            projection=DenseProjection(_rounded(theta, self.theta + THETA)),
            scale=None,
            theta_y=theta_y,
            noise=None if noise is None else noise.double(),
        )

    def values(self, directions: Directions, samples: FixedSamples) -> Tensor:
        """Return the values of samples along some directions, in multiples of `unit`: H×n, int64.

        One thing is added after the other: what a library does at once it may round once, or twice at an end.
        """
        values = directions.projection.project(samples.x)
        if directions.theta_y is not None and directions.condition is not None:
            values += directions.condition.project(
                directions.theta_y, samples.conditions, count=values.shape[1], check=directions.check
            )
        if directions.noise is not None and samples.places is not None:
            noise = circle_from(samples.places, directions.place.first, len(values), torch.float64)
            values += noise.mul_(directions.noise[:, None])
        return values.mul_(1 / self.unit).floor_().long()


def _exponent(x: Tensor, dimension: int) -> int:
    """Return the least E with 2^E ≥ √d max|x|."""
    most = float(x.abs().amax()) if x.numel() else 0.0
    return math.ceil(math.log2(math.sqrt(dimension) * most)) if most > 0 else 0


def _stretch(W: LinearMap, d: int, like: Tensor) -> int:
    """Return the least D with 2^D ≥ |W|, which power iteration finds, from below but closely."""
    v = Key(0, "stretch").open(like.device, like.dtype).normal(d, POWER_VECTORS)
    for _ in range(POWER_STEPS):
        v = W.adjoint(W.enter(v / torch.linalg.vector_norm(v, dim=0)))
    lengths: Tensor = torch.linalg.vector_norm(W.enter(v), dim=0) / torch.linalg.vector_norm(v, dim=0)
    return math.ceil(math.log2(float(lengths.max())))


def _rounded(x: Tensor, exponent: int) -> Tensor:
    """Return x, in float64, rounded to multiples of a power of two."""
    return (x * 2.0**-exponent).round_().mul_(2.0**exponent)
