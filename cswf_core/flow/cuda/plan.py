"""The steps of a stage on CUDA: half precision with float32 sums, and values touched as few times as can be.

Directions become blocks in half precision, sorted by where they look. Projecting writes the values once, in
half precision, and finds their ends on the way; counting reads them, looking up replaces them by δ, and the
back-projection reads that and moves the particles. Data come into half precision once per stage: the noise in
their bins has its mean added there, and its width when they are counted. Particles themselves stay in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

import attrs
import torch
from torch import Tensor

from cswf_core.flow.blocks import fits_of_blocks
from cswf_core.flow.clock import Clock
from cswf_core.flow.cuda.graph import StepGraph, overwrite, recorded
from cswf_core.flow.cuda.layout import (
    HalfCloud,
    Slab,
    back_work,
    halved,
    moving,
    packing,
    project,
    refuse_idle_ranks,
    refuse_too_many,
    rows_of,
    slabs_of,
    spread,
    strips_for,
    work,
)
from cswf_core.flow.data import Block
from cswf_core.flow.memory import MEMORY_OVER_VALUES
from cswf_core.flow.plan import Move, Plan, StageSetup
from cswf_core.flow.step import one_ahead
from cswf_core.flow.streaming import BlockParticles
from cswf_core.flow.transport import Begun, CDFTransport, Fits, StepTables, Transport
from cswf_core.interfaces import Conditions, Rows
from cswf_core.kernels.blocks import TILE, padded
from cswf_core.kernels.boxes import WIDEST, Strips
from cswf_core.kernels.columns import columnwise
from cswf_core.kernels.gpu import products
from cswf_core.kernels.memory import is_out_of_memory

WORTHWHILE = 6
"""Steps that a stage must have left for a recording to pay."""

MEASURED = 1024
"""Particles whose moves are measured, for the log."""

KEPT_SHARE = 3
"""Streamed particles in half precision may take one part in so many of the memory."""


class HalfPlan(Plan):
    """Float16 products with float32 sums, on a CUDA device."""

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
        self._mine: HalfCloud | None = None
        self._data: HalfCloud | None = None
        """The data of the draw `_data_key`, where they are one block."""
        self._data_key = -1
        self._groups_of: dict[Conditions, tuple[Tensor, Conditions] | None] = {}
        """The groups of all samples, by the conditions of these."""
        self._resident: list[HalfCloud] = []
        """The blocks of streamed particles, as they are after the last step, where they stay on the device."""
        self._stale = False
        """Whether the particles have moved since they were last brought into half precision."""
        self._sets: dict[int, list[Slab]] = {}
        """The directions of each set, where sets come again."""
        self._slabs: list[Slab] = []
        """The directions of the step `_key`."""
        self._key = -1
        self._graphs: dict[int, StepGraph[list[Slab]]] = {}
        """The recorded step of each half of the particles that F_p is fitted to; without turns, of all."""
        self._tried: set[int] = set()
        """The halves of which a step was recorded, or could not be."""
        self._begun = False
        """Whether particles have moved, so that a step that fails cannot be tried again."""
        device, M = setup.like.device, setup.particles.share.total
        counted = self.part_size or len(setup.data.all)
        refuse_idle_ranks(setup.ranks, (M, counted if setup.counts is None else M), device)
        self._sums: Tensor | None = None
        """Σ_h δ_h θ_h of all slabs but the last: d'×M'."""
        self._factor = torch.empty(1, device=device)
        """η/H, on the device, where a recorded step reads it."""
        mine = setup.particles.at_once if setup.particles.in_blocks else len(setup.particles)
        refuse_too_many(max(mine, setup.data.x.shape[1]), setup.settings)
        N = setup.data.most_at_once(setup.cdf.data)
        row = 2 * (padded(setup.particles.at_once, WIDEST) + padded(N, WIDEST))
        most = setup.budget.memory // MEMORY_OVER_VALUES // row if setup.cdf.displaces else setup.budget.rows
        self._most = min(max(TILE, most // TILE * TILE), padded(setup.sampler.stage.directions))
        """Directions of a slab."""

    @property
    def recorded(self) -> bool:
        """Whether steps are repeated from a recording."""
        return bool(self._graphs)

    def move(self, step: int, eta: float, clock: Clock) -> Move:
        """X ← X − η v̂."""
        self._factor.fill_(eta / self.setup.sampler.stage.directions)
        if self.setup.particles.in_blocks:
            return self._outcome(self._moved_in_blocks(step, clock), step, clock)
        if not clock.times and self._recordable(step):
            self._record(step)
        graph = self._graphs.get(self.fitted_half(step))
        if graph is not None and not clock.times and self._handed(graph, step):
            result = graph.replay(step + 1)
            self._slabs, self._key = graph.ready, step + 1
            return self._outcome(result, step, clock)
        moved = self._attempt(step, clock)
        while moved is None:
            moved = self._attempt(step, clock)
        self._stale = self.setup.sampler.stage.entropy > 0
        return self._outcome(moved, step, clock)

    def _outcome(self, result: tuple[Tensor, ...], step: int, clock: Clock) -> Move:
        tables = StepTables(*result[2:]) if self.wants_tables(step) else None
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

    def _recordable(self, step: int) -> bool:
        """Say whether it pays to record the steps from here on, and can be done: they must all be alike."""
        stage, cdf, half = self.setup.sampler.stage, self.setup.cdf, self.fitted_half(step)
        if half in self._tried or not (self.setup.budget.recordable and self._alike):
            return False
        fresh = self.setup.settings.reuse == 1 and self.setup.sets is None
        alike = fresh and stage.entropy == 0 and cdf.displaces and cdf.compact and self.fits_the_same
        known = step > 0 and len(self._slabs) == 1 and self._factor.is_cuda
        repeats = (self.fitted_half(later) == half for later in range(step, stage.steps))
        return alike and known and sum(repeats) >= WORTHWHILE

    @property
    def _alike(self) -> bool:
        """Whether a step happens on this device alone: nothing comes from other ranks or from the host."""
        streamed = self.setup.counts is None and not self.setup.data.resident
        return self.setup.ranks.alone and not streamed

    def _record(self, step: int) -> None:
        """Record a step along the directions of this one, which prepares the next."""
        half, clock = self.fitted_half(step), Clock()
        self._tried.add(half)

        def prepare(into: list[Slab] | None) -> list[Slab]:
            return self._prepared(step + 1, clock, check=False, into=into)

        def move(slabs: list[Slab]) -> tuple[Tensor, ...]:
            return self._moved(slabs, self.transport(step, clock))

        if self._attempted(lambda: self._draw(step, clock, check=False)):
            other = next(iter(self._graphs.values()), None)  # never at work at the same time
            graph = recorded(step + 1, prepare, self._slabs, move, None if other is None else other.pool)
            self.setup.budget.recordable = graph is not None
            if graph is not None:
                self._graphs[half] = graph

    def _handed(self, graph: StepGraph[list[Slab]], step: int) -> bool:
        """Have the directions of a step where a recording reads them; False if memory was short."""
        if not self._attempted(lambda: self._draw(step, Clock(), check=False)):
            return False
        if graph.ready is not self._slabs:  # they were prepared for the other half, or drawn
            overwrite(graph.ready, self._slabs)
        return True

    def _attempt(self, step: int, clock: Clock) -> tuple[Tensor, ...] | None:
        """Move along the directions of a step; None if memory was short, and slabs were halved."""
        outcomes: list[tuple[Tensor, ...]] = []

        def move() -> None:
            self._draw(self.draw_number(step), clock, check=step == 0)
            outcomes.append(self._moved(self._slabs, self.transport(step, clock)))

        return outcomes[0] if self._attempted(move) else None

    def _attempted(self, work: Callable[[], None]) -> bool:
        """Do something; if memory is short before particles have moved, halve the slabs and return False."""
        self._begun = False
        try:
            work()
            return True
        except Exception as error:
            stuck = self._begun or self._most == TILE or not self.setup.ranks.alone  # all need the same slabs
            if stuck or not is_out_of_memory(error):
                raise
        self._key, self._slabs, self._sets = -1, [], {}
        if self._graphs:  # they work on slabs as they were
            torch.cuda.synchronize(self._factor.device)
            self._graphs, self._tried = {}, set()
        self._most = max(TILE, self._most // 2 // TILE * TILE)
        self.setup.budget.warn(f"{self._most} directions at a time; results may differ in the last digits")
        return False

    def _draw(self, key: int, clock: Clock, *, check: bool) -> None:
        """Have the directions of the step `key` at hand."""
        if key != self._key:
            self._slabs = []  # those of the last step may take much memory
            self._slabs, self._key = self._prepared(key, clock, check=check), key

    def _prepared(self, key: int, clock: Clock, *, check: bool, into: list[Slab] | None = None) -> list[Slab]:
        """Draw the directions of the step `key` and, where fits are small, fit F_q along them.

        `into` are slabs of another step whose memory may be written over.
        """
        if key in self._sets:
            return self._sets[key]
        slabs: list[Slab] = []
        for theta in self.draw(key, clock, check=check):
            with clock.part("draw", partial(packing, theta)):
                if not self._placed:
                    self._place(theta.projection.dense())
                noise = theta.noise_widths(self.setup.sampler.coordinates, self.setup.bin_width)
                free = None if into is None else into[len(slabs) :]
                slabs += slabs_of(attrs.evolve(theta, noise=noise), self._places, self._most, free)
        if self.setup.cdf.compact or self.setup.counts is not None or self._in_blocks:
            by_cdf = self.by_cdf(key, clock, check=check)
            self._fit(slabs, key, by_cdf)
        if self.keeps_sets:
            self._sets[key] = slabs
        return slabs

    def _place(self, theta: Tensor) -> None:
        """Decide on an order of coordinates, from a stage's first directions, and bring the data there."""
        setup = self.setup
        space, H = setup.sampler.coordinates.space, setup.sampler.stage.directions
        if self._side is None:
            self._places = strips_for(theta, space, H)
            self._side = 0 if self._places is None else self._places.side
        elif self._side:
            self._places = Strips.of(space.shape, H, self._side, theta.device)
        self._placed = True
        if not setup.particles.in_blocks:
            self._halve()

    def _halve(self) -> None:
        """Bring the particles into half precision."""
        mine = self.setup.particles
        groups = self._groups(self.setup.particle_conditions, mine.share.cut)
        self._mine = halved(mine.cloud.z, self._places, mine.conditions, groups)
        self._stale = mine.sum is not None  # a flow may come back in the middle of a stage

    def _groups(self, everybody: Conditions, numbers: slice | Tensor) -> tuple[Tensor, Conditions] | None:
        """Return the group of each of some samples, and each group's condition; None: there are no groups.

        Groups are those of `everybody`, the conditions of all samples: their numbers are the same everywhere.
        """
        if everybody not in self._groups_of:
            there = everybody.to(self.setup.like.device, self.setup.like.dtype)
            self._groups_of[everybody] = self.setup.sampler.groups(there)
        groups = self._groups_of[everybody]
        return None if groups is None else (groups[0][numbers].contiguous(), groups[1])

    def _clouds(self, key: int, clock: Clock, again: bool) -> Iterator[tuple[HalfCloud, Block]]:
        """Yield the data of a draw in half precision, block by block."""
        setup, blocks = self.setup, self.data_blocks(key, again)
        while True:
            with clock.part("read"):
                block = next(blocks, None)
                if block is None:
                    return
                middle = block.x + setup.bin_width / 2 if setup.bin_width else block.x
                z = setup.sampler.coordinates.enter_data(middle)
                groups = self._groups(setup.data.all.conditions, block.numbers)
                cloud = halved(z, self._places, block.conditions, groups)
            yield attrs.evolve(cloud, noise=self.mean_condition_noise(), first=block.first), block

    @property
    def _in_blocks(self) -> bool:
        """Whether data or particles come in blocks, so that F_q is fitted before any of them move."""
        return len(self.setup.data.cuts(self.part_size)) > 1 or self.setup.particles.in_blocks

    def _data_of(self, key: int, clock: Clock) -> HalfCloud:
        """Return the data of a draw, which are one block."""
        assert len(self.setup.data.cuts(self.part_size)) == 1
        if self._data is None or (self.part_size is not None and self._data_key != key):
            self._data, self._data_key = None, key
            self._data = next(self._clouds(key, clock, again=False))[0]
        return self._data

    def _fit(self, slabs: list[Slab], key: int, by_cdf: CDFTransport) -> None:
        """Fit F_q along the directions of a draw."""
        if self.setup.counts is not None or len(self.setup.data.cuts(self.part_size)) == 1:
            for slab in slabs:
                slab.begun = self._target(slab, key, by_cdf)
                if self.setup.ranks.alone:  # otherwise all are begun before one is awaited
                    self._fits_of(slab, by_cdf)
            return
        cuts = rows_of(slabs)

        def rows(data: tuple[HalfCloud, Block]) -> Iterator[tuple[slice, list[Rows]]]:
            cloud, block = data
            here = self.of_block(by_cdf, block)
            for slab, cut in zip(slabs, cuts, strict=True):
                with by_cdf.clock.part("project", partial(work, slab, cloud.count, 2)):
                    projected, _ = project(slab, cloud, slab.noise)
                yield cut, here.parts(projected, 1)

        fits = fits_of_blocks(partial(self._clouds, key, by_cdf.clock), rows, cuts[-1].stop, by_cdf, side=1)
        for slab, cut in zip(slabs, cuts, strict=True):
            slab.F_q = fits(cut)

    def _moved_in_blocks(self, step: int, clock: Clock) -> tuple[Tensor, ...]:
        """Move particles that come in blocks; return the mean length of the move, SW₂² and tables."""
        self._draw(self.draw_number(step), clock, check=step == 0)
        slabs, particles = self._slabs, self.setup.particles
        assert isinstance(particles, BlockParticles)
        cuts = rows_of(slabs)

        def clouds(_: bool) -> Iterator[CDFTransport]:
            there = len(self._resident) > 0
            for number, block in enumerate(particles.outlines() if there else particles.blocks()):
                with self.on(block):
                    if there:
                        self._mine, self._stale = self._resident[number], False
                    else:
                        self._halve()
                    yield self.by_cdf(step, clock, check=False)

        def rows(by_cdf: CDFTransport) -> Iterator[tuple[slice, list[Rows]]]:
            mine = self._particles()
            for slab, cut in zip(slabs, cuts, strict=True):
                with clock.part("project", partial(work, slab, mine.count, 2)):
                    projected, _ = project(slab, mine, None)
                yield cut, by_cdf.parts(projected, 0)

        by_cdf = self.by_cdf(step, clock, check=False)
        F_p = fits_of_blocks(clouds, rows, cuts[-1].stop, by_cdf, side=0)
        for slab, cut in zip(slabs, cuts, strict=True):
            slab.F_p = F_p(cut)
        total: list[Tensor] = []
        resident: list[HalfCloud] = []
        for number, block in enumerate(particles.blocks(write=True)):
            with self.on(block):
                if self._resident:
                    self._mine, self._stale = self._resident[number], False
                else:
                    self._halve()
                length, squares, *tables = self._moved(slabs, self.transport(step, clock))
            length = length * (len(block) / len(particles))
            sums = [length, squares] if not total else [total[0] + length, total[1] + squares]
            total = [*sums, *tables]
            if self._keeps:
                assert self._mine is not None
                resident.append(self._mine)
        self._resident = resident
        return tuple(total)

    @property
    def _keeps(self) -> bool:
        """Whether streamed particles stay on the device in half precision: if its memory is enough for that."""
        setup = self.setup
        d, M = setup.sampler.coordinates.space.dimension, setup.particles.share.total
        size = 2 * padded(d) * padded(M, WIDEST)
        shaken = setup.sampler.stage.entropy > 0
        return not shaken and size // setup.ranks.size <= setup.budget.memory // KEPT_SHARE

    def _target(self, slab: Slab, key: int, by_cdf: CDFTransport) -> Begun:
        """Begin F_q along a slab of the draw `key`: from counts where there are counts, else fitted now."""
        if self.setup.counts is not None:
            return partial(_same, self.setup.counts.of(key).at(slab.place, slab.directions.shape[0]))
        data = self._data_of(key, by_cdf.clock)
        with by_cdf.clock.part("project", partial(work, slab, data.count, 2)):
            rows, _ = project(slab, data, slab.noise)
        return by_cdf.begin_data(rows)

    def _fits_of(self, slab: Slab, by_cdf: CDFTransport) -> Fits:
        """Return F_q along a slab; where it is compact it stays there, for steps along the same directions."""
        if slab.F_q is not None:
            return slab.F_q
        compact = slab.begun is not None
        fits = by_cdf.awaited(self._target(slab, self._key, by_cdf) if slab.begun is None else slab.begun)
        if compact:
            slab.F_q, slab.begun = fits, None
        return fits

    def _moved(self, slabs: list[Slab], by_cdf: CDFTransport) -> tuple[Tensor, ...]:
        """Move along some directions; return the mean length of the move, SW₂² and, if wanted, the tables."""
        moving_part = self._moving_part()
        before = spread(moving_part, MEASURED).clone()
        by_tables = self.table_transport(by_cdf)
        squares = self._transport(slabs, moving_part, by_cdf, by_tables or by_cdf)
        with by_cdf.clock.part("move", partial(moving, self.setup.particles, self._by_update)):
            length = self._arrived(moving_part, before)
        if by_tables is None:
            return length, squares
        tables = by_tables.tables()
        return length, squares, tables.positions, tables.displacements

    def _transport(
        self, slabs: list[Slab], moving_part: Tensor, by_cdf: CDFTransport, transport: Transport
    ) -> Tensor:
        """Add η/H Σ_h δ_h θ_h to what moves and return SW₂²."""
        M, mine, clock = len(self.setup.particles), self._particles(), by_cdf.clock  # those of this rank
        squares = torch.zeros((), dtype=torch.float64, device=moving_part.device)

        def begin(slab: Slab) -> tuple[Slab, Rows, Tensor, Begun | None]:
            with clock.part("project", partial(work, slab, M, 2)):
                rows, values = project(slab, mine, None)
            return slab, rows, values, transport.begin(rows) if slab.F_p is None else partial(_same, slab.F_p)

        begun = map(begin, slabs)
        for number, (slab, rows, values, F_p) in enumerate(begun if by_cdf.ranks.alone else one_ahead(begun)):
            F_q = self._fits_of(slab, by_cdf)
            squares += transport.displace(rows, F_q, slab.place, F_p).double().sum()  # p becomes δ
            if rows.values.dtype != values.dtype:
                values[: rows.values.shape[0], :M] = rows.values
            if number + 1 < len(slabs):
                if self._sums is None or self._sums.shape[1] != mine.z.shape[1]:
                    self._sums = torch.empty(len(mine.z), mine.z.shape[1], device=mine.z.device)
                with clock.part("back-project", partial(back_work, slab, M, 8 if number else 4)):
                    products.back_project(slab.directions, values, self._sums, add=number > 0)
                continue
            half, sums = mine.z if self._direct else None, self._sums if number else None
            moved = 8 + (2 if self._direct else 0) + (4 if number else 0)
            with clock.part("back-project", partial(back_work, slab, M, moved)):
                self._begun = True
                products.move(slab.directions, values, sums, moving_part, self._factor, self._places, half)
        return squares / (self.setup.particles.share.total * self.setup.sampler.stage.directions)

    def _moving_part(self) -> Tensor:
        """Return what updates are added to: z, the sum S, or an empty update."""
        particles = self.setup.particles
        if self._by_update:
            return torch.zeros_like(particles.cloud.z)
        return particles.cloud.z if particles.sum is None else particles.sum

    def _particles(self) -> HalfCloud:
        """Return the particles in half precision, brought up to date if noise was added to them."""
        assert self._mine is not None
        if self._stale:
            self._refresh(self._mine)
            self._stale = False
        return self._mine

    def _refresh(self, mine: HalfCloud) -> None:
        """Bring the particles into half precision: z = z₀ + G S, or z itself."""
        particles = self.setup.particles
        moved = None if particles.sum is None or self._by_update else self._gram(particles.sum).contiguous()
        products.halve(particles.cloud.z.contiguous(), self._places, mine.z, moved)

    def _gram(self, u: Tensor) -> Tensor:
        """Return G u: d_k×n → d_k×n."""
        coordinates = self.setup.sampler.coordinates
        return coordinates.gram(u) if coordinates.quick is None else columnwise(coordinates.quick.times, u)

    @property
    def _by_update(self) -> bool:
        """Whether particles move by an update: a part of them is observed, or they are clipped."""
        clipped = self.setup.settings.clip is not None
        return clipped or self.setup.sampler.coordinates.observation is not None

    @property
    def _direct(self) -> bool:
        """Whether what moves is what is projected: x itself, or W x."""
        return self.setup.particles.sum is None and not self._by_update

    def _arrived(self, moving_part: Tensor, before: Tensor) -> Tensor:
        """Let half precision know what has moved, and return the mean length of the move."""
        mine = self._particles()
        if self._by_update:
            moved = self.setup.particles.move(moving_part)
            self._refresh(mine)
            return moved.mean()
        change = (spread(moving_part, MEASURED) - before).flatten(1)
        if self._direct:
            lengths: Tensor = torch.linalg.vector_norm(change, dim=0)
            return lengths.mean()
        self._refresh(mine)
        return (change * self._gram(change)).sum(dim=0).clamp_min(0).sqrt().mean()


def _same(fits: Fits) -> Fits:
    return fits
