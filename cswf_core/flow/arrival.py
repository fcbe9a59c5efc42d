"""More data for a flow that has begun: how they join the others, and the particles that come with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any

import attrs
import torch
from torch import Tensor

from cswf_core.errors import DataError, RoomError, RunError
from cswf_core.flow import admission, boundary
from cswf_core.flow.counts import StageCounts
from cswf_core.flow.directions import Directions
from cswf_core.flow.lattice import Lattice
from cswf_core.flow.noise import gaussian
from cswf_core.flow.parts import Parts, Settings
from cswf_core.flow.sketch import Drawer, Sketch
from cswf_core.interfaces import BIN, Conditions, Dataset, Key, ProjectionSampler, Space, Stage

Steps = int | Sequence[int] | None
"""K of all stages of a round, or of each of them; None: what the schedule says."""


class Online:
    """What a flow keeps in order to learn from data as they come."""

    def __init__(
        self,
        stages: Sequence[Stage],
        parts: Parts,
        settings: Settings,
        data: Dataset,
        sizes: tuple[int, int],
        sketch: Sketch | None = None,
    ) -> None:
        """`data` begin, with M particles and conditions of length l, the `sizes`.

        `sketch` are the counts of an earlier flow along the same directions.
        """
        assert settings.sets is not None
        bins = refuse_uncountable(stages, parts)
        if sketch is None:
            sketch = Sketch.empty(stages, bins, settings.sets, Lattice.of(data))
        sketch.check(stages, bins, settings.sets)
        self.sketch = sketch
        self._parts, self._settings, self._length = parts, settings, sizes[1]
        self._founders = sizes[0], len(data)
        """M and N of the beginning: M/N stays what it was."""
        self._like, self._classes = data, data.classes
        """Data of the kind that may come, and the classes that there are or will be."""
        self._waiting: list[Dataset] = []
        self._samples = 0
        self.cohorts: list[int] = []
        """M after each of the data sets that have come."""
        self.take_in(data)

    def admit(self, new: Dataset) -> Dataset:
        """Return new data with the numbers that their classes have here; refuse what does not fit."""
        owner, condition = self._parts.owner("dataset"), self._parts.owner("condition")
        new = admission.check_dataset(new, owner)
        if new.space != self._like.space:
            raise DataError(f"new data are {new.space}, and the flow's are {self._like.space}")
        new = matched(new, self._classes)
        self.sketch.lattice.check(new)
        with boundary.calling(condition, "length"):
            length = self._parts.condition.length(new)
        if length != self._length:
            names = [name for name in new.classes if name not in self._classes]
            what = f"bring class '{names[0]}'" if names else f"have conditions of length {length}"
            raise RoomError(
                f"new data {what}, and there is room for {self._length}: begin with a larger condition.room",
                len(new.classes),
            )
        self._classes = new.classes or self._classes
        return new

    def take_in(self, data: Dataset) -> None:
        """Have data counted before the next step, unless an earlier flow has counted them."""
        if len(self.cohorts) >= self.sketch.pieces:
            self._waiting.append(data)
        self._samples += len(data)
        M, N = self._founders
        self.cohorts.append(round(M * self._samples / N))

    def count(self, drawer: Drawer) -> Sketch:
        """Count what waits to be, and return the counts of all data."""
        while self._waiting:
            self.sketch.insert(self._waiting[0], drawer, self._settings.seed)
            del self._waiting[0]
        return self.sketch

    def stage(self, index: int, directions: Directions, drawer: Drawer) -> StageCounts:
        """Return a stage's counts, of all data."""
        self.sketch.settle(directions.like.device)
        return self.count(drawer).stage(index, directions, self._parts.cdf, self._parts.owner("cdf"))

    def newcomers(self, new: Dataset, like: Tensor) -> tuple[Tensor, Conditions]:
        """Return X₀ (d×m) and Y₀ of the particles that come with new data, which have been taken in.

        There are as many as it takes for M/N to be what it was: noise, with conditions of the new data.
        """
        count, arrival = self.cohorts[-1] - self.cohorts[-2], len(self.cohorts)
        seed, owner = self._settings.seed, self._parts.owner("condition")
        x = gaussian(Key(seed, "start", step=arrival), (new.space.dimension, count), like)
        with boundary.calling(owner, "draw"):
            draw = Key(seed, "labels", step=arrival).open()
            conditions = self._parts.condition.draw(new, count, draw)
        admission.check_conditions(conditions, owner, "draw", count, len(new.classes))
        return x * self._settings.scale, conditions.to(like.device, like.dtype)


def with_steps(stages: Sequence[Stage], steps: Steps) -> list[Stage]:
    """Return the stages of a round with other numbers of steps; with 0, a stage is passed over."""
    each = [steps] * len(stages) if isinstance(steps, int) else steps
    if each is None:
        return list(stages)
    if len(each) != len(stages) or min(each) < 0 or max(each) < 1:
        raise RunError(
            f"a round has {len(stages)} stages, and the steps given are {list(each)}: give one number for all, "
            "or one for each, of which some may be 0"
        )
    return [_retimed(stage, count) for stage, count in zip(stages, each, strict=True)]


@attrs.frozen(eq=False)
class Retimed(Stage):
    """A stage with another number of steps, over which its step size goes the same way."""

    of: Stage | None = None

    def eta(self, step: int) -> float:
        """Return η where the other stage is as far."""
        return self.step_size if self.of is None else self.of.eta(step * self.of.steps // self.steps)


def _retimed(stage: Stage, steps: int) -> Stage:
    if type(stage).eta is Stage.eta:
        return attrs.evolve(stage, steps=steps)
    own = {field.name: getattr(stage, field.name) for field in attrs.fields(Stage)}
    return Retimed(**{**own, "steps": steps}, of=stage)


def refuse_uncountable(stages: Sequence[Stage], parts: Parts) -> int:
    """Return B; raise `RunError` if the CDF cannot be made of counts, or directions depend on the data."""
    if parts.cdf.bins is None:
        raise RunError(f"{parts.owner('cdf')} cannot be made of counts, which online needs: take histogram")
    for stage in stages:
        sampler = stage.sampler if stage.sampler is not None else parts.projection
        if type(sampler).fitted is not ProjectionSampler.fitted:
            raise RunError(
                f"{parts.owner('projection')} draws directions by the data, and online needs some that stay "
                "when more come: take another projection"
            )
    return parts.cdf.bins


def refuse_unfit(parts: Parts, observation: object, strata: object, balanced: bool) -> None:
    """Raise `RunError` if a condition does with the data what counts along directions cannot follow."""
    reasons = {
        "shows particles a part of what they are to be": observation is not None,
        "has a flow for each class": strata is not None,
        "takes some of the data several times (condition.prior)": balanced,
    }
    for reason, holds in reasons.items():
        if holds:
            raise RunError(
                f"{parts.owner('condition')} {reason}, and cannot learn online: leave out online.sets"
            )


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
        raise DataError(f"new data must be n×{space} numbers, got {boundary.short(values.dtype)}")
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
        given = [native(label) for label in native(labels)]
    except TypeError:
        raise DataError(f"labels must be a list with one for each new sample, got {labels!r}") from None
    if len(given) != count:
        raise DataError(f"there are {count} new samples and {len(given)} labels")
    if all(isinstance(label, str) for label in given):
        names = tuple(dict.fromkeys(given))
        return torch.tensor([names.index(label) for label in given]), names
    numbers = range(len(classes))
    wrong = [label for label in given if type(label) is not int or label not in numbers]
    if wrong:
        raise DataError(
            f"label {wrong[0]!r} is neither the number of a class, of which there are {len(classes)}, nor the "
            "name of one; a new class needs its name, a text"
        )
    return torch.tensor(given), classes


def matched(new: Dataset, classes: tuple[str, ...]) -> Dataset:
    """Return new data with labels that number the classes known, by name, and after them those that are new."""
    if new.conditions.labels is None:
        return new
    names = (*classes, *(name for name in new.classes if name not in classes))
    numbers = torch.tensor([names.index(name) for name in new.classes])
    own = attrs.evolve(new.conditions, labels=numbers[new.conditions.labels])
    return attrs.evolve(new, conditions=own, classes=names, held_out=_held_out(new, classes))


def _held_out(new: Dataset, classes: tuple[str, ...]) -> Dataset | None:
    return None if new.held_out is None else matched(new.held_out, classes)


def joined(known: Dataset, new: Dataset) -> Dataset:
    """Return both data sets as one; the classes of `new` are those of `known` and perhaps more (`matched`).

    Samples made from others stay last. Where bins have two widths, x is the middle of each, and the width is 0.
    """
    if known.bin_width != new.bin_width:
        known, new = (attrs.evolve(part, x=part.x + part.bin_width / 2, bin_width=0.0) for part in (known, new))
    parts = [known.genuine(), new.genuine()]
    for part in (known, new):
        made = torch.arange(len(part) - part.augmented, len(part))
        parts += [part.take(made)] if part.augmented else []
    held_out = None
    if known.held_out is not None and new.held_out is not None:
        held_out = joined(known.held_out, new.held_out)
    return attrs.evolve(
        known,
        x=torch.cat([part.x.to(known.x) for part in parts], dim=1),
        conditions=together([part.conditions for part in parts]),
        classes=new.classes if new.conditions.labels is not None else known.classes,
        augmented=known.augmented + new.augmented,
        held_out=held_out,
    )


def together(parts: Sequence[Conditions]) -> Conditions:
    """Return the conditions of several sets of samples, one after the other; what one lacks is left out."""
    found = {}
    for name in ("labels", "vectors", "origin"):
        each = [getattr(part, name) for part in parts]
        if all(tensor is not None for tensor in each):
            found[name] = torch.cat(each, dim=-1)
    return Conditions(**found)
