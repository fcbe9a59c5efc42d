"""One stage of a saved model: its directions are drawn again, and particles take its steps.

`exact_steps` works in float32 or float64; `half.HalfStage` in half precision, on CUDA.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

import attrs
from torch import Tensor

from cswf_core.flow.coordinates import Cloud
from cswf_core.flow.directions import Directions, DirectionSampler, Draws
from cswf_core.flow.fits import AnyCloud, Slab
from cswf_core.flow.memory import Budget, retried
from cswf_core.flow.particles import ParticleBlock
from cswf_core.flow.settings import Settings
from cswf_core.flow.step import Tools, step
from cswf_core.flow.tables import Lookup, StepTables, saved_maps, tables_of
from cswf_core.flow.transport import Maps
from cswf_core.model.format import SavedStep


@attrs.frozen(eq=False)
class SavedStage:
    """A stage of a saved model: its directions, and which maps and particles belong to them."""

    number: int
    sampler: DirectionSampler
    settings: Settings
    knots: int
    """K, of each table."""
    draws: Draws
    """Which directions each step uses."""
    budget: Budget
    labels: Sequence[int] | None
    """The label of each table of a direction; None: all particles share one table."""

    def directions(self, draw: int) -> Iterator[Directions]:
        """Yield the directions of a draw, batch by batch."""
        return self.sampler.batches(self.settings.seed, self.number, draw, check=False)

    def lookups(self, batches: Sequence[Slab[AnyCloud]], saved: StepTables) -> list[Lookup]:
        """Return the maps of a saved step along whole batches of directions."""
        whole = Lookup.of(saved, self.knots, self.sampler.like)
        return [whole.rows(theta.place.in_draw(theta.count)) for theta in batches]

    def cells(self, particles: ParticleBlock) -> Tensor | None:
        """Return the number of each particle's table; None: they share one."""
        if self.labels is None:
            return None
        labels = particles.conditions.labels
        assert labels is not None, "a header without labels has one table for all"
        return tables_of(labels, self.labels)


def exact_steps(
    stage: SavedStage, particles: Sequence[ParticleBlock], steps: Iterable[SavedStep]
) -> Iterator[SavedStep]:
    """Move particles by the steps of a stage in float32 or float64; yield each step that has been taken."""
    draw = -1
    directions: list[Directions] = []
    cells = [stage.cells(own) for own in particles]
    for saved in steps:
        if stage.draws.number(saved.number) != draw:
            draw = stage.draws.number(saved.number)
            directions = [stage.sampler.as_sparse(theta) for theta in stage.directions(draw)]
        lookups = stage.lookups(directions, saved.tables)
        for own, index in zip(particles, cells, strict=True):
            _move(own, directions, saved_maps(lookups, index), saved.eta, stage.budget)
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
        return update.div_(H).mul_(eta)

    most = max(theta.count for theta in directions)
    work = partial(step, particles, directions, maps, scale, tools)
    retried(work, lambda: not tools.moving and budget.halve(most))
