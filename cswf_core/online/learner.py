"""More data for a flow that has begun: who may come, what is counted, and the particles that come with them."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from cswf_core.errors import DataError, RoomError, RunError
from cswf_core.flow import admission, boundary
from cswf_core.flow.counts import StageCounts
from cswf_core.flow.directions import Directions
from cswf_core.flow.noise import gaussian
from cswf_core.flow.settings import Parts, Settings
from cswf_core.interfaces import Conditions, Dataset, Key, ProjectionSampler, Stage
from cswf_core.online.counts import Drawer, Sketch
from cswf_core.online.fixed_point import Lattice
from cswf_core.online.incoming import matched


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
