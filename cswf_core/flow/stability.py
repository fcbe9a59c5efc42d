"""Step sizes that are safe, and flows that run away all the same.

A step moves an error e of a distribution's mean by −η E[θθᵀ] e. Along the leading eigenvector of E[θθᵀ], with
eigenvalue λ, the error is multiplied by 1 − ηλ: it is gone in one step at η = 1/λ, and grows beyond 2/λ.
Isotropic directions in d dimensions have λ = 1/d, hence the paper's η = d; for others λ is estimated here.

H directions are an average and not the mean. For isotropic ones |e|² is multiplied in the mean by
1 − 2c + c²(1 + (d−1)/H), c = ηλ, so that η has to stay below 2 / (λ (1 + (d−1)/H)).
"""

from __future__ import annotations

import attrs
import torch
from torch import Tensor

from cswf_core.errors import RunError
from cswf_core.flow.directions import DirectionSampler
from cswf_core.flow.memory import batches
from cswf_core.flow.settings import Settings
from cswf_core.interfaces import Key

ROUNDS = 9
"""Rounds of the power iteration; the last third is averaged."""

PER_DIMENSION = 4
"""Directions drawn in a round, for each dimension of the stage."""

FEWEST, MOST = 1024, 8192
"""Bounds on the directions drawn in a round."""

MARGIN = 0.75
"""How close to the limit 2 / (λ (1 + (d−1)/H)) a step may come."""

RUNAWAY = 30
"""A step is taken for a runaway if it is this many times as long as data and first particles are."""


def largest_eigenvalue(sampler: DirectionSampler, key: Key) -> float:
    """Estimate the largest eigenvalue λ of E[θθᵀ], θ = U t / ‖U t‖, by power iteration on fresh directions.

    Where several eigenvalues are nearly as large, the estimate falls short by about a tenth.

    In the stage's coordinates v ← E[s² t (t·Gv)], with s = 1/‖U t‖, and λ = E[(s t·Gv)²] / v·Gv.
    """
    d, like = sampler.coordinates.space.dimension, sampler.like
    v = key.open(like.device, like.dtype).normal(d, 1)
    estimates: list[float] = []
    for number in range(ROUNDS):
        v, estimate = _round(sampler, attrs.evolve(key, step=number), v)
        estimates.append(float(estimate))
    last = estimates[-(ROUNDS // 3) :]
    return max(sum(last) / len(last), 1 / d)


def _round(sampler: DirectionSampler, key: Key, v: Tensor) -> tuple[Tensor, Tensor]:
    upsampling = sampler.coordinates.upsampling
    d = v.shape[0]
    Gv = v if upsampling is None else upsampling.gram(v)
    total, squares = torch.zeros_like(v), torch.zeros((), dtype=v.dtype, device=v.device)
    count = min(max(PER_DIMENSION * d, FEWEST), MOST)
    for index, size in batches(count, sampler.together):
        filters, scale = sampler.filters(attrs.evolve(key, index=index), size, check=False)
        meets = filters.project(Gv)
        meets = meets if scale is None else meets * scale
        total += filters.adjoint(meets if scale is None else meets * scale)
        squares += meets.square().sum()
    estimate = squares / count / (v * Gv).sum()
    return total / torch.linalg.vector_norm(total), estimate


def tempering(sampler: DirectionSampler, key: Key) -> float:
    """Return the factor on a stage's step sizes that keeps them short enough for uneven directions."""
    stage = sampler.stage
    if not (sampler.sampler.tempered or stage.tempered) or stage.steps == 0 or stage.step_size <= 0:
        return 1.0
    eigenvalue = largest_eigenvalue(sampler, key)
    limit = longest_step(eigenvalue, sampler.coordinates.space.dimension, stage.directions)
    return min(1.0, limit / stage.step_size)


def longest_step(eigenvalue: float, dimension: int, directions: int) -> float:
    """Return the step size that the leading direction allows: 1/λ, or less if H is small against d."""
    return min(1.0, 2 * MARGIN / (1 + (dimension - 1) / directions)) / eigenvalue


def refuse_runaway(
    moved: float, size: float, eta: float, done: int, sampler: DirectionSampler, settings: Settings
) -> None:
    """Raise `RunError` if a step moved particles out of all proportion to the data's mean length, `size`.

    `done` is how many steps the flow has taken.
    """
    if moved <= RUNAWAY * (size + 1):
        return
    d, H = sampler.coordinates.space.dimension, sampler.stage.directions
    raise RunError(
        f"the flow ran away: step {done} moved particles by {moved:.3g} on average. With {H:,} directions in "
        f"{d:,} dimensions a step size of {eta:g} is too large; take more {settings.called('directions')} or a "
        f"smaller {settings.called('step size')}, well below {2 * d / (1 + (d - 1) / H):.3g}"
    )


def overflow(done: int, settings: Settings) -> RunError:
    """Return the error for numbers that are no longer finite after `done` steps."""
    half = settings.tables is not None and settings.tables.dtype == torch.float16
    tables = f"; or for the model, whose {settings.called('tables')} are float16: take float32" if half else ""
    return RunError(
        f"numbers are too large for {settings.dtype} at step {done}: data, {settings.called('scale')} of the "
        f"first particles, amplifier, entropy or {settings.called('step size')}{tables}"
    )
