"""One stage of a saved model: its directions are drawn again, and groups of particles take its steps.

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
from cswf_core.flow.memory import Budget, attempted, batches
from cswf_core.flow.particles import ParticleBlock
from cswf_core.flow.settings import Settings
from cswf_core.flow.step import Tools, step
from cswf_core.flow.tables import SavedMaps, lookups_of
from cswf_core.interfaces import Observation
from cswf_core.model.format import SavedStep


@attrs.frozen(eq=False)
class ParticleGroup:
    """Particles that are moved together."""

    particles: ParticleBlock
    first: int
    """Number of the first of them among all."""
    observation: Observation | None
    seen: Tensor | None
    """What they see of images: d×n."""
    strata: list[Tensor] | None
    """The particles of each stratum, by their numbers here; None: one stratum has them all."""


@attrs.frozen(eq=False)
class SavedStage:
    """A stage that groups of particles have entered."""

    number: int
    sampler: DirectionSampler
    settings: Settings
    draws: Draws
    """Which directions each step uses."""
    budget: Budget

    def directions(self, draw: int) -> Iterator[Directions]:
        """Yield those directions of a draw that have tables, batch by batch."""
        assert self.settings.tables is not None
        for theta in self.sampler.batches(self.settings.seed, self.number, draw, check=False):
            yield theta.rows(slice(0, self.settings.tables.tabulated(theta.count)))

    @property
    def tabulated(self) -> int:
        """The number of directions that have tables at each step."""
        assert self.settings.tables is not None
        drawn = batches(self.sampler.stage.directions, self.sampler.together)
        return sum(self.settings.tables.tabulated(count) for _, count in drawn)

    def checked(self, steps: Iterable[SavedStep]) -> Iterator[SavedStep]:
        """Yield steps; raise `RunError` for one whose tables are of more or fewer directions than it should."""
        for saved in steps:
            rows = saved.tables.positions.shape[1]
            if rows != self.tabulated:
                step_has = f"step {saved.number} of stage {saved.stage} has tables of {rows} directions"
                raise RunError(f"the model is damaged: {step_has} and should have {self.tabulated}")
            yield saved


def exact_steps(
    stage: SavedStage, groups: Sequence[ParticleGroup], steps: Iterable[SavedStep]
) -> Iterator[SavedStep]:
    """Move groups by the steps of a stage in float32 or float64; yield each step that has been taken."""
    draw = -1
    directions: list[Directions] = []
    for saved in steps:
        if stage.draws.number(saved.number) != draw:
            draw = stage.draws.number(saved.number)
            directions = [stage.sampler.in_blocks(theta) for theta in stage.directions(draw)]
        lookups = lookups_of(directions, saved.tables, stage.sampler.like)
        for group in groups:
            maps: SavedMaps[Cloud] = SavedMaps(lookups, group.strata, stage.budget)
            _move(group.particles, directions, maps, saved.eta, stage.budget)
        yield saved


def _move(
    particles: ParticleBlock,
    directions: Sequence[Directions],
    maps: SavedMaps[Cloud],
    eta: float,
    budget: Budget,
) -> None:
    """Move particles; if memory is too short, with fewer directions at a time."""
    moving = False

    def scale(update: Tensor, H: int) -> Tensor:
        nonlocal moving
        moving = True
        return update.mul_(eta / H)

    work = partial(step, particles, directions, maps, scale, Tools(budget))
    most = max(theta.count for theta in directions)
    while attempted(work, lambda: not moving and budget.halve(most)) is None:
        pass
