"""A stage of the flow: what its steps work with, and which samples take part in each of them.

F_p is fitted to all particles, or to the half whose turn it is, or to a random part of these; particles
that are only carried along never count. F_q is fitted to all data, or to a random part. Where the condition
keeps strata apart, each has distributions of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

import attrs
import torch
from torch import Tensor

from cswf_core.checks import CheckedCDF
from cswf_core.flow.data import Block, FlowData
from cswf_core.flow.directions import DirectionSampler, draw_number
from cswf_core.flow.fits import Members, TalliedData
from cswf_core.flow.memory import Budget
from cswf_core.flow.particles import Particles, taking_part, uniform
from cswf_core.flow.settings import Settings
from cswf_core.flow.transport import TakingPart
from cswf_core.interfaces import Conditions, Key, Part, Stratum
from cswf_core.kernels.rows import Columns
from cswf_core.ranks import Ranks, Share, size_of

SETS_SHARE = 16
"""Directions that come again may take one part in this many of a device's memory."""


@attrs.frozen(eq=False)
class Strata:
    """Groups of particles and data that flow apart from each other."""

    particles: Sequence[Columns]
    """The particles of each that this rank has, by their numbers here."""
    data: Sequence[Tensor]
    """The data of each that this rank has, by their numbers here."""
    places: Sequence[Tensor | None]
    """The place of each of these data among all of its stratum; None: they follow one another."""
    particle_counts: Sequence[int]
    """The number of particles of each, over all ranks."""
    data_counts: Sequence[int]
    """The number of data of each, over all ranks."""

    @classmethod
    def of(cls, all_strata: list[Stratum], particles: Share, data: Share) -> Strata:
        """Return a rank's part of strata of all samples."""
        return cls(
            particles=[_numbers(particles.own(mine)) for mine, _ in all_strata],
            data=[_numbers(data.own(theirs)) for _, theirs in all_strata],
            places=[data.places(theirs) for _, theirs in all_strata],
            particle_counts=[len(mine) for mine, _ in all_strata],
            data_counts=[len(theirs) for _, theirs in all_strata],
        )

    def particles_of(self, cut: slice) -> Sequence[Tensor]:
        """Return the particles of each stratum that a block has, by their numbers there."""
        inside = [mine[(mine >= cut.start) & (mine < cut.stop)] for mine in map(_numbers, self.particles)]
        return [mine - cut.start for mine in inside]

    def data_of(self, first: int, stop: int) -> Members:
        """Return the data of each stratum that a block of this rank's data has."""
        columns: list[Columns] = []
        places: list[Tensor | None] = []
        for data, place in zip(self.data, self.places, strict=True):
            here = ((data >= first) & (data < stop)).nonzero()[:, 0]
            columns.append(data[here] - first)
            places.append(here if place is None else place[here])
        return Members(self.data_counts, columns, places)


def _numbers(columns: Columns | None) -> Tensor:
    assert isinstance(columns, Tensor)
    return columns


@attrs.define(eq=False, slots=False)
class StageSetup:
    """Everything that the steps of a stage work on and with."""

    index: int
    """The number of the stage."""
    direction_stage: int
    """The number of the stage whose directions these are: its own, unless stages are run through again."""
    first_step: int
    """The number of steps that the flow took before this stage."""
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
    counts: TalliedData | None = None
    """Counts of the data along the stage's directions, in place of the data, of which there are none then."""

    @property
    def like(self) -> Tensor:
        """No samples, on the flow's device and in its numbers: d×0."""
        return self.data.like

    @property
    def bin_width(self) -> float:
        """The distance between two grey levels of the data; 0: they are not dequantised."""
        return self.data.all.bin_width

    def draw_number(self, step: int) -> int:
        """Return the number of the draw whose directions a step uses."""
        sets = None if self.counts is None else self.counts.sets
        return draw_number(step, self.settings.reuse, sets)

    @property
    def kept_sets(self) -> bool:
        """Whether directions that come again are kept: if all sets of a stage take little of the memory."""
        if self.counts is None:
            return False
        d = self.sampler.coordinates.space.dimension
        size = self.sampler.stage.directions * d * self.like.element_size()
        return self.counts.sets * size <= self.budget.memory // SETS_SHARE

    def of_block(self, block: Particles) -> StageSetup:
        """Return the setup of a block of the particles alone, on one rank."""
        first = self.particles.share.first
        cut = slice(block.share.first - first, block.share.stop - first)
        strata = self.strata
        if strata is not None:
            strata = attrs.evolve(strata, particles=strata.particles_of(cut))
        return attrs.evolve(self, particles=block, strata=strata, ranks=Ranks())

    def taking_part(self, step: int, block: Particles | None = None) -> TakingPart:
        """Return the particles of this rank, or of a block of these, that take part in a step."""
        share = self.particles.share if block is None else block.share
        if self.strata is not None:
            strata = self.strata.particles
            if share is not self.particles.share:
                first = self.particles.share.first
                strata = self.strata.particles_of(slice(share.first - first, share.stop - first))
            return TakingPart(
                particles=Members(self.strata.particle_counts, strata),
                strata=strata,
            )
        fitted = self._fitted_particles(step)
        own = share.own(fitted)
        sizes = [size_of(fitted, share.total)]
        return TakingPart(
            particles=Members(sizes) if own is None else Members(sizes, [own], partial=True),
            measured=share.own(self.counted),
            stretch=share.total / max(1, size_of(self.counted, share.total)),
        )

    @property
    def data_members(self) -> Members:
        """The data of this rank that F_q is fitted to."""
        if self.strata is not None:
            return Members(self.strata.data_counts, self.strata.data, self.strata.places)
        return Members([len(self.data.all) if self.part_size is None else self.part_size])

    def members_of_data(self, data: Members, block: Block) -> Members:
        """Return which data of a block each distribution is fitted to."""
        if self.strata is None or isinstance(block.numbers, Tensor):
            return data
        first = self.data.share.first
        return self.strata.data_of(block.numbers.start - first, block.numbers.stop - first)

    def turn_of(self, step: int) -> int:
        """Return the half of the particles, 0 or 1, whose turn it is in F_p at a step; without turns, 0."""
        length = self.settings.turn
        return 0 if length is None else (self.first_step + step) // length % 2

    @cached_property
    def counted(self) -> Columns | None:
        """Those of all ranks' particles that take part in F_p, always or in their turns; None: all."""
        part = taking_part(
            self.particle_conditions, self.particles.share.total, self.sampler.condition, self.settings
        )
        return part.to(self.like.device) if isinstance(part, Tensor) else part

    def _fitted_particles(self, step: int) -> Columns | None:
        """Return those of all ranks' particles that a step's F_p is fitted to; None: all."""
        if self._fitted_at is None or self._fitted_at[0] != step:
            self._fitted_at = step, self._drawn_particles(self._particles_in_turn(step), step)
        return self._fitted_at[1]

    _fitted_at: tuple[int, Columns | None] | None = attrs.field(default=None, init=False)
    """The number of a step, and the particles that its F_p is fitted to: the same for all blocks."""

    def _particles_in_turn(self, step: int) -> Columns | None:
        """Return the particles that may take part in a step's F_p: all that ever do, or one half."""
        if self.settings.turn is None:
            return self.counted
        # Every second one, and not one half after the other: labels may be in order.
        first = self.turn_of(step)
        if isinstance(self.counted, Tensor):
            return self.counted[first::2]
        stop = self.particles.share.total if self.counted is None else self.counted.stop
        return slice(first, stop, 2)

    def _drawn_particles(self, particles: Columns | None, step: int) -> Columns | None:
        """Return a random part of some particles, if the plugin wants a part."""
        part = self.cdf.particles
        if part is None:
            return particles
        mine = torch.arange(self.particles.share.total, device=self.like.device)
        mine = mine if particles is None else mine[particles]
        chosen = self._random_part(part, len(mine), step, 0, mine.device)
        return particles if chosen is None else mine[chosen]

    @property
    def part_size(self) -> int | None:
        """The number of data that F_q is fitted to at a time; None: all."""
        part = self.cdf.data
        N = len(self.data.all)
        return None if part is None or part.of(N) == N else part.of(N)

    @property
    def data_blocks_count(self) -> int:
        """The number of blocks of the data that F_q is fitted to."""
        return len(self.data.cuts(self.part_size))

    @property
    def fits_the_same(self) -> bool:
        """Whether F_p and F_q are fitted to the same particles and data at every step of a turn."""
        return self.cdf.particles is None and self.cdf.data is None

    def data_blocks(self, key: int, again: bool) -> Iterator[Block]:
        """Yield the data that F_q is fitted to along the directions of the draw `key`, block by block.

        `again`: they will be gone through once more. Otherwise those of the next draw follow.
        """
        following = key if again else self._next_draw(key)
        return self.data.blocks(self.index, key, self._chosen_data, following)

    def _next_draw(self, key: int) -> int | None:
        """Return the number of the draw behind another in this stage; None if that is the last, or kept."""
        reuse = self.settings.reuse
        if reuse is None or self.counts is not None or key + reuse >= self.sampler.stage.steps:
            return None
        return key + reuse

    _parts_of_data: tuple[tuple[int, Tensor | None], ...] = attrs.field(default=(), init=False)
    """The data that F_q is fitted to at the last draws, by the number of the draw."""

    def _chosen_data(self, key: int) -> Tensor | None:
        """Return the data that F_q is fitted to along the directions of the draw `key`; None: all.

        The thread that reads data ahead calls this too.
        """
        for known, numbers in self._parts_of_data:
            if known == key:
                return numbers
        data = self.data
        numbers = self._random_part(self.cdf.data, len(data.all), key, 1, self.like.device)
        if numbers is not None and not data.resident:
            numbers = numbers.cpu()  # where they are read
        self._parts_of_data = (*self._parts_of_data[-1:], (key, numbers))
        return numbers

    def _random_part(
        self, part: Part | None, count: int, step: int, index: int, device: torch.device
    ) -> Tensor | None:
        """Return the numbers of a random part of `count` samples, in rising order; None: all of them."""
        if part is None or part.of(count) == count:
            return None
        key = Key(self.settings.seed, "part", self.index, step, index)
        return key.open(device, torch.float64).spread(part.of(count), count)

    def condition_noise(self, step: int, first: int, count: int) -> Tensor | None:
        """Return the noise of a step in the conditions of some data (l×n), where these are dequantised."""
        if not self._dequantises_conditions:
            return None
        key = Key(self.settings.seed, "dequantise condition", self.index, step)
        return uniform(key, self.sampler.length, first, count, self.like) * self.bin_width

    def mean_condition_noise(self) -> Tensor | None:
        """Return the mean of that noise (l×1), for data whose noise is added as they are counted."""
        if not self._dequantises_conditions:
            return None
        return self.like.new_full((self.sampler.length, 1), self.bin_width / 2)

    @property
    def _dequantises_conditions(self) -> bool:
        return self.sampler.condition.dequantised and self.bin_width > 0
