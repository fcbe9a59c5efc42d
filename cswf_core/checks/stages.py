"""Adapters of schedules: stages that can be run; of coordinates: a map with an inverse and a transpose."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TypeGuard

import torch
from torch import Tensor

from cswf_core.checks.adapter import Adapter, calling, parts_apart, transpose_gap
from cswf_core.checks.projection import CheckedSampler
from cswf_core.errors import DataError, PluginError
from cswf_core.interfaces import (
    Coordinates,
    Key,
    LinearMap,
    ProjectionSampler,
    Schedule,
    Space,
    Stage,
)

MAP_TOLERANCE = 1e-3
"""How far W⁻¹W may be from the identity, and Wᵀ from the transpose, in parts of a vector's length."""


class CheckedSchedule(Adapter, Schedule):
    """A schedule whose stages can be run."""

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
            got = f"stage {index}: {type(stage.upsampling).__name__} without one"
            raise self._fault("stages", expected, got)

    def eta(self, stage: Stage, step: int) -> float:
        """Return η of a stage's step, counted from 0: a finite number of 0 or more."""
        with calling(self.owner, "eta"):
            eta: object = stage.eta(step)
        if not is_step_size(eta):
            raise self._fault("eta", "a finite number of 0 or more", f"{eta!r} for step {step}, counted from 0")
        return eta

    def stop(self, stage: Stage, distances: Sequence[float]) -> bool:
        """Say whether to leave the stage early."""
        return bool(self._call("stop", stage, distances))


def is_step_size(eta: object) -> TypeGuard[float]:
    """Say whether η is a finite number of 0 or more."""
    return isinstance(eta, (int, float)) and math.isfinite(eta) and eta >= 0


class CheckedCoordinates(Adapter, Coordinates):
    """Coordinates whose map W is linear in shape, can be undone, and has the transpose it says."""

    def fit(self, space: Space, x: Tensor) -> LinearMap | None:
        """Return W for data x (d×N); None: w is x itself."""
        return self._checked(self._call("fit", space, x), "fit", space, x)

    def of_tensors(self, space: Space, tensors: Mapping[str, Tensor], like: Tensor) -> LinearMap:
        """Return the map whose tensors a saved model has."""
        if type(self.plugin).of_tensors is Coordinates.of_tensors:
            raise PluginError(
                f"{self.owner} has no of_tensors, which saved models (model.save) and online learning need: "
                "write one, or do without these"
            )
        answer = self._checked(self._call("of_tensors", space, tensors, like), "of_tensors", space, like)
        if answer is None:
            raise self._fault("of_tensors", "a LinearMap", "None")
        return answer

    def tensors_of(self, W: LinearMap, space: Space, like: Tensor) -> dict[str, Tensor]:
        """Return all that W was made of, if the same map can be made of it again."""
        with calling(self.owner, "tensors"):
            answer = W.tensors()
        tensors = self._named(answer, "tensors")
        again = self.of_tensors(space, tensors, like)
        x = Key(0, "coordinates").open(like.device, like.dtype).normal(space.dimension, 16)
        with calling(self.owner, "enter"):
            first = W.enter(x)
            second = again.enter(x)
        if bool((first - second).abs().max() > MAP_TOLERANCE * first.abs().max()):
            raise self._fault("of_tensors", "the map whose tensors these are", "another one")
        return tensors

    def _checked(self, answer: object, method: str, space: Space, like: Tensor) -> LinearMap | None:
        """Return a map if W⁻¹W x is x, and θ·Wx is Wᵀθ·x, for some random vectors."""
        if answer is None:
            return None
        if not isinstance(answer, LinearMap):
            raise self._fault(method, "None or a LinearMap", type(answer).__name__)
        draw = Key(0, "coordinates").open(like.device, like.dtype)
        x, theta = (draw.normal(space.dimension, 16) for _ in range(2))
        entered = self._product(answer, "enter", x)
        adjoint = self._product(answer, "adjoint", theta)
        lost = parts_apart(self._product(answer, "leave", entered), x)
        if not lost <= MAP_TOLERANCE:
            raise self._fault("leave", "what `enter` was given", f"vectors {lost:.3g} of their length apart")
        size = (theta.abs() * entered.abs()).sum(dim=0)
        if bool((transpose_gap(theta, entered, adjoint, x).abs() > MAP_TOLERANCE * size).any()):
            raise self._fault("adjoint", "Wᵀθ, with Wᵀθ·x = θ·Wx", "another vector")
        if answer.coloured(x[:, :0]) is not None:
            self._product(answer, "coloured", x)
        return answer

    def _product(self, linear: LinearMap, method: str, vectors: Tensor) -> Tensor:
        """Return what a method makes of vectors (d×n), if it leaves these as they are: d×n."""
        own = vectors.clone()
        with calling(self.owner, method):
            answer = getattr(linear, method)(own)
        product = self._finite(self._like(answer, method, vectors), method)
        if not torch.equal(own, vectors):
            raise self._fault(method, "a new tensor", "the one it was given, changed")
        return product
