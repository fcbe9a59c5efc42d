"""Adapter of schedules: stages that can be run."""

from __future__ import annotations

import math
from collections.abc import Sequence

from cswf_core.checks.adapter import Adapter, calling
from cswf_core.checks.projection import CheckedSampler
from cswf_core.errors import DataError
from cswf_core.interfaces import Owner, ProjectionSampler, Schedule, Space, Stage


class CheckedSchedule(Adapter, Schedule):
    """A schedule whose stages can be run."""

    def __init__(self, plugin: Schedule, owner: Owner) -> None:
        self._adapt(plugin, owner)
        self.adaptive = plugin.adaptive

    def stages(self, space: Space, projection: ProjectionSampler) -> tuple[Stage, ...]:
        """Return the stages for data in `space`, in order."""
        assert isinstance(projection, CheckedSampler)
        stages = self._call("stages", space, projection.plugin)
        if not isinstance(stages, (list, tuple)) or not all(isinstance(stage, Stage) for stage in stages):
            raise self._fault("stages", "a list of Stage", type(stages).__name__)
        if not stages:
            raise self._fault("stages", "at least one Stage", "an empty list")
        for index, stage in enumerate(stages):
            self._check_stage(stage, index)
        return tuple(stages)

    def check(self, projection: ProjectionSampler) -> None:
        """Raise `DataError` in the projection's name if the stages need more of it than it has."""
        assert isinstance(projection, CheckedSampler)
        try:
            self._call("check", projection.plugin)
        except DataError as error:
            raise DataError(f"{projection.owner}: {error}") from None

    def _check_stage(self, stage: Stage, index: int) -> None:
        whole = isinstance(stage.steps, int) and isinstance(stage.directions, int)
        numbers = isinstance(stage.step_size, (int, float)) and isinstance(stage.entropy, (int, float))
        fine = whole and numbers and stage.steps >= 0 and stage.directions >= 1 and stage.entropy >= 0
        finite = fine and math.isfinite(stage.step_size) and math.isfinite(stage.entropy)
        if not (finite and stage.step_size >= 0):
            expected = "stages with whole numbers steps ≥ 0 and directions ≥ 1, step_size ≥ 0, entropy ≥ 0"
            names = ("steps", "directions", "step_size", "entropy")
            got = ", ".join(f"{name} {getattr(stage, name)!r}" for name in names)
            raise self._fault("stages", f"{expected}, all of them finite", f"stage {index}: {got}")
        if stage.upsampling is not None and not isinstance(getattr(stage.upsampling, "space", None), Space):
            expected = "an upsampling whose `space` is the Space of its coarse grid"
            raise self._fault(
                "stages", expected, f"stage {index}: {type(stage.upsampling).__name__} without one"
            )

    def eta(self, stage: Stage, step: int) -> float:
        """Return η of a stage's step, counted from 0: a finite number of 0 or more."""
        with calling(self.owner, "eta"):
            eta: object = stage.eta(step)
        if not isinstance(eta, (int, float)) or not math.isfinite(eta) or eta < 0:
            raise self._fault("eta", "a finite number of 0 or more", f"{eta!r} for step {step}, counted from 0")
        return eta

    def stop(self, stage: Stage, distances: Sequence[float]) -> bool:
        """Say whether to leave the stage early."""
        return bool(self._call("stop", stage, distances))
