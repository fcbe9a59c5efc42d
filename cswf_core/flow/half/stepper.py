"""What takes the steps of a stage in half precision, on CUDA: directions are laid out, and steps are recorded.

Directions become blocks in half precision, sorted by where they look. Data come into half precision once per
stage: the noise in their bins has its mean added there, and its width when they are counted. Steps that are all
alike are recorded once as a CUDA graph (`graph`), which also prepares the directions of the next step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial

import attrs
import torch
from torch import Tensor

from cswf_core.errors import RunError
from cswf_core.flow.clock import Clock
from cswf_core.flow.data import Block
from cswf_core.flow.fits import Source
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
)
from cswf_core.flow.half.step import HalfParticles, step
from cswf_core.flow.memory import MEMORY_OVER_VALUES, attempted
from cswf_core.flow.particles import ParticleBlock
from cswf_core.flow.stage import StageSetup
from cswf_core.flow.step import Tools
from cswf_core.flow.stepper import StepOutcome, Stepper
from cswf_core.interfaces import Conditions
from cswf_core.kernels.boxes import WIDEST_TILE, Strips
from cswf_core.kernels.columns import COLUMNS_AT_A_TIME
from cswf_core.kernels.sparse import TILE, padded

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
        """The order of coordinates that directions are sorted by; None: they are not sorted, or not yet."""
        self._side: int | None = None
        """The side of what directions look at, by which they are sorted; 0: they are not; None: not known."""
        self._groups_of: dict[Conditions, tuple[Tensor, Conditions] | None] = {}
        """The groups of all samples, by the conditions of these."""
        self._drawn: dict[int, list[HalfSlab]] = {}
        """The directions of the last draw, or of all that come again."""
        self._graphs: dict[int, StepGraph[list[HalfSlab]] | None] = {}
        """The recorded step of each turn, as F_p is fitted to other particles; None: recording it failed."""
        self._factor = torch.empty(1, device=setup.like.device)
        """η/H, on the device, where a recorded step reads it."""
        self._most = self._most_directions()
        """Directions of a slab."""
        self._resident: list[HalfCloud] = []
        """The blocks of the particles as they are after the last step, where they stay on the device."""
        d = padded(setup.sampler.coordinates.space.dimension)
        size = 2 * d * padded(setup.particles.share.total, WIDEST_TILE) // setup.ranks.size
        may_stay = setup.sampler.stage.entropy == 0 and size <= setup.budget.memory // RESIDENT_SHARE
        self._keeps = may_stay or not setup.particles.in_blocks
        """Whether they stay: if memory is enough for all, and no noise is added to the blocks without them."""

    def _most_directions(self) -> int:
        """Return how many directions a slab has; raise `RunError` for samples that the kernels cannot have."""
        setup = self.setup
        particles = setup.particles
        M = particles.share.total
        device = setup.like.device
        for total in (M, *setup.data.shared):
            if not all(map(len, setup.ranks.shares(total, device))):
                width = COLUMNS_AT_A_TIME[device.type]
                raise RunError(
                    f"{total:,} samples are {-(-total // width)} groups of {width:,}, fewer than the "
                    f"{setup.ranks.size} ranks: take fewer devices"
                )
        data_here = [len(setup.ranks.share(total, device)) for total in setup.data.shared]
        samples = (min(len(particles), particles.at_once), min([setup.data.at_once, *data_here]))
        refuse_too_many(max(samples), setup.settings)
        row = 2 * sum(padded(count, WIDEST_TILE) for count in (particles.at_once, setup.data.at_once))
        most = setup.budget.memory // MEMORY_OVER_VALUES // row if setup.cdf.displaces else setup.budget.slab
        return min(max(TILE, most // TILE * TILE), padded(setup.sampler.stage.directions))

    def move(self, number: int, eta: float, clock: Clock) -> StepOutcome:
        """Take a step without its noise, by replaying a recorded step where there is one."""
        self._factor.fill_(eta / self.setup.sampler.stage.directions)
        graph = None if clock.times else self._recorded(number)
        if graph is None:
            return super().move(number, eta, clock)
        slabs = self._drawn[number]  # steps are recorded only if each has a draw of its own, with its number
        if graph.ready is not slabs:  # prepared in the step of another turn, or drawn here
            overwrite(graph.ready, slabs)
        result = graph.replay(number + 1)
        self._drawn = {number + 1: graph.ready}
        return self._outcome(result, number, clock)

    def attempt(self, number: int, eta: float, tools: Tools) -> StepOutcome:
        """Take a step without its noise."""
        del eta  # its factor is on the device
        setup = self.setup
        slabs = self._along(setup.data.draws.number(number), tools.clock, check=number == 0)
        F_p = self.fit_streamed_particles(self._blocks, slabs, number, tools.clock)
        lengths = squares = torch.zeros((), dtype=torch.float32, device=setup.like.device)
        tables: list[Tensor] = []
        resident: list[HalfCloud] = []
        for index, block in enumerate(setup.particles.blocks(write=True)):
            mine = self._halved(block, self._resident[index] if self._resident else None)
            length, square, *tables = self._move_block(number, tools, block, mine, slabs, F_p)
            lengths = lengths + length * (len(block) / len(setup.particles))
            squares = squares + square
            if self._keeps:
                resident.append(mine.cloud)
        self._resident = resident
        return self._outcome((lengths, squares, *tables), number, tools.clock)

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
        sampler = self.setup.sampler
        self._side = numerics.get("side")
        if self._side:
            shape = sampler.coordinates.space.shape
            self._places = Strips.of(shape, sampler.stage.directions, self._side, sampler.like.device)
        self._most = max(1, numerics.get("most", self._most))

    def _recordable(self, number: int) -> bool:
        """Say whether it pays to record the steps from here on, and can be done: they must all be alike."""
        setup = self.setup
        stage = setup.sampler.stage
        by_counts = setup.cdf.displaces and setup.cdf.compact
        alike = setup.data.draws.fresh and stage.entropy == 0 and by_counts and setup.fits_the_same
        known = number > 0 and [len(slabs) for slabs in self._drawn.values()] == [1] and self._factor.is_cuda
        possible = setup.budget.recordable and setup.ranks.alone and not setup.particles.in_blocks
        if not (possible and alike and known):
            return False
        turn = setup.turn_of(number)
        return sum(setup.turn_of(later) == turn for later in range(number, stage.steps)) >= WORTHWHILE_STEPS

    def _recorded(self, number: int) -> StepGraph[list[HalfSlab]] | None:
        """Return the recorded step of a turn, with directions at hand; None: steps are taken one by one."""
        turn = self.setup.turn_of(number)
        if turn not in self._graphs and self._recordable(number):
            self._graphs[turn] = None
            if self._drawn_in_time(number):
                self._graphs[turn] = self._record(number)
        if self._graphs.get(turn) is None or not self._drawn_in_time(number):
            return None
        return self._graphs[turn]

    def _drawn_in_time(self, number: int) -> bool:
        """Have the directions of a step at hand; False: memory was short, and slabs are smaller now."""
        draw = partial(self._along, number, Clock(), check=False)
        return attempted(draw, lambda: self.setup.ranks.alone and self.smaller()) is not None

    def _record(self, number: int) -> StepGraph[list[HalfSlab]] | None:
        """Record a step along the directions of this one, which prepares the next."""
        clock = Clock()
        other = next(filter(None, self._graphs.values()), None)  # never at work at the same time
        block = next(self.setup.particles.blocks())
        particles = self._halved(block, self._resident[0])
        prepare = partial(self._prepared, number + 1, clock, False)
        move = partial(self._move_block, number, Tools(self.setup.budget, clock), block, particles)
        graph = recorded(number + 1, prepare, self._drawn[number], move, None if other is None else other.pool)
        self.setup.budget.recordable = graph is not None
        return graph

    def _along(self, draw: int, clock: Clock, *, check: bool) -> list[HalfSlab]:
        """Return the directions of a draw, which are kept."""
        if draw not in self._drawn:
            if len(self._drawn) >= self.setup.draws_kept:  # first of all: they may take much memory
                self._drawn.clear()
            self._drawn[draw] = self._prepared(draw, clock, check)
        return self._drawn[draw]

    def smaller(self) -> bool:
        """Halve the slabs of directions; False: they are as small as tiles."""
        if self._most == TILE:
            return False
        self._drawn = {}
        if any(self._graphs.values()):  # they work on slabs as they were
            torch.cuda.synchronize(self._factor.device)
            self._graphs = {}
        self._most = max(TILE, self._most // 2 // TILE * TILE)
        self.setup.budget.warn(f"{self._most} directions at a time; results may differ in the last digits")
        return True

    def _move_block(
        self,
        number: int,
        tools: Tools,
        block: ParticleBlock,
        particles: HalfParticles,
        slabs: list[HalfSlab],
        F_p: Source[HalfCloud] | None = None,
    ) -> tuple[Tensor, ...]:
        """Move particles; return the mean length of the move, SW₂² and tables, if a model is saved."""
        setup = self.setup
        F_q = PreparedData(self._source(setup.data.draws.number(number), slabs, tools.clock))
        maps = self.maps(number, block, F_q, F_p, tools)
        before = particles.some()
        squares = step(particles, slabs, maps, self._factor, tools)
        squared = squares / (setup.particles.share.total * setup.sampler.stage.directions)
        return particles.mean_length(before), squared, *maps.tables()

    def _prepared(
        self, draw: int, clock: Clock, check: bool, into: list[HalfSlab] | None = None
    ) -> list[HalfSlab]:
        """Draw the directions of a draw, into old slabs if any, and fit F_q where fits are small."""
        setup = self.setup
        slabs: list[HalfSlab] = []
        for theta in self.draw(draw, clock, check=check):
            with clock.part("draw", partial(packing, theta)):
                if self._side is None:
                    self._sort(theta.projection.dense())
                noise = setup.sampler.noise_widths(theta, setup.bin_width)
                free = None if into is None else into[len(slabs) :]
                slabs += slabs_of(attrs.evolve(theta, noise=noise), self._places, self._most, free)
        if setup.cdf.compact or setup.in_blocks:
            source = self._source(draw, slabs, clock)
            for slab in slabs:
                slab.begun = source.along(slab)
            if setup.ranks.alone:  # otherwise all are begun before one is awaited
                for slab in slabs:
                    slab.await_data()
        return slabs

    def _sort(self, theta: Tensor) -> None:
        """Decide on an order of coordinates, from a stage's first directions."""
        stage = self.setup.sampler.stage
        self._places = strips_for(theta, self.setup.sampler.coordinates.space, stage.directions)
        self._side = 0 if self._places is None else self._places.side

    def _blocks(self) -> Iterable[tuple[ParticleBlock, HalfCloud]]:
        """Return the blocks of the particles, each in half precision too."""
        particles = self.setup.particles
        if self._resident:
            return zip(particles.stored, self._resident, strict=True)
        return ((block, self._halved(block).cloud) for block in particles.blocks())

    def _halved(self, block: ParticleBlock, resident: HalfCloud | None = None) -> HalfParticles:
        """Return particles with their copy in half precision, if it is not `resident` already."""
        current = self.setup.sampler.stage.entropy == 0  # else noise was added to the particles alone
        if resident is None:
            current = block.sum is None  # a flow may come back in the middle of a stage
            groups = self._groups(self.setup.particle_conditions, block.share.cut)
            resident = halved(block.cloud.z, self._places, block.conditions, groups)
        return HalfParticles(block, self._places, resident, current=current)

    def _groups(self, everybody: Conditions, numbers: slice | Tensor) -> tuple[Tensor, Conditions] | None:
        """Return the group of each of some samples among those of all, and each group's condition, if any."""
        if everybody not in self._groups_of:
            there = everybody.to(self.setup.like.device, self.setup.like.dtype)
            self._groups_of[everybody] = self.setup.sampler.groups(there)
        groups = self._groups_of[everybody]
        return None if groups is None else (groups[0][numbers].contiguous(), groups[1])

    def _source(self, draw: int, slabs: list[HalfSlab], clock: Clock) -> Source[HalfCloud]:
        """Return what F_q is fitted to along the directions of a draw."""
        enter = partial(self._data_halved, clock)
        return self.setup.data.source(draw, lambda block: self.entered(block, enter), slabs, self.fitter(clock))

    def _data_halved(self, clock: Clock, block: Block) -> HalfCloud:
        """Return a block of the data in half precision."""
        setup = self.setup
        with clock.part("read"):
            middle = block.x + setup.bin_width / 2 if setup.bin_width else block.x
            z = setup.sampler.coordinates.enter_data(middle)
            groups = self._groups(setup.data.conditions, block.numbers)
            cloud = halved(z, self._places, block.conditions, groups)
        return attrs.evolve(cloud, noise=setup.mean_condition_noise(), first=block.first)
