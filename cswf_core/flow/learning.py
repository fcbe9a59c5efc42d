"""What a flow asks of the part that learns from data as they come; `cswf_core.online` has it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from torch import Tensor

from cswf_core.flow.directions import DirectionSampler
from cswf_core.flow.fits import TalliedData
from cswf_core.interfaces import Conditions, Dataset

SamplerOfStage = Callable[[int], DirectionSampler]
"""The number of a stage → what draws its directions."""


class DataCounts(Protocol):
    """Counts of all data along the directions of a flow, to be kept in a file."""

    samples: int
    """How many samples have been counted."""

    def tensors(self) -> dict[str, Tensor]:
        """Return the counts by name."""

    def facts(self) -> dict[str, Any]:
        """Return a few numbers that belong to them."""


class Learner(Protocol):
    """The part of a flow that learns from data as they come: it counts them, and refuses others."""

    cohorts: list[int]
    """How many particles there are after each data set that has come."""

    def dataset(self, samples: object, labels: object, like: Dataset) -> Dataset:
        """Return samples as a data set of the kind of `like`: they may be one, or images, or points."""

    def admit(self, new: Dataset) -> Dataset:
        """Return new data with the numbers that their classes have here; refuse what does not fit."""

    def take_in(self, data: Dataset) -> None:
        """Have data counted before the next step."""

    def count(self, samplers: SamplerOfStage) -> DataCounts:
        """Count the data that wait for it, and return the counts of all data."""

    def stage(self, index: int, sampler: DirectionSampler, samplers: SamplerOfStage) -> TalliedData:
        """Return the counts of all data along a stage's directions."""

    def new_particles(self, new: Dataset, like: Tensor) -> tuple[Tensor, Conditions]:
        """Return X₀ (d×m) and Y₀ of the particles that come with new data, which have been taken in."""


class Online(Protocol):
    """The part that makes a flow learn from data as they come; `cswf_core.online` has it."""

    def begin(self, flow: Any) -> Learner:
        """Return the learner of a `Flow` that has its particles; raise `RunError` if it cannot learn so."""
