"""Learning as data come: which data may come, what is counted, and the particles that come with them."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

import attrs
import torch
from torch import Tensor

from cswf_core.checks import check_dataset, short
from cswf_core.errors import DataError, RoomError, RunError
from cswf_core.flow.directions import DirectionSampler
from cswf_core.flow.fits import TalliedData
from cswf_core.flow.flow import Flow
from cswf_core.flow.learning import SamplerOfStage
from cswf_core.flow.particles import normal
from cswf_core.flow.start import Gaussian
from cswf_core.interfaces import BIN, Conditions, Dataset, Key, LinearMap, Space
from cswf_core.online.counts import Counts
from cswf_core.online.fixed_point import FixedPoint
from cswf_core.ranks import Share


@attrs.frozen(eq=False)
class Online:
    """The part that makes a flow learn from data as they come, by counts along sets of directions."""

    sets: int
    """How many sets of directions a stage has, used in turn."""
    counts: Counts | None = None
    """Those of an earlier flow along the same directions."""

    def begin(self, flow: Flow) -> OnlineLearner:
        """Return the learner of a flow; raise `RunError` if its plugins do what counts cannot follow."""
        return OnlineLearner(flow, self.sets, self.counts)


class OnlineLearner:
    """The counts of a flow's data, and the rules for data that come later."""

    def __init__(self, flow: Flow, sets: int, counts: Counts | None) -> None:
        """Begin with the flow's data; `counts` of an earlier flow may have them already."""
        refuse_unfit(flow)
        bins = bins_of(flow)
        like = torch.empty(flow.data.space.dimension, 0, dtype=torch.float64, device=flow.device)
        W = exact_coordinates(flow, like)
        if counts is None:
            counts = Counts.empty(flow.stages, bins, sets, FixedPoint.of(flow.data, W, like))
        counts.check(flow.stages, bins, sets)
        counts.W = W
        self.counts = counts
        self._W, self._gaussian = flow.W, flow.gaussian
        """The coordinates, and where the first particles began, if that was a Gaussian; they stay."""
        self._parts, self._settings, self._length = flow.parts, flow.settings, flow.condition_length
        self._founders = flow.particles.share.total, len(flow.data)
        """M and N of the beginning: M/N stays what it was."""
        self._space, self._classes = flow.data.space, flow.data.classes
        """The space of data that may come, and the classes that there are or will be."""
        self._waiting: list[Dataset] = []
        """Data that are to be counted."""
        self._samples = 0
        self.cohorts: list[int] = []
        """M after each of the data sets that have come."""
        self.take_in(flow.data)

    def dataset(self, samples: object, labels: object, like: Dataset) -> Dataset:
        """Return samples as a data set of the kind of `like`; see `as_dataset`."""
        return as_dataset(samples, labels, like)

    def admit(self, new: Dataset) -> Dataset:
        """Return new data with the numbers that their classes have here; refuse what does not fit."""
        new = check_dataset(new)
        if new.space != self._space:
            raise DataError(f"new data are {new.space}, and the flow's are {self._space}")
        new = self._parts.condition.encoded(new.with_classes(self._classes))
        self.counts.fixed_point.check(new)
        length = self._parts.condition.length(new)
        if length != self._length:
            names = [name for name in new.classes if name not in self._classes]
            reason = f"bring class '{names[0]}'" if names else f"have conditions of length {length}"
            raise RoomError(
                f"new data {reason}, and there is room for {self._length}: begin with a larger "
                f"{self._settings.called('room')}",
                len(new.classes),
            )
        self._classes = new.classes or self._classes
        return new

    def take_in(self, data: Dataset) -> None:
        """Have data counted before the next step, unless an earlier flow has counted them."""
        if len(self.cohorts) >= self.counts.pieces:
            self._waiting.append(data)
        self._samples += len(data)
        M, N = self._founders
        self.cohorts.append(round(M * self._samples / N))

    def count(self, samplers: SamplerOfStage) -> Counts:
        """Count the data that wait for it, and return the counts of all data."""
        while self._waiting:
            self.counts.insert(self._waiting[0], samplers, self._settings.seed)
            del self._waiting[0]
        return self.counts

    def stage(self, index: int, sampler: DirectionSampler, samplers: SamplerOfStage) -> TalliedData:
        """Return a stage's counts, of all data."""
        self.counts.settle(sampler.like.device)
        return self.count(samplers).stage(index, sampler, self._parts.cdf)

    def new_particles(self, new: Dataset, like: Tensor) -> tuple[Tensor, Conditions]:
        """Return X₀ (d×m) and Y₀, on the CPU, of the particles that come with new data, which were taken in.

        There are as many as it takes for M/N to be what it was: noise, with conditions of the new data. If the
        first began as a Gaussian fitted to their data, these begin as one fitted to the new data. A single
        datum has no covariance: its particles begin as the first ones did. In spaces too large for a matrix,
        the mean is that of the new data, and the covariance what W knows of the first.
        """
        count, arrival = self.cohorts[-1] - self.cohorts[-2], len(self.cohorts)
        seed = self._settings.seed
        whole = Share(0, count, count)
        x = normal(Key(seed, "start", step=arrival), new.space.dimension, whole, like)
        conditions = self._parts.condition.draw(new, count, Key(seed, "labels", step=arrival).open())
        conditions = conditions.to(torch.device("cpu"), like.dtype)
        if self._gaussian is None:
            return x * self._settings.scale, conditions
        gaussian = self._gaussian
        if len(new) > 1:
            labels = None if conditions.labels is None else new.conditions.labels
            labels = None if labels is None else labels.to(like.device)
            gaussian = Gaussian.of_data(new.x.to(like), new.bin_width, self._W, self._settings, labels)
        labels = None if conditions.labels is None else conditions.labels.to(like.device)
        return gaussian.of_noise(x, labels), conditions


def exact_coordinates(flow: Flow, like: Tensor) -> LinearMap | None:
    """Return the flow's coordinates W, in the numbers of `like`, which are float64; None: the data's own."""
    if flow.W is None:
        return None
    assert flow.parts.coordinates is not None
    tensors = flow.parts.coordinates.tensors_of(flow.W, flow.data.space, flow.particles.x)
    return flow.parts.coordinates.of_tensors(flow.data.space, tensors, like)


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
    if flow.particles.in_blocks:
        raise RunError(
            "particles that are too many for one device's memory cannot learn online: take fewer "
            f"{flow.settings.called('particles')}"
        )
    if flow.parts.cdf.data is not None:
        raise RunError(
            f"{flow.parts.cdf.owner} is fitted to a part of the data, drawn anew at every step, and cannot "
            f"learn online: leave out the part, or the {flow.settings.called('sets')}"
        )
    if flow.settings.offline:
        raise RunError(
            f"no {flow.settings.called('offline')} particles can be carried along where data arrive later: "
            f"leave them out, or the {flow.settings.called('sets')}"
        )
    reasons = {
        "shows particles a part of what they are to be": flow.observation is not None,
        "has a flow for each class": flow.strata is not None,
        f"takes some of the data several times{_named(flow, 'prior')}": flow.balanced_data is not flow.data,
        "adds noise to the conditions of the data": flow.parts.condition.dequantised,
    }
    for reason, holds in reasons.items():
        if holds:
            raise RunError(
                f"{flow.parts.condition.owner} {reason}, and cannot learn online: leave out the "
                f"{flow.settings.called('sets')}"
            )


def _named(flow: Flow, noun: str) -> str:
    """Return the name that users have for a noun, in brackets; nothing if they have none."""
    return f" ({flow.settings.names[noun]})" if noun in flow.settings.names else ""


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
    rows = values.reshape(len(values), -1).T
    whole = values.dtype == torch.uint8
    x = rows.to(like.x.dtype) * BIN - 1 if whole and like.space.is_image else rows.to(like.x.dtype)
    numbers, classes = _labelled(labels, len(values), like.classes)
    return Dataset(
        x=x.contiguous(),
        space=Space(like.space.shape),
        conditions=Conditions(labels=numbers),
        classes=classes,
        bin_width=BIN if whole and like.space.is_image else like.bin_width,
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
