"""Saved steps on CUDA in half precision with float32 sums, for many groups of particles side by side.

The step is that of a run in half precision (`flow/half.py`), with maps from tables. Kernels go through
fixed tiles of samples, so that a sample's bits do not depend on its neighbours; what libraries multiply, whose
bits may depend on the number of columns, is multiplied group by group. After its first step, a stage is
recorded as a CUDA graph where its steps are alike, which also prepares the next step on a second stream.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import tee
from typing import TypeAlias

import torch
from torch import Tensor

from cswf_core.flow.graph import StepGraph, overwrite, recorded
from cswf_core.flow.half import (
    WORTHWHILE_STEPS,
    HalfParticles,
    HalfSlab,
    half_slabs_of,
    halved,
    refuse_too_many,
    step,
    strips_for,
)
from cswf_core.flow.particles import ParticleBlock
from cswf_core.flow.step import Tools
from cswf_core.flow.tables import Lookup, StepTables, saved_maps
from cswf_core.kernels.sparse import Strips, padded
from cswf_core.model.format import SavedStep
from cswf_core.model.stage import SavedStage

SavedSlabs: TypeAlias = tuple[list[HalfSlab], list[Lookup]]
"""Directions, a slab for each batch; and the maps along each slab."""


class HalfStage:
    """Takes groups of particles through the steps of a stage, which they have entered."""

    def __init__(self, stage: SavedStage, groups: Sequence[ParticleBlock]) -> None:
        self._stage = stage
        self._sampler = stage.sampler
        self._groups = groups
        self._particles: list[tuple[HalfParticles, Tensor | None]] = []
        """What is moved, with the number of each particle's table; empty until directions have been drawn."""
        self._places: Strips | None = None
        self._draw = -1
        self._slabs: list[HalfSlab] = []
        """The directions of that draw."""
        self._factor = torch.empty(1, device=self._sampler.like.device)
        """η/H, on the device, where a recorded step reads it."""
        self._sampler.coordinates.use_tf32(self._sampler.like)

    def take(self, steps: Iterable[SavedStep]) -> Iterator[SavedStep]:
        """Move the groups by steps, without their noise; yield each step that has been taken."""
        graph: StepGraph[SavedSlabs] | None = None
        tables: StepTables | None = None
        for taken, (now, following) in enumerate(_with_following(steps)):
            if taken == 1 and self._recordable(now):
                tables = now.tables.each(Tensor.clone)
                graph = self._recorded(following, tables, self._prepared(now.number, now.tables))
            self._factor.fill_(now.eta / self._sampler.stage.directions)
            if graph is None or tables is None:
                self._move(self._prepared(self._stage.draws.number(now.number), now.tables))
            else:
                overwrite(tables, following.tables)
                graph.replay(following.number)
            yield now
            if self._sampler.stage.entropy > 0:  # noise was added
                for particles, _ in self._particles:
                    particles.current = False

    def _recordable(self, now: SavedStep) -> bool:
        """Say whether it pays to record the steps from here on, and can be done: they must all be alike."""
        stage = self._sampler.stage
        alike = self._stage.draws.fresh and stage.entropy == 0
        possible = self._stage.budget.recordable and self._factor.is_cuda
        return alike and possible and stage.steps - now.number >= WORTHWHILE_STEPS

    def _recorded(
        self, following: SavedStep, tables: StepTables, ready: SavedSlabs
    ) -> StepGraph[SavedSlabs] | None:
        """Record a step along what is ready, which prepares another one, whose tables will be in `tables`."""

        def prepare(into: SavedSlabs | None) -> SavedSlabs:
            self._draw = -1  # directions are not those that were kept
            return self._prepared(following.number, tables, into)

        def move(slabs: SavedSlabs) -> tuple[Tensor, ...]:
            self._move(slabs)
            return ()

        graph = recorded(following.number, prepare, ready, move)
        self._draw = -1
        self._stage.budget.recordable = graph is not None
        return graph

    def _prepared(self, draw: int, tables: StepTables, into: SavedSlabs | None = None) -> SavedSlabs:
        """Return the directions of a draw and the maps along them; the memory of `into` may be written over."""
        if draw != self._draw:
            self._slabs = self._drawn(draw, None if into is None else into[0])
            self._draw = draw
        return self._slabs, self._stage.lookups(self._slabs, tables)

    def _drawn(self, draw: int, into: list[HalfSlab] | None) -> list[HalfSlab]:
        """Return the slabs of a draw."""
        slabs: list[HalfSlab] = []
        for theta in self._stage.directions(draw):
            if not self._particles:
                self._begin(theta.projection.dense())
            free = None if into is None else into[len(slabs) :]
            slabs += half_slabs_of(theta, self._places, padded(theta.count), free)
        return slabs

    def _begin(self, theta: Tensor) -> None:
        """Decide on an order of coordinates by a stage's first directions, and bring the particles there."""
        sampler = self._sampler
        settings = self._stage.settings
        self._places = strips_for(theta, sampler.coordinates.space, sampler.stage.directions)
        moved = self._groups
        if len(moved) > 1 and not moved[0].constrained and self._may_join():
            moved = [ParticleBlock.joined(moved)]
        for particles in moved:
            z = particles.cloud.z
            refuse_too_many(z.shape[1], settings)
            copy = halved(z, self._places, particles.conditions, sampler.groups(particles.conditions))
            saved = HalfParticles(particles, self._places, copy)
            self._particles.append((saved, self._stage.cells(particles)))

    def _may_join(self) -> bool:
        """Say whether groups can move side by side: no step multiplies them by a library.

        Libraries multiply by G if it is large, bring noise into a stage's coordinates, multiply θ_y by vectors,
        and move what is partly observed.
        """
        sampler = self._sampler
        particles = self._groups[0]
        if sampler.stage.entropy > 0 or (sampler.length and sampler.groups(particles.conditions) is None):
            return False
        return particles.sum is None or sampler.coordinates.quick is not None

    def _move(self, prepared: SavedSlabs) -> None:
        slabs, lookups = prepared
        for particles, cells in self._particles:
            step(particles, slabs, saved_maps(lookups, cells), self._factor, Tools(self._stage.budget))


def _with_following(steps: Iterable[SavedStep]) -> Iterator[tuple[SavedStep, SavedStep]]:
    """Yield each step with the one after it; the last with itself."""
    own, ahead = tee(steps)
    next(ahead, None)
    for now in own:
        yield now, next(ahead, now)
