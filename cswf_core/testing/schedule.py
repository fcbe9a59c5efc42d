"""Checks of schedules."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import attrs
import torch

from cswf_core.checks import CheckedSampler, CheckedSchedule, checked
from cswf_core.errors import DataError
from cswf_core.interfaces import Key, ProjectionSampler, Schedule, Space, Stage
from cswf_core.recipe import Recipe
from cswf_core.testing.flows import IN_A_FLOW, SHARED, built_in, choice_of, recipe_with
from cswf_core.testing.generators import require_untouched
from cswf_core.testing.outcome import FaultError, Kit, SkipError, Subject, needing
from cswf_core.testing.samples import COLOUR, GREY, POINTS, bare, samples

MOST_STEPS = 10_000_000
"""Steps of a whole flow that are taken for a plan, and not for a mistake."""

LOOKED_AT = 1000
"""Steps of a stage whose η is looked at."""

SHORT = 2
"""Steps that each stage takes in a short flow."""

FEW = 256
"""Directions of a short flow, at most, unless steps are so long that they need more."""

PER_ETA = 4
"""Directions for each unit of η that keep a step from growing."""

FLAT = 2000
"""Steps without progress after which an adaptive schedule has to leave a stage."""


@attrs.frozen
class Shortened(Schedule):
    """Another schedule with a few steps of each stage, and no more directions than these need."""

    of: Schedule

    @property
    def adaptive(self) -> bool:  # type: ignore[override]
        """Whether the other one may leave a stage early."""
        return self.of.adaptive

    def stages(self, space: Space, projection: ProjectionSampler) -> Sequence[Stage]:
        """Return the other one's stages, shortened."""
        return [self._short(stage) for stage in self.of.stages(space, projection)]

    @staticmethod
    def _short(stage: Stage) -> Stage:
        needed = max(FEW, math.ceil(PER_ETA * stage.eta(0)))
        return attrs.evolve(stage, steps=min(stage.steps, SHORT), directions=min(stage.directions, needed))

    def stop(self, stage: Stage, distances: Sequence[float]) -> bool:
        """Ask the other one."""
        return self.of.stop(stage, distances)


class ScheduleSubject(Subject):
    """A schedule, and the spaces that it plans flows in."""

    kind = "schedule"

    def __init__(self, plugin: Schedule, spaces: Sequence[Space] | None = None) -> None:
        super().__init__(plugin)
        self.spaces = tuple(spaces) if spaces is not None else (POINTS, GREY, COLOUR)

    @cached_property
    def schedule(self) -> CheckedSchedule:
        """The schedule behind its checks."""
        schedule: CheckedSchedule = self.checked
        return schedule

    def projection(self, space: Space) -> CheckedSampler:
        """Return the sampler that a schedule may vary: one of patches for images, else uniform directions."""
        sampler: CheckedSampler = checked(
            built_in("projection", "{use: locally-connected, patch: 3}" if space.is_image else "uniform")
        )
        return sampler

    def stages(self, space: Space) -> tuple[Stage, ...]:
        """Return the stages in a space."""
        return self.schedule.stages(space, self.projection(space))

    @cached_property
    def usable(self) -> list[Space]:
        """The spaces that the schedule takes."""
        usable, refusals = [], []
        for space in self.spaces:
            try:
                self.stages(space)
            except DataError as error:
                refusals.append(str(error))
            else:
                usable.append(space)
        if not usable:
            raise FaultError(f"stages for one of {', '.join(map(str, self.spaces))}", refusals[0])
        return usable

    def each_stage(self) -> list[Stage]:
        """Return the stages of all spaces."""
        return [stage for space in self.usable for stage in self.stages(space)]

    def require_stages(self, space: Space, noun: str) -> None:
        """Raise `FaultError` unless stages in a space can be run, `SkipError` if the schedule refuses it."""
        if space not in self.spaces:
            raise SkipError(f"only {', '.join(map(str, self.spaces))} are to be tried")
        with needing(noun):
            self.stages(space)

    def recipe(self, **sections: Any) -> Recipe:
        """Return the recipe of a flow with a few steps of each stage."""
        space = GREY if GREY in self.usable else self.usable[0]
        schedule = Shortened(self.schedule.plugin)
        patches = {"use": "locally-connected", "patch": 3} if space.is_image else "uniform"
        recipe = recipe_with("", None, bare(samples(space)), projection=patches, **sections)
        return attrs.evolve(recipe, schedule=choice_of("schedule", schedule))


def points_are_planned_for(subject: ScheduleSubject) -> None:
    """Stages for points can be run; a schedule that needs images says so with a `DataError`."""
    subject.require_stages(POINTS, "points")


def grey_images_are_planned_for(subject: ScheduleSubject) -> None:
    """Stages for images of one channel can be run."""
    subject.require_stages(GREY, "grey images")


def colour_images_are_planned_for(subject: ScheduleSubject) -> None:
    """Stages for images of three channels can be run."""
    subject.require_stages(COLOUR, "colour images")


def the_plan_ends(subject: ScheduleSubject) -> str:
    """All stages together have at least one step, and not so many that it must be a mistake."""
    totals = [sum(stage.steps for stage in subject.stages(space)) for space in subject.usable]
    for total in totals:
        if not 1 <= total <= MOST_STEPS:
            raise FaultError(f"1 to {MOST_STEPS:,} steps in all", f"{total:,}")
    return f"{max(totals):,} steps at most"


def the_same_stages_come_again(subject: ScheduleSubject) -> None:
    """Asked twice, a schedule returns the same stages: a resumed run plans its flow anew."""
    for space in subject.usable:
        first, second = ([_facts(stage) for stage in subject.stages(space)] for _ in range(2))
        if first != second:
            raise FaultError("the same stages when it is asked again", f"others, in {space}")


def _facts(stage: Stage) -> tuple[Any, ...]:
    grid = None if stage.upsampling is None else stage.upsampling.space
    plain = (stage.name, stage.steps, stage.directions, stage.step_size, stage.entropy, stage.tempered)
    return (*plain, type(stage.sampler), grid, *(stage.eta(step) for step in _some(stage.steps)))


def _some(steps: int) -> list[int]:
    """Return numbers of some of a stage's steps, the first and the last among them."""
    every = max(1, steps // LOOKED_AT)
    return sorted({*range(0, steps, every), max(0, steps - 1)})


def step_sizes_are_finite_and_not_negative(subject: ScheduleSubject) -> None:
    """η of every step is a number, 0 or more: particles never flow away from the data."""
    for stage in subject.each_stage():
        for step in _some(stage.steps):
            eta = stage.eta(step)
            if not 0 <= eta < float("inf"):
                raise FaultError("η of 0 or more", f"{eta} at step {step} of stage '{stage.name}'")


def an_adaptive_schedule_stops(subject: ScheduleSubject) -> str:
    """`stop` leaves a stage whose distance has long stopped falling, and answers the same when asked again."""
    if not subject.schedule.adaptive:
        raise SkipError("it does not declare `adaptive`: stages take all their steps")
    steps = []
    for stage in subject.each_stage():
        noise = Key(0, "distances").open(dtype=torch.float64).uniform(FLAT).tolist()
        distances = [1.0 + 0.01 * number for number in noise]
        stops = (n for n in range(1, FLAT + 1) if subject.schedule.stop(stage, distances[:n]))
        last = next(stops, None)
        if last is None:
            raise FaultError(
                f"`stop` to say yes where {FLAT:,} steps have brought nothing", f"no, in stage '{stage.name}'"
            )
        if not subject.schedule.stop(stage, distances[:last]):
            raise FaultError("the same answer when it is asked again", "another one")
        steps.append(last)
    return f"without progress it leaves a stage after {min(steps)} to {max(steps)} steps"


def an_upsampling_agrees_with_its_transpose(subject: ScheduleSubject) -> None:
    """U t·x = t·Uᵀx, and `gram` is UᵀU, for every coarse grid of a stage."""
    maps = [
        (stage.upsampling, space)
        for space in subject.usable
        for stage in subject.stages(space)
        if stage.upsampling is not None
    ]
    if not maps:
        raise SkipError("all stages run in the data's own space")
    for U, space in maps:
        draw = Key(0, "upsampling").open(dtype=torch.float64)
        t, x = draw.normal(U.space.dimension, 3), draw.normal(space.dimension, 3)
        up, down, gram = U.up(t), U.down(x), U.gram(t)
        gaps = ((up * x).sum(dim=0) - (t * down).sum(dim=0), gram - U.down(up))
        for law, gap in zip(("U t·x = t·Uᵀx", "gram(t) = UᵀU t"), gaps, strict=True):
            if not float(gap.abs().max()) <= 1e-6:
                raise FaultError(law, f"{float(gap.abs().max()):.3g} apart, from {U.space} to {space}")


def global_generators_are_left_alone(subject: ScheduleSubject) -> None:
    """Planning draws nothing from the generators of `random`, NumPy and PyTorch."""
    require_untouched(subject.each_stage)


KIT = Kit(
    ScheduleSubject,
    (
        *SHARED,
        points_are_planned_for,
        grey_images_are_planned_for,
        colour_images_are_planned_for,
        the_plan_ends,
        the_same_stages_come_again,
        step_sizes_are_finite_and_not_negative,
        an_adaptive_schedule_stops,
        an_upsampling_agrees_with_its_transpose,
        global_generators_are_left_alone,
        *IN_A_FLOW,
    ),
)
