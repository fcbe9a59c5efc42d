"""A flow that takes in more data at any time: which data may come, and the particles that come with them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cswf_core.checks import check_dataset
from cswf_core.errors import DataError, RoomError, RunError
from cswf_core.flow.directions import DirectionSampler
from cswf_core.flow.fits import TalliedData
from cswf_core.flow.flow import Flow
from cswf_core.flow.gaussian import Gaussian
from cswf_core.flow.particles import normal
from cswf_core.flow.rounds import Steps
from cswf_core.flow.settings import Parts, Settings
from cswf_core.flow.stage import Strata
from cswf_core.flow.state import Position
from cswf_core.interfaces import Conditions, Dataset, Key, LinearMap
from cswf_core.online.counts import Counts
from cswf_core.online.fixed_point import FixedPoint
from cswf_core.online.samples import as_dataset
from cswf_core.ranks import Share


class OnlineFlow(Flow):
    """A flow to counts of its data, to which those of more data can be added at any time."""

    uses_data = False

    def __init__(
        self,
        data: Dataset,
        parts: Parts | None = None,
        settings: Settings | None = None,
        *,
        sets: int,
        counts: Counts | None = None,
        **options: Any,
    ) -> None:
        """Begin with the first data; raise `RunError` if plugins do what counts cannot follow.

        Args:
            data: The first data.
            parts: The plugins, as for `Flow`.
            settings: The numbers that are no plugin's.
            sets: How many sets of directions a stage has, used in turn.
            counts: Those of an earlier flow along the same directions, which has counted the first data.
            options: `start`, `device`, `observers` and `ranks` of `Flow`.
        """
        super().__init__(data, parts, settings, **options)
        refuse_unfit(self)
        bins = bins_of(self)
        W = exact_coordinates(self)
        if counts is None:
            like = self.setup.like.double()
            counts = Counts.empty(self.stages, bins, sets, FixedPoint.of(self.data, W, like))
        counts.check(self.stages, bins, sets)
        counts.W = W
        self._counts = counts
        self._waiting = [] if counts.pieces else [self.data]
        """Data sets that are to be counted."""
        self._pieces = 1
        """How many data sets have come."""
        self.arriving: dict[int, Dataset] = {}
        """Data that come when a stage is entered, by its number."""
        self._classes = self.data.classes
        """The classes that there are or will be."""
        self._ratio = self.count, len(self.data)
        """M and N of the beginning: M/N stays what it was."""

    def insert(self, samples: object, labels: object = None) -> None:
        """Take in more data, between two steps or at the end, and particles in proportion.

        `samples` are a `Dataset`; or images or points, with labels if there are classes.
        """
        self._insert(self._admitted(as_dataset(samples, labels, self.data)))

    def again(self, steps: Steps = None, *, arriving: Dataset | None = None) -> None:
        """Plan another round through all stages, from where particles are then.

        `steps` is K of all stages, or of each. Data that are `arriving` are inserted when the round begins.
        """
        first = len(self.stages)
        admitted = None if arriving is None else self._admitted(arriving)
        super().again(steps)
        if admitted is not None:
            self.arriving[first] = admitted

    def counts(self) -> Counts:
        """Return the counts of all data so far, counting those that have just come."""
        with self.working():
            while self._waiting:
                self._counts.insert(self._waiting[0], self.sampler_of_round, self.settings.seed)
                del self._waiting[0]
        return self._counts

    def sampler_of_round(self, number: int) -> DirectionSampler:
        """Return what draws the directions of a round's stage."""
        return self.sampler(self.setup.round[number])

    def before_entering(self, stage: int) -> None:
        """Insert the data that arrive now."""
        if stage in self.arriving:
            self._insert(self.arriving.pop(stage))

    def before_resuming(self, position: Position) -> None:
        """Take in the data that have arrived by then, and whose particles are there."""
        for stage in list(self.arriving):
            if (stage, 0) < (position.stage, position.step):
                self._take_in(self.arriving.pop(stage))
                self.cohorts = (*self.cohorts, self._proportionate())

    def counts_of(self, stage: int, sampler: DirectionSampler) -> TalliedData:
        """Return a stage's counts, of all data."""
        self._counts.move_to(sampler.like.device)
        return self.counts().stage(stage, sampler, self.parts.cdf)

    def _admitted(self, new: Dataset) -> Dataset:
        """Return new data with the numbers that their classes have here; refuse what does not fit."""
        new = check_dataset(new)
        if new.space != self.data.space:
            raise DataError(f"new data are {new.space}, and the flow's are {self.data.space}")
        new = self.parts.condition.encoded(new.with_classes(self._classes))
        self._counts.fixed_point.check(new)
        length = self.parts.condition.length(new)
        room = self.setup.condition_length
        if length != room:
            names = [name for name in new.classes if name not in self._classes]
            reason = f"bring class '{names[0]}'" if names else f"have conditions of length {length}"
            raise RoomError(
                f"new data {reason}, and there is room for {room}: begin with a larger "
                f"{self.settings.called('room')}",
                len(new.classes),
            )
        self._classes = new.classes or self._classes
        return new

    def _insert(self, new: Dataset) -> None:
        """Take in data that have been admitted, and the particles that come with them."""
        self._take_in(new)
        with self.working():
            x, conditions = self._new_particles(new)
        self.add_particles(x, conditions)

    def _take_in(self, new: Dataset) -> None:
        """Join new data to the others; have them counted before the next step, unless an earlier flow has."""
        self.replace_data(self.data.joined(new))
        if self._pieces >= self._counts.pieces:
            self._waiting.append(new)
        self._pieces += 1

    def _proportionate(self) -> int:
        """Return M for all data that have come."""
        M, N = self._ratio
        return round(M * len(self.data) / N)

    def _new_particles(self, new: Dataset) -> tuple[Tensor, Conditions]:
        """Return X₀ (d×m), on the device, and Y₀, on the CPU, of the particles that come with new data.

        There are as many as it takes for M/N to be what it was: noise, with conditions of the new data. If the
        first began as a Gaussian fitted to their data, these begin as one fitted to the new data. A single
        datum has no covariance: its particles begin as the first ones did. In spaces too large for a matrix,
        the mean is that of the new data, and the covariance what W knows of the first.
        """
        count = self._proportionate() - self.cohorts[-1]
        seed = self.settings.seed
        like = self.setup.like
        x = normal(Key(seed, "start", step=self._pieces), Share(0, count, count), like)
        draw = Key(seed, "labels", step=self._pieces).open()
        conditions = self.parts.condition.draw(new, count, draw).to(torch.device("cpu"), like.dtype)
        gaussian = self.gaussian
        if gaussian is None:
            return x * self.settings.scale, conditions
        if len(new) > 1:
            labels = None if conditions.labels is None else new.conditions.labels
            gaussian = Gaussian.of_data(new.x.to(like), new.bin_width, self.W, self.settings, labels)
        return gaussian.of_noise(x, conditions.labels), conditions


def planned_data(flow: Flow) -> Dataset:
    """Return the data of a flow, together with those that are still to arrive."""
    data = flow.data
    if isinstance(flow, OnlineFlow):
        for stage in sorted(flow.arriving):
            data = data.joined(flow.arriving[stage])
    return data


def exact_coordinates(flow: Flow) -> LinearMap | None:
    """Return the flow's coordinates W in float64; None: the data's own."""
    if flow.W is None:
        return None
    assert flow.parts.coordinates is not None
    tensors = flow.parts.coordinates.tensors_of(flow.W, flow.data.space, flow.particles.x)
    return flow.parts.coordinates.of_tensors(flow.data.space, tensors, flow.setup.like.double())


def bins_of(flow: Flow) -> int:
    """Return B; raise `RunError` if the CDF cannot be made of counts, or directions depend on the data."""
    parts = flow.parts
    if parts.cdf.bins is None:
        raise RunError(
            f"{parts.cdf.owner} cannot be made of counts, which online learning needs: take histogram"
        )
    for stage in flow.stages:
        if parts.projection.of_stage(stage).sees_data:
            raise RunError(
                f"{parts.projection.owner} draws directions by the data, and online learning needs some that "
                "stay when more come: take another projection"
            )
    return parts.cdf.bins


def refuse_unfit(flow: Flow) -> None:
    """Raise `RunError` if a plugin does with the data what counts along directions cannot follow."""
    settings = flow.settings
    if flow.particles.in_blocks:
        raise RunError(
            "particles that are too many for one device's memory cannot learn online: take fewer "
            f"{settings.called('particles')}"
        )
    if flow.parts.cdf.data is not None:
        raise RunError(
            f"{flow.parts.cdf.owner} is fitted to a part of the data, drawn anew at every step, and cannot "
            f"learn online: leave out the part, or the {settings.called('sets')}"
        )
    if settings.offline:
        raise RunError(
            f"no {settings.called('offline')} particles can be carried along where data arrive later: "
            f"leave them out, or the {settings.called('sets')}"
        )
    prior = f" ({settings.names['prior']})" if "prior" in settings.names else ""
    reasons = {
        "shows particles a part of what they are to be": flow.observation is not None,
        "has a flow for each class": isinstance(flow.setup.groups, Strata),
        f"takes some of the data several times{prior}": flow.balanced_data is not flow.data,
        "adds noise to the conditions of the data": flow.parts.condition.dequantised,
    }
    for reason, holds in reasons.items():
        if holds:
            raise RunError(
                f"{flow.parts.condition.owner} {reason}, and cannot learn online: leave out the "
                f"{settings.called('sets')}"
            )
