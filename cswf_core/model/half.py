"""Saved steps on CUDA in half precision with float32 sums, for many groups of particles side by side.

Directions are drawn and laid out as a run in half precision has them, once for all groups, and the maps are
brought into tables by one kernel. Kernels go through fixed tiles of samples, so that a sample's bits do not
depend on its neighbours. What libraries multiply, whose bits may depend on the number of columns, is multiplied
group by group: before and after a stage and, where it cannot be avoided, at each step (`_Particles.together`).

After its first step, a stage is recorded as a CUDA graph, which also prepares the next step on a second stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import attrs
import torch
from torch import Tensor

from cswf_core.flow.cuda.graph import StepGraph, recorded
from cswf_core.flow.cuda.layout import (
    HalfCloud,
    Slab,
    halved,
    project,
    refuse_too_many,
    slabs_of,
    strips_for,
)
from cswf_core.flow.cuda.plan import WORTHWHILE
from cswf_core.flow.directions import DirectionSampler, draw_number
from cswf_core.flow.settings import Settings
from cswf_core.flow.transport import StepTables
from cswf_core.interfaces import Conditions, Rows
from cswf_core.kernels.blocks import padded
from cswf_core.kernels.boxes import Strips
from cswf_core.kernels.gpu import maps, products
from cswf_core.kernels.tables import Lookup
from cswf_core.model.format import SavedStep
from cswf_core.model.requests import ParticleGroup

Shake = Callable[[ParticleGroup, SavedStep], None]
"""Adds the noise of a step to a group, where its stage has any."""


@attrs.frozen(eq=False)
class SavedSlab:
    """Directions whose products are taken at once, and the maps along them."""

    slab: Slab
    maps: list[Lookup]
    """One for each stratum, rows in the order of the slab."""


class HalfStage:
    """One stage of a saved model for some groups, which have entered it."""

    def __init__(
        self,
        groups: Sequence[ParticleGroup],
        sampler: DirectionSampler,
        stage: int,
        settings: Settings,
        sets: int | None,
        *,
        recordable: bool = True,
    ) -> None:
        """`stage` is its number; `sets` of directions were used in turn, if any."""
        assert settings.tables is not None
        self.sampler = sampler
        self.stage = stage
        self.settings = settings
        self.sets = sets
        alike = settings.reuse == 1 and sets is None and sampler.stage.entropy == 0
        self.recordable = recordable and alike and sampler.like.is_cuda
        """Whether steps can be recorded."""
        self.failed = False
        """Whether that was tried in vain, which leaves memory behind."""
        self._tabulated = settings.tables.tabulated
        self._groups = groups
        self._places: Strips | None = None
        self._parts: list[_Particles] = []
        self._key = -1
        self._slabs: list[Slab] = []
        self._factor = torch.empty(1, device=sampler.like.device)
        """η/H, on the device, where a recorded step reads it."""
        sampler.coordinates.use_tf32(sampler.like)

    def take(self, steps: Iterable[SavedStep], shake: Shake) -> Iterator[None]:
        """Take the steps of the stage; yield after each."""
        graph: StepGraph[list[SavedSlab]] | None = None
        tables: StepTables | None = None
        for taken, (now, following) in enumerate(_with_following(steps)):
            if graph is None and taken == 1 and self._pays(now):
                tables = StepTables(now.tables.positions.clone(), now.tables.displacements.clone())
                graph = self._recorded(following, tables, self._prepared(now.number, now.tables))
            if graph is None or tables is None:
                slabs = self._prepared(draw_number(now.number, self.settings.reuse, self.sets), now.tables)
                self._factor.fill_(now.eta / self._count(slabs))
                self._move(slabs)
                if self.sampler.stage.entropy > 0:
                    for group in self._groups:
                        shake(group, now)
                    for part in self._parts:
                        part.refresh()
            else:
                self._factor.fill_(now.eta / self._count(graph.ready))
                tables.positions.copy_(following.tables.positions)
                tables.displacements.copy_(following.tables.displacements)
                graph.replay(following.number)
            yield
        for part in self._parts:
            part.finish()

    def _pays(self, now: SavedStep) -> bool:
        return self.recordable and self.sampler.stage.steps - now.number >= WORTHWHILE

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
        self._key, self.failed = -1, graph is None
        return graph

    def _prepared(self, key: int, tables: StepTables, into: list[SavedSlab] | None = None) -> list[SavedSlab]:
        """Return the directions of the draw `key` that have tables, and the maps of a step along them.

        `into` are slabs of another step whose memory may be written over.
        """
        if key != self._key:
            self._slabs = self._drawn(key, None if into is None else [saved.slab for saved in into])
            self._key = key
        prepared, first = [], 0
        for slab in self._slabs:
            rows = slice(first, first + slab.directions.shape[0])
            first = rows.stop
            lookups = Lookup.in_order(
                tables.positions[:, rows], tables.displacements[:, rows], slab.place.order, self._factor
            )
            prepared.append(SavedSlab(slab, lookups))
        return prepared

    def _drawn(self, key: int, into: list[Slab] | None) -> list[Slab]:
        slabs: list[Slab] = []
        for theta in self.sampler.batches(self.settings.seed, self.stage, key, check=False):
            chosen = theta.rows(slice(0, self._tabulated(theta.count)))
            if not self._parts:
                self._begin(chosen.projection.dense())
            free = None if into is None else into[len(slabs) :]
            slabs += slabs_of(chosen, self._places, padded(chosen.count), free)
        return slabs

    def _begin(self, theta: Tensor) -> None:
        """Decide on an order of coordinates by a stage's first directions, and bring the particles there."""
        self._places = strips_for(theta, self.sampler.coordinates.space, self.sampler.stage.directions)
        together = _Particles.together(self._groups[0], self.sampler, self.settings)
        parts = [self._groups] if together else [[group] for group in self._groups]
        self._parts = [_Particles(part, self.sampler, self.settings, self._places) for part in parts]

    def _move(self, slabs: Sequence[SavedSlab]) -> None:
        for part in self._parts:
            part.move(slabs, self._factor)

    @staticmethod
    def _count(slabs: Sequence[SavedSlab]) -> int:
        return sum(saved.slab.directions.shape[0] for saved in slabs)


class _Particles:
    """Particles of one or several groups in half precision, inside a stage.

    What moves is z, or the sum S of updates with z = z₀ + G S, or x by an update, as in a run.
    """

    def __init__(
        self,
        groups: Sequence[ParticleGroup],
        sampler: DirectionSampler,
        settings: Settings,
        where: Strips | None,
    ) -> None:
        self.groups = groups
        self.coordinates = sampler.coordinates
        self.where = where
        self._by_update = _moves_by_update(sampler, settings)
        inside = [group.particles for group in groups]
        self._inside = inside
        conditions = Conditions.joined([particles.conditions for particles in inside])
        z = [particles.cloud.z for particles in inside]
        sums = [particles.sum for particles in inside if particles.sum is not None]
        alone = len(groups) == 1
        self._z = z[0] if alone else torch.cat(z, dim=1)
        self._sum = None if not sums else sums[0] if alone else torch.cat(sums, dim=1)
        refuse_too_many(self._z.shape[1], settings)
        self._half: HalfCloud = halved(self._z, where, conditions, sampler.groups(conditions))
        self._rank = None if where is None else where.place
        each = [group.strata for group in groups if group.strata is not None]
        self._strata = torch.cat(each) if each else None
        """The stratum of each particle; None: there is one for all."""
        self._of_stratum: list[Tensor] = []
        """The particles of each stratum, found at the first step: that waits for the device."""

    @staticmethod
    def together(group: ParticleGroup, sampler: DirectionSampler, settings: Settings) -> bool:
        """Say whether a stage's groups can move side by side: no step multiplies them by a library.

        Libraries multiply by G if it is large, move what is partly observed, bring noise into a stage's
        coordinates, and multiply θ_y by vectors. Never depends on how many groups there are.
        """
        if _moves_by_update(sampler, settings) or sampler.stage.entropy > 0:
            return False
        if sampler.length and sampler.groups(group.particles.conditions) is None:
            return False
        return group.particles.sum is None or sampler.coordinates.quick is not None

    def move(self, slabs: Sequence[SavedSlab], factor: Tensor) -> None:
        """X ← X + η/H Σ_h δ_h θ_h; `factor` is η/H."""
        direct = self._sum is None and not self._by_update
        moving = self._sum if self._sum is not None and not self._by_update else self._z
        if self._by_update:
            moving = torch.zeros_like(self._inside[0].cloud.z)
        sums: Tensor | None = None
        for number, saved in enumerate(slabs):
            rows, values = project(saved.slab, self._half, None)
            self._displace(rows, saved.maps)  # p becomes δ
            if rows.values.dtype != values.dtype:
                values[: rows.values.shape[0], : self._half.count] = rows.values
            if number + 1 < len(slabs):
                if sums is None:
                    sums = torch.empty(self._half.z.shape, device=values.device)
                products.back_project(saved.slab.directions, values, sums, add=number > 0)
                continue
            half = self._half.z if direct else None
            products.move(saved.slab.directions, values, sums, moving, factor, self.where, half)
        if self._by_update:
            self._inside[0].move(moving)
        if not direct:
            self.refresh()

    def refresh(self) -> None:
        """Bring z into half precision again, from z₀ + G S, or from where it is now."""
        half, quick = self._half.z, self.coordinates.quick
        if self._by_update:
            products.halve(self._inside[0].cloud.z.contiguous(), self.where, half)
        elif self._sum is None:
            products.halve(self._z, self.where, half)
        elif quick is not None:
            maps.follow(quick.matrices, self._sum, self._z, self._rank, half)
            products.fill_up(half, self._half.count)
        else:
            products.halve(self._z, self.where, half, self.coordinates.gram(self._sum).contiguous())

    def finish(self) -> None:
        """Let groups have what has moved, before they leave the stage."""
        if len(self.groups) == 1:
            return
        first = 0
        for particles in self._inside:
            columns = slice(first, first + len(particles))
            first = columns.stop
            if self._sum is not None and particles.sum is not None:
                particles.sum.copy_(self._sum[:, columns])
            else:
                particles.cloud.z.copy_(self._z[:, columns])

    def _displace(self, rows: Rows, lookups: Sequence[Lookup]) -> None:
        if self._strata is None:
            lookups[0].displace(rows)
            return
        if not self._of_stratum:
            self._of_stratum = [(self._strata == i).nonzero()[:, 0] for i in range(len(lookups))]
        for own, lookup in zip(self._of_stratum, lookups, strict=True):
            part = Rows(rows.values[:, own], lookup.low, lookup.high)
            lookup.displace(part)
            rows.values[:, own] = part.values


def _moves_by_update(sampler: DirectionSampler, settings: Settings) -> bool:
    """Say whether particles move by an update: a part of them is observed, or they are clipped."""
    return settings.clip is not None or sampler.coordinates.observation is not None


def _with_following(steps: Iterable[SavedStep]) -> Iterator[tuple[SavedStep, SavedStep]]:
    """Yield each step with the one after it; the last with itself."""
    now: SavedStep | None = None
    for following in steps:
        if now is not None:
            yield now, following
        now = following
    if now is not None:
        yield now, now
