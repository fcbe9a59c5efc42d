"""The steps of a stage in half precision with float32 sums, on CUDA, with as few passes as possible.

Directions become boxes, and samples whole tiles, in half precision, sorted by where directions look. `step` is
that of `flow/step.py`: projecting writes the values once, in half precision, and finds their ends on the way;
the transport replaces them by δ; the last back-projection moves the particles, which stay in float32, and
brings them into half precision again. Data come into half precision once per stage: the noise in their bins has
its mean added there, and its width when they are counted. Steps that are all alike are recorded once as a CUDA
graph (`graph`), which also prepares the directions of the next step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import attrs
import torch
from torch import Tensor

from cswf_core.checks import CheckedCondition
from cswf_core.errors import RunError
from cswf_core.flow.data import Block
from cswf_core.flow.directions import Directions, Place
from cswf_core.flow.fits import Begun, Fits, Source
from cswf_core.flow.graph import StepGraph, overwrite, recorded
from cswf_core.flow.memory import MEMORY_OVER_VALUES, Clock, attempted
from cswf_core.flow.particles import ParticleBlock
from cswf_core.flow.settings import Settings
from cswf_core.flow.stage import StageSetup
from cswf_core.flow.step import Tools
from cswf_core.flow.stepper import StepOutcome, Stepper
from cswf_core.flow.tables import StepTables
from cswf_core.flow.transport import Displace, Maps
from cswf_core.interfaces import Conditions, PatchProjection, Rows, Space
from cswf_core.kernels.columns import COLUMNS_AT_A_TIME, columnwise
from cswf_core.kernels.gpu import boxes, following, products
from cswf_core.kernels.sparse import TILE, WIDEST_TILE, Boxes, Strips, padded, side_of

SORTED_BELOW = 0.9
"""Share of boxes that are not zero up to which directions are sorted by where they look."""


@attrs.frozen(eq=False)
class HalfCloud:
    """Samples in a stage's coordinates, in half precision, filled up to whole tiles; and their conditions."""

    z: Tensor
    """d'×n'."""
    count: int
    """n."""
    conditions: Conditions
    groups: tuple[Tensor, Conditions] | None
    """The group of each sample, and each group's condition."""
    noise: Tensor | None = None
    """What is added to ξy of all samples: l×1; None is nothing."""
    first: int = 0
    """The first one's number among the samples of all ranks."""


@attrs.define(eq=False)
class HalfSlab:
    """Directions whose products are taken at once."""

    directions: Boxes
    place: Place
    theta_y: Tensor | None
    """ξ √(1−a²) θ_y, in the order of the boxes: H×l."""
    condition: CheckedCondition | None
    check: bool
    """Whether the numbers that the condition plugin returns are checked."""
    noise: Tensor | None
    """The width of the noise in the data's bins along each direction: H."""
    F_q: Fits | None = None
    """The data's distributions along the directions, once they are fitted."""
    begun: Begun | None = None
    """The same, while counts are on their way between ranks."""

    @property
    def count(self) -> int:
        """H."""
        return self.directions.shape[0]

    def await_data(self) -> Fits:
        """Return F_q along the directions, once counts have come from other ranks, and keep it."""
        if self.F_q is None:
            assert self.begun is not None
            self.F_q = self.begun()
            self.begun = None
        return self.F_q

    def projected_rows(self, cloud: HalfCloud, clock: Clock) -> tuple[Rows, Tensor]:
        """Return p_h = θ_h·(z, ξy) of samples: H×n; and the matrix of whole tiles that they begin in: H'×n'."""
        with clock.part("project", partial(self.work, cloud.count, 2)):
            values = cloud.z.new_empty(padded(self.count), cloud.z.shape[1])
            low, high = products.project(self.directions, cloud.z, values)
            rows = Rows(values[: self.count, : cloud.count], low, high)
            return self._with_conditions(rows, cloud), values

    def projected(self, cloud: HalfCloud, clock: Clock) -> Rows:
        """Return p_h = θ_h·(z, ξy) of particles: H×n."""
        return self.projected_rows(cloud, clock)[0]

    def projected_data(self, cloud: HalfCloud, clock: Clock) -> Rows:
        """Return q_h = θ_h·(z, ξy) of data, with the noise in their bins: H×n."""
        rows = self.projected(cloud, clock)
        if self.noise is None:
            return rows
        low = rows.low - self.noise / 2
        high = rows.high + self.noise / 2
        first = self.place.first
        return attrs.evolve(rows, low=low, high=high, noise=self.noise, first=first, column=cloud.first)

    def work(self, samples: int, coordinate: int) -> tuple[float, float]:
        """Return the bytes of a projection of samples, with those per `coordinate`, and its operations."""
        H, d = self.directions.shape
        moved = float(2 * H * (d + samples) + coordinate * d * samples)
        return moved, self.directions.flops(samples)

    def back_work(self, samples: int, coordinate: int) -> tuple[float, float]:
        """Return the same of a back-projection, which has boxes of its own."""
        return self.work(samples, coordinate)[0], self.directions.back_flops(samples)

    def _with_conditions(self, rows: Rows, cloud: HalfCloud) -> Rows:
        """Return projected values to which θ_y·ξy is added, or stands beside them for each group."""
        theta_y = self.theta_y
        condition = self.condition
        if theta_y is None or condition is None:
            return rows
        shift = 0 if cloud.noise is None else theta_y / condition.amplifier @ cloud.noise
        if cloud.groups is None:
            offset = shift + condition.project(theta_y, cloud.conditions, count=cloud.count, check=self.check)
            return Rows.of(rows.values.float() + offset)
        index, classes = cloud.groups
        offsets = shift + condition.project(theta_y, classes, check=self.check)
        low = rows.low + offsets.amin(dim=1)
        high = rows.high + offsets.amax(dim=1)
        return Rows(rows.values, low, high, offsets, index)


def prepared_data(source: Source[HalfCloud]) -> Source[HalfCloud]:
    """Return data whose distributions were fitted when directions were prepared, if that was done."""

    def along(theta: Any) -> Begun:
        known = theta.F_q is not None or theta.begun is not None
        begun: Begun = theta.await_data if known else source.along(theta)
        return begun

    return Source(along, source.clouds)


def half_slabs_of(
    theta: Directions, places: Strips | None, most: int, into: list[HalfSlab] | None = None
) -> list[HalfSlab]:
    """Turn a batch of directions into slabs of at most `most`; `into` are slabs whose memory may be used."""
    projection = theta.projection
    if isinstance(projection, PatchProjection):  # filters with a place are packed as they are
        source = boxes.DrawnDirections.of_filters(
            projection.filters,
            projection.row,
            projection.column,
            projection.dilation,
            projection.space.shape,
            theta.scale,
        )
    else:
        source = boxes.DrawnDirections.of_matrix(projection.dense(), theta.scale)
    device = source.values.device
    where = Strips.unsorted(source.shape[1], device) if places is None else places
    order = boxes.sorting(source, where)
    whole = attrs.evolve(theta.place, order=order)
    sides = [theta.theta_y, theta.noise]
    if order is not None:
        sides = [None if side is None else side[order] for side in sides]
    free = [] if into is None else [slab.directions for slab in into]
    slabs = []
    for number, first in enumerate(range(0, theta.count, most)):
        rows = slice(first, min(first + most, theta.count))
        theta_y, noise = (None if side is None else side[rows] for side in sides)
        mine = torch.arange(first, rows.stop, device=device) if order is None else order[rows]
        slab = boxes.packed(source, mine, where, free[number] if number < len(free) else None)
        slabs.append(HalfSlab(slab, whole.rows(rows), theta_y, theta.condition, theta.check, noise))
    return slabs


def strips_for(theta: Tensor, space: Space, directions: int) -> Strips | None:
    """Return orders of coordinates and of directions like θ (H×d), if products then skip enough zeros."""
    if not space.is_image:
        return None
    where = Strips.of(space.shape, directions, side_of(theta, space.shape), theta.device)
    source = boxes.DrawnDirections.of_matrix(theta, None)
    share = boxes.packed(source, boxes.sorting(source, where), where).share()
    return where if share <= SORTED_BELOW else None


def halved(
    z: Tensor, places: Strips | None, conditions: Conditions, groups: tuple[Tensor, Conditions] | None
) -> HalfCloud:
    """Return samples z (d×n) in half precision, their coordinates in the order of `places`."""
    d, n = z.shape
    half = z.new_empty(padded(d), padded(n, WIDEST_TILE), dtype=torch.float16)
    products.halve(z.contiguous(), places, half)
    return HalfCloud(half, n, conditions, groups)


def refuse_too_many(samples: int, settings: Settings) -> None:
    """Raise `RunError` if there are more samples than the kernels can count."""
    most = 65534 * TILE  # a grid of programs can have 65,535 tiles, and samples are filled up by two
    if samples > most:
        raise RunError(
            f"half precision goes up to {most:,} particles or data; "
            f"take the {settings.called('precision')} float32"
        )


def packing(theta: Directions) -> tuple[float, float]:
    """Return the bytes of bringing directions into half precision: read in float32, written in float16."""
    return 6.0 * theta.numbers, 0.0


def runs_of(x: Tensor, few: int) -> Tensor:
    """Return a view of `few` samples in x (d×n), in runs that are spread evenly: d×runs×64, or d×1×n."""
    d, n = x.shape
    if n < few:
        return x[:, None]
    side = 64  # samples that lie side by side in memory: reading runs is quick
    runs = few // side
    return x.as_strided((d, runs, side), (x.stride(0), (n - side) // (runs - 1), 1), x.storage_offset())


MEASURED_PARTICLES = 1024
"""Particles whose moves are measured, for the log."""


def step(
    particles: HalfParticles, slabs: Sequence[HalfSlab], maps: Maps[HalfCloud], factor: Tensor, tools: Tools
) -> Tensor:
    """Move particles by X ← X + η/H Σ_h δ_h θ_h; return Σ_h of the sums of δ_h², a scalar in float64.

    `maps` are T_h = F_q⁻¹∘F_p, and `factor` is η/H, one number on the device, where a recorded step reads it.
    """
    X = particles.cloud
    total = torch.zeros((), dtype=torch.float64, device=factor.device)

    def begun(theta: HalfSlab) -> tuple[HalfSlab, Tensor, Tensor, Displace]:
        p, whole = theta.projected_rows(X, tools.clock)  # project: p_h = θ_h·(X, ξY)
        return theta, p.values, whole, maps(theta, p)  # fit F_p and F_q: begun here

    for number, (theta, delta, whole, displace) in enumerate(tools.ranks.ahead(map(begun, slabs))):
        total += displace().sum()  # fit what is left; transport: p_h becomes δ_h = F_q⁻¹(F_p(p_h)) − p_h
        if delta.dtype != whole.dtype:  # else δ is a part of the matrix already
            whole[: delta.shape[0], : delta.shape[1]] = delta
        if number + 1 < len(slabs):
            particles.add(theta, whole, tools.clock)  # back-project: Σ_h δ_h θ_h
        else:
            tools.moving = True
            particles.move(theta, whole, factor, tools.clock)  # back-project the last, and move: X ← X + …
    return total


@attrs.define(eq=False, slots=False)
class HalfParticles:
    """Particles inside a stage, with their copy in half precision.

    What moves is z itself; or the sum S of updates; or x by an update, where a part of it is observed or it
    is clipped. Where S moves, `particles.cloud.z` stays z₀, as it was on entering the stage, and the copy
    alone has z = z₀ + G S: `ParticleBlock.move`, which keeps z up to date, is not called.
    """

    _particles: ParticleBlock
    _places: Strips | None
    """The order of the coordinates of `_half`; None: their own."""
    _half: HalfCloud
    current: bool = attrs.field(default=True, kw_only=True)
    """Whether the copy is as the particles are."""
    _sums: Tensor | None = attrs.field(default=None, init=False)
    """Σ_h δ_h θ_h of all slabs but the last: d'×n'."""
    _begun: bool = attrs.field(default=False, init=False)
    """Whether `_sums` has those of this step."""
    _lengths: Tensor | None = attrs.field(default=None, init=False)
    """How far each particle moved in the last step, where they move by an update."""

    @property
    def cloud(self) -> HalfCloud:
        """The particles in half precision, brought up to date if they have changed."""
        if not self.current:
            self.refresh()
        return self._half

    @property
    def direct(self) -> bool:
        """Whether what moves is what is projected: x itself, or W x."""
        return self._particles.sum is None and not self._particles.constrained

    def add(self, theta: HalfSlab, delta: Tensor, clock: Clock) -> None:
        """Add Σ_h δ_h θ_h of a slab that is not the last: δ is H'×n'."""
        if self._sums is None:
            self._sums = torch.empty(self._half.z.shape, device=delta.device)
        moved = 8 if self._begun else 4
        with clock.part("back-project", partial(theta.back_work, self._half.count, moved)):
            products.back_project(theta.directions, delta, self._sums, add=self._begun)
        self._begun = True

    def move(self, theta: HalfSlab, delta: Tensor, factor: Tensor, clock: Clock) -> None:
        """Add Σ_h δ_h θ_h of the last slab, and move by η/H times all of it."""
        z = self._particles.cloud.z
        total = self._particles.sum
        target = torch.zeros_like(z) if self._particles.constrained else self._moving
        sums = self._sums if self._begun else None
        self._begun = False
        half = self._half.z if self.direct else None
        moved = 8 + (2 if self.direct else 0) + (0 if sums is None else 4)
        with clock.part("back-project", partial(theta.back_work, self._half.count, moved)):
            products.move(theta.directions, delta, sums, target, factor, self._places, half)
        # Of z = z₀ + G S: read S, write G S, read both parts, write z in half precision. Where particles move
        # by an update: read that, read and write z and S, or x, and bring that into half precision.
        each = (0 if self.direct else 18) + (8 if self._particles.constrained and total is not None else 0)
        with clock.part("move", lambda: (float(each * z.numel()), 0.0)):
            self._lengths = self._particles.move(target) if self._particles.constrained else None
            if not self.direct:
                self.refresh()

    @property
    def _moving(self) -> Tensor:
        """What moves unless particles move by an update: S, or z itself."""
        total = self._particles.sum
        return self._particles.cloud.z if total is None else total

    def some(self) -> Tensor:
        """Return a copy of what moves of some particles, to measure their move later."""
        return runs_of(self._moving, MEASURED_PARTICLES).clone()

    def mean_length(self, before: Tensor) -> Tensor:
        """Return the mean length of the last move: of `some` particles, unless they moved by an update."""
        lengths = self._lengths
        if lengths is None:
            change = (runs_of(self._moving, MEASURED_PARTICLES) - before).flatten(1)
            if self.direct:
                lengths = torch.linalg.vector_norm(change, dim=0)
            else:
                lengths = (change * self.gram(change)).sum(dim=0).clamp_min(0).sqrt()
        return lengths.mean()

    def refresh(self) -> None:
        """Bring the particles into half precision: z = z₀ + G S, or z itself."""
        total = self._particles.sum
        quick = self._particles.coordinates.quick
        z = self._particles.cloud.z.contiguous()
        self.current = True
        if total is None or self._particles.constrained or quick is None:
            moved = None if total is None or self._particles.constrained else self.gram(total).contiguous()
            products.halve(z, self._places, self._half.z, moved)
            return
        order = None if self._places is None else self._places.place
        following.follow(quick.matrices, total.contiguous(), z, order, self._half.z)
        products.fill_up(self._half.z, self._half.count)

    def gram(self, u: Tensor) -> Tensor:
        """Return G u: d_k×n → d_k×n."""
        coordinates = self._particles.coordinates
        quick = coordinates.quick
        return coordinates.gram(u) if quick is None else columnwise(quick.times, u)


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
        return self._outcome(result, clock)

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
        return self._outcome((lengths, squares, *tables), tools.clock)

    def _outcome(self, result: tuple[Tensor, ...], clock: Clock) -> StepOutcome:
        tables = StepTables(*result[2:]) if result[2:] else None
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
        same_samples = setup.cdf.particles is None and setup.data.stays
        alike = setup.data.draws.fresh and stage.entropy == 0 and by_counts and same_samples
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
        F_q = prepared_data(self._source(setup.data.draws.number(number), slabs, tools.clock))
        maps = self.maps(number, block, F_q, F_p, tools)
        before = particles.some()
        squares = step(particles, slabs, maps.begin, self._factor, tools)
        squared = squares / (setup.particles.share.total * setup.sampler.stage.directions)
        return particles.mean_length(before), squared, *maps.tables()

    def _prepared(
        self, draw: int, clock: Clock, check: bool, into: list[HalfSlab] | None = None
    ) -> list[HalfSlab]:
        """Draw the directions of a draw, into old slabs if any, and fit F_q where fits are small."""
        setup = self.setup
        stage = setup.sampler.stage
        slabs: list[HalfSlab] = []
        for theta in self.draw(draw, clock, check=check):
            with clock.part("draw", partial(packing, theta)):
                if self._side is None:  # the stage's first directions decide on an order of coordinates
                    space = setup.sampler.coordinates.space
                    self._places = strips_for(theta.projection.dense(), space, stage.directions)
                    self._side = 0 if self._places is None else self._places.side
                noise = setup.sampler.noise_widths(theta, setup.bin_width)
                free = None if into is None else into[len(slabs) :]
                slabs += half_slabs_of(attrs.evolve(theta, noise=noise), self._places, self._most, free)
        if setup.cdf.compact or setup.in_blocks:
            source = self._source(draw, slabs, clock)
            for slab in slabs:
                slab.begun = source.along(slab)
            if setup.ranks.alone:  # otherwise all are begun before one is awaited
                for slab in slabs:
                    slab.await_data()
        return slabs

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
