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


def describe(state: State) -> str:
    """Return a state in one line: stage, step, mean displacement, time left."""
    stage = f"stage {state.stage_index + 1}/{state.stage_count} {state.stage.name}".rstrip()
    return f"{stage}  step {state.step}/{state.stage.steps}  moved {state.displacement:.4f}  left {left(state)}"


def left(state: State) -> str:
    """Return the time that the steps still to come will take, as minutes:seconds."""
    seconds = state.seconds / state.total_step * (state.total_steps - state.total_step)
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

    @hookimpl
    def after_step(self, state: State) -> None:
        """Print a line if it is time."""
        if self._pace.due(state):
            say(describe(state))

    def close(self) -> None:
        """Do nothing: lines need no tidying up."""


class BarProgress:
    """A live bar, for terminals."""

    def __init__(self, console: Console) -> None:
        columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
        self._bar = Progress(*columns, console=console)
        self._task = self._bar.add_task("starting", total=None)
        self._pace = _Pace(0.1)
        self._bar.start()

    @hookimpl
    def after_step(self, state: State) -> None:
        """Move the bar if it is time."""
        if self._pace.due(state):
            stage = f"stage {state.stage_index + 1}/{state.stage_count}"
            text = f"{stage}  moved {state.displacement:.4f}  left {left(state)}"
            self._bar.update(self._task, completed=state.total_step, total=state.total_steps, description=text)

    @hookimpl
    def after_run(self) -> None:
        """Fill the bar, also if the schedule has left a stage early."""
        task = self._bar.tasks[0]
        self._bar.update(self._task, completed=task.completed, total=task.completed or None)

    def close(self) -> None:
        """Leave the terminal as it was."""
        self._bar.stop()
