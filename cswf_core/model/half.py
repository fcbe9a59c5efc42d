"""Saved steps on CUDA in half precision with float32 sums, for many groups of particles side by side.

The step is that of a run in half precision (`flow/half/step.py`), with maps from tables. Directions are
drawn and laid out once for all groups. Kernels go through fixed tiles of samples, so that a sample's bits
do not depend on its neighbours. What libraries multiply, whose bits may depend on the number of columns, is
multiplied group by group (`may_join`).

After its first step, a stage is recorded as a CUDA graph, which also prepares the next step on a second stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import attrs
import torch
from torch import Tensor

from cswf_core.flow.coordinates import Cloud
from cswf_core.flow.directions import DirectionSampler, Draws
from cswf_core.flow.half.graph import StepGraph, recorded
from cswf_core.flow.half.layout import HalfCloud, HalfSlab, halved, refuse_too_many, slabs_of, strips_for
from cswf_core.flow.half.step import HalfParticles, HalfTools, Movable, step
from cswf_core.flow.half.stepper import WORTHWHILE_STEPS
from cswf_core.flow.settings import Settings
from cswf_core.flow.tables import SavedMaps, StepTables
from cswf_core.interfaces import Conditions
from cswf_core.kernels.boxes import Strips
from cswf_core.kernels.gpu import maps, products
from cswf_core.kernels.sparse import padded
from cswf_core.kernels.tables import Lookup
from cswf_core.model.format import SavedStep
from cswf_core.model.requests import ParticleGroup

AddNoise = Callable[[ParticleGroup, SavedStep], None]
"""Adds the noise of a step to a group, where its stage has any."""


@attrs.frozen(eq=False)
class SavedSlab:
    """Directions whose products are taken at once, and the maps along them."""

    slab: HalfSlab
    lookups: list[Lookup]
    """One for each stratum, rows in the order of the slab."""


class HalfStage:
    """One stage of a saved model for some groups, which have entered it."""

    def __init__(
        self,
        groups: Sequence[ParticleGroup],
        sampler: DirectionSampler,
        stage: int,
        settings: Settings,
        draws: Draws,
        *,
        recordable: bool = True,
    ) -> None:
        """Prepare to take the steps of a stage.

        Args:
            groups: the particles.
            sampler: draws the stage's directions.
            stage: its number.
            settings: those of the run.
            draws: which directions each step uses.
            recordable: whether steps may be recorded.
        """
        assert settings.tables is not None
        self.sampler = sampler
        self.stage = stage
        self.settings = settings
        self.draws = draws
        alike = draws.fresh and sampler.stage.entropy == 0
        self.recordable = recordable and alike and sampler.like.is_cuda
        """Whether steps can be recorded."""
        self.failed = False
        """Whether that was tried in vain, which leaves memory behind."""
        self._tabulated = settings.tables.tabulated
        self._groups = groups
        self._places: Strips | None = None
        self._joined: list[JoinedGroups] = []
        self._particles: list[SavedParticles] = []
        """One for each of the joined groups."""
        self._key = -1
        self._slabs: list[HalfSlab] = []
        self._factor = torch.empty(1, device=sampler.like.device)
        """η/H, on the device, where a recorded step reads it."""
        sampler.coordinates.use_tf32(sampler.like)

    def take(self, steps: Iterable[SavedStep], add_noise: AddNoise) -> Iterator[None]:
        """Take the steps of the stage; yield after each."""
        graph: StepGraph[list[SavedSlab]] | None = None
        tables: StepTables | None = None
        for taken, (now, following) in enumerate(_with_following(steps)):
            if graph is None and taken == 1 and self._pays(now):
                tables = StepTables(now.tables.positions.clone(), now.tables.displacements.clone())
                graph = self._recorded(following, tables, self._prepared(now.number, now.tables))
            if graph is None or tables is None:
                slabs = self._prepared(self.draws.number(now.number), now.tables)
                self._factor.fill_(now.eta / _count(slabs))
                self._move(slabs)
                self._add_noise(now, add_noise)
            else:
                self._factor.fill_(now.eta / _count(graph.ready))
                tables.positions.copy_(following.tables.positions)
                tables.displacements.copy_(following.tables.displacements)
                graph.replay(following.number)
            yield
        for joined in self._joined:
            joined.part()

    def _add_noise(self, now: SavedStep, add_noise: AddNoise) -> None:
        """Add the noise of a step to all groups, which are not joined where there is any."""
        if self.sampler.stage.entropy > 0:
            for group in self._groups:
                add_noise(group, now)
            for particles in self._particles:
                particles.refresh()

    def _pays(self, now: SavedStep) -> bool:
        return self.recordable and self.sampler.stage.steps - now.number >= WORTHWHILE_STEPS

    def _recorded(
        self, following: SavedStep, tables: StepTables, ready: list[SavedSlab]
    ) -> StepGraph[list[SavedSlab]] | None:
        """Record a step along what is ready, which prepares another one, whose tables will be in `tables`."""

        def prepare(into: list[SavedSlab] | None) -> list[SavedSlab]:
            self._key = -1  # directions are not those that were kept
            return self._prepared(following.number, tables, into)

        def move(slabs: list[SavedSlab]) -> tuple[Tensor, ...]:
            self._move(slabs)
            return ()

        graph = recorded(following.number, prepare, ready, move)
        self._key = -1
        self.failed = graph is None
        return graph

    def _prepared(self, key: int, tables: StepTables, into: list[SavedSlab] | None = None) -> list[SavedSlab]:
        """Return the directions of the draw `key` that have tables, and the maps of a step along them.

        `into` are slabs of another step whose memory may be written over.
        """
        if key != self._key:
            self._slabs = self._drawn(key, None if into is None else [saved.slab for saved in into])
            self._key = key
        prepared = []
        first = 0
        for slab in self._slabs:
            rows = slice(first, first + slab.count)
            first = rows.stop
            lookups = Lookup.in_order(
                tables.positions[:, rows], tables.displacements[:, rows], slab.place.order, self._factor
            )
            prepared.append(SavedSlab(slab, lookups))
        return prepared

    def _drawn(self, key: int, into: list[HalfSlab] | None) -> list[HalfSlab]:
        slabs: list[HalfSlab] = []
        for theta in self.sampler.batches(self.settings.seed, self.stage, key, check=False):
            chosen = theta.rows(slice(0, self._tabulated(theta.count)))
            if not self._particles:
                self._begin(chosen.projection.dense())
            free = None if into is None else into[len(slabs) :]
            slabs += slabs_of(chosen, self._places, padded(chosen.count), free)
        return slabs

    def _begin(self, theta: Tensor) -> None:
        """Decide on an order of coordinates by a stage's first directions, and bring the particles there."""
        sampler = self.sampler
        self._places = strips_for(theta, sampler.coordinates.space, sampler.stage.directions)
        by_update = self.settings.clip is not None or sampler.coordinates.observation is not None
        if may_join(self._groups[0], sampler, by_update=by_update):
            self._joined = [JoinedGroups(self._groups)]
        else:
            self._joined = [JoinedGroups([group]) for group in self._groups]
        for joined in self._joined:
            z = joined.particles.cloud.z
            refuse_too_many(z.shape[1], self.settings)
            conditions = joined.particles.conditions
            half = halved(z, self._places, conditions, sampler.groups(conditions))
            self._particles.append(
                SavedParticles(joined.particles, sampler.coordinates, self._places, half, by_update=by_update)
            )

    def _move(self, slabs: Sequence[SavedSlab]) -> None:
        lookups = {id(saved.slab): saved.lookups for saved in slabs}
        directions = [saved.slab for saved in slabs]
        for joined, particles in zip(self._joined, self._particles, strict=True):
            saved_maps: SavedMaps[HalfCloud] = SavedMaps(lambda theta, _: lookups[id(theta)], joined.strata)
            step(particles, directions, saved_maps, self._factor, HalfTools())


class SavedParticles(HalfParticles):
    """Particles of a saved model, which do not depend on how many there are beside them."""

    def refresh(self) -> None:
        """Bring the particles into half precision, by a kernel that goes through fixed tiles of samples."""
        total = self._particles.sum
        quick = self._coordinates.quick
        if quick is None or total is None or self._by_update:
            super().refresh()
            return
        order = None if self._places is None else self._places.place
        maps.follow(quick.matrices, total, self._particles.cloud.z, order, self._half.z)
        products.fill_up(self._half.z, self._half.count)

    def gram(self, u: Tensor) -> Tensor:
        """Return G u: d_k×n → d_k×n."""
        return self._coordinates.gram(u)


class JoinedGroups:
    """Groups of particles side by side, inside a stage; or one alone, as it is."""

    def __init__(self, groups: Sequence[ParticleGroup]) -> None:
        """Join groups, whose particles are parted again by `part`."""
        self._inside = [group.particles for group in groups]
        self.particles: Movable = self._inside[0] if len(groups) == 1 else JoinedParticles(self._inside)
        self.strata = groups[0].strata
        """The particles of each stratum; None: there is one for all."""
        if self.strata is not None and len(groups) > 1:
            size = len(self._inside[0])
            each = [[own + size * number for own in group.strata or ()] for number, group in enumerate(groups)]
            self.strata = [torch.cat(of_stratum) for of_stratum in zip(*each, strict=True)]

    def part(self) -> None:
        """Let groups have what has moved, before they leave the stage."""
        if isinstance(self.particles, JoinedParticles):
            self.particles.part()


class JoinedParticles:
    """Particles of several groups as one."""

    def __init__(self, groups: Sequence[Movable]) -> None:
        self._groups = groups
        self.conditions = Conditions.joined([particles.conditions for particles in groups])
        self.cloud = Cloud(torch.cat([particles.cloud.z for particles in groups], dim=1), self.conditions)
        sums = [particles.sum for particles in groups if particles.sum is not None]
        self.sum = torch.cat(sums, dim=1) if sums else None

    def move(self, u: Tensor) -> Tensor:
        """Refuse to move by an update, as groups are not joined then (`may_join`)."""
        raise NotImplementedError

    def part(self) -> None:
        """Let each group have what has moved."""
        first = 0
        for particles in self._groups:
            z = particles.cloud.z
            columns = slice(first, first + z.shape[1])
            first = columns.stop
            if self.sum is not None and particles.sum is not None:
                particles.sum.copy_(self.sum[:, columns])
            else:
                z.copy_(self.cloud.z[:, columns])


def may_join(group: ParticleGroup, sampler: DirectionSampler, *, by_update: bool) -> bool:
    """Say whether a stage's groups can move side by side: no step multiplies them by a library.

    Libraries multiply by G if it is large, move what is partly observed, bring noise into a stage's
    coordinates, and multiply θ_y by vectors. The answer never depends on how many groups there are.
    """
    if by_update or sampler.stage.entropy > 0:
        return False
    if sampler.length and sampler.groups(group.particles.conditions) is None:
        return False
    return group.particles.sum is None or sampler.coordinates.quick is not None


def _count(slabs: Sequence[SavedSlab]) -> int:
    """Return H of the directions that have tables."""
    return sum(saved.slab.count for saved in slabs)


def _with_following(steps: Iterable[SavedStep]) -> Iterator[tuple[SavedStep, SavedStep]]:
    """Yield each step with the one after it; the last with itself."""
    now: SavedStep | None = None
    for following in steps:
        if now is not None:
            yield now, following
        now = following
    if now is not None:
        yield now, now
