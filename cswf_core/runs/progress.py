"""Where a run is and when it will be done: a bar on a terminal, lines elsewhere."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from cswf_core.hookspecs import hookimpl

if TYPE_CHECKING:
    from cswf_core.flow.flow import State


class Forecast:
    """Tells when a flow will be done, by its pace after the first step: in that, kernels may be compiled."""

    def __init__(self) -> None:
        self._begin = (0, 0.0)

    def left(self, state: State) -> str:
        """Return what the steps still to come will take, as `  left minutes:seconds`; nothing if unknown."""
        if state.total_step == 1:
            self._begin = (1, state.seconds)
        steps, seconds = self._begin
        to_come = state.total_steps - state.total_step
        if to_come and state.total_step == steps:
            return ""
        pace = (state.seconds - seconds) / max(1, state.total_step - steps)
        return f"  left {_clock(pace * to_come)}"


def _clock(seconds: float) -> str:
    """Return a time as minutes:seconds, or hours:minutes:seconds."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class _Pace:
    """Says when to speak: at most once in so many seconds, so that a fast flow is not slowed down."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._next = 0.0

    def due(self, state: State) -> bool:
        """Return whether it is time, as it always is after the first and the last step."""
        now = time.monotonic()
        if now < self._next and state.total_step != state.total_steps:
            return False
        self._next = now + self.seconds
        return True


def say(text: str) -> None:
    """Print a line; if nobody listens any more (`cswf run … | head`), go on in silence."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class LineProgress:
    """Plain lines, for logs and pipes."""

    def __init__(self, seconds: float = 5.0) -> None:
        self._pace = _Pace(seconds)
        self._forecast = Forecast()

    @hookimpl
    def after_step(self, state: State) -> None:
        """Print a line if it is time: stage, step, mean displacement, time left."""
        left = self._forecast.left(state)
        if self._pace.due(state):
            stage = f"stage {state.stage_index + 1}/{state.stage_count} {state.stage.name}".rstrip()
            say(f"{stage}  step {state.step}/{state.stage.steps}  moved {state.displacement:.4f}{left}")

    def close(self) -> None:
        """Do nothing: lines need no tidying up."""


class BarProgress:
    """A live bar, for terminals."""

    def __init__(self, console: Console) -> None:
        columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
        self._bar = Progress(*columns, console=console)
        self._task = self._bar.add_task("starting", total=None)
        self._pace = _Pace(0.1)
        self._forecast = Forecast()
        self._bar.start()

    @hookimpl
    def after_step(self, state: State) -> None:
        """Move the bar if it is time."""
        left = self._forecast.left(state)
        if self._pace.due(state):
            text = f"stage {state.stage_index + 1}/{state.stage_count}  moved {state.displacement:.4f}{left}"
            self._bar.update(self._task, completed=state.total_step, total=state.total_steps, description=text)

    @hookimpl
    def after_run(self) -> None:
        """Fill the bar, also if the schedule has left a stage early."""
        task = self._bar.tasks[0]
        self._bar.update(self._task, completed=task.completed, total=task.completed or None)
        self._bar.stop()  # the evaluation has a bar of its own

    def close(self) -> None:
        """Leave the terminal as it was."""
        self._bar.stop()


class EvaluationProgress:
    """Where an evaluation is: a bar on a terminal, lines elsewhere; on stderr, as stdout has the scores."""

    def __init__(self, *, silent: bool = False, seconds: float = 5.0) -> None:
        self._console = Console(stderr=True, quiet=silent)
        columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
        self._bar = Progress(*columns, console=self._console, transient=True)
        self._task = self._bar.add_task("starting", total=None)
        self._seconds = seconds
        self._next = time.monotonic() + seconds
        self._what = ""
        self._started = False
        self._began = (0, 0.0)

    def tell(self, what: str, done: int, total: int) -> None:
        """Show how much of something is done, and when the rest will be, by the pace so far."""
        now = time.monotonic()
        if what != self._what:
            self._what, self._began = what, (done, now)
        before, began = self._began
        pace = (now - began) / (done - before) if done > before else 0.0
        text = f"{what}  left {_clock(pace * (total - done))}" if pace else what
        if self._console.is_terminal:
            self._started = True
            self._bar.start()
            self._bar.update(self._task, completed=done, total=total, description=text)
        elif now >= self._next and total > 1:
            self._next = now + self._seconds
            self._console.print(f"{done:,}/{total:,} {text}", highlight=False, soft_wrap=True)

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self._started:  # one that was not would print an empty line
            self._bar.stop()
