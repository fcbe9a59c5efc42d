"""The flow: Algorithm 1 of the paper, as a loop over stages and steps.

Whatever concerns disks, screens or recipes happens in observers and on the floors above.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

import attrs
import torch
from torch import Tensor

from cswf_core.errors import RunError
from cswf_core.flow import admission, boundary
from cswf_core.flow.clock import Clock
from cswf_core.flow.directions import Directions, directions_of
from cswf_core.flow.estimate import Estimate
from cswf_core.flow.gain import tempering
from cswf_core.flow.memory import Chunks, fitting
from cswf_core.flow.particles import Particles
from cswf_core.flow.parts import Parts, Settings
from cswf_core.flow.plan import ExactPlan, Plan, Scene
from cswf_core.flow.runaway import refuse_runaway
from cswf_core.flow.stage import Coordinates
from cswf_core.flow.start import balanced, begin, given
from cswf_core.flow.state import Position, Snapshot
from cswf_core.flow.state import State as State
from cswf_core.flow.watching import hooks
from cswf_core.interfaces import (
    Dataset,
    Key,
    Owner,
    Schedule,
    Stage,
)
from cswf_core.kernels import gpu


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
            self._round = boundary.check_stages(
                parts.schedule.stages(data.space, parts.projection), parts.owner("schedule")
            )
        self.stages = self._round
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
        self._hooks = hooks(observers)
        self.finished = False
        self._watchful = type(parts.schedule).stop is not Schedule.stop
        self._at = Position()
        self._plan: Plan | None = None
        self._factor = 1.0
        """What tempering multiplies the step sizes of the stage with."""
        self._restored: Snapshot | None = None
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

    def again(self, steps: int | None = None) -> None:
        """Plan another round through all stages, from where particles are then; `steps` is K of each stage."""
        stages = [stage if steps is None else attrs.evolve(stage, steps=steps) for stage in self._round]
        self.stages = (*self.stages, *stages)
        if self.finished:
            self.finished, self._evolution = False, self._evolve()

    def snapshot(self) -> Snapshot:
        """Return all that is needed to go on from here; for observers, after a step or a stage."""
        x, z, total = self.particles.entered
        habits = {} if self._at.step == 0 or self._plan is None else self._plan.habits()
        position = attrs.evolve(self._at, distances=list(self._at.distances))
        z, total = (None if part is None else part.clone() for part in (z, total))
        return Snapshot(position, self.particles.conditions, x.clone(), z, total, habits)

    def restore(self, snapshot: Snapshot) -> None:
        """Go on from where another flow of the same parts, settings and data has been."""
        with self._working():
            conditions = snapshot.conditions.to(self.device, self.settings.dtype)
            self.particles = Particles(snapshot.x.to(self._data_x, copy=True).contiguous(), conditions)
        self._at = attrs.evolve(snapshot.position, distances=list(snapshot.position.distances))
        self._restored = snapshot
        self.finished, self._evolution = False, self._evolve()

    def _evolve(self) -> Iterator[State]:
        began = time.perf_counter() - self._at.seconds
        while self._at.stage < len(self.stages):
            stage = self.stages[self._at.stage]
            self._plan = self._enter(stage)
            self.notify("before_stage", stage=stage)
            while self._at.step < stage.steps and not self._may_leave(stage):
                state = self._step(stage, self._plan, began)
                self.notify("after_step", state=state)
                yield state
            with self._working():
                self.particles.leave()
            self._plan = None  # what it holds is not wanted beside the next stage's
            self._at = attrs.evolve(self._at, stage=self._at.stage + 1, step=0, distances=[])
            self.notify("after_stage", stage=stage)
        self.finished = True
        self.notify("after_run")

    def _enter(self, stage: Stage) -> Plan:
        """Enter a stage's coordinates, or come back to them, and return how its steps are computed."""
        back, self._restored = self._restored, None
        with self._working():
            coordinates = Coordinates(
                stage, self.data.space, self.observation, self.parts.condition.amplifier, self._data_x
            )
            self.particles.enter(coordinates)
            directions = directions_of(stage, coordinates, self.parts, self.condition_length, self._data_x)
            self._factor = tempering(directions, Key(self.settings.seed, "gain", self._at.stage))
            if back is not None and back.z is not None and back.sum is not None:
                self.particles.restore(back.z, back.sum)
            plan = self._make_plan(directions)
            if back is not None and back.habits:
                plan.adopt(back.habits)
        return plan

    def _step(self, stage: Stage, plan: Plan, began: float) -> State:
        """Take a step and return where that has led."""
        at, step = self._at, self._at.step
        with self._working():
            eta = stage.eta(step) * self._factor
            plan.clock = self.clock
            stepped = plan.step(step, eta)
        at.step, at.total = step + 1, at.total + 1
        if self.device.type == "cpu" or plan.check_values or self._watchful or at.step == stage.steps:
            refuse_runaway(plan, step, eta, (stepped.moved, stepped.squares), at.total, self._size)
        at.seconds = time.perf_counter() - began
        state = State(
            stage=stage,
            stage_index=at.stage,
            stage_count=len(self.stages),
            step=at.step,
            total_step=at.total,
            total_steps=sum(stage.steps for stage in self.stages),
            seconds=at.seconds,
            eta=eta,
            moved=stepped.moved,
            squares=stepped.squares,
            tables=stepped.tables,
        )
        if self._watchful:
            at.distances.append(state.distance)
        return state

    def _may_leave(self, stage: Stage) -> bool:
        """Ask the schedule whether to leave a stage early, given its distances so far."""
        if not (self._watchful and self._at.distances):
            return False
        with boundary.calling(self.parts.owner("schedule"), "stop"):
            return bool(self.parts.schedule.stop(stage, list(self._at.distances)))

    def _make_plan(self, directions: Directions) -> Plan:
        """Return how the steps of a stage are computed here."""
        index = self._at.stage
        scene = Scene(
            index=index,
            drawn_as=index if self.settings.sets is None else index % len(self._round),
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

    def notify(self, hook: str, **arguments: object) -> None:
        """Call a hook of everything that watches this flow."""
        with boundary.calling(Owner("hook", hook, "an observer", ""), hook):
            getattr(self._hooks, hook)(flow=self, **arguments)


def _mean_length(x: Tensor) -> float:
    lengths: Tensor = torch.linalg.vector_norm(x, dim=0)
    return float(lengths.mean())
