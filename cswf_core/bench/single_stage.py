"""One stage of a schedule, with as many steps as a measurement takes."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from cswf_core.errors import RunError
from cswf_core.interfaces import ProjectionSampler, Schedule, Space, Stage
from cswf_core.recipe import Recipe


@attrs.frozen
class SingleStage(Schedule):
    """A schedule's stage and no other. It takes its steps whatever the schedule would say to `stop`."""

    schedule: Schedule
    number: int | None
    """Which stage, counted from 1 as in the progress of a run; None is the last."""
    steps: int

    def stages(self, space: Space, projection: ProjectionSampler) -> Sequence[Stage]:
        """Return the stage, with one step size throughout: its first, unless so few directions cannot bear it.

        A step takes as long whatever its size, and a flow that runs away would end the measurement.
        """
        every = list(self.schedule.stages(space, projection))
        number = len(every) if self.number is None else self.number
        if not 1 <= number <= len(every):
            raise RunError(f"there is no stage {number}: the schedule has {len(every)}, counted from 1")
        stage = every[number - 1]
        fields = {field.name: getattr(stage, field.name) for field in attrs.fields(Stage)}
        eta = min(stage.eta(0), stage.directions / 2)
        return [Stage(**{**fields, "steps": self.steps, "step_size": eta})]


def only_stage(recipe: Recipe, number: int | None, steps: int) -> Recipe:
    """Return the recipe with one stage of its schedule (None: the last), `steps` long."""
    single = SingleStage(recipe.schedule.part, number, steps)
    return attrs.evolve(recipe, schedule=attrs.evolve(recipe.schedule, part=single))
