"""What takes the steps of a stage in half precision, on CUDA: directions are laid out, and steps are recorded.

Directions become blocks in half precision, sorted by where they look. Data come into half precision once per
stage: the noise in their bins has its mean added there, and its width when they are counted. Steps that are all
alike are recorded once as a CUDA graph (`graph`), which also prepares the directions of the next step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, partial
from typing import TypeVar

import attrs
import torch
from torch import Tensor

from cswf_core.errors import RunError
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
    refuse_too_many,
    slabs_of,
    strips_for,
    with_rows_of,
)
from cswf_core.flow.half.step import HalfTools, MeasuredParticles, step
from cswf_core.flow.memory import MEMORY_OVER_VALUES, attempted
from cswf_core.flow.particles import Particles
from cswf_core.flow.stage import StageSetup
from cswf_core.flow.stepper import StepOutcome, Stepper
from cswf_core.flow.streaming import BlockParticles
from cswf_core.flow.transport import FittedMaps
from cswf_core.interfaces import Conditions
from cswf_core.kernels.boxes import WIDEST_TILE, Strips
from cswf_core.kernels.columns import COLUMNS_AT_A_TIME
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
        """Whether that order has been decided on."""
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
        self._graphs: dict[int, StepGraph[list[HalfSlab]] | None] = {}
        """The recorded step of each turn, as F_p is fitted to other particles; None: recording it failed."""
        self._factor = torch.empty(1, device=setup.like.device)
        """η/H, on the device, where a recorded step reads it."""
        self._most = self._most_directions()
        """Directions of a slab."""

    def _most_directions(self) -> int:
        """Return how many directions a slab has; raise `RunError` for samples that the kernels cannot have."""
        setup = self.setup
        particles = setup.particles
        M = particles.share.total
        device = setup.like.device
        for total in (M, setup.data_count if setup.counts is None else M):
            if not all(map(len, setup.ranks.shares(total, device))):
                width = COLUMNS_AT_A_TIME[device.type]
                raise RunError(
                    f"{total:,} samples are {-(-total // width)} groups of {width:,}, fewer than the "
                    f"{setup.ranks.size} ranks: take fewer devices"
                )
        refuse_too_many(max(min(len(particles), particles.at_once), setup.data.x.shape[1]), setup.settings)
        N = setup.data.most_at_once(setup.cdf.data)
        row = 2 * (padded(particles.at_once, WIDEST_TILE) + padded(N, WIDEST_TILE))
        most = setup.budget.memory // MEMORY_OVER_VALUES // row if setup.cdf.displaces else setup.budget.rows
        return min(max(TILE, most // TILE * TILE), padded(setup.sampler.stage.directions))

    def move(self, number: int, eta: float, clock: Clock) -> StepOutcome:
        """Take a step without its noise: X ← X − η v̂."""
        self._factor.fill_(eta / self.setup.sampler.stage.directions)
        if not clock.times and self._recordable(number):
            self._record(number)
        graph = self._graphs.get(self.setup.turn_of(number))
        drawn = partial(self._draw, number, check=False)
        if graph is not None and not clock.times and self._attempted(drawn, clock):
            if graph.ready is not self._slabs:  # they were prepared for the other half, or drawn
                overwrite(graph.ready, self._slabs)
            result = graph.replay(number + 1)
            self._slabs = graph.ready
            self._key = number + 1
            return self._outcome(result, number, clock)
        moved = None
        while moved is None:
            moved = self._attempted(partial(self._drawn_and_moved, number), clock)
        if self.setup.sampler.stage.entropy > 0:
            self._particles.current = False
        return self._outcome(moved, number, clock)

    def _outcome(self, result: tuple[Tensor, ...], number: int, clock: Clock) -> StepOutcome:
        tables = self.wanted(number, result[2:])
        if self.setup.ranks.alone:
            return StepOutcome(result[0], result[1], tables)
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
        turn = setup.turn_of(number)
        if turn in self._graphs or not (setup.budget.recordable and setup.ranks.alone) or setup.streams_data:
            return False
        stage = setup.sampler.stage
        by_counts = setup.cdf.displaces and setup.cdf.compact
        alike = setup.draws.fresh and stage.entropy == 0 and by_counts and setup.fits_the_same
        known = number > 0 and len(self._slabs) == 1 and self._factor.is_cuda
        repeats = sum(setup.turn_of(later) == turn for later in range(number, stage.steps))
        return alike and known and repeats >= WORTHWHILE_STEPS

    def _record(self, number: int) -> None:
        """Record a step along the directions of this one, which prepares the next."""
        turn = self.setup.turn_of(number)
        clock = Clock()
        other = next(filter(None, self._graphs.values()), None)  # never at work at the same time
        self._graphs[turn] = None
        if self._attempted(partial(self._draw, number, check=False), clock):
            prepare = partial(self._prepared, number + 1, clock, False)
            move = partial(self._moved, number, HalfTools(clock), self._particles)
            graph = recorded(number + 1, prepare, self._slabs, move, None if other is None else other.pool)
            self.setup.budget.recordable = graph is not None
            self._graphs[turn] = graph

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
        if any(self._graphs.values()):  # they work on slabs as they were
            torch.cuda.synchronize(self._factor.device)
            self._graphs = {}
        self._most = max(TILE, self._most // 2 // TILE * TILE)
        self.setup.budget.warn(f"{self._most} directions at a time; results may differ in the last digits")
        return True

    def _draw(self, key: int, tools: HalfTools, *, check: bool) -> bool:
        """Have the directions of a draw at hand."""
        if key != self._key:
            self._slabs = []  # those of the last step may take much memory
            self._slabs = self._prepared(key, tools.clock, check)
            self._key = key
        return True

    def _drawn_and_moved(self, number: int, tools: HalfTools) -> tuple[Tensor, ...]:
        """Move along the directions of a step; return the mean length of the move, SW₂² and tables."""
        self._draw(self.setup.draws.number(number), tools, check=number == 0)
        return self._moved(number, tools, self._particles, self._slabs)

    def _moved(
        self,
        number: int,
        tools: HalfTools,
        particles: MeasuredParticles,
        slabs: list[HalfSlab],
        block: Particles | None = None,
        F_p: Source[HalfCloud] | None = None,
    ) -> tuple[Tensor, ...]:
        """Move particles; return the mean length of the move, SW₂² and tables, if a model is saved."""
        setup = self.setup
        transport = self.transport(setup.participants(number, block), tools.clock, check=number == 0)
        F_q = PreparedData(self._source(setup.draws.number(number), tools.clock))
        squares = step(particles, slabs, FittedMaps(transport, F_q, F_p), self._factor, tools)
        distance = squares / (setup.particles.share.total * setup.sampler.stage.directions)
        return particles.length, distance, *transport.tables()

    def _prepared(
        self, key: int, clock: Clock, check: bool, into: list[HalfSlab] | None = None
    ) -> list[HalfSlab]:
        """Draw the directions of the draw `key`, into old slabs if any, and fit F_q where fits are small."""
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
        several_reads = setup.data_blocks_count > 1 or setup.particles.in_blocks
        if setup.cdf.compact or setup.counts is not None or several_reads:
            self._fit(slabs, self._source(key, clock))
        if setup.keeps_draws:
            self._sets[key] = slabs
        return slabs

    def _fit(self, slabs: list[HalfSlab], source: Source[HalfCloud]) -> None:
        """Fit F_q along the directions of a draw."""
        if isinstance(source, ManyBlocks):
            with_rows = with_rows_of(slabs)
            fits = source.fit(with_rows)
            for rows, slab in with_rows:
                slab.F_q = fits(rows)
            return
        for slab in slabs:
            slab.begun = source.along(slab)
        if self.setup.ranks.alone:  # otherwise all are begun before one is awaited
            for slab in slabs:
                slab.await_data()

    def _place(self, theta: Tensor) -> None:
        """Decide on an order of coordinates, from a stage's first directions."""
        space = self.setup.sampler.coordinates.space
        H = self.setup.sampler.stage.directions
        if self._side is None:
            self._places = strips_for(theta, space, H)
            self._side = 0 if self._places is None else self._places.side
        elif self._side:
            self._places = Strips.of(space.shape, H, self._side, theta.device)
        self._placed = True

    @cached_property
    def _particles(self) -> MeasuredParticles:
        """The particles, in the order of coordinates that the first directions have decided on."""
        return self._halved(self.setup.particles)

    def _halved(self, block: Particles, resident: HalfCloud | None = None) -> MeasuredParticles:
        """Return particles with their copy in half precision, if it is not `resident` already."""
        coordinates = self.setup.sampler.coordinates
        by_update = self.setup.settings.clip is not None or coordinates.observation is not None
        current = resident is not None or block.sum is None  # a flow may come back in the middle of a stage
        if resident is None:
            groups = self._groups(self.setup.particle_conditions, block.share.cut)
            resident = halved(block.cloud.z, self._places, block.conditions, groups)
        return MeasuredParticles(
            block, coordinates, self._places, resident, by_update=by_update, current=current
        )

    def _groups(self, everybody: Conditions, numbers: slice | Tensor) -> tuple[Tensor, Conditions] | None:
        """Return the group of each of some samples among those of all, and each group's condition, if any."""
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
        key = key if self.setup.fits_parts_of_data else 0
        if self._data is None or self._data_key != key:
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
        d = setup.sampler.coordinates.space.dimension
        size = 2 * padded(d) * padded(setup.particles.share.total, WIDEST_TILE) // setup.ranks.size
        with_noise = setup.sampler.stage.entropy > 0
        self._keeps = not with_noise and size <= setup.budget.memory // RESIDENT_SHARE
        """Whether they do: if the memory is enough, and no noise is added to particles elsewhere."""

    def move(self, number: int, eta: float, clock: Clock) -> StepOutcome:
        """Take a step without its noise: X ← X − η v̂."""
        self._factor.fill_(eta / self.setup.sampler.stage.directions)
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
            length, square, *tables = self._moved(number, tools, mine, self._slabs, block, F_p)
            lengths = lengths + length * (len(block) / len(particles))
            squares = squares + square
            if self._keeps:
                resident.append(mine.cloud)
        self._resident = resident
        return self._outcome((lengths, squares, *tables), number, clock)

    def _particles_in_blocks(self, particles: BlockParticles, number: int, clock: Clock) -> Source[HalfCloud]:
        """Return F_p along a step's directions, of particles that come in blocks, before any of them moves."""

        def blocks(_again: bool) -> Iterator[tuple[HalfCloud, Members]]:
            for index, block in enumerate(particles.stored if self._resident else particles.blocks()):
                cloud = self._resident[index] if self._resident else self._halved(block).cloud
                yield cloud, self.setup.participants(number, block).particles

        sizes = self.setup.participants(number).particles.sizes
        with_rows = with_rows_of(self._slabs)
        fits = ManyBlocks(blocks, self.fitter(clock), HalfSlab.projected, sizes).fit(with_rows)

        def of_batch(begin: int, rows: slice) -> Fits:
            return fits(slice(begin + rows.start, begin + rows.stop))

        begins = {slab.place.batch: cut.start for cut, slab in with_rows if slab.place.first == 0}
        return FittedBatches({batch: partial(of_batch, begin) for batch, begin in begins.items()})
