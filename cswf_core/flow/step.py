"""One step of Algorithm 1: project, transport, back-project.

Particles X move by η/H Σ_h w_h δ_h θ_h, with δ_h = F_q⁻¹(F_p(p_h)) − p_h and p_h = θ_h·(X, ξY); weights w_h are
1 unless the projection has others. A flow takes F_q from its data; a saved model has it in its tables. Both
compute their displacements with the function below; the plan of a stage (`plan`) draws θ, calls it, and moves
the particles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import attrs
import torch
from torch import Tensor

from cswf_core.flow.clock import Clock
from cswf_core.flow.coordinates import Cloud
from cswf_core.flow.directions import Directions
from cswf_core.flow.memory import Budget
from cswf_core.flow.target import FitsOfRows, Target
from cswf_core.flow.transport import Begun, Transport
from cswf_core.interfaces import Rows

Item = TypeVar("Item")


@attrs.define(eq=False)
class Displacements:
    """Sums over the directions of a step."""

    update: Tensor
    """Σ_h w_h δ_h θ_h, its x part, in the stage's coordinates: d_k×M."""
    squares: Tensor
    """Σ_h of the mean of w_h δ_h² over the particles: a scalar, or numbers that are to be added up."""
    directions: int = 0
    """H."""

    @property
    def mean(self) -> Tensor:
        """1/H Σ_h w_h δ_h θ_h, which is −v̂ in the paper's letters: d_k×M."""
        return self.update / self.directions

    @property
    def squared_distance(self) -> Tensor:
        """SW₂² from particles to data, ξy included: a scalar, or numbers that are to be added up."""
        return self.squares / self.directions


@attrs.frozen(eq=False)
class Projected:
    """A slab of directions along which particles are projected, and what has been begun with other ranks."""

    theta: Directions
    p: Tensor
    """H×n."""
    F_q: FitsOfRows
    rows: Rows | None = None
    """p as rows with their ends, where other ranks have some of the particles."""
    F_p: Begun | None = None


def displacements(
    directions: Iterable[Directions],
    particles: Cloud,
    target: Target,
    transport: Transport,
    budget: Budget,
    clock: Clock,
    total_count: int | None = None,
    square_sums: Callable[[Tensor], Tensor] | None = None,
    inspect: Callable[[Directions, Tensor], None] | None = None,
) -> Displacements:
    """Return the displacements δ_h of the particles along all directions θ_h of a step, summed.

    `total_count` is M where other ranks have some of the particles: then counts of one slab are summed over all
    ranks while the next one is projected. None: all particles are here. `square_sums` takes δ (H×n) and
    returns sums of δ², in the place of those that the transport returns. `inspect` looks at some of the
    directions, and at the sums of δ² along these.
    """
    zero = torch.zeros((), dtype=torch.float64, device=particles.z.device)
    total = Displacements(torch.zeros_like(particles.z), zero)
    n, shared = particles.z.shape[1], total_count is not None
    M = n if total_count is None else total_count

    def begin(batch: Directions, cut: slice, of_batch: Target) -> Projected:
        theta = batch.rows(cut)
        with clock.part("project", lambda: theta.work(n)):
            p = theta.project(particles).contiguous()
            if p.untyped_storage().data_ptr() == particles.z.untyped_storage().data_ptr():
                p = p.clone()  # an operator may hand the particles back; p is overwritten below
        F_q = of_batch.along(theta)
        if not shared:
            return Projected(theta, p, F_q)
        rows = Rows.of(p)
        return Projected(theta, p, F_q, rows, transport.begin(rows))

    def finish(slab: Projected) -> tuple[Tensor, Tensor]:
        theta, p = slab.theta, slab.p
        squares = torch.empty(theta.count, dtype=torch.float64, device=p.device)

        def displace(rows: slice) -> None:
            data_fits = slab.F_q(rows)
            with clock.part("count"):  # their ends are found
                p_rows = Rows.of(p[rows]) if slab.rows is None else slab.rows
            squares[rows] = transport.displace(p_rows, data_fits, theta.place.rows(rows), slab.F_p)

        if shared:
            displace(slice(0, theta.count))
        else:
            budget.over_rows(theta.count, displace)
        if inspect is not None:
            inspect(theta, squares)
        delta = p  # which was overwritten
        sums = theta.weighted(squares).sum() if square_sums is None else square_sums(theta.weighted_root(delta))
        with clock.part("back-project", lambda: theta.work(n)):
            return theta.adjoint(delta, particles), sums / M

    def slabs(batch: Directions) -> Iterator[tuple[Tensor, Tensor]]:
        of_batch = target.over(batch)
        if not shared:
            return budget.over_slabs(batch.count, lambda cut: finish(begin(batch, cut, of_batch)))
        return map(finish, one_ahead(begin(batch, cut, of_batch) for cut in budget.slabs(batch.count)))

    for batch in directions:
        for update, squares in slabs(batch):
            total.update += update
            total.squares = total.squares + squares
        total.directions += batch.count
    return total


def one_ahead(items: Iterator[Item]) -> Iterator[Item]:
    """Yield items, each when the one behind it has been made."""
    last: Item | None = None
    for item in items:
        if last is not None:
            yield last
        last = item
    if last is not None:
        yield last
