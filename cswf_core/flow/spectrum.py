"""What a stage's directions see: the share of the way to the data that they are blind to.

Particles move along directions only. If no direction has a part along some vector, as differences of two pixels
have none along mean brightness, then no step ever changes the particles along it, however many steps there are.
So when a stage begins, a few vectors from particles to data are put together again from what directions see of
them: the part that cannot be is the blind share.
"""

from __future__ import annotations

import logging

import attrs
import torch
from torch import Tensor

from cswf_core.flow.directions import DirectionSampler
from cswf_core.flow.memory import batches
from cswf_core.flow.stability import FEW
from cswf_core.interfaces import Key

log = logging.getLogger("cswf")

LARGEST = 4096
"""Dimensions up to which a stage is looked at: its directions have to span them."""

PER_DIMENSION, FEWEST = 2, 256
"""Directions drawn for each dimension, and the fewest."""

VECTORS = 8
"""Vectors from particles to data that are put together again."""

ROUNDS = 30
"""Rounds of conjugate gradients: vectors that directions see a thousandth as well as others are lost by
then."""

SEEN = 1e-4
"""A blind share that is none: it is not looked into further."""

BLIND = 0.01
"""A blind share from which on a person is told."""

UNEVEN = 8.0
"""How many times the largest eigenvalue of even directions is told, unless directions say that they are
uneven."""


def blind_share(sampler: DirectionSampler, key: Key, way: Tensor) -> float:
    """Return the share of vectors (d_k×n) that fresh directions do not see, or next to nothing of: 0 … 1."""
    d = sampler.coordinates.space.dimension
    drawn = [
        sampler.filters(attrs.evolve(key, index=index), size, check=False)
        for index, size in batches(max(PER_DIMENSION * d, FEWEST), sampler.together)
    ]

    def moments(v: Tensor) -> Tensor:
        """Return Σ w s² t (t·v): d_k×n → d_k×n."""
        total = torch.zeros_like(v)
        for filters, scale in drawn:
            seen = filters.project(v.contiguous())
            seen = seen if scale is None else seen * scale.square()
            total += filters.adjoint(seen if filters.weights is None else seen * filters.weights[:, None])
        return total

    rest, whole = way, float(way.square().sum())  # what has not been put together yet
    gradient = moments(rest)
    step, size = gradient, gradient.square().sum(dim=0)
    tiny = torch.finfo(way.dtype).tiny
    lost = size * torch.finfo(way.dtype).eps ** 1.5  # below it are rounding errors, along which steps diverge
    for _ in range(ROUNDS):
        image = moments(step)
        length = size / (step * image).sum(dim=0).clamp_min(tiny)
        length = torch.where(size > lost, length, 0)
        rest = rest - length * step
        if float(rest.square().sum()) <= SEEN * whole:
            break
        gradient = gradient - length * image
        new = gradient.square().sum(dim=0)
        step, size = gradient + new / size.clamp_min(tiny) * step, new
    return float(rest.square().sum()) / whole if whole else 0.0


def spread(x: Tensor, count: int) -> Tensor:
    """Return some samples, evenly spread over all: d×n → d×count, or fewer."""
    few = min(count, x.shape[1])
    return x[:, torch.arange(few, device=x.device) * x.shape[1] // max(1, few)]


def report_spectrum(
    sampler: DirectionSampler, key: Key, particles: Tensor, x: Tensor, eigenvalue: float
) -> None:
    """Warn if directions do not see a part of the way from particles to data, or see it unevenly.

    `particles` (d_k×n) are in the stage's coordinates, data x (d×n) in their own. `eigenvalue` is λ of E[θθᵀ],
    where it is known. Stages of few steps are not looked at, nor are directions that are known to be even.
    """
    d, stage, name = sampler.coordinates.space.dimension, sampler.stage, sampler.stage.name or "of the schedule"
    n = min(VECTORS, particles.shape[1], x.shape[1])
    even = sampler.sampler.isotropic and stage.upsampling is None
    if even or stage.steps < FEW or d > LARGEST or n == 0 or sampler.measured_later:
        return
    data, particles = sampler.coordinates.enter_data(spread(x, n)), spread(particles, n)
    pairs = data - particles
    mean = data.mean(dim=1, keepdim=True) - particles.mean(dim=1, keepdim=True)
    share = blind_share(sampler, key, torch.cat([pairs, mean], dim=1))
    uneven = eigenvalue * d
    log.info("stage %s: blind share %.2g, λ·d = %.3g", name, share, uneven)
    if share > BLIND:
        log.warning(
            "stage %s: %s does not see %.2g of the way from particles to data (in squared length), and this "
            "part stays as it is whatever the number of steps: its directions do not span the space, or "
            "hardly. Mix them with others that see all of it; cswf plugins check shows what they see",
            name,
            sampler.sampler.owner,
            share,
        )
    if uneven > UNEVEN and not (sampler.sampler.tempered or stage.tempered):
        log.warning(
            "stage %s: %s sees some vectors much better than others (λ of E[θθᵀ] is %.3g, %.3g times that of "
            "even directions): steps that suit the one are too short for the others. If that is on purpose, "
            "say so in its class, tempered = True: then no step is longer than 1/λ",
            name,
            sampler.sampler.owner,
            eigenvalue,
            uneven,
        )
