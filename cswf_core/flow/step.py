"""One step of Algorithm 1, in float32 or float64: project, fit, transport, back-project, move.

`bench/naive.py` has the same step as one writes it first, which sorts where the default estimator counts in
bins; `half.py` has it in half precision, on CUDA. A run has its maps T_h = F_q⁻¹∘F_p from distributions of
particles and data (`fits`), rounded to tables where it saves a model; a saved model has them from these tables
(`transport`). The step does not know which. Where particles are streamed, it is given one block after another,
and F_p has been fitted to all of them before (`stepper`).

Words: directions are drawn in *batches*, one key each, and worked on in *slabs* of as many as fit into
memory; a *block* is samples that are streamed through memory together; a *rank* is a process that has some
of the samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import attrs
import torch
from torch import Tensor

from cswf_core.flow.coordinates import Cloud
from cswf_core.flow.directions import Directions, slabs_of
from cswf_core.flow.memory import Budget, Clock
from cswf_core.flow.particles import ParticleBlock
from cswf_core.flow.transport import Displace, Maps
from cswf_core.interfaces import Rows
from cswf_core.ranks import Ranks

Scale = Callable[[Tensor, int], Tensor]
"""(Σ_h w_h δ_h θ_h, H) → the update η/H Σ_h w_h δ_h θ_h."""

Record = Callable[[Directions, Tensor, Tensor], object]
"""Is called with a slab of directions, δ along them (H×n) and the sums of δ² (H)."""


def nothing(theta: Directions, delta: Tensor, squares: Tensor) -> None:
    """Record nothing of a slab of directions."""


@attrs.define(eq=False)
class Tools:
    """What a step is taken with, besides particles, directions and maps."""

    budget: Budget
    """How many directions are worked on at a time."""
    clock: Clock = attrs.field(factory=Clock)
    ranks: Ranks = attrs.field(factory=Ranks)
    record: Record = nothing
    """Sums up distances, or looks for numbers that are not finite."""
    moving: bool = False
    """Whether particles have begun to move, so that the step cannot be begun anew."""


def step(
    particles: ParticleBlock, directions: Iterable[Directions], maps: Maps[Cloud], scale: Scale, tools: Tools
) -> Tensor:
    """Move particles by X ← X + η/H Σ_h w_h δ_h θ_h, with weights w_h of 1 unless the projection has others.

    Args:
        particles: X and Y, or some of them.
        directions: θ_h, in batches.
        maps: T_h = F_q⁻¹∘F_p along any of them.
        scale: multiplies the sum by η/H.
        tools: memory, clock, ranks, and what is recorded of each slab.

    Returns:
        The length of each particle's move: n.
    """
    X = particles.cloud  # in the stage's coordinates, with conditions
    update = torch.zeros_like(X.z)
    H = 0

    def begun(theta: Directions) -> tuple[Directions, Rows, Displace]:
        p = theta.projected(X, tools.clock)  # project: p_h = θ_h·(X, ξY)
        return theta, p, maps(theta, p)  # fit F_p and F_q: begun here, as other ranks take time

    for theta, p, displace in tools.ranks.ahead(map(begun, slabs_of(directions, tools.budget))):
        squares = displace()  # fit what is left; transport: p_h becomes δ_h = F_q⁻¹(F_p(p_h)) − p_h
        delta = p.values
        tools.record(theta, delta, squares)
        update += theta.back_projected(delta, X, tools.clock)  # back-project: Σ_h w_h δ_h θ_h
        H += theta.count
    with tools.clock.part("move", partial(_bytes_moved, particles, update)):
        return particles.move(scale(update, H))  # move: X ← X + η/H Σ_h w_h δ_h θ_h


def _bytes_moved(particles: ParticleBlock, update: Tensor) -> tuple[float, float]:
    """Return the work of a move: the update is read, and x, or z and S, are read and written."""
    tensors = 1 if particles.sum is None else 2
    return float((1 + 2 * tensors) * update.nbytes), 0.0
