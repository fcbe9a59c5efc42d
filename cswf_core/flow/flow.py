"""The flow: Algorithm 1 of the paper, as a loop over stages and steps.

Whatever concerns disks, screens or recipes happens in observers and on the floors above.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import attrs
import torch
from torch import Tensor

from cswf_core.errors import RunError
from cswf_core.flow import boundary
from cswf_core.flow.clock import Clock
from cswf_core.flow.gain import tempering
from cswf_core.flow.particles import Particles
from cswf_core.flow.plan import Plan
from cswf_core.flow.rounds import Steps, with_steps
from cswf_core.flow.runaway import refuse_runaway
from cswf_core.flow.settings import Parts, Settings
from cswf_core.flow.start import given
from cswf_core.flow.state import Position, Snapshot
from cswf_core.flow.state import State as State
from cswf_core.flow.watching import hooks
from cswf_core.flow.workshop import Workshop
from cswf_core.interfaces import (
    Dataset,
    Key,
    Owner,
    Schedule,
    Stage,
)
from cswf_core.online.counts import Sketch
from cswf_core.online.incoming import as_dataset, joined


class Flow(Workshop):
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
        sketch: Sketch | None = None,
    ) -> None:
        """With `settings.sets`, counts are kept of the data; `sketch` has those that were counted before."""
        settings = settings if settings is not None else Settings()
        super().__init__(data, parts, settings, start, device, sketch)
        self.stages = self._round
        """Those of all rounds that are planned."""
        self._planned = sum(stage.steps for stage in self.stages)
        """Steps of all of them."""
        self._arriving: dict[int, Dataset] = {}
        """Data that come when a stage begins, by its number."""
        self.clock = Clock()
        self._hooks = hooks(observers)
        self.finished = False
        self._watchful = type(parts.schedule).stop is not Schedule.stop
        self._at = Position()
        self._plan: Plan | None = None
        self._factor = 1.0
        """What tempering multiplies the step sizes of the stage with."""
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

    def again(self, steps: Steps = None, *, arriving: Dataset | None = None) -> None:
        """Plan another round through all stages, from where particles are then.

        `steps` is K of all stages, or of each. When the round begins, data that are `arriving` are inserted.
        """
        stages = with_steps(self._round, steps)
        if arriving is not None:
            self._arriving[len(self.stages)] = self._learner().admit(arriving)
        self.stages = (*self.stages, *stages)
        self._planned += sum(stage.steps for stage in stages)
        if self.finished:
            self.finished, self._evolution = False, self._evolve()

    @property
    def position(self) -> Position:
        """How far the flow has come."""
        return self._at

    @property
    def rounds(self) -> int:
        """How many rounds through the stages are planned."""
        return len(self.stages) // max(1, len(self._round))

    @property
    def cohorts(self) -> tuple[int, ...]:
        """M at the beginning, and after each arrival so far."""
        return (len(self.particles),) if self.online is None else tuple(self.online.cohorts)

    def everything(self) -> Dataset:
        """Return the data together with those that are still to arrive."""
        data = self.data
        for stage in sorted(self._arriving):
            data = joined(data, self._arriving[stage])
        return data

    def insert(self, samples: object, labels: object = None) -> None:
        """Take in more data, between two steps or at the end, and particles in proportion.

        `samples` are a `Dataset`; or images or points, with labels if there are classes: see `as_dataset`.
        """
        self._welcome(self._learner().admit(as_dataset(samples, labels, self.data)))

    def _welcome(self, new: Dataset) -> None:
        """Take in data that have been admitted, and the particles that come with them."""
        self._take_in(new)
        self._let_in(new)
        if self._plan is not None:
            with self._working():
                self._plan = self._make_plan(self._at.stage, self._plan.scene.directions)

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
        for stage in [s for s in self._arriving if (s, 0) < (self._at.stage, self._at.step)]:
            self._take_in(self._arriving.pop(stage))  # their particles are in the snapshot
        self._chunks = self._cut()
        self._plan = self._enter(self.stages[self._at.stage], snapshot) if self._at.step else None
        self.finished, self._evolution = False, self._evolve()

    def _evolve(self) -> Iterator[State]:
        began = time.perf_counter() - self._at.seconds
        while self._at.stage < len(self.stages):
            stage = self.stages[self._at.stage]
            if self._at.stage in self._arriving:
                self._welcome(self._arriving.pop(self._at.stage))
            if self._plan is None:
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

    def _enter(self, stage: Stage, back: Snapshot | None = None) -> Plan:
        """Enter a stage's coordinates, or go back to them, and return how its steps are computed."""
        with self._working():
            directions = self._directions(stage)
            self.particles.enter(directions.coordinates)
            self._factor = tempering(directions, Key(self.settings.seed, "gain", self._at.stage))
            if back is not None and back.z is not None and back.sum is not None:
                self.particles.restore(back.z, back.sum)
            plan = self._make_plan(self._at.stage, directions)
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
            total_steps=self._planned,
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

    def notify(self, hook: str, **arguments: object) -> None:
        """Call a hook of everything that watches this flow."""
        with boundary.calling(Owner("hook", hook, "an observer", ""), hook):
            getattr(self._hooks, hook)(flow=self, **arguments)
