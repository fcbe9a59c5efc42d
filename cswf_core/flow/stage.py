"""A stage of the flow: what its steps work with, and which samples take part in each of them.

F_p is fitted to all particles, or to the half whose turn it is, or to a random part of these; particles
that are only carried along never count. F_q is fitted to all data, or to a random part. Where the condition
keeps strata apart, each has distributions of its own.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator, Sequence
from functools import cache as once  # a function without arguments is called once
from functools import cached_property, partial

import attrs
import torch
from torch import Tensor

from cswf_core.checks import CheckedCDF
from cswf_core.flow.data import Block, FlowData
from cswf_core.flow.directions import DirectionSampler, Draws
from cswf_core.flow.fits import AnyCloud, Fitter, Members, Slab, Source, one_block
from cswf_core.flow.memory import Budget
from cswf_core.flow.particles import ParticleBlock, Particles, eligible_particles, uniform
from cswf_core.flow.settings import Settings
from cswf_core.flow.tables import Cells
from cswf_core.flow.transport import Participants
from cswf_core.interfaces import Conditions, Key, Rows, Stage, Stratum
from cswf_core.kernels.rows import Columns
from cswf_core.ranks import Ranks, Share, size_of


class Division:
    """How particles and data are divided into strata, which flow apart: here all of them flow together."""

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
        """Return those of this rank's data that F_q is fitted to; over all ranks they are `count`."""
        return Members([count])

    def members_of_block(self, members: Members, block: Block, first: int) -> Members:
        """Return the same for a block of the data; `first` is the number of this rank's first datum."""
        del block, first
        return members


@attrs.frozen(eq=False)
class Strata(Division):
    """Each stratum has distributions of its own, in which every particle and every datum counts."""

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
        if share != self.share:  # a block; not in a recorded step, which could not wait for these numbers
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


class StageData(abc.ABC):
    """What F_q is fitted to in a stage: the flow's data, or what has taken their place."""

    draws: Draws
    """Which directions each step uses."""
    direction_stage: int
    """The number of the stage whose directions these are: its own, unless they come again in later rounds."""
    shared: Sequence[int] = ()
    """The numbers of samples that are split over the ranks, each of which needs some of them."""
    at_once: int = 0
    """How many samples are projected at once, over all ranks or in a block."""
    in_blocks: bool = False
    """Whether samples come in several blocks."""
    stays: bool = True
    """Whether F_q is fitted to the same samples at every draw, which are on the device."""
    x: Tensor
    """This rank's samples on the device, for directions that follow them: d×n; where `unfollowed` is empty."""
    conditions: Conditions
    """Y of all samples, on the CPU."""
    unfollowed: str = ""
    """Why directions cannot follow the samples; empty: they can."""

    @abc.abstractmethod
    def source(
        self, draw: int, enter: Callable[[Block], AnyCloud], slabs: Sequence[Slab[AnyCloud]], fitter: Fitter
    ) -> Source[AnyCloud]:
        """Return what F_q is fitted to along the directions of a draw.

        Args:
            draw: the number of the draw.
            enter: brings a block of the data into the stage's coordinates.
            slabs: the directions of the draw, needed where samples come in several blocks.
            fitter: fits distributions.
        """


class StoredData(StageData):
    """The flow's data, all of them or a random part at each draw."""

    def __init__(
        self, data: FlowData, division: Division, settings: Settings, stage: Stage, index: int
    ) -> None:
        """Offer the data to a stage, whose number is `index`."""
        self.draws = Draws(settings.reuse)
        self.direction_stage = index
        self.shared = [data.counted]
        self.at_once = data.at_once
        self.in_blocks = len(data.cuts) > 1
        self.stays = data.resident and data.counted == len(data.all)
        self.x = data.x
        self.conditions = data.all.conditions
        if not data.resident:
            self.unfollowed = "a device with little memory has some of the particles or data only"
        self._data = data
        self._division = division
        self._seed = settings.seed
        self._steps = stage.steps
        self._parts: tuple[tuple[int, Tensor | None], ...] = ()
        """The data that F_q is fitted to at the last draws, by the number of the draw."""

    def source(
        self, draw: int, enter: Callable[[Block], AnyCloud], slabs: Sequence[Slab[AnyCloud]], fitter: Fitter
    ) -> Source[AnyCloud]:
        """Return the data of a draw; see `StageData.source`."""
        members = self._division.members_of_data(self._data.counted)

        def blocks(more_passes: bool) -> Iterator[Block]:
            following = draw if more_passes else self.draws.next(draw, self._steps)
            read = self._data.blocks(self.direction_stage, draw, self._chosen, following)
            while True:
                with fitter.clock.part("read"):
                    block = next(read, None)
                if block is None:
                    return
                yield block

        if not self.in_blocks:
            return one_block(once(lambda: enter(next(blocks(False)))), members, fitter)

        def clouds(more_passes: bool) -> Iterator[tuple[AnyCloud, Members]]:
            for block in blocks(more_passes):
                yield enter(block), self._division.members_of_block(members, block, self._data.share.first)

        def project(theta: Slab[AnyCloud], q: AnyCloud) -> Rows:
            return theta.projected_data(q, fitter.clock)

        fits = once(partial(fitter.of_blocks, clouds, slabs, project, members.sizes))
        return Source(
            lambda theta: partial(fits(), theta.place.in_step(theta.count)),  # the first call fits all
            lambda: (cloud for cloud, _ in clouds(False)),
        )

    def _chosen(self, draw: int) -> Tensor | None:
        """Return the data that F_q is fitted to along the directions of a draw; None: all.

        The thread that reads data ahead calls this too.
        """
        for known, numbers in self._parts:
            if known == draw:
                return numbers
        count = len(self._data.all)
        key = Key(self._seed, "part", self.direction_stage, draw, 1)
        numbers = random_part(self._data.counted, count, key, self._data.like.device)
        if numbers is not None and not self._data.resident:
            numbers = numbers.cpu()  # where they are read
        self._parts = (*self._parts[-1:], (draw, numbers))
        return numbers


def random_part(size: int, count: int, key: Key, device: torch.device) -> Tensor | None:
    """Return the numbers of `size` of `count` samples, drawn at random, in rising order; None: all of them."""
    return None if size == count else key.open(device, torch.float64).spread(size, count)


@attrs.define(eq=False, slots=False)
class StageSetup:
    """Everything that the steps of a stage work on and with."""

    index: int
    """The number of the stage."""
    first_step: int
    """The number of steps that the flow took before this stage."""
    settings: Settings
    particles: Particles
    data: StageData
    bin_width: float
    """The distance between two grey levels of the data; 0: they are not dequantised."""
    sampler: DirectionSampler
    cdf: CheckedCDF
    division: Division
    budget: Budget
    particle_conditions: Conditions
    """Those of all ranks' particles, on the CPU."""
    ranks: Ranks
    table_labels: Sequence[int] | None = None
    """The label of each table of a direction, where a model is saved; None: one table serves all particles."""
    adaptive: bool = False
    """Whether the schedule looks at distances: float steps then measure them alike on any number of ranks."""

    @property
    def like(self) -> Tensor:
        """No samples, on the flow's device and in its numbers: d×0."""
        return self.sampler.like

    @cached_property
    def draws_kept(self) -> int:
        """How many draws are kept for later steps: all that come again, if these take little of the memory."""
        d = self.sampler.coordinates.space.dimension
        size = self.sampler.stage.directions * d * self.like.element_size()
        return self.data.draws.number_kept(self.budget.memory // 16 // size)

    @property
    def in_blocks(self) -> bool:
        """Whether samples are gone through in blocks, so that all directions of a step are needed at once."""
        return self.particles.in_blocks or self.data.in_blocks

    def participants(self, step: int, block: ParticleBlock | None = None) -> Participants:
        """Return the particles of this rank, or of a block of these, that take part in a step."""
        share = self.particles.share if block is None else block.share
        return self.division.participants(self, step, share)

    def cells(self, share: Share) -> Cells | None:
        """Return which table each particle of a share moves by, where a model is saved; None: there is one."""
        if self.table_labels is None:
            return None
        known = self._cells.get(share)
        if known is None:
            labels = self.particle_conditions.labels
            assert labels is not None
            known = Cells.of(
                labels[share.cut].to(self.like.device),
                self.table_labels,
                self._groups_of_tables,
                apart=isinstance(self.division, Strata),
            )
            self._cells[share] = known
        return known

    _cells: dict[Share, Cells] = attrs.field(factory=dict, init=False)

    @cached_property
    def _groups_of_tables(self) -> Tensor | None:
        """The group that the condition puts the particles of each table in; None: it has no groups."""
        labels = self.particle_conditions.labels
        groups = self.sampler.groups(self.particle_conditions)
        if groups is None or labels is None:
            return None
        first = [int((labels == label).nonzero()[0, 0]) for label in self.table_labels or ()]
        return groups[0][first].long().to(self.like.device)

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
            self._fitted_at = step, self._chosen_particles(step)
        return self._fitted_at[1]

    _fitted_at: tuple[int, Columns | None] | None = attrs.field(default=None, init=False)
    """The number of a step, and the particles that its F_p is fitted to: the same for all blocks."""

    def _chosen_particles(self, step: int) -> Columns | None:
        """Return the particles that ever count, or the half whose turn it is, or a random part of these."""
        chosen = self.eligible
        total = self.particles.share.total
        if self.settings.turn is not None:
            # Every second one, and not one half after the other: labels may be in order.
            first = self.turn_of(step)
            if isinstance(chosen, Tensor):
                chosen = chosen[first::2]
            else:
                chosen = slice(first, total if chosen is None else chosen.stop, 2)
        part = self.cdf.particles
        if part is None:
            return chosen
        mine = torch.arange(total, device=self.like.device)
        mine = mine if chosen is None else mine[chosen]
        key = Key(self.settings.seed, "part", self.index, step, 0)
        numbers = random_part(part.of(len(mine)), len(mine), key, mine.device)
        return chosen if numbers is None else mine[numbers]

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
