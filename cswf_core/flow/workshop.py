"""What a flow works on and with, and how this becomes the plan of a stage."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch

from cswf_core.errors import RunError
from cswf_core.flow import admission, boundary
from cswf_core.flow.coordinates import Coordinates
from cswf_core.flow.directions import Directions, directions_of
from cswf_core.flow.estimate import Estimate
from cswf_core.flow.memory import Chunks, fitting
from cswf_core.flow.particles import Particles, mean_length
from cswf_core.flow.plan import ExactPlan, Plan, Scene, plan_class
from cswf_core.flow.settings import Parts, Settings
from cswf_core.flow.start import balanced, begin
from cswf_core.interfaces import Dataset, Stage
from cswf_core.online.counts import Sketch
from cswf_core.online.incoming import joined, together
from cswf_core.online.learner import Online, refuse_unfit


class Workshop:
    """Data and particles, on a device; the plugins and numbers a flow is made of; the stages of a round."""

    def __init__(
        self,
        data: Dataset,
        parts: Parts,
        settings: Settings,
        start: Dataset | None,
        device: torch.device | str,
        sketch: Sketch | None,
    ) -> None:
        """With `settings.sets`, counts are kept of the data; `sketch` has those that were counted before."""
        self.parts = parts
        self.settings = settings
        self.device = torch.device(device)
        self.data = admission.check_dataset(data, parts.owner("dataset"))
        with boundary.calling(parts.owner("schedule"), "stages"):
            self._round = boundary.check_stages(
                parts.schedule.stages(data.space, parts.projection), parts.owner("schedule")
            )
        with boundary.calling(parts.owner("condition"), "length"):
            admission.check_amplifier(getattr(parts.condition, "amplifier", None), parts.owner("condition"))
            self.condition_length = parts.condition.length(data)
        with self._working():
            x, conditions, self.observation = begin(data, parts, settings, start, self.device)
            self.particles = Particles(x.contiguous(), conditions)
            self.target = balanced(data, parts.condition, settings.seed, parts.owner("condition"))
            self._data_x = self.target.x.to(self.device, settings.dtype).contiguous()
            self._data_conditions = self.target.conditions.to(self.device, settings.dtype)
        self._size = max(mean_length(self._data_x), mean_length(self.particles.x))
        self._estimate = self._plan_estimate()
        self.online = self._learning(sketch)
        """What is kept of the data so that more can come; None where none can."""
        self._chunks = self._cut()

    def sizes(self) -> tuple[torch.device, int, int, int]:
        """Return the device, d, M and N: what decides whether a flow fits."""
        M = self.settings.count if self.settings.count is not None else len(self.data)
        return self.device, self.data.space.dimension, M, len(self.data)

    @property
    def products(self) -> str:
        """The numbers that products are taken in: `float16`, summed in float32, or `float32` or `float64`."""
        exact = issubclass(self._plan_class(), ExactPlan)
        return str(self.settings.dtype).removeprefix("torch.") if exact else "float16"

    @contextmanager
    def _working(self) -> Iterator[None]:
        """Work on the flow's device, and say in one sentence if it does not fit there."""
        here = torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext()
        with fitting(*self.sizes()), here:
            yield

    def _plan_estimate(self) -> Estimate:
        owner = self.parts.owner("condition")
        with boundary.calling(owner, "strata"):
            strata = self.parts.condition.strata(self.particles.conditions, self._data_conditions)
        strata = admission.check_strata(strata, owner, len(self.particles), len(self.target))
        return Estimate(self.parts.cdf, self.parts.owner("cdf"), strata)

    def _plan_class(self) -> type[Plan]:
        return plan_class(self.settings, self.device)

    def _directions(self, stage: Stage) -> Directions:
        """Return what draws a stage's directions, in coordinates of its own."""
        coordinates = Coordinates(
            stage, self.data.space, self.observation, self.parts.condition.amplifier, self._data_x
        )
        return directions_of(stage, coordinates, self.parts, self.condition_length, self._data_x)

    def _drawer(self, index: int) -> Directions:
        """Return what draws the directions of a round's stage."""
        return self._directions(self._round[index])

    def counts(self) -> Sketch:
        """Return the counts of all data so far, counting those that have just come."""
        with self._working():
            return self._learner().count(self._drawer)

    def _make_plan(self, index: int, directions: Directions) -> Plan:
        """Return how the steps of a stage, the flow's `index`-th, are computed here."""
        drawn_as, counts = index, None
        if self.online is not None:
            drawn_as = index % len(self._round)
            counts = self.online.stage(drawn_as, directions, self._drawer)
        scene = Scene(
            index=index,
            drawn_as=drawn_as,
            settings=self.settings,
            particles=self.particles,
            data=self.target,
            data_x=self._data_x,
            conditions=self._data_conditions,
            directions=directions,
            estimate=self._estimate,
            chunks=self._chunks,
            counts=counts,
        )
        return self._plan_class()(scene)

    def _cut(self) -> Chunks:
        """Return how much is worked on at a time."""
        samples = len(self.particles) + self._data_x.shape[1]
        return Chunks(self.device, samples, self._data_x.element_size())

    def _learning(self, sketch: Sketch | None) -> Online | None:
        """Return what counts the data, if there are to be counts: these take the place of the data."""
        if self.settings.sets is None:
            return None
        refuse_unfit(self.parts, self.observation, self._estimate.strata, self.target is not self.data)
        self._data_x = self._data_x[:, :0].clone()
        return Online(
            self._round,
            self.parts,
            self.settings,
            self.data,
            (len(self.particles), self.condition_length),
            sketch,
        )

    def _learner(self) -> Online:
        if self.online is None:
            raise RunError(
                "this flow keeps no counts of its data, and cannot take in more: give it online.sets"
            )
        return self.online

    def _take_in(self, new: Dataset) -> None:
        """Let data that have been admitted join the others."""
        self._learner().take_in(new)
        self.data = self.target = joined(self.data, new)

    def _let_in(self, new: Dataset) -> None:
        """Let the particles in that come with new data."""
        with self._working():
            x, conditions = self._learner().newcomers(new, self._data_x)
            self.particles.join(x, together([self.particles.conditions, conditions]))
            self._chunks = self._cut()
