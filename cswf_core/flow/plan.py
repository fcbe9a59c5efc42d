"""The plan of a stage: how its steps are computed on this device.

There are two plans, for one and the same step. `ExactPlan`, in `exact_plan`, works in float32 or float64 on any
device. `HalfPlan`, in `cuda.plan`, has half precision with float32 sums on CUDA.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import cached_property

import attrs
import torch
from torch import Tensor

from cswf_core.checks import CheckedCDF
from cswf_core.errors import RunError
from cswf_core.flow.clock import Clock
from cswf_core.flow.data import Block, FlowData
from cswf_core.flow.diagnosis import Fault
from cswf_core.flow.directions import Directions, DirectionSampler, draw_number
from cswf_core.flow.memory import Budget
from cswf_core.flow.particles import Particles, normal, taking_part, uniform
from cswf_core.flow.settings import Settings
from cswf_core.flow.target import StageCounts
from cswf_core.flow.transport import CDFTransport, Samples, StepTables, TableTransport
from cswf_core.interfaces import Conditions, Key, Part, Stratum
from cswf_core.kernels.columns import WIDTH, groups
from cswf_core.kernels.rows import Columns
from cswf_core.ranks import Ranks, Share, size_of

SETS_SHARE = 16
"""Directions that come again may take one part in so many of a device's memory."""


Sizes = tuple[Sequence[int], Sequence[int]]
"""How many particles, and how many data, each distribution is fitted to."""


@attrs.frozen(eq=False)
class Strata:
    """Groups of particles and data that flow apart from each other."""

    own: list[Stratum]
    """Those that this rank has of each, by their numbers here."""
    places: list[Tensor | None]
    """The place of each of these data among all of its stratum; None: they lie in a row."""
    sizes: Sizes
    """How many there are of each, over all ranks."""

    @classmethod
    def of(cls, all_strata: list[Stratum], particles: Share, data: Share) -> Strata:
        """Return a rank's part of strata of all samples."""
        own = [(_index(particles.own(mine)), _index(data.own(theirs))) for mine, theirs in all_strata]
        places = [data.places(theirs) for _, theirs in all_strata]
        return cls(
            own, places, ([len(mine) for mine, _ in all_strata], [len(theirs) for _, theirs in all_strata])
        )

    def of_particles(self, cut: slice) -> Strata:
        """Return the strata of some of a rank's particles, and of all of its data."""

        def inside(mine: Tensor) -> Tensor:
            here = (mine >= cut.start) & (mine < cut.stop)
            return mine[here].sub(cut.start)

        return attrs.evolve(self, own=[(inside(mine), theirs) for mine, theirs in self.own])


def _index(columns: Columns | None) -> Tensor:
    assert isinstance(columns, Tensor)
    return columns


@attrs.frozen(eq=False)
class Move:
    """The outcome of a step."""

    length: Tensor
    """The mean length of the particles' move, a scalar."""
    squares: Tensor
    """SW₂² before it, a scalar."""
    tables: StepTables | None = None
    """Its transport maps, where they are wanted."""
    shortened: float = 1.0
    """What η was multiplied with, as the step's own directions made that necessary."""


@attrs.frozen(eq=False)
class StageSetup:
    """Everything that the steps of a stage work on and with."""

    index: int
    """The number of the stage."""
    direction_stage: int
    """The number of the stage whose directions these are: its own, unless stages are run through again."""
    first_step: int
    """How many steps the flow took before this stage."""
    settings: Settings
    particles: Particles
    data: FlowData
    """The data that particles flow to."""
    sampler: DirectionSampler
    cdf: CheckedCDF
    strata: Strata | None
    budget: Budget
    particle_conditions: Conditions
    """Those of all ranks' particles, on the CPU."""
    ranks: Ranks
    adaptive: bool = False
    """Whether the schedule looks at distances: then they must not depend on how many ranks there are."""
    counts: StageCounts | None = None
    """Counts of the data along the stage's directions, in place of the data, of which there are none then."""

    @property
    def like(self) -> Tensor:
        """No samples, on the flow's device and in its numbers: d×0."""
        return self.data.like

    @property
    def bin_width(self) -> float:
        """The distance between two grey levels of the data; 0: they are not dequantised."""
        return self.data.all.bin_width

    @property
    def total(self) -> int | None:
        """M, where other ranks have some of the particles; None: all are here."""
        return None if self.ranks.alone else self.particles.share.total

    def on(self, block: Particles) -> StageSetup:
        """Return the same for a block of the particles."""
        if block is self.particles:
            return self
        first = self.particles.share.first
        cut = slice(block.share.first - first, block.share.stop - first)
        strata = None if self.strata is None else self.strata.of_particles(cut)
        return attrs.evolve(self, particles=block, strata=strata)

    @property
    def sets(self) -> int | None:
        """How many sets of directions the stage has, used in turn; None: each step draws its own."""
        return None if self.counts is None else self.counts.sets


class Plan(abc.ABC):
    """The steps of one stage."""

    half = False
    """Whether products are in half precision."""

    def __init__(self, setup: StageSetup) -> None:
        self.setup = setup
        self.inspects = False
        """Whether a step is looked at while it is taken, for numbers that are not finite: a GPU would wait."""
        self.fault: Fault | None = None
        """What has made such numbers, if they were seen."""
        self._parts_of_data: tuple[tuple[int, Tensor | None], ...] = ()
        """The data that F_q is fitted to at the last draws, by the number of the draw."""
        self._part_at: tuple[int, Columns | None] | None = None
        """The number of a step, and the particles that its F_p is fitted to: the same for all blocks."""

    @abc.abstractmethod
    def move(self, step: int, eta: float, clock: Clock) -> Move:
        """X ← X − η v̂."""

    def step(self, step: int, eta: float, clock: Clock) -> Move:
        """Take a step: move and, with λ > 0, add √(2λη) ε to the particles."""
        setup = self.setup
        result = self.move(step, eta, clock)
        entropy = setup.sampler.stage.entropy
        if entropy > 0:
            key = Key(setup.settings.seed, "entropy", setup.index, step)
            for block in setup.particles.blocks(write=True, whole=True):
                noise = normal(key, len(setup.like), block.share, setup.like)
                block.add_noise(noise.mul_(math.sqrt(2 * entropy * eta * result.shortened)))
        return result

    @contextmanager
    def on(self, block: Particles) -> Iterator[None]:
        """Work on a block of the particles inside."""
        whole = self.setup
        self.setup = whole.on(block)
        try:
            yield
        finally:
            self.setup = whole

    def outcome(self, lengths: Tensor, squares: Tensor, clock: Clock, tables: StepTables | None) -> Move:
        """Return the outcome of a step, given this rank's part of the sum of lengths and of SW₂²."""
        setup = self.setup
        with nullcontext() if setup.ranks.alone else clock.part("communicate"):
            sums = setup.ranks.sums(torch.cat([lengths.reshape(1), squares.reshape(-1)]))
        return Move(sums[0] / setup.particles.share.total, sums[1:].sum(), tables)

    def _square_sums(self, samples: Samples, delta: Tensor) -> Tensor:
        """Return the sum of δ² of each group of all ranks' particles, 0 for those that are elsewhere.

        Added up over ranks, and then over groups, they do not depend on how many ranks there are.
        """
        share, width = self.setup.particles.share, WIDTH[delta.device.type]
        squares = delta.double().square()
        if samples.measured is not None:
            weights = squares.new_zeros(delta.shape[1])
            weights[samples.measured] = samples.stretch
            squares *= weights
        sums = squares.new_zeros(-(-share.total // width))
        for group in groups(delta.shape[1], delta.device.type):
            sums[(share.first + group.start) // width] = squares[:, group].contiguous().sum()
        return sums

    def numerics(self) -> dict[str, int]:
        """Return the decisions made on the way that decide about last digits; see `adopt`."""
        budget = self.setup.budget
        return {"slab": budget.slab, "rows": budget.rows, "dense": int(self.setup.sampler.dense)}

    def adopt(self, numerics: Mapping[str, int]) -> None:
        """Decide as a plan of the same stage has before, so that a flow goes on with the same bits."""
        for name in ("slab", "rows"):
            if numerics.get(name, 0) < 1:
                raise RunError(f"it is damaged: habits.{name} must be 1 or more, got {numerics.get(name)}")
        self.setup.budget.slab, self.setup.budget.rows = numerics["slab"], numerics["rows"]
        self.setup.sampler.dense = bool(numerics.get("dense", 0))

    def draw(self, key: int, clock: Clock, *, check: bool) -> Iterator[Directions]:
        """Draw the directions of the step `key`, batch by batch; `check` checks numbers, not only shapes."""
        setup = self.setup
        check = check or self.inspects or setup.like.device.type == "cpu"
        drawn = setup.sampler.batches(setup.settings.seed, setup.direction_stage, key, check=check)
        size = setup.like.element_size()
        theta: Directions | None = None

        def written() -> tuple[float, float]:
            return (0.0 if theta is None else float(theta.numbers * size)), 0.0

        while True:
            with clock.part("draw", written):
                theta = next(drawn, None)
            if theta is None:
                return
            yield theta

    def examine(self, step: int) -> None:
        """Check the numbers of a step's directions, as most steps do not; raise if they are at fault."""
        self.setup.sampler.sampler.doubt()
        if not self.setup.sampler.sampler.adapts:  # those were checked as they were drawn
            for _ in self.draw(self.draw_number(step), Clock(), check=True):
                pass

    def draw_number(self, step: int) -> int:
        """Return the number of the draw whose directions a step uses."""
        return draw_number(step, self.setup.settings.reuse, self.setup.sets)

    def transport(self, step: int, clock: Clock) -> CDFTransport:
        """Return the transport by the CDF plugin, whose numbers are checked at each stage's first step."""
        return self.by_cdf(step, clock, check=step == 0)

    def by_cdf(self, step: int, clock: Clock, *, check: bool) -> CDFTransport:
        """Return the transport by the CDF plugin."""
        setup = self.setup
        own = None if setup.strata is None else setup.strata.own
        return CDFTransport(setup.cdf, own, clock, check, self.samples(step), setup.ranks)

    def samples(self, step: int) -> Samples:
        """Return the particles and data that a step's distributions are fitted to, of those on this rank."""
        setup, share = self.setup, self.setup.particles.share
        particles, counted = self._part_of_particles(step), self._counted
        N = len(setup.data.all) if self.part_size is None else self.part_size
        counts: Sizes = [size_of(particles, share.total)], [N]
        return Samples(
            particles=share.own(particles),
            measured=share.own(counted),
            stretch=share.total / max(1, size_of(counted, share.total)),
            counts=counts if setup.strata is None else setup.strata.sizes,
            places=() if setup.strata is None else setup.strata.places,
        )

    def data_blocks(self, key: int, again: bool) -> Iterator[Block]:
        """Yield the data that F_q is fitted to along the directions of the draw `key`, block by block.

        `again`: they will be gone through once more. Otherwise those of the next draw follow.
        """
        following = key if again else self._next_draw(key)
        return self.setup.data.blocks(self.setup.index, key, self._chosen_data, following)

    @property
    def part_size(self) -> int | None:
        """How many data F_q is fitted to at a time; None: all."""
        part, N = self.setup.cdf.data, len(self.setup.data.all)
        return None if part is None or part.of(N) == N else part.of(N)

    def _next_draw(self, key: int) -> int | None:
        """Return the number of the draw behind another in this stage; None if that is the last, or kept."""
        setup, reuse = self.setup, self.setup.settings.reuse
        if reuse is None or setup.sets is not None or key + reuse >= setup.sampler.stage.steps:
            return None
        return key + reuse

    def _chosen_data(self, key: int) -> Tensor | None:
        """Return the data that F_q is fitted to along the directions of the draw `key`; None: all.

        Also the thread that reads data ahead asks.
        """
        for known, numbers in self._parts_of_data:
            if known == key:
                return numbers
        data = self.setup.data
        numbers = self._part(self.setup.cdf.data, len(data.all), key, 1, self.setup.like.device)
        if numbers is not None and not data.resident:
            numbers = numbers.cpu()  # where they are read
        self._parts_of_data = (*self._parts_of_data[-1:], (key, numbers))
        return numbers

    def of_block(self, by_cdf: CDFTransport, block: Block) -> CDFTransport:
        """Return a transport for the rows of a block of data: its strata are those of the block."""
        strata, share = self.setup.strata, self.setup.data.share
        if strata is None or isinstance(block.numbers, Tensor):
            return by_cdf
        first, stop = (number - share.first for number in (block.numbers.start, block.numbers.stop))
        own: list[Stratum] = []
        places: list[Tensor | None] = []
        for (particles, data), place in zip(strata.own, strata.places, strict=True):
            here = ((data >= first) & (data < stop)).nonzero()[:, 0]
            own.append((particles, data[here] - first))
            places.append(here if place is None else place[here])
        return attrs.evolve(by_cdf, strata=own, samples=attrs.evolve(by_cdf.samples, places=places))

    def _part_of_particles(self, step: int) -> Columns | None:
        """Return those of all ranks' particles that a step's F_p is fitted to; None: all."""
        if self._part_at is None or self._part_at[0] != step:
            self._part_at = step, self._drawn_particles(step)
        return self._part_at[1]

    def _drawn_particles(self, step: int) -> Columns | None:
        particles, part = self._fitted_particles(step), self.setup.cdf.particles
        if part is None:
            return particles
        mine = torch.arange(self.setup.particles.share.total, device=self.setup.like.device)
        mine = mine if particles is None else mine[particles]
        chosen = self._part(part, len(mine), step, 0, mine.device)
        return particles if chosen is None else mine[chosen]

    def fitted_half(self, step: int) -> int:
        """Return the half of the particles, 0 or 1, whose turn it is in F_p at a step; without turns, 0."""
        length = self.setup.settings.turn
        return 0 if length is None else (self.setup.first_step + step) // length % 2

    def _fitted_particles(self, step: int) -> Columns | None:
        """Return the particles that take part in a step's F_p: all that ever do, or those whose turn it is."""
        counted = self._counted
        if self.setup.settings.turn is None:
            return counted
        # Every second one, and not one half after the other: labels may be in order.
        first = self.fitted_half(step)
        if isinstance(counted, Tensor):
            return counted[first::2]
        return slice(first, self.setup.particles.share.total if counted is None else counted.stop, 2)

    @cached_property
    def _counted(self) -> Columns | None:
        """Those of all ranks' particles that take part in F_p, always or in their turns; None: all."""
        setup = self.setup
        total = setup.particles.share.total
        part = taking_part(setup.particle_conditions, total, setup.sampler.condition, setup.settings)
        return part.to(setup.like.device) if isinstance(part, Tensor) else part

    def _part(
        self, part: Part | None, count: int, step: int, index: int, device: torch.device
    ) -> Tensor | None:
        """Return the numbers of a random part of `count` samples, in rising order; None: all of them."""
        if part is None or part.of(count) == count:
            return None
        key = Key(self.setup.settings.seed, "part", self.setup.index, step, index)
        return key.open(device, torch.float64).spread(part.of(count), count)

    @property
    def fits_the_same(self) -> bool:
        """Whether F_p and F_q are fitted to the same particles and data at every step of a turn."""
        return self.setup.cdf.particles is None and self.setup.cdf.data is None

    @property
    def _dequantises_conditions(self) -> bool:
        return self.setup.sampler.condition.dequantised and self.setup.bin_width > 0

    def condition_noise(self, step: int, first: int, count: int) -> Tensor | None:
        """Return the noise of a step in the conditions of some data (l×n), where these are dequantised."""
        setup = self.setup
        if not self._dequantises_conditions:
            return None
        key = Key(setup.settings.seed, "dequantise condition", setup.index, step)
        return uniform(key, setup.sampler.length, first, count, setup.like) * setup.bin_width

    def mean_condition_noise(self) -> Tensor | None:
        """Return the mean of that noise (l×1), for data whose noise is added as they are counted."""
        setup = self.setup
        if not self._dequantises_conditions:
            return None
        return setup.like.new_full((setup.sampler.length, 1), setup.bin_width / 2)

    def table_transport(self, by_cdf: CDFTransport) -> TableTransport | None:
        """Return the transport by tables, which collects these; None if they are not wanted."""
        setup, request = self.setup, self.setup.settings.tables
        if request is None:
            return None
        return TableTransport(request, setup.sampler.stage.directions, setup.sampler.together, by_cdf)

    def wants_tables(self, step: int) -> bool:
        """Say whether the tables of a step are for observers."""
        request = self.setup.settings.tables
        return request is not None and request.wants(step)

    @property
    def keeps_sets(self) -> bool:
        """Whether directions that come again are kept: if all sets of a stage take little of the memory."""
        setup, like = self.setup, self.setup.like
        H, d = setup.sampler.stage.directions, setup.sampler.coordinates.space.dimension
        size = H * d * like.element_size()
        return setup.sets is not None and setup.sets * size <= setup.budget.memory // SETS_SHARE
