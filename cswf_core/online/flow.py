"""A flow that takes in more data at any time: which data may come, and the particles that come with them."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

import torch
from torch import Tensor

from cswf_core.checks import check_dataset, short
from cswf_core.errors import DataError, RoomError, RunError
from cswf_core.flow.directions import DirectionSampler
from cswf_core.flow.flow import Flow
from cswf_core.flow.gaussian import Gaussian
from cswf_core.flow.particles import normal
from cswf_core.flow.settings import Parts, Settings
from cswf_core.flow.setup import Steps
from cswf_core.flow.stage import StageData, Strata
from cswf_core.flow.state import Position
from cswf_core.interfaces import BIN, Conditions, Dataset, Key, LinearMap, Space
from cswf_core.online.counts import CountedData, Counts, FixedPoint
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

        `sets` is how many sets of directions a stage has, used in turn; `counts` are those of an earlier flow
        along the same directions, which has counted the first data. All else is as for `Flow`.
        """
        super().__init__(data, parts, settings, **options)
        _refuse_unfit(self)
        bins = self.parts.cdf.bins
        assert bins is not None
        W = _exact_coordinates(self)
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
        self._first_data_count = len(self.data)

    def insert(self, samples: object, labels: object = None) -> None:
        """Take in more data, between two steps or at the end, and particles in proportion.

        `samples` are a `Dataset`; or images or points, with labels if there are classes.
        """
        self._insert(self._admitted(as_dataset(samples, labels, self.data)))

    def again(self, steps: Steps = None, *, arriving: Dataset | None = None) -> None:
        """Plan another round, with K of all stages or of each; data that are `arriving` come as it begins."""
        first = len(self.stages)
        admitted = None if arriving is None else self._admitted(arriving)
        super().again(steps)
        if admitted is not None:
            self.arriving[first] = admitted

    def counts(self) -> Counts:
        """Return the counts of all data so far, counting those that have just come."""
        with self.working():
            while self._waiting:
                samplers = map(self.setup.sampler, self.setup.round)
                self._counts.insert(self._waiting[0], samplers, self.settings.seed)
                del self._waiting[0]
        return self._counts

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

    def stage_data(self, sampler: DirectionSampler) -> StageData:
        """Return the counts of all data along the directions of the stage."""
        self._counts.move_to(sampler.like.device)
        number = self.position.stage % len(self.setup.round)
        return CountedData(self.counts(), number, sampler, self.settings.reuse, self.parts.cdf)

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
            larger = self.settings.called("room")
            message = f"new data {reason}, and there is room for {room}: begin with a larger {larger}"
            raise RoomError(message, len(new.classes))
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
        """Return M for all data that have come; M/N stays what it was."""
        return round(self.cohorts[0] * len(self.data) / self._first_data_count)

    def _new_particles(self, new: Dataset) -> tuple[Tensor, Conditions]:
        """Return X₀ (d×m), on the device, and Y₀, on the CPU, of the particles that come with new data.

        If the first began as a Gaussian fitted to their data, these begin as one fitted to the new data. A
        single datum has no covariance: its particles begin as the first ones did. In spaces too large for a
        matrix, the mean is that of the new data, and the covariance what W knows of the first.
        """
        count = self._proportionate() - self.cohorts[-1]
        seed = self.settings.seed
        like = self.setup.like
        x = normal(Key(seed, "start", step=self._pieces), Share(0, count, count), like)
        draw = Key(seed, "labels", step=self._pieces).open()
        conditions = self.parts.condition.draw(new, count, draw).to(torch.device("cpu"), like.dtype)
        gaussian = self.setup.gaussian
        if gaussian is None:
            return x * self.settings.scale, conditions
        if len(new) > 1:
            labels = None if conditions.labels is None else new.conditions.labels
            gaussian = Gaussian.of_data(new.x.to(like), new.bin_width, self.setup.W, self.settings, labels)
        return gaussian.of_noise(x, conditions.labels), conditions


def planned_data(flow: Flow) -> Dataset:
    """Return the data of a flow, together with those that are still to arrive."""
    data = flow.data
    arriving = flow.arriving if isinstance(flow, OnlineFlow) else {}
    for stage in sorted(arriving):
        data = data.joined(arriving[stage])
    return data


def _exact_coordinates(flow: Flow) -> LinearMap | None:
    """Return the flow's coordinates W in float64; None: the data's own."""
    plugin = flow.parts.coordinates
    W = flow.setup.W
    if plugin is None or W is None:
        return None
    tensors = plugin.tensors_of(W, flow.data.space, flow.setup.like)
    return plugin.of_tensors(flow.data.space, tensors, flow.setup.like.double())


def _refuse_unfit(flow: Flow) -> None:
    """Raise `RunError` if a plugin does with the data what counts along directions cannot follow."""
    settings = flow.settings
    called = settings.called
    cdf = flow.parts.cdf
    projection = flow.parts.projection
    condition = flow.parts.condition
    observed = flow.observation is not None
    repeated = flow.balanced_data is not flow.data
    prior = f" ({settings.names['prior']})" if "prior" in settings.names else ""
    without_sets = f"and cannot learn online: leave out the {called('sets')}"
    refusals = {
        "particles that are too many for one device's memory cannot learn online: take fewer "
        f"{called('particles')}": flow.particles.in_blocks,
        f"{cdf.owner} is fitted to a part of the data, drawn anew at every step, and cannot learn online: "
        f"leave out the part, or the {called('sets')}": cdf.data is not None,
        f"no {called('offline')} particles can be carried along where data arrive later: leave them out, or "
        f"the {called('sets')}": settings.offline > 0,
        f"{condition.owner} shows particles a part of what they are to be, {without_sets}": observed,
        f"{condition.owner} has a flow for each class, {without_sets}": isinstance(flow.setup.division, Strata),
        f"{condition.owner} takes some of the data several times{prior}, {without_sets}": repeated,
        f"{condition.owner} adds noise to the conditions of the data, {without_sets}": condition.dequantised,
        f"{cdf.owner} cannot be made of counts, which online learning needs: take histogram": cdf.bins is None,
        f"{projection.owner} draws directions by the data, and online learning needs some that stay when more "
        "come: take another projection": any(projection.of_stage(stage).sees_data for stage in flow.stages),
    }
    for message, refused in refusals.items():
        if refused:
            raise RunError(message)


def as_dataset(samples: Any, labels: Any, like: Dataset) -> Dataset:
    """Return new samples as a data set of the kind of `like`.

    `samples` may be one; or images, n×C×H×W or n×H×W, as bytes or as numbers in [−1, 1]; or points, n×d. Labels
    are the names of classes, or their numbers in `like`.
    """
    if isinstance(samples, Dataset):
        if labels is not None:
            raise DataError("a data set has its labels in it; give labels with images or points only")
        return samples
    values = _values(samples, like.space)
    x = values.reshape(len(values), -1).T.to(like.x.dtype)
    grey_levels = values.dtype == torch.uint8 and like.space.is_image
    numbers, classes = _labelled(labels, len(values), like.classes)
    return Dataset(
        x=(x * BIN - 1 if grey_levels else x).contiguous(),
        space=Space(like.space.shape),
        conditions=Conditions(labels=numbers),
        classes=classes,
        bin_width=BIN if grey_levels else like.bin_width,
    )


def _values(samples: Any, space: Space) -> Tensor:
    """Return samples as numbers, with a row or an image for each; raise `DataError` if they are none."""
    try:
        values = torch.as_tensor(samples).detach().cpu()
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        reason = " ".join(str(error).split())
        raise DataError(
            f"new data must be n×{space} numbers, got {type(samples).__name__} ({reason})"
        ) from None
    if values.ndim and not len(values):
        raise DataError("there are no new samples: give one or more")
    if values.is_complex() or values.dtype == torch.bool:
        raise DataError(f"new data must be n×{space} numbers, got {short(values.dtype)}")
    shapes = {space.shape, (space.dimension,)} | ({space.shape[1:]} if space.shape[0] == 1 else set())
    if values.ndim < 2 or tuple(values.shape[1:]) not in shapes:
        raise DataError(f"new data must be n×{space}, got {'×'.join(map(str, values.shape)) or 'one number'}")
    return values


def native(value: Any) -> Any:
    """Return arrays and tensors as lists, and their scalars as Python's own; anything else as it is."""
    return value.tolist() if hasattr(value, "tolist") else value


def _labelled(labels: Any, count: int, classes: tuple[str, ...]) -> tuple[Tensor | None, tuple[str, ...]]:
    """Return the number of each label, and the names of classes."""
    if labels is None:
        return None, ()
    try:
        if isinstance(native(labels), (str, bytes, Mapping, Set)):
            raise TypeError
        listed = [native(label) for label in native(labels)]
    except TypeError:
        raise DataError(f"labels must be a list with one for each new sample, got {labels!r}") from None
    if len(listed) != count:
        raise DataError(f"there are {count} new samples and {len(listed)} labels")
    if all(isinstance(label, str) for label in listed):
        names = tuple(dict.fromkeys(listed))
        return torch.tensor([names.index(label) for label in listed]), names
    numbers = range(len(classes))
    wrong = [label for label in listed if type(label) is not int or label not in numbers]
    if wrong:
        raise DataError(
            f"label {wrong[0]!r} is neither the number of a class, of which there are {len(classes)}, nor the "
            "name of one; a new class needs its name, a text"
        )
    return torch.tensor(listed), classes
