"""Particles stay finite, or the flow ends with an error that names the step, the stage and the plugin.

On a CPU the particles are checked after every step. On a GPU the host would have to wait for that: there the
lengths and distances of steps are read every `READ_EVERY` steps, where stages end, and before anything is
written: what is NaN or infinite stays so. The step at fault is then taken once more, with other particles, and
inspected.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import attrs
import torch
from torch import Tensor

from cswf_core.errors import CswfError, NotFiniteError, PluginError
from cswf_core.flow.directions import DirectionSampler
from cswf_core.flow.memory import Clock
from cswf_core.flow.particles import Particles, Placement
from cswf_core.flow.settings import Parts, Settings
from cswf_core.flow.stage import StageSetup
from cswf_core.flow.state import Position
from cswf_core.flow.stepper import ExactStepper, Fault, StepOutcome, Stepper, fault_of_coordinates
from cswf_core.interfaces import Key, Stage
from cswf_core.kernels.memory import is_out_of_memory
from cswf_core.ranks import Ranks

READ_EVERY = 50  # steps of a stage after which a GPU's numbers are read


def place(stage: Stage, index: int, step: int | None = None) -> str:
    """Return where a flow is, as text: `step 17 of stage 2 '(8×8) [5]'`; `index` and `step` count from 0."""
    named = f"stage {index + 1}" + (f" '{stage.name}'" if stage.name else "")
    return named if step is None else f"step {step + 1} of {named}"


@contextmanager
def located(stage: Stage, at: Position) -> Iterator[None]:
    """Add the step and the stage to the message of a `PluginError` that is raised inside."""
    try:
        yield
    except PluginError as error:
        error.args = (f"{error}, at {place(stage, at.stage, at.step)}",)
        raise


class Finiteness:
    """Ends a flow with an error when its particles are no longer finite."""

    def __init__(self, parts: Parts, settings: Settings, ranks: Ranks) -> None:
        """`parts` and `settings` name what is at fault; `ranks` are all processes."""
        self._parts = parts
        self._settings = settings
        self._ranks = ranks
        self._unread: list[tuple[int, float, Tensor]] = []
        """Steps of one stage: number, η, and a number that has not been read from the device."""

    def record(self, step: int, eta: float, move: StepOutcome) -> None:
        """Record a step's numbers, which stay on their device."""
        self._unread.append((step, eta, move.length + move.squares))

    def check(self, particles: Particles, stepper: Stepper | None, at: Position, *, look: bool = True) -> None:
        """Raise `NotFiniteError` if numbers of the steps since the last call, or particles, are not finite.

        All ranks call this at the same steps. Without `look`, only steps are checked, which show nearly all.
        """
        unread = self._unread
        self._unread = []
        sums = torch.stack([each for _, _, each in unread]).tolist() if unread else []
        lost = next((index for index, number in enumerate(sums) if not math.isfinite(number)), None)
        if lost is None and not (look and self._lost(particles)):
            return
        suspects = unread[-1:] if lost is None else unread[max(0, lost - 1) : lost + 1][::-1]
        if stepper is None or not suspects:
            raise NotFiniteError(f"particles are not finite after step {at.total:,}")
        number, why = self._diagnosed(stepper, suspects)
        setup = stepper.setup
        where = place(setup.sampler.stage, setup.index, number)
        raise NotFiniteError(f"particles are not finite after {where}: {why}")

    def crossed(self, particles: Particles, sampler: DirectionSampler, index: int, when: str) -> None:
        """Raise `NotFiniteError` if particles are not finite "on entering" a stage, or "after" it."""
        if not sampler.coordinates.identity and self._lost(particles):
            fault = fault_of_coordinates(sampler.coordinates, "particles")
            here = place(sampler.stage, index)
            raise NotFiniteError(f"particles are not finite {when} {here}: {self._sentence(fault, sampler)}")

    def _lost(self, particles: Particles) -> bool:
        """Return whether a particle of any rank is not finite."""
        lost = torch.tensor([float(not particles.finite())], dtype=torch.float64)
        return bool(self._ranks.sums(lost) > 0)

    def _diagnosed(self, stepper: Stepper, suspects: list[tuple[int, float, Tensor]]) -> tuple[int, str]:
        """Return the number of the step that is at fault, one of the last two, and why."""
        number = suspects[0][0]
        fault = stepper.fault
        try:
            if fault is None:
                stepper.examine(number)
        except PluginError as error:
            fault = Fault("", str(error))
        if fault is None and not stepper.inspects:
            again = ((step, _taken_again(stepper.setup, step, eta)) for step, eta, _ in suspects)
            number, fault = next((each for each in again if each[1] is not None), (number, None))
        every = self._ranks.collected((number, fault), "fault")  # the first rank that knows it speaks for all
        number, fault = next((each for each in every if each[1] is not None), every[0])
        return number, self._sentence(fault, stepper.setup.sampler, half=stepper.half)

    def _sentence(self, fault: Fault | None, sampler: DirectionSampler, *, half: bool = False) -> str:
        """Return what is at fault as text, with the plugin's name; None: numbers are too large."""
        if fault is None:
            return too_large(self._settings, half=half)
        if not fault.kind:
            return fault.words
        plugin = sampler.sampler if fault.kind == "projection" else getattr(self._parts, fault.kind)
        return f"{plugin.owner} {fault.words}"


def _taken_again(setup: StageSetup, step: int, eta: float) -> Fault | None:
    """Take a step once more, with noise for particles that are lost, and return what is at fault in it."""
    try:
        block = next(iter(setup.particles.blocks(whole=True)))
        x = block.x
        noise = Key(0, "diagnosis").open(x.device, x.dtype).normal(*x.shape)
        x = torch.where(torch.isfinite(x), x, noise)
        particles = Particles(lambda _: x, block.conditions, None, block.share, Placement(setup.like))
        particles.enter(setup.sampler.coordinates)
        stepper = ExactStepper(attrs.evolve(setup, particles=particles, ranks=Ranks()))
        stepper.inspects = True
        stepper.move(step, eta, Clock())
        return stepper.fault
    except PluginError as error:
        return Fault("", str(error))
    except Exception as error:
        if isinstance(error, CswfError) or is_out_of_memory(error):
            return None  # nothing can be diagnosed then
        raise


def too_large(settings: Settings, *, half: bool) -> str:
    """Return the message for numbers that are not finite where no plugin is at fault."""
    dtype = f"{settings.dtype} and its products in float16" if half else str(settings.dtype)
    return (
        f"numbers are too large for {dtype}: data, {settings.called('scale')} of the first particles, "
        f"amplifier, entropy or {settings.called('step size')}"
    )
