"""A stage of the flow: what its steps work with, and which samples take part in each of them.

F_p is fitted to all particles, or to the half whose turn it is, or to a random part of these; particles
that are only carried along never count. F_q is fitted to all data, or to a random part. Where the condition
keeps strata apart, each has distributions of its own.
"""

from __future__ import annotations

import abc
from collections.abc import Iterator, Sequence
from functools import cached_property

import attrs
import torch
from torch import Tensor

from cswf_core.checks import CheckedCDF
from cswf_core.flow.data import Block, FlowData
from cswf_core.flow.directions import DirectionSampler, Draws
from cswf_core.flow.fits import Members, TalliedData
from cswf_core.flow.memory import Budget
from cswf_core.flow.particles import Particles, eligible_particles, uniform
from cswf_core.flow.settings import Settings
from cswf_core.flow.transport import Participants
from cswf_core.interfaces import Conditions, Key, Part, Stratum
from cswf_core.kernels.rows import Columns
from cswf_core.ranks import Ranks, Share, size_of

MEMORY_OVER_SETS = 16
"""Directions that come again may take one part in this many of a device's memory."""


class Groups(abc.ABC):
    """The groups of particles and data that flow apart from each other."""

    @abc.abstractmethod
    def participants(self, setup: StageSetup, step: int, share: Share) -> Participants:
        """Return those of a share of the particles that F_p is fitted to at a step."""

    @abc.abstractmethod
    def members_of_data(self, count: int) -> Members:
        """Return those of this rank's data that F_q is fitted to; over all ranks they are `count`."""

    def members_of_block(self, members: Members, block: Block, first: int) -> Members:
        """Return the same for a block of the data; `first` is the number of this rank's first datum."""
        del block, first
        return members


class OneGroup(Groups):
    """All particles and data as one group, in which some particles may not count at a step."""

    def participants(self, setup: StageSetup, step: int, share: Share) -> Participants:
        """Return those of a share of the particles that F_p is fitted to at a step."""
        fitted = setup.fitted_particles(step)
        own = share.own(fitted)
        sizes = [size_of(fitted, share.total)]
        return Participants(
            particles=Members(sizes) if own is None else Members(sizes, [own], partial=True),
            measured=share.own(setup.eligible),
            stretch=share.total / max(1, size_of(setup.eligible, share.total)),
        )

    def members_of_data(self, count: int) -> Members:
        """Return all data that F_q is fitted to."""
        return Members([count])


@attrs.frozen(eq=False)
class Strata(Groups):
    """Several groups, each with distributions of its own, in which every particle and every datum counts."""

    particles: Sequence[Tensor]
    """The particles of each that this rank has, by their numbers here."""
    data: Members
    """The data of each that this rank has."""
    particle_counts: Sequence[int]
    """The number of particles of each, over all ranks."""
    share: Share
    """The particles of this rank."""

    @classmethod
    def of(cls, all_strata: list[Stratum], particles: Share, data: Share) -> Strata:
        """Return a rank's part of strata of all samples."""
        return cls(
            particles=[_numbers(particles.own(mine)) for mine, _ in all_strata],
            data=Members(
                sizes=[len(theirs) for _, theirs in all_strata],
                columns=[_numbers(data.own(theirs)) for _, theirs in all_strata],
                places=[data.places(theirs) for _, theirs in all_strata],
            ),
            particle_counts=[len(mine) for mine, _ in all_strata],
            share=particles,
        )

    def participants(self, setup: StageSetup, step: int, share: Share) -> Participants:
        """Return all particles of a share, stratum by stratum."""
        del setup, step
        own = self.particles
        if share != self.share:  # a recorded step cannot wait for how many of each there are
            begin = share.first - self.share.first
            inside = [mine[(mine >= begin) & (mine < begin + len(share))] for mine in self.particles]
            own = [mine - begin for mine in inside]
        return Participants(particles=Members(self.particle_counts, own))

    def members_of_data(self, count: int) -> Members:
        """Return the data of each stratum."""
        del count
        return self.data

    def members_of_block(self, members: Members, block: Block, first: int) -> Members:
        """Return the data of each stratum that a block has."""
        assert isinstance(block.numbers, slice)
        begin = block.numbers.start - first
        stop = block.numbers.stop - first
        columns: list[Columns] = []
        places: list[Tensor | None] = []
        for data, place in zip(map(_numbers, members.columns or ()), members.places, strict=True):
            here = ((data >= begin) & (data < stop)).nonzero()[:, 0]
            columns.append(data[here] - begin)
            places.append(here if place is None else place[here])
        return Members(members.sizes, columns, places)


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
    groups: Groups
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

    @cached_property
    def draws(self) -> Draws:
        """Which directions each step uses."""
        return Draws(self.settings.reuse, None if self.counts is None else self.counts.sets)

    @cached_property
    def keeps_draws(self) -> bool:
        """Whether directions that come again are kept: if all of a stage take little of the memory."""
        d = self.sampler.coordinates.space.dimension
        size = self.sampler.stage.directions * d * self.like.element_size()
        return self.draws.return_within(self.budget.memory // MEMORY_OVER_SETS // size)

    @property
    def repeatable(self) -> bool:
        """Whether a step may be taken again with smaller slabs: ranks need the same, blocks move in turn."""
        return self.ranks.alone and not self.particles.in_blocks

    @property
    def streams_data(self) -> bool:
        """Whether F_q is fitted to data that are brought to the device some at a time."""
        return self.counts is None and not self.data.resident

    def of_block(self, block: Particles) -> StageSetup:
        """Return the setup of a block of the particles alone, on one rank."""
        return attrs.evolve(self, particles=block, ranks=Ranks())

    def participants(self, step: int, block: Particles | None = None) -> Participants:
        """Return the particles of this rank, or of a block of these, that take part in a step."""
        share = self.particles.share if block is None else block.share
        return self.groups.participants(self, step, share)

    @property
    def data_members(self) -> Members:
        """The data of this rank that F_q is fitted to."""
        return self.groups.members_of_data(self.data_count)

    def members_of_block(self, members: Members, block: Block) -> Members:
        """Return the data of a block that F_q is fitted to."""
        return self.groups.members_of_block(members, block, self.data.share.first)

    def turn_of(self, step: int) -> int:
        """Return the half of the particles, 0 or 1, whose turn it is in F_p at a step; without turns, 0."""
        length = self.settings.turn
        return 0 if length is None else (self.first_step + step) // length % 2

    @cached_property
    def eligible(self) -> Columns | None:
        """Those of all ranks' particles that F_p is fitted to at some step; None: all."""
        part = eligible_particles(
            self.particle_conditions, self.particles.share.total, self.sampler.condition, self.settings
        )
        return part.to(self.like.device) if isinstance(part, Tensor) else part

    def fitted_particles(self, step: int) -> Columns | None:
        """Return those of all ranks' particles that a step's F_p is fitted to; None: all."""
        if self._fitted_at is None or self._fitted_at[0] != step:
            self._fitted_at = step, self._drawn_particles(self._particles_in_turn(step), step)
        return self._fitted_at[1]

    _fitted_at: tuple[int, Columns | None] | None = attrs.field(default=None, init=False)
    """The number of a step, and the particles that its F_p is fitted to: the same for all blocks."""

    def _particles_in_turn(self, step: int) -> Columns | None:
        """Return the particles that may take part in a step's F_p: all that ever do, or one half."""
        if self.settings.turn is None:
            return self.eligible
        # Every second one, and not one half after the other: labels may be in order.
        first = self.turn_of(step)
        if isinstance(self.eligible, Tensor):
            return self.eligible[first::2]
        stop = self.particles.share.total if self.eligible is None else self.eligible.stop
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
    def data_count(self) -> int:
        """The number of data that F_q is fitted to at a time."""
        part = self.cdf.data
        N = len(self.data.all)
        return N if part is None else part.of(N)

    @property
    def fits_parts_of_data(self) -> bool:
        """Whether F_q is fitted to some of the data only."""
        return self.data_count < len(self.data.all)

    @property
    def data_blocks_count(self) -> int:
        """The number of blocks of the data that F_q is fitted to."""
        return len(self.data.cuts(self.data_count))

    @property
    def fits_the_same(self) -> bool:
        """Whether F_p and F_q are fitted to the same particles and data at every step of a turn."""
        return self.cdf.particles is None and self.cdf.data is None

    def data_blocks(self, key: int, more_passes: bool) -> Iterator[Block]:
        """Yield the data that F_q is fitted to along the directions of the draw `key`, block by block.

        `more_passes`: they will be gone through once more. Otherwise those of the next draw follow.
        """
        following = key if more_passes else self.draws.next(key, self.sampler.stage.steps)
        return self.data.blocks(self.index, key, self._chosen_data, following)

    _parts_of_data: tuple[tuple[int, Tensor | None], ...] = attrs.field(default=(), init=False)
    """The data that F_q is fitted to at the last draws, by the number of the draw."""

    def _chosen_data(self, key: int) -> Tensor | None:
        """Return the data that F_q is fitted to along the directions of the draw `key`; None: all.

        The thread that reads data ahead calls this too.
        """
        for known, numbers in self._parts_of_data:
            if known == key:
                return numbers
        numbers = self._random_part(self.cdf.data, len(self.data.all), key, 1, self.like.device)
        if numbers is not None and self.streams_data:
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
