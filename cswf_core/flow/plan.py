"""The plan of a stage: how its steps are computed on this device.

There are two plans, for one and the same step. `ExactPlan`, here, works in float32 or float64 on any device.
`HalfPlan`, in `cuda.plan`, has half precision with float32 sums on CUDA.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import cached_property, lru_cache, partial

import attrs
import torch
from torch import Tensor

from cswf_core.checks import CheckedCDF
from cswf_core.flow.clock import Clock
from cswf_core.flow.directions import Directions, DirectionSampler, draw_number
from cswf_core.flow.memory import Budget
from cswf_core.flow.particles import Particles, dequantised, normal, taking_part
from cswf_core.flow.settings import Settings
from cswf_core.flow.stage_coordinates import Cloud
from cswf_core.flow.step import displacements
from cswf_core.flow.target import FitsByPlace, FittedTarget, KeptTarget, StageCounts, Target
from cswf_core.flow.transport import CDFTransport, Samples, StepTables, TableTransport
from cswf_core.interfaces import Conditions, Dataset, Key, Part, Stratum
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
    data: Dataset
    """The data that particles flow to, as they were loaded."""
    data_x: Tensor
    """Their d×N numbers on the flow's device."""
    conditions: Conditions
    """Their conditions, there too."""
    sampler: DirectionSampler
    cdf: CheckedCDF
    strata: Strata | None
    budget: Budget
    particle_conditions: Conditions
    """Those of all ranks' particles, on the CPU."""
    data_share: Share
    """Which of all data `data_x` and `conditions` are."""
    ranks: Ranks
    adaptive: bool = False
    """Whether the schedule looks at distances: then they must not depend on how many ranks there are."""
    counts: StageCounts | None = None
    """Counts of the data along the stage's directions, in place of the data, of which there are none then."""

    @property
    def total(self) -> int | None:
        """M, where other ranks have some of the particles; None: all are here."""
        return None if self.ranks.alone else self.particles.share.total

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
            noise = normal(key, setup.data.space.dimension, setup.particles.share, setup.data_x)
            setup.particles.shake(noise.mul_(math.sqrt(2 * entropy * eta)))
        return result

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
        self.setup.budget.slab, self.setup.budget.rows = numerics["slab"], numerics["rows"]
        self.setup.sampler.dense = bool(numerics["dense"])

    def draw(self, key: int, clock: Clock, *, check: bool) -> Iterator[Directions]:
        """Draw the directions of the step `key`, batch by batch; `check` checks numbers, not only shapes."""
        setup = self.setup
        check = check or setup.data_x.device.type == "cpu"
        drawn = setup.sampler.batches(setup.settings.seed, setup.direction_stage, key, check=check)
        size = setup.data_x.element_size()
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
        setup, cdf, share = self.setup, self.setup.cdf, self.setup.particles.share
        particles, counted = self._fitted_particles(step), self._counted
        if cdf.particles is not None:
            mine = torch.arange(share.total, device=setup.data_x.device)
            mine = mine if particles is None else mine[particles]
            part = self._part(cdf.particles, len(mine), step, 0)
            particles = particles if part is None else mine[part]
        data = self._part(cdf.data, setup.data_share.total, self.draw_number(step), 1)
        counts: Sizes = [size_of(particles, share.total)], [size_of(data, setup.data_share.total)]
        return Samples(
            particles=share.own(particles),
            data=setup.data_share.own(data),
            measured=share.own(counted),
            stretch=share.total / max(1, size_of(counted, share.total)),
            counts=counts if setup.strata is None else setup.strata.sizes,
            places=[setup.data_share.places(data)] if setup.strata is None else setup.strata.places,
        )

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
        return part.to(setup.data_x.device) if isinstance(part, Tensor) else part

    def _part(self, part: Part | None, count: int, step: int, index: int) -> Tensor | None:
        """Return the numbers of a random part of `count` samples; None: all of them."""
        if part is None or part.of(count) == count:
            return None
        key = Key(self.setup.settings.seed, "part", self.setup.index, step, index)
        order = key.open(self.setup.data_x.device, torch.float64).uniform(count).argsort()
        return order[: part.of(count)]

    @property
    def fits_the_same(self) -> bool:
        """Whether F_p and F_q are fitted to the same particles and data at every step of a turn."""
        return self.setup.cdf.particles is None and self.setup.cdf.data is None

    @property
    def _dequantises_conditions(self) -> bool:
        return self.setup.sampler.condition.dequantised and self.setup.data.bin_width > 0

    def condition_noise(self, step: int) -> Tensor | None:
        """Return the noise of a step in the data's conditions (l×N), where they are dequantised."""
        setup = self.setup
        if not self._dequantises_conditions:
            return None
        key = Key(setup.settings.seed, "dequantise condition", setup.index, step)
        shape = (setup.sampler.length, setup.data_share.total)
        noise = key.open(setup.data_x.device, setup.data_x.dtype).uniform(*shape)
        return noise[:, setup.data_share.cut] * setup.data.bin_width

    def mean_condition_noise(self) -> Tensor | None:
        """Return the mean of that noise (l×1), for data whose noise is added as they are counted."""
        setup = self.setup
        if not self._dequantises_conditions:
            return None
        return setup.data_x.new_full((setup.sampler.length, 1), setup.data.bin_width / 2)

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
        setup, like = self.setup, self.setup.data_x
        H, d = setup.sampler.stage.directions, setup.sampler.coordinates.space.dimension
        size = H * d * like.element_size()
        return setup.sets is not None and setup.sets * size <= setup.budget.memory // SETS_SHARE


class ExactPlan(Plan):
    """Float32 or float64 on any device.

    The noise in the data's bins is drawn at every step. Where speed is wanted (`settings.half`), it is added as
    projected values are counted, in even steps (`kernels.rows`): the same distribution, and no draw.
    """

    def __init__(self, setup: StageSetup) -> None:
        super().__init__(setup)
        width = setup.data.bin_width
        self._binned = setup.settings.half and setup.cdf.displaces and width > 0
        """Whether noise in the data's bins is added when they are counted: quicker than drawing it."""
        middle = setup.data_x + width / 2 if self._binned else setup.data_x
        self._data_z = setup.sampler.coordinates.enter_data(middle)
        self._key = -1
        self._directions: list[Directions] | None = None
        """Those of the step `_key`, if they serve more than one step."""
        self._fits: FitsByPlace = {}
        """F_q along them."""
        self._sets: dict[int, list[Directions]] = {}
        """The directions of each set, where sets come again."""

    def move(self, step: int, eta: float, clock: Clock) -> Move:
        """X ← X − η v̂."""
        setup, particles = self.setup, self.setup.particles
        directions = self._along(step, clock)
        by_cdf = self.transport(step, clock)
        by_tables = self.table_transport(by_cdf)
        total = displacements(
            directions,
            particles.cloud,
            self._target(step, by_cdf, clock),
            by_cdf if by_tables is None else by_tables,
            setup.budget,
            clock,
            setup.total,
            partial(self._square_sums, by_cdf.samples) if setup.adaptive else None,
        )
        update = total.mean
        kept_up = 1 if particles.sum is None else 2  # x, or z and S: read and written
        with clock.part("move", lambda: (float((1 + 2 * kept_up) * update.nbytes), 0.0)):
            lengths = particles.move(update.mul_(eta))
        tables = None if by_tables is None or not self.wants_tables(step) else by_tables.tables()
        return self.outcome(lengths.sum(dtype=torch.float64), total.squared_distance, clock, tables)

    def _along(self, step: int, clock: Clock) -> Iterable[Directions]:
        """Return the directions of a step; those that serve more than one step are kept."""
        key = self.draw_number(step)
        if key != self._key:
            self._directions, self._fits, self._key = self._sets.get(key), {}, key
        if self._directions is not None:
            return self._directions
        drawn = map(self._ready, self.draw(key, clock, check=step == 0))
        if self.setup.settings.reuse == 1 and not self.keeps_sets:
            return drawn
        self._directions = list(drawn)
        if self.keeps_sets:
            self._sets[key] = self._directions
        return self._directions

    def _ready(self, theta: Directions) -> Directions:
        """Return directions in blocks where that pays, and with the width of the noise in the data's bins."""
        sampler = self.setup.sampler
        theta = sampler.in_blocks(theta)
        if not self._binned:
            return theta
        return attrs.evolve(theta, noise=theta.noise_widths(sampler.coordinates, self.setup.data.bin_width))

    def _target(self, step: int, by_cdf: CDFTransport, clock: Clock) -> Target:
        """Return F_q: from counts where there are counts, kept where directions stay, else fitted now."""
        setup = self.setup
        if setup.counts is not None:
            return setup.counts.of(self.draw_number(step))
        keep = setup.settings.reuse != 1 and setup.cdf.compact
        # What is kept was fitted with the noise of the first step; a flow that goes on later does the same.
        noise = self.draw_number(step) if keep else step
        data = lru_cache(lambda: Cloud(self._noisy(noise, clock), setup.conditions, self._noise_of_y(noise)))
        first, ahead = setup.data_share.first, not setup.ranks.alone
        fitted = FittedTarget(data, by_cdf.begin_data, clock, first, ahead)
        return KeptTarget(fitted, self._fits) if keep else fitted

    def _noise_of_y(self, step: int) -> Tensor | None:
        return self.mean_condition_noise() if self._binned else self.condition_noise(step)

    def _noisy(self, step: int, clock: Clock) -> Tensor:
        """Return the data in the stage's coordinates, with the noise of a step in their bins."""
        if self._binned:
            return self._data_z
        data, key = self.setup.data, Key(self.setup.settings.seed, "dequantise", self.setup.index, step)
        drawn = float(self._data_z.nbytes) if data.bin_width else 0.0
        with clock.part("draw", lambda: (drawn, 0.0)):
            return dequantised(
                self._data_z,
                data.bin_width,
                data.space.dimension,
                self.setup.sampler.coordinates,
                key,
                self.setup.data_share.first,
            )
