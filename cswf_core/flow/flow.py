"""The flow: Algorithm 1 of the paper, as a loop over stages and steps.

`setup` does everything that comes before the first step. Each stage has its own `coordinates` and a `stepper`,
which draws `directions` and takes each `step`. The engine reads and writes no files, and knows no screens
and recipes: observers and the packages above do.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import ClassVar

import attrs
import torch
from torch import Tensor

from cswf_core.checks import check_dataset
from cswf_core.errors import NotFiniteError, RunError
from cswf_core.flow.directions import DirectionSampler, recognise
from cswf_core.flow.finite import READ_EVERY, Finiteness, located
from cswf_core.flow.memory import Budget, Clock
from cswf_core.flow.settings import Parts, Settings
from cswf_core.flow.setup import FlowSetup, Steps, originals, with_steps
from cswf_core.flow.stability import StepControl, report_spectrum, safe_step
from cswf_core.flow.stage import StageData, StageSetup, StoredData
from cswf_core.flow.state import Position, Snapshot
from cswf_core.flow.state import State as State  # what iterating yields
from cswf_core.flow.stepper import ExactStepper, Stepper
from cswf_core.interfaces import Conditions, Dataset, Key, Stage
from cswf_core.kernels import gpu
from cswf_core.kernels.columns import is_finite
from cswf_core.kernels.memory import out_of_memory_explained
from cswf_core.plugins import Watchers
from cswf_core.ranks import Ranks

log = logging.getLogger("cswf")


def half_stepper(setup: StageSetup) -> Stepper:
    """Return a stepper in half precision, on CUDA."""
    from cswf_core.flow.half import HalfStepper  # needs Triton

    return HalfStepper(setup)


class Flow:
    """M particles on their way from noise to the data.

    Iterate to step by hand (`for state in flow`, as often as you like: each loop continues where the last one
    stopped), or call `run()`; `samples()` returns the particles at any moment.

    For subclasses: `before_entering`, `before_resuming` and `stage_data` may be overridden, and `uses_data` set
    to False; `add_particles` and `replace_data` may be called between two steps. All ranks do the same.

    Args:
        data: The samples that particles flow to.
        parts: The plugins; see `Parts.of`. Only a schedule has no default.
        settings: The numbers that are no plugin's, such as M and the seed.
        start: Where particles begin; if left out, noise, or the Gaussian of `settings.gaussian`.
        device: Where to compute: `cpu`, `cuda` or `cuda:N`.
        observers: Objects with hooks that watch the flow.
        ranks: The processes that share particles and data; all of them build the same flow.
    """

    uses_data: ClassVar[bool] = True
    """Whether steps project the data; not where `stage_data` returns counts in their place."""

    def __init__(
        self,
        data: Dataset,
        parts: Parts | None = None,
        settings: Settings | None = None,
        *,
        start: Dataset | None = None,
        device: torch.device | str = "cpu",
        observers: Sequence[object] = (),
        ranks: Ranks | None = None,
    ) -> None:
        """Put the particles where they begin; raise `CswfError` if data and plugins do not fit together."""
        self.parts = Parts.of() if parts is None else parts
        self.settings = Settings() if settings is None else settings
        self.ranks = Ranks() if ranks is None else ranks
        try:
            self.device = torch.device(device)
        except RuntimeError:
            raise RunError(f"there is no device '{device}': write cpu, cuda or cuda:N") from None
        self.data = self.parts.condition.encoded(check_dataset(data))
        self.clock = Clock()
        with self.working():
            self.setup = FlowSetup(self.data, self.parts, self.settings, self.device, self.ranks)
            self.particles, self.conditions = self.setup.begin(self.data, start)
            """This rank's particles, and Y of all ranks' particles, on the CPU."""
        self.observation = self.setup.observation
        """What is observed of all ranks' particles; None: nothing."""
        self.cohorts: tuple[int, ...] = (self.count,)
        """M at the beginning, and after each time that particles were added."""
        self.stages = self.setup.round
        """The stages of all rounds that are planned."""
        self.position = Position()
        self.fingerprints: dict[int, str | None] = {}
        """Of the directions of each stage of a round, as far as they have been drawn."""
        half = self.settings.half and self.settings.dtype == torch.float32 and gpu.usable(self.device)
        self.new_stepper: Callable[[StageSetup], Stepper] = half_stepper if half else ExactStepper
        """Makes the stepper of a stage with plain directions; may be replaced before the first step."""
        self.finished = False
        if not self.uses_data:
            self.setup.data.drop()
        self.budget = self._new_budget()
        """How many directions are worked on at a time."""
        self._stepper: Stepper | None = None
        self._control: StepControl
        """Of the steps of the stage that the flow is in."""
        self._finite = Finiteness(self.parts, self.settings, self.ranks)
        self._watchers = Watchers(observers if self.ranks.leads else ())
        self._evolution = self._evolve()
        self.ranks.define_command("samples", self, Flow._gathered)
        self.ranks.define_command("finite", self, Flow._check_particles)

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

        `index` names some of them, which takes less time than all. Offline particles come behind the M others,
        and are returned only if `index` names them.
        """
        if index is None and self.settings.offline:
            index = torch.arange(self.count)
        x: Tensor = self.ranks.command("samples", self, None if index is None else index.cpu())
        if not is_finite(x):
            self.require_finite()
            step = self.position.total
            raise NotFiniteError(f"samples are not finite after step {step:,}, and the particles are")
        return Dataset(
            x=x,
            space=self.data.space,
            conditions=self.conditions if index is None else self.conditions.take(index.cpu()),
            classes=self.data.classes,
        )

    def offline_samples(self) -> Dataset:
        """Return the particles that were carried along without taking part in F_p, as they are now."""
        return self.samples(torch.arange(self.count, self.particles.share.total))

    def snapshot(self) -> Snapshot:
        """Return all that is needed to continue from here; for observers, after a step or a stage.

        Each rank returns its own particles; see `Snapshot.joined`.
        """
        parts = self.particles.copied()
        stepper = self._stepper if self.position.step else None
        return Snapshot(
            position=attrs.evolve(self.position),
            conditions=self.conditions.take(self.particles.share.cut),
            x=parts["x"],
            z=parts.get("z"),
            sum=parts.get("sum"),
            numerics={} if stepper is None else stepper.numerics(),
            share=self.particles.share,
            fingerprints=dict(self.fingerprints),
            filters={} if stepper is None else dict(self.filters or {}),
        )

    def restore(self, snapshot: Snapshot) -> None:
        """Continue from where another flow of the same parts, settings and data has been."""
        at = snapshot.position
        share = self.ranks.share(snapshot.share.total, self.device)
        snapshot.check(share, self.setup.like, self.conditions)
        at.check(self.stages, adaptive=self.parts.schedule.adaptive)
        with self.working():
            self.conditions = snapshot.conditions.to(torch.device("cpu"), self.settings.dtype)
            self.particles = self.setup.restored(snapshot, share, self.conditions)
        self.position = attrs.evolve(at)
        self.fingerprints = dict(snapshot.fingerprints)
        self.before_resuming(at)
        self.budget = self._new_budget()
        self._stepper = None
        if at.step:
            self._stepper = self._enter(self.stages[at.stage], snapshot.filters or None)
            with self.working():
                self.particles.restore(snapshot.z, snapshot.sum)
                self._stepper.adopt(snapshot.numerics)
        self.finished = False
        self._evolution = self._evolve()

    def again(self, steps: Steps = None) -> None:
        """Plan another round through all stages; `steps` is K of all stages, or of each."""
        self.stages = (*self.stages, *with_steps(self.setup.round, steps))
        if self.finished:
            self.finished = False
            self._evolution = self._evolve()

    def _evolve(self) -> Iterator[State]:
        """Take the steps of all stages from where the flow is, and yield its state after each."""
        began = time.perf_counter() - self.position.seconds
        while self.position.stage < len(self.stages):
            stage = self.stages[self.position.stage]
            if self._stepper is None:
                self.before_entering(self.position.stage)
                self._stepper = self._enter(stage)
            self.notify("before_stage", stage=stage)
            while self.position.step < stage.steps and not self._may_leave(stage):
                state = self._step(stage, self._stepper, began)
                self.notify("after_step", state=state)
                yield state
            self._leave(self._stepper)
            self.notify("after_stage", stage=stage)
        self._warn_of_idle_half()
        self.finished = True
        self.notify("after_run")

    def _enter(self, stage: Stage, filters: Mapping[str, Tensor] | None = None) -> Stepper:
        """Enter a stage and return its stepper; `filters` are what its projection has fitted before."""
        seed = self.settings.seed
        index = self.position.stage
        number = index % len(self.setup.round)
        with self.working():
            sampler = self.setup.sampler(stage, filters)
            self.particles.enter(sampler.coordinates)
            self._finite.crossed(self.particles, sampler, index, "on entering")
            known = self.fingerprints.get(number)
            self.fingerprints[number] = recognise(sampler, seed, number, known, self.ranks)
            safe = safe_step(sampler, Key(seed, "gain", index), reuse=self.settings.reuse)
            self._control = StepControl(self.settings, self.setup.size, safe)
            if self.position.step == 0 and self.ranks.leads:
                few = next(self.particles.blocks()).cloud.z
                key = Key(seed, "spectrum", number)
                report_spectrum(sampler, key, few, self.setup.few_data, safe.eigenvalue)
            return self._make_stepper(sampler)

    def _step(self, stage: Stage, stepper: Stepper, began: float) -> State:
        """Take a step and return where it has led; the flow began at the time `began`."""
        at = self.position
        schedule = self.parts.schedule
        with self.working(), located(stage, at):
            eta = schedule.eta(stage, at.step) * self._control.safe.factor
            move = stepper.take(at.step, eta, self.clock)
        eta *= move.shortened
        self._control.record(move.length, at.step, eta)
        self._finite.record(at.step, eta, move)
        due = at.step % READ_EVERY == 0 or at.step == stage.steps - 1
        at.step += 1
        at.total += 1
        if due or stepper.inspects or schedule.adaptive:  # a GPU's numbers are read: the host waits for them
            look = due or (stepper.inspects and self.ranks.alone)
            self._finite.check(self.particles, stepper, at, look=look)
            self._control.check(at.total, float(move.length), eta, stage.directions)
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
            moved=move.length,
            squares=move.squares,
            tables=move.tables,
        )
        if schedule.adaptive:
            at.distances = [*at.distances, state.distance]
        return state

    def _may_leave(self, stage: Stage) -> bool:
        """Ask the schedule whether to leave a stage early, given its distances so far."""
        distances = list(self.position.distances)  # none but for a schedule that is adaptive
        return bool(distances) and self.ranks.decided(self.parts.schedule.stop(stage, distances))

    def _leave(self, stepper: Stepper) -> None:
        """Return to the data's own space and go to the next stage."""
        at = self.position
        with self.working():
            self.particles.leave()
            self._finite.crossed(self.particles, stepper.setup.sampler, at.stage, "after")
        self._stepper = None  # it holds memory that the next stage's stepper may need
        self.position = attrs.evolve(at, stage=at.stage + 1, step=0, distances=[])

    def _warn_of_idle_half(self) -> None:
        """Warn if the flow has ended before the other half of the particles took its turn."""
        turn = self.settings.turn
        if turn is not None and self.position.total <= turn:
            log.warning(
                f"the flow ended after {self.position.total} steps, in its first turn: half of the particles "
                f"never took part in F_p. Take a {self.settings.called('turn')} of fewer steps"
            )

    def _make_stepper(self, sampler: DirectionSampler) -> Stepper:
        """Return the stepper of the stage that the flow is in."""
        setup = StageSetup(
            index=self.position.stage,
            first_step=self.position.total - self.position.step,
            settings=self.settings,
            particles=self.particles,
            data=self.stage_data(sampler),
            bin_width=self.setup.data.all.bin_width,
            sampler=sampler,
            cdf=self.parts.cdf,
            division=self.setup.division,
            budget=self.budget,
            particle_conditions=self.conditions,
            ranks=self.ranks,
            table_labels=self.setup.table_labels,
            adaptive=self.parts.schedule.adaptive,
        )
        return (self.new_stepper if sampler.plain else ExactStepper)(setup)

    def _new_budget(self) -> Budget:
        """Return how many directions can be worked on at a time."""
        data = self.setup.data
        size = self.setup.like.element_size()
        return Budget(self.device, self.particles.at_once + data.at_once, size, data.memory)

    def _gathered(self, index: Tensor | None) -> Tensor:
        """Return some particles, or all: d×m, on the CPU; ranks other than 0 only send theirs."""
        seen = self.setup.own_observation if self.parts.condition.amplifier != 1 else None
        with self.working():
            return self.particles.gathered(index, self.ranks, seen, self.originals, borrow=self.finished)

    def _check_particles(self) -> None:
        self._finite.check(self.particles, self._stepper, self.position)

    @contextmanager
    def working(self) -> Iterator[None]:
        """Work on the flow's device inside; raise `OutOfMemoryError` with the sizes if it is too small."""
        d = self.data.space.dimension
        M = self.settings.count_for(len(self.data))
        N = len(self.data)
        sentence = (
            f"out of memory on {self.device}: {M:,} particles and {N:,} data in {d:,} dimensions do not fit; "
            f"{self.settings.remedy(d, M, N)}, or use a larger device"
        )
        on_device = torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext()
        with out_of_memory_explained(sentence), on_device:
            yield

    def notify(self, hook: str, **arguments: object) -> None:
        """Call a hook of all observers of this flow; other ranks receive commands of rank 0 meanwhile."""
        if not self.ranks.leads:
            self.ranks.receive_commands()
            return
        self.ranks.begin_commands()
        self._watchers.tell(hook, flow=self, **arguments)
        self.ranks.end_commands()

    def require_finite(self) -> None:
        """Raise `NotFiniteError` if a particle is not finite; for observers, before they write these."""
        self.ranks.command("finite", self)

    def originals(self) -> Tensor:
        """Return the samples of which this rank's particles see a part, on the flow's device: d×n."""
        own = self.particles
        return originals(self.data, self.settings, own.conditions, self.setup.like, own.share.first)

    @property
    def count(self) -> int:
        """M: all particles but those of `settings.offline`."""
        return self.particles.share.total - self.settings.offline

    @property
    def filters(self) -> Mapping[str, Tensor] | None:
        """What the projection has fitted to the data for the stage that the flow is in; None: nothing."""
        return None if self._stepper is None else self._stepper.setup.sampler.tensors

    @property
    def rounds(self) -> int:
        """How many rounds through the stages are planned."""
        return len(self.stages) // len(self.setup.round)

    @property
    def balanced_data(self) -> Dataset:
        """The data that particles flow to, as the condition wants them; those of all ranks, on the CPU."""
        return self.setup.data.all

    @property
    def products(self) -> str:
        """The numbers that products are taken in: `float16`, summed in float32, or `float32` or `float64`."""
        half = self.new_stepper is half_stepper if self._stepper is None else self._stepper.half
        return "float16" if half else str(self.settings.dtype).removeprefix("torch.")

    def before_entering(self, stage: int) -> None:
        """Do what has to be done before the stage with this number is entered; for subclasses."""

    def before_resuming(self, position: Position) -> None:
        """Do what was done before `position` in the flow whose particles were restored; for subclasses."""

    def stage_data(self, sampler: DirectionSampler) -> StageData:
        """Return what F_q is fitted to in the stage that is entered, along these directions; for subclasses."""
        index = self.position.stage
        return StoredData(self.setup.data, self.setup.division, self.settings, sampler.stage, index)

    def add_particles(self, x: Tensor, conditions: Conditions) -> None:
        """Add particles x (d×m, on the device) behind all others; `conditions` are theirs, on the CPU.

        Flows with streamed particles raise `RunError`. Callers check that there are no offline particles,
        observations or strata, which have no room for others either.
        """
        with self.working():
            self.conditions = Conditions.joined([self.conditions, conditions])
            self.particles.join(x, self.conditions, self.ranks)
            self.cohorts = (*self.cohorts, self.count)
            self.budget = self._new_budget()
            if self._stepper is not None:
                self._control.reset()  # steps become longer again
                self._stepper = self._make_stepper(self._stepper.setup.sampler)

    def replace_data(self, data: Dataset) -> None:
        """Replace the data by others of the same space; only where `stage_data` returns counts of them."""
        self.data = data
        self.setup.data.all = data
