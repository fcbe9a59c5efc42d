"""The flow: Algorithm 1 of the paper, as a loop over stages and steps.

Each stage has coordinates of its own (`coordinates`) and a plan (`plan`), which draws directions (`directions`)
and takes the steps (`step`): project, transport (`transport`) towards the data's distributions F_q (`target`),
back-project. A condition Y enters as θ_y·y, stretched by ξ, beside θ_x·x; it never moves. `settings` has the
numbers that are no plugin's: M, the seed, precision, for how many steps directions are kept.

A flow that learns online has counts of its data, along sets of directions used in turn, in place of the data.
Plugins that these cannot serve are refused when the flow begins. Files, screens and recipes are not known here:
observers and the rooms above see to them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import ClassVar

import attrs
import torch
from torch import Tensor

from cswf_core.checks import check_dataset
from cswf_core.errors import RunError
from cswf_core.flow.beginning import begin, originals
from cswf_core.flow.clock import Clock
from cswf_core.flow.coordinates import FreePart, StageCoordinates
from cswf_core.flow.data import FlowData
from cswf_core.flow.directions import DirectionSampler
from cswf_core.flow.fingerprint import recognise
from cswf_core.flow.finite import READ_EVERY, Finiteness, located
from cswf_core.flow.half import stepper_for
from cswf_core.flow.learning import DataCounts, Learner, Online
from cswf_core.flow.memory import Budget, explain_out_of_memory
from cswf_core.flow.particles import (
    mean_length,
    require_both_halves_used,
    require_every_sample_counts,
    taking_part,
)
from cswf_core.flow.rounds import Steps, with_steps
from cswf_core.flow.settings import Parts, Settings, device_of
from cswf_core.flow.sharing import gathered, join
from cswf_core.flow.stability import VECTORS, StepControl, report_spectrum, safe_step, spread
from cswf_core.flow.stage import StageSetup, Strata
from cswf_core.flow.state import Position, Snapshot
from cswf_core.flow.state import State as State  # what iterating yields
from cswf_core.flow.stepper import ExactStepper, Stepper
from cswf_core.flow.streaming import BlockParticles, Placement
from cswf_core.interfaces import Conditions, Dataset, Key, Stage
from cswf_core.kernels.memory import total_memory
from cswf_core.plugins import PluginFolders, Watchers
from cswf_core.ranks import Ranks

log = logging.getLogger("cswf")


class Flow:
    """M particles on their way from noise to the data.

    Iterate to step by hand (`for state in flow`, as often as you like: it goes on where it was), or call
    `run()`; `samples()` gives the particles at any moment.
    """

    builder: ClassVar[Callable[..., Flow] | None] = None
    """Builds the flow of a recipe; `cswf_core.recipe` puts itself here when it is imported."""

    def __init__(
        self,
        data: Dataset,
        parts: Parts | None = None,
        settings: Settings | None = None,
        *,
        projection: object = None,
        schedule: object = None,
        cdf: object = None,
        condition: object = None,
        coordinates: object = None,
        start: Dataset | None = None,
        device: torch.device | str = "cpu",
        observers: Sequence[object] = (),
        online: Online | None = None,
        plan: Callable[[StageSetup], Stepper] | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        """Put particles where they begin: at `start`, or in noise.

        Plugins are `parts`, or chosen one by one, as objects or by name; only `schedule` has no default. With
        `online`, more data can come later. `plan` says how steps are computed; by default that depends on the
        device. With `ranks`, other processes have a share of particles and data; all build the same flow.
        """
        kinds = {"condition": condition, "projection": projection, "cdf": cdf, "schedule": schedule}
        kinds["coordinates"] = coordinates
        self.parts = parts = Parts.of(**kinds) if parts is None else parts.changed(**kinds)
        self.ranks = Ranks() if ranks is None else ranks
        self.settings = settings if settings is not None else Settings()
        self.device = device_of(device)
        data = self.data = parts.condition.encoded(check_dataset(data))
        self.clock = Clock()
        self._round = parts.schedule.stages(data.space, parts.projection)
        self.stages: tuple[Stage, ...] = self._round
        """The stages of all rounds that are planned."""
        self._planned = sum(stage.steps for stage in self.stages)
        """Their steps."""
        self.condition_length = parts.condition.length(data)
        """l."""
        with self.working():
            self.memory = self.ranks.least(total_memory(self.device))
            """Bytes that the flow may use of a device's memory."""
            mine = FlowData(data, parts, self.settings, self.device, self.ranks, self.memory)
            self._flow_data = mine
            """The data that particles flow to."""
            mine.load_to_device()
            beginning = begin(mine, data, parts, self.settings, start, self.ranks)
            self.W, self.gaussian = beginning.W, beginning.gaussian
            """The coordinates w = W x that steps are taken in, and what particles begin as, if that is "
            "fitted."""
            self.particles, self._observed = beginning.particles, beginning.observation
            """Those of this rank, and what is seen of them."""
            self.conditions, self.observation = beginning.conditions, beginning.of_all
            """Y of all ranks' particles, on the CPU, and what is seen of them."""
            seen, amplifier, like = self._observed, parts.condition.amplifier, mine.like
            free = FreePart.of(self.W, seen, data.space.dimension, like)
            self._in_stage = partial(StageCoordinates, data.space, seen, amplifier, like, W=self.W, free=free)
            few, typical = next(self.particles.blocks()).x, mine.typical()
            size = max(mean_length(x, self.W, self.ranks) for x in (typical, few))
            self._watch, self._few_data = StepControl(self.settings, size), spread(typical, VECTORS)
        self._finite = Finiteness(parts, self.settings, self.ranks, ExactStepper)
        M = self.particles.share.total
        Y = [y.to(self.device, self.settings.dtype) for y in (self.conditions, mine.all.conditions)]
        strata = parts.condition.strata(*Y, sizes=(M, len(mine.all)))
        self.strata = None if strata is None else Strata.of(strata, self.particles.share, mine.share)
        """Groups that flow apart from each other; None: there are none."""
        if self.strata is not None:
            require_every_sample_counts(parts, self.settings)
        counted = taking_part(self.conditions, M, parts.condition, self.settings)
        require_both_halves_used(counted, M, self._planned, self.settings)
        self._learner = None if online is None else online.begin(self)
        if self._learner is not None:
            mine.drop()  # counts take the place of the data
        self._plan_of = plan if plan is not None else stepper_for(self.settings, self.device)
        self.budget = self._make_budget()
        """How many directions are worked on at a time."""
        self._arriving: dict[int, Dataset] = {}
        """Data that come when a stage begins, by its number."""
        self._watchers = Watchers(observers if self.ranks.leads else ())
        self.ranks.learn("samples", self, Flow._gathered)
        self.ranks.learn("finite", self, lambda flow: flow._finite.check(flow.particles, flow._plan, flow._at))
        self._at = Position()
        self.fingerprints: dict[int, str | None] = {}
        """Of the directions of each stage of a round, as far as they have been drawn."""
        self._plan: Stepper | None = None
        self.finished, self._evolution = False, self._evolve()

    @classmethod
    def from_recipe(
        cls,
        recipe: str | Path,
        overrides: Sequence[str] = (),
        *,
        device: str = "auto",
        observers: Sequence[object] = (),
        plugins_dir: PluginFolders = None,
    ) -> Flow:
        """Build the flow that a recipe describes: a built-in name or a path, and `key.path=value` overrides."""
        if cls.builder is None:
            raise RunError("`import cswf_core.recipe` first: it builds flows from recipes")
        return cls.builder(recipe, overrides, device=device, observers=observers, plugins_dir=plugins_dir)

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

        `index` names some of them, which takes less time than all. Particles that are carried along offline
        come behind the M others, and are returned only if `index` names them. With several ranks, rank 0 has
        the others send theirs.
        """
        if index is None and self.settings.offline:
            index = torch.arange(self.count)
        x: Tensor = self.ranks.order("samples", self, None if index is None else index.cpu())
        self._finite.require(x, self._at, self.require_finite)
        return Dataset(
            x=x,
            space=self.data.space,
            conditions=self.conditions if index is None else self.conditions.take(index.cpu()),
            classes=self.data.classes,
        )

    def _gathered(self, index: Tensor | None) -> Tensor:
        """Return some of the particles, or all: d×m, on the CPU; ranks other than 0 only send theirs."""
        seen = self._observed if self.parts.condition.amplifier != 1 else None
        with self.working():
            whole = index is None and self.finished and self.ranks.alone
            if whole and isinstance(self.particles, BlockParticles) and self.particles.streamed:
                return self.particles.borrow_x()
            return gathered(self.particles, index, self.ranks, seen, self.originals)

    def require_finite(self) -> None:
        """Raise `NotFiniteError` if a particle is not finite; for observers, before they write these."""
        self.ranks.order("finite", self)

    def offline_samples(self) -> Dataset:
        """Return the particles that were carried along without taking part in F_p, as they are now."""
        return self.samples(torch.arange(self.count, self.particles.share.total))

    @property
    def count(self) -> int:
        """M: all particles but those of `settings.offline`."""
        return self.particles.share.total - self.settings.offline

    def originals(self) -> Tensor:
        """Return the samples of which this rank's particles see a part, on the flow's device: d×n."""
        own, like = self.particles, self._flow_data.like
        return originals(self.data, self.settings, own.conditions, like, own.share.first)

    @property
    def balanced_data(self) -> Dataset:
        """The data that particles flow to, as the condition wants them; those of all ranks, on the CPU."""
        return self._flow_data.all

    def _evolve(self) -> Iterator[State]:
        """Go through the stages from where the flow is, yielding its state after every step."""
        began = time.perf_counter() - self._at.seconds
        while self._at.stage < len(self.stages):
            stage = self.stages[self._at.stage]
            if self._at.stage in self._arriving:
                self._insert(self._arriving.pop(self._at.stage))
            if self._plan is None:
                self._plan = self._enter(stage)
            self.notify("before_stage", stage=stage)
            while self._at.step < stage.steps and not self._may_leave(stage):
                state = self._step(stage, self._plan, began)
                self.notify("after_step", state=state)
                yield state
            with self.working():
                self.particles.leave()
                self._finite.crossed(self.particles, self._plan.setup.sampler, self._at.stage, "after")
            self._plan = None  # it holds memory that the next stage's plan may need
            self._at = attrs.evolve(self._at, stage=self._at.stage + 1, step=0, distances=[])
            self.notify("after_stage", stage=stage)
        if self.settings.turn is not None and self._at.total <= self.settings.turn:
            log.warning(
                "the flow ended after %d steps, in its first turn: half of the particles never took part in "
                "F_p. Take a %s of fewer steps",
                self._at.total,
                self.settings.called("turn"),
            )
        self.finished = True
        self.notify("after_run")

    def _enter(self, stage: Stage, snapshot: Snapshot | None = None) -> Stepper:
        """Enter a stage's coordinates, or go back to them, and return the plan of its steps."""
        with self.working():
            sampler = self.sampler(stage)
            self.particles.enter(sampler.coordinates)
            self._finite.crossed(self.particles, sampler, self._at.stage, "on entering")
            seed, at = self.settings.seed, self._at.stage % len(self._round)
            self.fingerprints[at] = recognise(sampler, seed, at, self.fingerprints.get(at), self.ranks)
            safe = safe_step(sampler, Key(seed, "gain", self._at.stage), fixed=self._watch.fixed)
            self._watch.begin(safe)
            if snapshot is not None:
                self.particles.restore(snapshot.z, snapshot.sum)
            elif self.ranks.leads:
                few = next(self.particles.blocks()).cloud.z
                report_spectrum(sampler, Key(seed, "spectrum", at), few, self._few_data, safe.eigenvalue)
            plan = self._make_plan(sampler)
            if snapshot is not None and snapshot.numerics:
                plan.adopt(snapshot.numerics)
        return plan

    def _step(self, stage: Stage, plan: Stepper, began: float) -> State:
        """Take a step and return where that has led."""
        at, step = self._at, self._at.step
        with self.working(), located(stage, at):
            eta = self._watch.allowed(self.parts.schedule.eta(stage, step))
            move = plan.take(step, eta, self.clock)
            eta *= move.shortened
        at.step, at.total = step + 1, at.total + 1
        adaptive = self.parts.schedule.adaptive
        self._watch.record(move.length, step, eta)
        self._finite.record(step, eta, move)
        now = at.step == stage.steps or step % READ_EVERY == 0
        if plan.inspects or adaptive or now:  # the host waits for a GPU then
            self._finite.check(self.particles, plan, at, look=now or (plan.inspects and self.ranks.alone))
            self._watch.check(at.total, float(move.length), eta, stage.directions)
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
            moved=move.length,
            squares=move.squares,
            tables=move.tables,
        )
        if adaptive:
            at.distances.append(state.distance)
        return state

    def _may_leave(self, stage: Stage) -> bool:
        """Ask the schedule whether to leave a stage early, given its distances so far."""
        schedule = self.parts.schedule
        if not (schedule.adaptive and self._at.distances):
            return False
        return self.ranks.decided(schedule.stop(stage, list(self._at.distances)))

    def notify(self, hook: str, **arguments: object) -> None:
        """Call a hook of everything that watches this flow; other ranks do meanwhile what rank 0 orders."""
        if not self.ranks.leads:
            self.ranks.obey()
            return
        self.ranks.attend()
        self._watchers.tell(hook, flow=self, **arguments)
        self.ranks.release()

    @property
    def position(self) -> Position:
        """How far the flow has come."""
        return self._at

    def snapshot(self) -> Snapshot:
        """Return all that is needed to go on from here; for observers, after a step or a stage."""
        x, z, total = self.particles.copied()
        numerics = {} if self._at.step == 0 or self._plan is None else self._plan.numerics()
        position = attrs.evolve(self._at, distances=list(self._at.distances))
        share = None if self.ranks.alone else self.particles.share
        return Snapshot(position, self.conditions, x, z, total, numerics, share, dict(self.fingerprints))

    def restore(self, snapshot: Snapshot) -> None:
        """Go on from where another flow of the same parts, settings and data has been."""
        share = self.ranks.share(snapshot.total, self.device)
        snapshot.check(share, self._flow_data.like, self.conditions)
        snapshot.position.check(self.stages, adaptive=self.parts.schedule.adaptive)
        with self.working():
            self.conditions = snapshot.conditions.to(torch.device("cpu"), self.settings.dtype)
            own = self.conditions.take(share.cut).to(self.device, self.settings.dtype)
            like, first = self._flow_data.like, share.first
            placement = Placement.of(like, snapshot.total, self.ranks, self.memory)
            columns = lambda part: snapshot.x[:, part.first - first : part.stop - first].clone()  # noqa: E731
            self.particles = placement.particles(columns, own, self.settings.clip, share, like)
        self._at = attrs.evolve(snapshot.position, distances=list(snapshot.position.distances))
        self.fingerprints = dict(snapshot.fingerprints)
        for stage in [s for s in self._arriving if (s, 0) < (self._at.stage, self._at.step)]:
            self._take_in(self._arriving.pop(stage))  # their particles are in the snapshot
        self.budget = self._make_budget()
        self._plan = self._enter(self.stages[self._at.stage], snapshot) if self._at.step else None
        self.finished, self._evolution = False, self._evolve()

    def again(self, steps: Steps = None, *, arriving: Dataset | None = None) -> None:
        """Plan another round through all stages, from where particles are then.

        `steps` is K of all stages, or of each. When the round begins, data that are `arriving` are inserted.
        """
        stages = with_steps(self._round, steps)
        if arriving is not None:
            self._arriving[len(self.stages)] = self.learner.admit(arriving)
        self.stages = (*self.stages, *stages)
        self._planned += sum(stage.steps for stage in stages)
        if self.finished:
            self.finished, self._evolution = False, self._evolve()

    def insert(self, samples: object, labels: object = None) -> None:
        """Take in more data, between two steps or at the end, and particles in proportion.

        `samples` are a `Dataset`; or images or points, with labels if there are classes.
        """
        self._insert(self.learner.admit(self.learner.dataset(samples, labels, self.data)))

    def counts(self) -> DataCounts:
        """Return the counts of all data so far, counting those that have just come."""
        with self.working():
            return self.learner.count(self.sampler_of_round)

    def everything(self) -> Dataset:
        """Return the data together with those that are still to arrive."""
        data = self.data
        for stage in sorted(self._arriving):
            data = data.joined(self._arriving[stage])
        return data

    @property
    def rounds(self) -> int:
        """How many rounds through the stages are planned."""
        return len(self.stages) // max(1, len(self._round))

    @property
    def cohorts(self) -> tuple[int, ...]:
        """M at the beginning, and after each arrival so far."""
        return (self.count,) if self._learner is None else tuple(self._learner.cohorts)

    @property
    def learns(self) -> bool:
        """Whether the flow keeps counts of its data, so that more can come."""
        return self._learner is not None

    @property
    def learner(self) -> Learner:
        """The part that learns from data as they come; raises `RunError` if there is none."""
        if self._learner is None:
            raise RunError(
                "this flow keeps no counts of its data, and cannot take in more: give it "
                f"{self.settings.called('sets')} of directions"
            )
        return self._learner

    def _take_in(self, new: Dataset) -> None:
        """Join data that have been admitted to the others."""
        self.learner.take_in(new)
        self.data = self._flow_data.all = self.data.joined(new)

    def _insert(self, new: Dataset) -> None:
        """Take in data that have been admitted, and the particles that come with them."""
        self._take_in(new)
        with self.working():
            x, conditions = self.learner.new_particles(new, self._flow_data.like)
            self.conditions = Conditions.joined([self.conditions, conditions])
            join(self.particles, x, self.conditions, self.ranks)
            self._watch.reset()  # steps become longer again
            self.budget = self._make_budget()
            if self._plan is not None:
                self._plan = self._make_plan(self._plan.setup.sampler)

    def sampler(self, stage: Stage) -> DirectionSampler:
        """Return what draws a stage's directions, in coordinates of its own."""
        coordinates = self._in_stage(upsampling=stage.upsampling)
        mine, length = self._flow_data, self.condition_length
        return DirectionSampler.of_stage(stage, coordinates, self.parts, length, mine.sample_x, mine.like)

    def sampler_of_round(self, index: int) -> DirectionSampler:
        """Return what draws the directions of a round's stage, by its number."""
        return self.sampler(self._round[index])

    def _make_plan(self, sampler: DirectionSampler) -> Stepper:
        """Return the plan of the steps of the stage that the flow is in."""
        index, direction_stage, counts = self._at.stage, self._at.stage, None
        if self._learner is not None:
            direction_stage = index % len(self._round)
            counts = self._learner.stage(direction_stage, sampler, self.sampler_of_round)
        setup = StageSetup(
            index=index,
            direction_stage=direction_stage,
            first_step=self._at.total - self._at.step,
            settings=self.settings,
            particles=self.particles,
            data=self._flow_data,
            sampler=sampler,
            cdf=self.parts.cdf,
            strata=self.strata,
            budget=self.budget,
            particle_conditions=self.conditions,
            ranks=self.ranks,
            adaptive=self.parts.schedule.adaptive,
            counts=counts,
        )
        return (self._plan_of if sampler.plain else ExactStepper)(setup)

    def _make_budget(self) -> Budget:
        """Return how many directions are worked on at a time."""
        data = 0 if self.learns else self._flow_data.most_at_once(self.parts.cdf.data)
        size = self._flow_data.like.element_size()
        return Budget(self.device, self.particles.at_once + data, size, self.memory)

    @property
    def looked_at(self) -> int | None:
        """How many data, evenly spread, anything is fitted to before the flow; None: all."""
        return self._flow_data.looked_at

    @property
    def streams(self) -> bool:
        """Whether data are brought to the device some at a time."""
        return not self._flow_data.resident

    @property
    def products(self) -> str:
        """The numbers that products are taken in: `float16`, summed in float32, or `float32` or `float64`."""
        half = getattr(self._plan_of if self._plan is None else self._plan, "half", False)
        return "float16" if half else str(self.settings.dtype).removeprefix("torch.")

    @contextmanager
    def working(self) -> Iterator[None]:
        """Work on the flow's device, and say in one sentence if it does not fit there."""
        M = self.settings.count if self.settings.count is not None else len(self.data)
        remedy = f"{self.settings.remedy(self.data.space.dimension, M, len(self.data))}, or use a larger device"
        here = torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext()
        with explain_out_of_memory(self.device, self.data.space.dimension, M, len(self.data), remedy), here:
            yield
