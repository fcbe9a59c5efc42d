"""Checks of schedules, which plan the stages of a flow, and of coordinates, in which stages run."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import attrs
import torch
from torch import Tensor

from cswf_core.checks import CheckedCoordinates, CheckedSampler, CheckedSchedule, checked
from cswf_core.checks.adapter import parts_apart, transpose_gap
from cswf_core.checks.stages import is_step_size
from cswf_core.interfaces import Coordinates, Key, LinearMap, ProjectionSampler, Schedule, Space, Stage
from cswf_core.recipe import Recipe, choose
from cswf_core.testing.flows import (
    COLOUR,
    GREY,
    POINTS,
    SpaceSubject,
    bare,
    built_ins,
    choice_of,
    constant,
    recipe_with,
    samples,
)
from cswf_core.testing.outcome import FaultError, SkipError, refusals, require, require_laws

ROUNDING = 1e-6
"""How far two ways to compute one vector in float64 may be apart, in parts of its length."""


@attrs.frozen
class Shortened(Schedule):
    """Another schedule with two steps of each stage, and no more directions than these need."""

    of: Schedule

    @property
    def adaptive(self) -> bool:  # type: ignore[override]
        """Whether the other one may leave a stage early."""
        return self.of.adaptive

    def stages(self, space: Space, projection: ProjectionSampler) -> Sequence[Stage]:
        """Return the other one's stages, shortened."""
        return [
            attrs.evolve(
                stage,
                steps=min(stage.steps, 2),
                # 4 for each unit of η keep a step from growing.
                directions=min(stage.directions, max(256, math.ceil(4 * stage.eta(0)))),
            )
            for stage in self.of.stages(space, projection)
        ]

    def stop(self, stage: Stage, distances: Sequence[float]) -> bool:
        """Ask the other one."""
        return self.of.stop(stage, distances)


class ScheduleSubject(SpaceSubject[CheckedSchedule]):
    """A schedule, and the spaces that it plans flows in."""

    kind = "schedule"
    spaces = (POINTS, GREY, COLOUR)
    wanted = "stages for"

    def stages(self, space: Space) -> tuple[Stage, ...]:
        """Return the stages in a space, where the schedule may vary patches of images."""
        text = "{use: locally-connected, patch: 3}" if space.is_image else "uniform"
        sampler: CheckedSampler = checked(choose(built_ins(), "projection", text, "the kit").part)
        return self.checked.stages(space, sampler)

    attempt = stages

    def each_stage(self) -> list[tuple[Space, Stage]]:
        """Return the stages of all spaces."""
        return [(space, stage) for space in self.usable for stage in self.stages(space)]

    def answers(self) -> list[Any]:
        """Return the facts of all stages."""
        return [_facts(stage) for _, stage in self.each_stage()]

    def recipe(self) -> Recipe:
        """Return the recipe of a flow with a few steps of each stage."""
        space = GREY if GREY in self.usable else self.usable[0]
        patches = {"use": "locally-connected", "patch": 3} if space.is_image else "uniform"
        recipe = recipe_with("", None, bare(samples(space)), projection=patches)
        return attrs.evolve(recipe, schedule=choice_of("schedule", Shortened(self.checked.plugin)))


def spaces_are_planned_for_or_refused_in_a_sentence(subject: ScheduleSubject) -> str:
    """Stages for points, grey and colour images can be run, or a `DataError` says that it needs others."""
    return refusals({space: str(space) for space in subject.spaces}, subject.stages)


def the_plan_ends(subject: ScheduleSubject) -> str:
    """All stages together have at least one step, and at most ten million."""
    most = 10_000_000
    totals = [sum(stage.steps for stage in subject.stages(space)) for space in subject.usable]
    for total in totals:
        require(1 <= total <= most, f"1 to {most:,} steps in all", f"{total:,}")
    return f"{max(totals):,} steps at most"


def _facts(stage: Stage) -> tuple[Any, ...]:
    grid = None if stage.upsampling is None else stage.upsampling.space
    plain = (stage.name, stage.steps, stage.directions, stage.step_size, stage.entropy, stage.tempered)
    return (*plain, type(stage.sampler), grid, *(stage.eta(step) for step in _some(stage.steps)))


def _some(steps: int) -> list[int]:
    """Return numbers of some of a stage's steps, a thousand or so, the first and the last among them."""
    every = max(1, steps // 1000)
    return sorted({*range(0, steps, every), max(0, steps - 1)})


def step_sizes_are_finite_and_not_negative(subject: ScheduleSubject) -> None:
    """η of every step is a number, 0 or more: particles never flow away from the data."""
    for _, stage in subject.each_stage():
        for step in _some(stage.steps):
            eta = stage.eta(step)
            require(is_step_size(eta), "η of 0 or more", f"{eta} at step {step} of stage '{stage.name}'")


def an_adaptive_schedule_stops(subject: ScheduleSubject) -> str:
    """`stop` leaves a stage whose distance has long stopped falling, and answers the same when asked again."""
    if not subject.checked.adaptive:
        raise SkipError("it does not declare `adaptive`: stages take all their steps")
    flat = 2000
    taken = []
    for _, stage in subject.each_stage():
        noise = Key(0, "distances").open(dtype=torch.float64).uniform(flat).tolist()
        distances = [1.0 + 0.01 * number for number in noise]
        last = next((n for n in range(1, flat + 1) if subject.checked.stop(stage, distances[:n])), None)
        if last is None:
            expected = f"`stop` to say yes where {flat:,} steps have brought nothing"
            raise FaultError(expected, f"no, in stage '{stage.name}'")
        again = subject.checked.stop(stage, distances[:last])
        require(again, "the same answer when it is asked again", "another one")
        taken.append(last)
    return f"without progress it leaves a stage after {min(taken)} to {max(taken)} steps"


def an_upsampling_agrees_with_its_transpose(subject: ScheduleSubject) -> None:
    """U t·x = t·Uᵀx, and `gram` is UᵀU, for every coarse grid of a stage."""
    stages = [(space, stage.upsampling) for space, stage in subject.each_stage()]
    maps = [(space, upsampling) for space, upsampling in stages if upsampling is not None]
    if not maps:
        raise SkipError("all stages run in the data's own space")
    for space, U in maps:
        draw = Key(0, "upsampling").open(dtype=torch.float64)
        t = draw.normal(U.space.dimension, 3)
        x = draw.normal(space.dimension, 3)
        up = U.up(t)
        gaps = {
            "U t·x = t·Uᵀx": float(transpose_gap(x, up, U.down(x), t).abs().max()),
            "gram(t) = UᵀU t": float((U.gram(t) - U.down(up)).abs().max()),
        }
        require_laws(gaps, ROUNDING, f"{{}} apart, from {U.space} to {space}")


class CoordinateSubject(SpaceSubject[CheckedCoordinates]):
    """Coordinates, and the spaces that they are fitted in."""

    kind = "coordinates"
    wanted = "a map for"

    def x(self, space: Space, dtype: torch.dtype = torch.float64) -> Tensor:
        """Return data to fit a map to: d×N, or d×0 if it does not look at them."""
        x = samples(space).x.to(dtype)
        return x if self.checked.sees_data else x[:, :0]

    def fit(self, space: Space, dtype: torch.dtype = torch.float64) -> LinearMap | None:
        """Return the map for data in a space."""
        return self.checked.fit(space, self.x(space, dtype))

    attempt = fit

    def maps(self, dtype: torch.dtype = torch.float64) -> Iterator[tuple[Space, LinearMap]]:
        """Yield the map in each space; raise `SkipError` if these are the data's own coordinates."""
        for space in self.usable:
            W = self.fit(space, dtype)
            if W is None:
                raise SkipError("w is x itself: there is no map")
            yield space, W

    def answers(self) -> list[Tensor | None]:
        """Return vectors that have entered each map, one of float32 among them; None where there is none."""
        self.fit(self.usable[0], torch.float32)  # the adapter refuses products in other numbers
        fitted = [(space, self.fit(space)) for space in self.usable]
        return [None if W is None else W.enter(_vectors(space)[0]) for space, W in fitted]

    def recipe(self) -> Recipe:
        """Return the recipe of a short flow in these coordinates."""
        space = self.usable[0]
        schedule = constant(4 * space.dimension)
        return recipe_with("coordinates", self.plugin, bare(samples(space)), schedule=schedule)


def _vectors(space: Space) -> tuple[Tensor, Tensor]:
    draw = Key(0, "vectors").open(dtype=torch.float64)
    return draw.normal(space.dimension, 5), draw.normal(space.dimension, 5)


def a_map_is_linear_and_has_its_inverse_and_transpose(subject: CoordinateSubject) -> None:
    """W(2u − v) = 2 Wu − Wv, W⁻¹ W u = u = W W⁻¹ u and Wᵀθ·u = θ·Wu: nothing is lost on the way and back."""
    for space, W in subject.maps():
        u, v = _vectors(space)
        seen = W.enter(u)
        gap = transpose_gap(v, seen, W.adjoint(v), u).norm() / (v * seen).sum(dim=0).norm()
        gaps = {
            "W(2u − v) = 2 Wu − Wv": parts_apart(W.enter(2 * u - v), 2 * seen - W.enter(v)),
            "W⁻¹ W u = u": parts_apart(W.leave(seen), u),
            "W W⁻¹ u = u": parts_apart(W.enter(W.leave(u)), u),
            "Wᵀθ·u = θ·Wu": float(gap),
        }
        require_laws(gaps, ROUNDING, f"vectors {{}} of their length apart, in {space}")


def tensors_make_the_map_again(subject: CoordinateSubject) -> None:
    """`of_tensors` makes the map of what `tensors` returned, to the bit: models and online learning need it."""
    if type(subject.checked.plugin).of_tensors is Coordinates.of_tensors:
        raise SkipError("it has no `of_tensors`, so models cannot be saved with it, nor data learned online")
    for dtype in (torch.float64, torch.float32):
        for space, W in subject.maps(dtype):
            like = torch.empty(space.dimension, 0, dtype=dtype)
            tensors = {name: part.cpu().contiguous() for name, part in W.tensors().items()}
            again = subject.checked.of_tensors(space, tensors, like)
            u, v = (vectors.to(dtype) for vectors in _vectors(space))
            for method, vectors in (("enter", u), ("leave", v), ("adjoint", v)):
                first, second = (getattr(each, method)(vectors) for each in (W, again))
                expected = f"the same `{method}`, to the bit, of the map made again"
                got = f"{parts_apart(second, first):.3g} apart, in {space}, {dtype}"
                require(torch.equal(first, second), expected, got)


def data_are_left_as_they_are(subject: CoordinateSubject) -> None:
    """`fit` does not change the data that it looks at."""
    for space in subject.usable:
        x = subject.x(space)
        subject.checked.fit(space, x)
        same = torch.equal(x, subject.x(space))
        require(same, "data that `fit` leaves alone", f"other values, in {space}")


def coloured_noise_is_as_wide_as_the_data(subject: CoordinateSubject) -> None:
    """`coloured` gives noise the data's total variance, within a factor of two, for a Gaussian start."""
    for space, W in subject.maps():
        noise = Key(0, "noise").open(dtype=torch.float64).normal(space.dimension, 400)
        coloured = W.coloured(noise)
        if coloured is None:
            raise SkipError("it has no `coloured`: a Gaussian start takes the data's covariance itself")
        share = float(coloured.var(dim=1).sum() / samples(space).x.double().var(dim=1).sum())
        require(0.5 <= share <= 2, "the data's total variance", f"{share:.3g} times as much, in {space}")
