"""What takes the steps of a stage in half precision, on CUDA: directions are laid out, and steps are recorded.

Directions become blocks in half precision, sorted by where they look. Data come into half precision once per
stage: the noise in their bins has its mean added there, and its width when they are counted. Steps that are all
alike are recorded once as a CUDA graph (`graph`), which also prepares the directions of the next step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TypeVar

import attrs
import torch
from torch import Tensor

from cswf_core.flow.clock import Clock
from cswf_core.flow.data import Block
from cswf_core.flow.fits import Fits, FittedBatches, ManyBlocks, Members, OneBlock, Source
from cswf_core.flow.half.graph import StepGraph, overwrite, recorded
from cswf_core.flow.half.layout import (
    HalfCloud,
    HalfSlab,
    PreparedData,
    halved,
    packing,
    refuse_idle_ranks,
    refuse_too_many,
    rows_of,
    slabs_of,
    strips_for,
)
from cswf_core.flow.half.step import HalfTools, MeasuredParticles, step
from cswf_core.flow.memory import MEMORY_OVER_VALUES, attempted
from cswf_core.flow.particles import Particles
from cswf_core.flow.stage import StageSetup
from cswf_core.flow.stepper import Move, Stepper
from cswf_core.flow.streaming import BlockParticles
from cswf_core.flow.transport import FittedMaps
from cswf_core.interfaces import Conditions
from cswf_core.kernels.boxes import WIDEST_TILE, Strips
from cswf_core.kernels.sparse import TILE, padded

Result = TypeVar("Result")

WORTHWHILE_STEPS = 6
"""Steps that a stage must have left for a recording to pay."""

RESIDENT_SHARE = 3
"""Streamed particles in half precision may take one part in this many of the memory."""


class HalfStepper(Stepper):
    """Takes steps with float16 products and float32 sums, on a CUDA device."""

    half = True

    def __init__(self, setup: StageSetup) -> None:
        super().__init__(setup)
        setup.sampler.coordinates.use_tf32(setup.like)
        self._places: Strips | None = None
        """The order of coordinates that directions are sorted by; None: they are not sorted."""
        self._side: int | None = None
        """The side of what directions look at, by which they are sorted; 0: they are not; None: not known."""
        self._placed = False
        """Whether data and particles have been brought into that order."""
        self._particles: MeasuredParticles | None = None
        self._data: HalfCloud | None = None
        """The data of the draw `_data_key`, where they are one block."""
        self._data_key = -1
        self._groups_of: dict[Conditions, tuple[Tensor, Conditions] | None] = {}
        """The groups of all samples, by the conditions of these."""
        self._sets: dict[int, list[HalfSlab]] = {}
        """The directions of each set, where sets come again."""
        self._slabs: list[HalfSlab] = []
        """The directions of the draw `_key`."""
        self._key = -1
        self._graphs: dict[int, StepGraph[list[HalfSlab]]] = {}
        """The recorded step of each half of the particles that F_p is fitted to; without turns, of all."""
        self._tried: set[int] = set()
        """The halves of which a step was recorded, or could not be."""
        self._factor = torch.empty(1, device=setup.like.device)
        """η/H, on the device, where a recorded step reads it."""
        self._most = self._most_directions()
        """Directions of a slab."""

    def _most_directions(self) -> int:
        """Return how many directions a slab has; raise `RunError` for samples that the kernels cannot have."""
        setup = self.setup
        M = setup.particles.share.total
        counted = setup.data_count if setup.counts is None else M
        refuse_idle_ranks(setup.ranks, (M, counted), setup.like.device)
        refuse_too_many(max(self._at_once, setup.data.x.shape[1]), setup.settings)
        N = setup.data.most_at_once(setup.cdf.data)
        row = 2 * (padded(setup.particles.at_once, WIDEST_TILE) + padded(N, WIDEST_TILE))
        most = setup.budget.memory // MEMORY_OVER_VALUES // row if setup.cdf.displaces else setup.budget.rows
        return min(max(TILE, most // TILE * TILE), padded(setup.sampler.stage.directions))

    @property
    def _at_once(self) -> int:
        """The number of particles that are projected at once."""
        return len(self.setup.particles)

    @property
    def recorded(self) -> bool:
        """Whether steps are repeated from a recording."""
        return bool(self._graphs)

    def move(self, number: int, eta: float, clock: Clock) -> Move:
        """Take a step without its noise: X ← X − η v̂."""
        self._factor.fill_(eta / self.setup.sampler.stage.directions)
        if not clock.times and self._recordable(number):
            self._record(number)
        graph = self._graphs.get(self.setup.turn_of(number))
        if graph is not None and not clock.times and self._handed(graph, number):
            result = graph.replay(number + 1)
            self._slabs = graph.ready
            self._key = number + 1
            return self._outcome(result, number, clock)
        moved = self._attempted(partial(self._drawn_and_moved, number), clock)
        while moved is None:
            moved = self._attempted(partial(self._drawn_and_moved, number), clock)
        if self.setup.sampler.stage.entropy > 0:
            self._mine.outdate()
        return self._outcome(moved, number, clock)

    def _outcome(self, result: tuple[Tensor, ...], number: int, clock: Clock) -> Move:
        tables = self.wanted(number, result[2:])
        if self.setup.ranks.alone:
            return Move(result[0], result[1], tables)
        return self.outcome(result[0].double() * len(self.setup.particles), result[1], clock, tables)

    def numerics(self) -> dict[str, int]:
        """Return also what directions are sorted for, and how many are worked on at once."""
        side = {} if self._side is None else {"side": self._side}
        return {**super().numerics(), **side, "most": self._most}

    def adopt(self, numerics: Mapping[str, int]) -> None:
        """Sort directions, and cut them into slabs, as before."""
        super().adopt(numerics)
        self._side = numerics.get("side")
        self._most = max(1, numerics.get("most", self._most))

    def _recordable(self, number: int) -> bool:
        """Say whether it pays to record the steps from here on, and can be done: they must all be alike."""
        setup = self.setup
        half = setup.turn_of(number)
        if half in self._tried or not (setup.budget.recordable and setup.ranks.alone) or setup.streams_data:
            return False
        stage = setup.sampler.stage
        by_counts = setup.cdf.displaces and setup.cdf.compact
        alike = setup.draws.fresh and stage.entropy == 0 and by_counts and setup.fits_the_same
        known = number > 0 and len(self._slabs) == 1 and self._factor.is_cuda
        repeats = sum(setup.turn_of(later) == half for later in range(number, stage.steps))
        return alike and known and repeats >= WORTHWHILE_STEPS

    def _record(self, number: int) -> None:
        """Record a step along the directions of this one, which prepares the next."""
        half = self.setup.turn_of(number)
        clock = Clock()
        self._tried.add(half)

        def prepare(into: list[HalfSlab] | None) -> list[HalfSlab]:
            return self._prepared(number + 1, clock, check=False, into=into)

        def move(slabs: list[HalfSlab]) -> tuple[Tensor, ...]:
            return self._moved(self._mine, slabs, number, HalfTools(clock))

        if self._attempted(partial(self._draw, number, check=False), clock):
            other = next(iter(self._graphs.values()), None)  # never at work at the same time
            graph = recorded(number + 1, prepare, self._slabs, move, None if other is None else other.pool)
            self.setup.budget.recordable = graph is not None
            if graph is not None:
                self._graphs[half] = graph

    def _handed(self, graph: StepGraph[list[HalfSlab]], number: int) -> bool:
        """Have the directions of a step where a recording reads them; False if memory was too short."""
        if not self._attempted(partial(self._draw, number, check=False), Clock()):
            return False
        if graph.ready is not self._slabs:  # they were prepared for the other half, or drawn
            overwrite(graph.ready, self._slabs)
        return True

    def _attempted(self, work: Callable[[HalfTools], Result], clock: Clock) -> Result | None:
        """Return what `work` returns; None if memory was too short, and slabs have been halved."""
        tools = HalfTools(clock, self.setup.ranks)
        return attempted(partial(work, tools), lambda: self._may_halve(tools))

    def _may_halve(self, tools: HalfTools) -> bool:
        """Halve the slabs, where particles have not moved yet; False: that is not possible."""
        if tools.moving or self._most == TILE or not self.setup.repeatable:
            return False
        self._key = -1
        self._slabs = []
        self._sets = {}
        if self._graphs:  # they work on slabs as they were
            torch.cuda.synchronize(self._factor.device)
            self._graphs = {}
            self._tried = set()
        self._most = max(TILE, self._most // 2 // TILE * TILE)
        self.setup.budget.warn(f"{self._most} directions at a time; results may differ in the last digits")
        return True

    def _draw(self, key: int, tools: HalfTools, *, check: bool) -> bool:
        """Have the directions of a draw at hand."""
        if key != self._key:
            self._slabs = []  # those of the last step may take much memory
            self._slabs = self._prepared(key, tools.clock, check=check)
            self._key = key
        return True

    def _drawn_and_moved(self, number: int, tools: HalfTools) -> tuple[Tensor, ...]:
        """Move along the directions of a step; return the mean length of the move, SW₂² and tables."""
        self._draw(self.setup.draws.number(number), tools, check=number == 0)
        return self._moved(self._mine, self._slabs, number, tools)

    def _moved(
        self,
        particles: MeasuredParticles,
        slabs: list[HalfSlab],
        number: int,
        tools: HalfTools,
        block: Particles | None = None,
        F_p: Source[HalfCloud] | None = None,
    ) -> tuple[Tensor, ...]:
        """Move particles; return the mean length of the move, SW₂² and tables, if a model is saved."""
        setup = self.setup
        transport = self.transport(setup.taking_part(number, block), tools.clock, check=number == 0)
        data = PreparedData(self._source(setup.draws.number(number), tools.clock))
        maps = FittedMaps(transport, data, F_p)
        squares = step(particles, slabs, maps, self._factor, tools)
        distance = squares / (setup.particles.share.total * setup.sampler.stage.directions)
        return particles.length, distance, *transport.tables()

    def _prepared(
        self, key: int, clock: Clock, *, check: bool, into: list[HalfSlab] | None = None
    ) -> list[HalfSlab]:
        """Draw the directions of the draw `key` and, where fits are small, fit F_q along them.

        `into` are slabs of another step whose memory may be written over.
        """
        if key in self._sets:
            return self._sets[key]
        setup = self.setup
        slabs: list[HalfSlab] = []
        for theta in self.draw(key, clock, check=check):
            with clock.part("draw", partial(packing, theta)):
                if not self._placed:
                    self._place(theta.projection.dense())
                noise = setup.sampler.noise_widths(theta, setup.bin_width)
                free = None if into is None else into[len(slabs) :]
                slabs += slabs_of(attrs.evolve(theta, noise=noise), self._places, self._most, free)
        if self._fits_ahead:
            self._fit(slabs, self._source(key, clock))
        if setup.keeps_draws:
            self._sets[key] = slabs
        return slabs

    @property
    def _fits_ahead(self) -> bool:
        """Whether F_q is fitted when directions are drawn, as it is small, or data are read in blocks."""
        setup = self.setup
        return setup.cdf.compact or setup.counts is not None or setup.data_blocks_count > 1

    def _fit(self, slabs: list[HalfSlab], source: Source[HalfCloud]) -> None:
        """Fit F_q along the directions of a draw."""
        if isinstance(source, ManyBlocks):
            cuts = rows_of(slabs)
            fits = source.fit(list(zip(cuts, slabs, strict=True)))
            for slab, cut in zip(slabs, cuts, strict=True):
                slab.F_q = fits(cut)
            return
        for slab in slabs:
            slab.begun = source.along(slab)
        if self.setup.ranks.alone:  # otherwise all are begun before one is awaited
            for slab in slabs:
                slab.await_data()

    def _place(self, theta: Tensor) -> None:
        """Decide on an order of coordinates, from a stage's first directions, and bring the particles there."""
        setup = self.setup
        space = setup.sampler.coordinates.space
        H = setup.sampler.stage.directions
        if self._side is None:
            self._places = strips_for(theta, space, H)
            self._side = 0 if self._places is None else self._places.side
        elif self._side:
            self._places = Strips.of(space.shape, H, self._side, theta.device)
        self._placed = True
        self._bring_particles()

    def _bring_particles(self) -> None:
        """Bring the particles into half precision."""
        self._particles = self._halved(self.setup.particles)

    @property
    def _mine(self) -> MeasuredParticles:
        """The particles, once directions have been drawn."""
        assert self._particles is not None
        return self._particles

    def _halved(self, block: Particles, resident: HalfCloud | None = None) -> MeasuredParticles:
        """Return particles with their copy in half precision, if it is not `resident` already."""
        setup = self.setup
        coordinates = setup.sampler.coordinates
        copy = resident
        if copy is None:
            groups = self._groups(setup.particle_conditions, block.share.cut)
            copy = halved(block.cloud.z, self._places, block.conditions, groups)
        return MeasuredParticles(
            block,
            coordinates,
            self._places,
            copy,
            by_update=setup.settings.clip is not None or coordinates.observation is not None,
            current=resident is not None or block.sum is None,  # a flow may come back in the middle of a stage
        )

    def _groups(self, everybody: Conditions, numbers: slice | Tensor) -> tuple[Tensor, Conditions] | None:
        """Return the group of each of some samples, and each group's condition; None: there are no groups.

        Groups are those of `everybody`, the conditions of all samples: their numbers are the same everywhere.
        """
        if everybody not in self._groups_of:
            there = everybody.to(self.setup.like.device, self.setup.like.dtype)
            self._groups_of[everybody] = self.setup.sampler.groups(there)
        groups = self._groups_of[everybody]
        return None if groups is None else (groups[0][numbers].contiguous(), groups[1])

    def _source(self, key: int, clock: Clock) -> Source[HalfCloud]:
        """Return what F_q is fitted to along the directions of a draw."""
        setup = self.setup
        if setup.counts is not None:
            return setup.counts.of_set(key)
        members = setup.data_members
        blocks = partial(self.blocks_of_data, key, self._entered, members, clock)
        if setup.data_blocks_count == 1:
            return OneBlock(partial(self._data_of, key, blocks), members, self.fitter(clock))
        return ManyBlocks(blocks, self.fitter(clock), HalfSlab.projected_data, members.sizes)

    def _entered(self, block: Block, clock: Clock) -> HalfCloud:
        """Return a block of the data in half precision."""
        setup = self.setup
        with clock.part("read"):
            middle = block.x + setup.bin_width / 2 if setup.bin_width else block.x
            z = setup.sampler.coordinates.enter_data(middle)
            groups = self._groups(setup.data.all.conditions, block.numbers)
            cloud = halved(z, self._places, block.conditions, groups)
        return attrs.evolve(cloud, noise=setup.mean_condition_noise(), first=block.first)

    def _data_of(self, key: int, blocks: Callable[[bool], Iterator[tuple[HalfCloud, Members]]]) -> HalfCloud:
        """Return the data of a draw, which are one block."""
        if self._data is None or (self.setup.fits_parts_of_data and self._data_key != key):
            self._data = None
            self._data_key = key
            self._data, _ = next(blocks(False))
        return self._data


class HalfBlockStepper(HalfStepper):
    """Takes steps in half precision of particles that come in blocks."""

    def __init__(self, setup: StageSetup) -> None:
        super().__init__(setup)
        self._resident: list[HalfCloud] = []
        """The blocks in half precision as they are after the last step, where they stay on the device."""

    def move(self, number: int, eta: float, clock: Clock) -> Move:
        """Take a step without its noise: X ← X − η v̂."""
        self._factor.fill_(eta / self.setup.sampler.stage.directions)
        return self._outcome(self._moved_in_blocks(number, clock), number, clock)

    @property
    def _at_once(self) -> int:
        """The number of particles of a block."""
        return self.setup.particles.at_once

    @property
    def _fits_ahead(self) -> bool:
        """Yes: before any block of particles moves."""
        return True

    def _bring_particles(self) -> None:
        """Bring nothing yet: blocks are brought one at a time."""

    def _moved_in_blocks(self, number: int, clock: Clock) -> tuple[Tensor, ...]:
        """Move particles that come in blocks; return the mean length of the move, SW₂² and tables."""
        tools = HalfTools(clock)
        self._draw(self.setup.draws.number(number), tools, check=number == 0)
        particles = self.setup.particles
        assert isinstance(particles, BlockParticles)
        F_p = self._particles_in_blocks(particles, number, clock)
        lengths = squares = torch.zeros((), dtype=torch.float32, device=self.setup.like.device)
        tables: list[Tensor] = []
        resident: list[HalfCloud] = []
        for index, block in enumerate(particles.blocks(write=True)):
            mine = self._halved(block, self._resident[index] if self._resident else None)
            length, square, *tables = self._moved(mine, self._slabs, number, tools, block, F_p)
            lengths = lengths + length * (len(block) / len(particles))
            squares = squares + square
            if self._keeps:
                resident.append(mine.cloud)
        self._resident = resident
        return lengths, squares, *tables

    def _particles_in_blocks(self, particles: BlockParticles, number: int, clock: Clock) -> Source[HalfCloud]:
        """Return F_p along a step's directions, of particles that come in blocks, before any of them moves."""

        def blocks(again: bool) -> Iterator[tuple[HalfCloud, Members]]:
            del again
            there = particles.outlines() if self._resident else particles.blocks()
            for index, block in enumerate(there):
                members = self.setup.taking_part(number, block).particles
                if self._resident:
                    yield self._resident[index], members
                else:
                    yield self._halved(block).cloud, members

        sizes = self.setup.taking_part(number).particles.sizes
        source = ManyBlocks(blocks, self.fitter(clock), HalfSlab.projected, sizes)
        cuts = rows_of(self._slabs)
        fits = source.fit(list(zip(cuts, self._slabs, strict=True)))
        first = {
            slab.place.batch: cut.start for slab, cut in reversed(list(zip(self._slabs, cuts, strict=True)))
        }

        def of_batch(begin: int) -> Callable[[slice], Fits]:
            return lambda rows: fits(slice(begin + rows.start, begin + rows.stop))

        return FittedBatches({batch: of_batch(begin) for batch, begin in first.items()})

    @property
    def _keeps(self) -> bool:
        """Whether streamed particles stay on the device in half precision: if its memory is enough for that."""
        setup = self.setup
        d = setup.sampler.coordinates.space.dimension
        size = 2 * padded(d) * padded(setup.particles.share.total, WIDEST_TILE)
        with_noise = setup.sampler.stage.entropy > 0
        return not with_noise and size // setup.ranks.size <= setup.budget.memory // RESIDENT_SHARE
