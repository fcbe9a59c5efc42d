"""One stage of a saved model: its directions are drawn again, and particles take its steps.

`exact_steps` works in float32 or float64; `half.HalfStage` in half precision, on CUDA.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

import attrs
from torch import Tensor

from cswf_core.errors import RunError
from cswf_core.flow.coordinates import Cloud
from cswf_core.flow.directions import Directions, DirectionSampler, Draws
from cswf_core.flow.fits import AnyCloud, Slab
from cswf_core.flow.memory import Budget, retried
from cswf_core.flow.particles import ParticleBlock
from cswf_core.flow.settings import Settings, TableRequest
from cswf_core.flow.step import Tools, step
from cswf_core.flow.transport import Lookup, Maps, StepTables, rows_of_batches, saved_maps
from cswf_core.model.format import SavedStep


@attrs.frozen(eq=False)
class SavedStage:
    """A stage of a saved model: its directions, and which maps and particles belong to them."""

    number: int
    sampler: DirectionSampler
    settings: Settings
    tables: TableRequest
    """Which directions have tables."""
    draws: Draws
    """Which directions each step uses."""
    budget: Budget
    strata: Sequence[int] | None
    """The label of each stratum; None: there is one for all particles."""

    @property
    def rows(self) -> list[slice]:
        """Which rows of a step's tables each batch of directions has."""
        return rows_of_batches(self.tables, self.sampler.stage.directions, self.sampler.together)

    @property
    def tabulated(self) -> int:
        """The number of directions that have tables at each step."""
        return sum(rows.stop - rows.start for rows in self.rows)

    def directions(self, draw: int) -> Iterator[Directions]:
        """Yield those directions of a draw that have tables, batch by batch."""
        for theta in self.sampler.batches(self.settings.seed, self.number, draw, check=False):
            yield theta.rows(slice(0, self.tables.tabulated(theta.count)))

    def lookups(
        self, batches: Sequence[Slab[AnyCloud]], saved: StepTables, *, quick: bool
    ) -> list[list[Lookup]]:
        """Return the maps of a saved step along whole batches of directions, stratum by stratum."""
        return [
            Lookup.in_order(
                saved.positions[:, rows],
                saved.displacements[:, rows],
                theta.place.order,
                self.sampler.like,
                quick=quick,
            )
            for theta, rows in zip(batches, self.rows, strict=True)
        ]

    def members(self, particles: ParticleBlock) -> list[Tensor] | None:
        """Return the particles of each stratum, by their numbers; None: one stratum has them all."""
        if self.strata is None:
            return None
        labels = particles.conditions.labels
        assert labels is not None, "a header without labels has no strata"
        return [(labels == label).nonzero()[:, 0] for label in self.strata]

    def checked(self, steps: Iterable[SavedStep]) -> Iterator[SavedStep]:
        """Yield steps; raise `RunError` for one whose tables are of more or fewer directions than it should."""
        for saved in steps:
            rows = saved.tables.positions.shape[1]
            if rows != self.tabulated:
                step_has = f"step {saved.number} of stage {saved.stage} has tables of {rows} directions"
                raise RunError(f"the model is damaged: {step_has} and should have {self.tabulated}")
            yield saved


def exact_steps(
    stage: SavedStage, particles: Sequence[ParticleBlock], steps: Iterable[SavedStep]
) -> Iterator[SavedStep]:
    """Move particles by the steps of a stage in float32 or float64; yield each step that has been taken."""
    draw = -1
    directions: list[Directions] = []
    members = [stage.members(own) for own in particles]
    for saved in steps:
        if stage.draws.number(saved.number) != draw:
            draw = stage.draws.number(saved.number)
            directions = [stage.sampler.as_sparse(theta) for theta in stage.directions(draw)]
        lookups = stage.lookups(directions, saved.tables, quick=False)
        for own, strata in zip(particles, members, strict=True):
            _move(own, directions, saved_maps(lookups, strata), saved.eta, stage.budget)
        yield saved


def _move(
    particles: ParticleBlock,
    directions: Sequence[Directions],
    maps: Maps[Cloud],
    eta: float,
    budget: Budget,
) -> None:
    """Move particles; if memory is too short, with fewer directions at a time."""
    tools = Tools(budget)

    def scale(update: Tensor, H: int) -> Tensor:
        tools.moving = True
        return update.mul_(eta / H)

    most = max(theta.count for theta in directions)
    work = partial(step, particles, directions, maps, scale, tools)
    retried(work, lambda: not tools.moving and budget.halve(most))
