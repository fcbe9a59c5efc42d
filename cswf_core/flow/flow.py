"""The flow: Algorithm 1 of the paper, as a loop over stages and steps.

Whatever concerns disks, screens or recipes happens in observers and on the floors above.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

import attrs
import pluggy
import torch
from torch import Tensor

from cswf_core.errors import PluginError, RunError
from cswf_core.flow import admission, boundary
from cswf_core.flow.clock import Clock
from cswf_core.flow.directions import Directions
from cswf_core.flow.estimate import Estimate
from cswf_core.flow.gain import largest_eigenvalue, longest_step
from cswf_core.flow.memory import Chunks, fitting
from cswf_core.flow.particles import Particles
from cswf_core.flow.parts import Parts, Settings
from cswf_core.flow.plan import ExactPlan, Plan, Scene
from cswf_core.flow.runaway import refuse_runaway
from cswf_core.flow.stage import Coordinates
from cswf_core.flow.start import balanced, begin, given
from cswf_core.hookspecs import PROJECT, Observation
from cswf_core.interfaces import (
    Dataset,
    Key,
    Owner,
    ProjectionSampler,
    Schedule,
    Stage,
)
from cswf_core.kernels import gpu
from cswf_core.offers import misused_hooks


@attrs.frozen(eq=False)
class State:
    """Where a flow is after a step. Numbers are read back from the device only when asked for."""

    stage: Stage
    stage_index: int
    stage_count: int
    step: int
    """Steps done in this stage, from 1 to `stage.steps`."""
    total_step: int
    """Steps done since the flow began."""
    total_steps: int
    """Steps of all stages together; fewer are taken if the schedule leaves a stage early."""
    seconds: float
    """Time since the first step began."""
    eta: float
    """η of the step that was taken."""
    moved: Tensor = attrs.field(repr=False)
    squares: Tensor = attrs.field(repr=False)

    @property
    def displacement(self) -> float:
        """Mean distance that a particle moved in this step; on CUDA, with precision fast, of 1,024 of them."""
        return float(self.moved)

    @property
    def distance(self) -> float:
        """Sliced distance SW₂ from particles to data before this step, along its directions, ξy included."""
        return math.sqrt(float(self.squares))


class Flow:
    """M particles on their way from noise to the data.

    Iterate to step by hand (`for state in flow`, as often as you like: it goes on where it was), or call
    `run()`; `samples()` gives the particles at any moment.
    """

    def __init__(
        self,
        data: Dataset,
        parts: Parts,
        settings: Settings | None = None,
        *,
        start: Dataset | None = None,
        device: torch.device | str = "cpu",
        observers: Sequence[object] = (),
    ) -> None:
        self.parts = parts
        self.settings = settings if settings is not None else Settings()
        self.device = torch.device(device)
        self.data = admission.check_dataset(data, parts.owner("dataset"))
        with boundary.calling(parts.owner("schedule"), "stages"):
            self.stages = boundary.check_stages(
                parts.schedule.stages(data.space, parts.projection), parts.owner("schedule")
            )
        with boundary.calling(parts.owner("condition"), "length"):
            admission.check_amplifier(getattr(parts.condition, "amplifier", None), parts.owner("condition"))
            self.condition_length = parts.condition.length(data)
        with self._working():
            x, conditions, self.observation = begin(data, parts, self.settings, start, self.device)
            self.particles = Particles(x.contiguous(), conditions)
            self.target = balanced(data, parts.condition, self.settings.seed, parts.owner("condition"))
            self._data_x = self.target.x.to(self.device, self.settings.dtype).contiguous()
            self._data_conditions = self.target.conditions.to(self.device, self.settings.dtype)
        self._size = max(_mean_length(self._data_x), _mean_length(self.particles.x))
        self._chunks = Chunks(self.device, len(self.particles) + len(self.target), self._data_x.element_size())
        self._estimate = self._plan_estimate()
        self.clock = Clock()
        self._hooks = _hooks(observers)
        self.finished = False
        self._evolution = self._evolve()

    @classmethod
    def from_recipe(
        cls,
        recipe: str | Path,
        overrides: Sequence[str] = (),
        *,
        device: str = "auto",
        observers: Sequence[object] = (),
        plugins_dir: str | Path | None = None,
    ) -> Flow:
        """Build the flow that a recipe describes: a built-in name or a path, and `key.path=value` overrides."""
        from cswf_core.recipe import build_flow, load_recipe  # the one look upstairs, for convenience

        return build_flow(
            load_recipe(recipe, overrides, plugins_dir=plugins_dir), device=device, observers=observers
        )

    def __iter__(self) -> Iterator[State]:
        return self._evolution

    def run(self) -> Dataset:
        """Take all the steps that are left and return the samples."""
        for _ in self:
            pass
        if not self.finished:
            raise RunError("this flow was broken off by an error or an interruption; build it anew")
        return self.samples()

    def sizes(self) -> tuple[torch.device, int, int, int]:
        """Return the device, d, M and N: what decides whether a flow fits."""
        M = self.settings.count if self.settings.count is not None else len(self.data)
        return self.device, self.data.space.dimension, M, len(self.data)

    def samples(self, index: Tensor | None = None) -> Dataset:
        """Return the particles as they are now, on the CPU, with the conditions they were drawn for.

        `index` names some of them, which takes less time than all.
        """
        whole = self.observation is not None and self.parts.condition.amplifier != 1
        if index is None or whole:
            x = self.particles.x
            if self.observation is not None and whole:
                x = self.observation.free(x) + self.observation.seen(self.given())
            x = x if index is None else x[:, index.to(self.device)]
        else:
            x = self.particles.some(index.to(self.device))
        conditions = self.particles.conditions.to(torch.device("cpu"), self.settings.dtype)
        return Dataset(
            x=x.detach().clone().cpu(),
            space=self.data.space,
            conditions=conditions if index is None else conditions.take(index.cpu()),
            classes=self.data.classes,
        )

    def given(self) -> Tensor:
        """Return the samples of which the particles see a part, on the flow's device: d×M."""
        with self._working():
            return given(self.data, self.settings, self.particles.conditions, self._data_x)

    @contextmanager
    def _working(self) -> Iterator[None]:
        """Work on the flow's device, and say in one sentence if it does not fit there."""
        here = torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext()
        with fitting(*self.sizes()), here:
            yield

    def _evolve(self) -> Iterator[State]:
        began, done = time.perf_counter(), 0
        total = sum(stage.steps for stage in self.stages)
        may_stop = type(self.parts.schedule).stop is not Schedule.stop
        for index, stage in enumerate(self.stages):
            with self._working():
                coordinates = Coordinates(
                    stage, self.data.space, self.observation, self.parts.condition.amplifier, self._data_x
                )
                self.particles.enter(coordinates)
                directions = self._directions(stage, coordinates)
                factor = self._tempering(directions, index)
                plan = self._plan(directions, index)
            self.notify("before_stage", stage=stage)
            distances: list[float] = []
            for step in range(stage.steps):
                with self._working():
                    eta = stage.eta(step) * factor
                    plan.clock = self.clock
                    moved, squares = plan.step(step, eta)
                done += 1
                if self.device.type == "cpu" or plan.check_values or may_stop or step + 1 == stage.steps:
                    refuse_runaway(plan, step, eta, (moved, squares), done, self._size)
                seconds = time.perf_counter() - began
                state = State(
                    stage, index, len(self.stages), step + 1, done, total, seconds, eta, moved, squares
                )
                self.notify("after_step", state=state)
                yield state
                if may_stop:
                    distances.append(state.distance)
                    with boundary.calling(self.parts.owner("schedule"), "stop"):
                        stop = self.parts.schedule.stop(stage, distances)
                    if stop:
                        break
            with self._working():
                self.particles.leave()
            del plan, directions, coordinates  # what they hold is not wanted beside the next stage's
            self.notify("after_stage", stage=stage)
        self.finished = True
        self.notify("after_run")

    def _plan(self, directions: Directions, index: int) -> Plan:
        """Return how the steps of a stage are computed here."""
        scene = Scene(
            index=index,
            settings=self.settings,
            particles=self.particles,
            data=self.target,
            data_x=self._data_x,
            conditions=self._data_conditions,
            directions=directions,
            estimate=self._estimate,
            chunks=self._chunks,
        )
        return self._plan_class()(scene)

    @property
    def products(self) -> str:
        """The numbers that products are taken in: `float16`, summed in float32, or `float32` or `float64`."""
        exact = issubclass(self._plan_class(), ExactPlan)
        return str(self.settings.dtype).removeprefix("torch.") if exact else "float16"

    def _plan_class(self) -> type[Plan]:
        """Return the plan in half precision if that is wanted and can be had; float64 stays what it is."""
        wanted = self.settings.half and self.settings.dtype == torch.float32
        if not (wanted and gpu.usable(self.device)):
            return ExactPlan
        from cswf_core.flow.half import HalfPlan  # needs Triton

        return HalfPlan

    def _plan_estimate(self) -> Estimate:
        owner = self.parts.owner("condition")
        with boundary.calling(owner, "strata"):
            strata = self.parts.condition.strata(self.particles.conditions, self._data_conditions)
        strata = admission.check_strata(strata, owner, len(self.particles), len(self.target))
        return Estimate(self.parts.cdf, self.parts.owner("cdf"), strata)

    def _directions(self, stage: Stage, coordinates: Coordinates) -> Directions:
        sampler, owner = self.parts.projection, self.parts.owner("projection")
        if stage.sampler is not None:
            same = type(stage.sampler) is type(sampler)
            sampler, owner = stage.sampler, owner if same else Owner.of("projection", stage.sampler)
        with boundary.calling(owner, "fitted"):
            if type(sampler).fitted is not ProjectionSampler.fitted:
                data_z = coordinates.enter_data(self._data_x)
                sampler = boundary.check_sampler(sampler.fitted(coordinates.space, data_z), owner)
        condition = self.parts.condition, self.parts.owner("condition")
        return Directions(stage, coordinates, (sampler, owner), condition, self.condition_length, self._data_x)

    def _tempering(self, directions: Directions, stage_index: int) -> float:
        """Return the factor on a stage's step sizes that keeps them short enough for uneven directions."""
        stage = directions.stage
        if not (directions.sampler.tempered or stage.tempered) or stage.steps == 0 or stage.step_size <= 0:
            return 1.0
        eigenvalue = largest_eigenvalue(directions, Key(self.settings.seed, "gain", stage_index))
        limit = longest_step(eigenvalue, directions.coordinates.space.dimension, stage.directions)
        return min(1.0, limit / stage.step_size)

    def notify(self, hook: str, **arguments: object) -> None:
        """Call a hook of everything that watches this flow."""
        with boundary.calling(Owner("hook", hook, "an observer", ""), hook):
            getattr(self._hooks, hook)(flow=self, **arguments)


def _hooks(observers: Sequence[object]) -> pluggy.HookRelay:
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(Observation)
    for observer in observers:
        wrong = misused_hooks(observer)
        if wrong:
            raise PluginError(f"observer {type(observer).__name__}: {wrong}")
        manager.register(observer)
    return manager.hook


def _mean_length(x: Tensor) -> float:
    lengths: Tensor = torch.linalg.vector_norm(x, dim=0)
    return float(lengths.mean())
