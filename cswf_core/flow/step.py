"""One step of Algorithm 1: project, transport, back-project.

Particles X move by η/H Σ_h δ_h θ_h, with δ_h = F_q⁻¹(F_p(p_h)) − p_h and p_h = θ_h·(X, ξY). A flow takes F_q
from its data; a saved model has it in its tables. Both compute their displacements with the function below; the
plan of a stage (`plan`) draws θ, calls it, and moves the particles.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import attrs
import torch
from torch import Tensor

from cswf_core.flow.clock import Clock
from cswf_core.flow.directions import Directions
from cswf_core.flow.memory import Budget
from cswf_core.flow.stage_coordinates import Cloud
from cswf_core.flow.target import Target
from cswf_core.flow.transport import Transport
from cswf_core.interfaces import Rows


@attrs.define(eq=False)
class Displacements:
    """Sums over the directions of a step."""

    update: Tensor
    """Σ_h δ_h θ_h, its x part, in the stage's coordinates: d_k×M."""
    squares: Tensor
    """Σ_h of the mean of δ_h² over the particles: a scalar."""
    directions: int = 0
    """H."""

    @property
    def mean(self) -> Tensor:
        """1/H Σ_h δ_h θ_h, which is −v̂ in the paper's letters: d_k×M."""
        return self.update / self.directions

    @property
    def squared_distance(self) -> Tensor:
        """SW₂² from particles to data, ξy included: a scalar."""
        return self.squares / self.directions


def displacements(
    directions: Iterable[Directions],
    particles: Cloud,
    target: Target,
    transport: Transport,
    budget: Budget,
    clock: Clock,
) -> Displacements:
    """Return the displacements δ_h of the particles along all directions θ_h of a step, summed."""
    zero = torch.zeros((), dtype=torch.float64, device=particles.z.device)
    total = Displacements(torch.zeros_like(particles.z), zero)
    M = particles.z.shape[1]

    def slab(batch: Directions, cut: slice) -> tuple[Tensor, Tensor]:
        theta = batch.rows(cut)
        with clock.part("project", lambda: theta.work(M)):
            p = theta.project(particles).contiguous()
            if p.untyped_storage().data_ptr() == particles.z.untyped_storage().data_ptr():
                p = p.clone()  # an operator may hand the particles back; p is overwritten below
        F_q = target.along(theta)
        squares = torch.empty(theta.count, dtype=torch.float64, device=p.device)

        def displace(rows: slice) -> None:
            data_fits = F_q(rows)
            with clock.part("count"):  # their ends are found
                p_rows = Rows.of(p[rows])
            squares[rows] = transport.displace(p_rows, data_fits, theta.place.rows(rows))

        budget.over_rows(theta.count, displace)
        delta = p  # which was overwritten
        with clock.part("back-project", lambda: theta.work(M)):
            return theta.adjoint(delta), (squares / M).sum()

    for batch in directions:
        for update, squares in budget.over_slabs(batch.count, partial(slab, batch)):
            total.update += update
            total.squares += squares
        total.directions += batch.count
    return total
