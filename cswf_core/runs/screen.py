"""Consoles, tables and progress for people at a terminal; texts are shown and never obeyed, see `printing`."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Literal

import attrs
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from cswf_core.errors import printable
from cswf_core.hookspecs import hookimpl
from cswf_core.runs.printing import say

if TYPE_CHECKING:
    from cswf_core.flow.flow import Flow, State

Cell = str | Sequence[str]
"""A text of a table, or several lines of text."""


def console(*, stderr: bool = False, quiet: bool = False) -> Console:
    """Return a console that takes no `[word]` of a text for a style, and no `:word:` for a picture."""
    return Console(stderr=stderr, quiet=quiet, markup=False, emoji=False)


def words(text: str, style: str = "") -> Text:
    """Return a text for a console, in one line."""
    return Text(printable(text), style)


def table(
    headings: Sequence[str], rows: Iterable[Sequence[Cell]], *, others: Literal["left", "right"] = "left"
) -> Table:
    """Return a table without lines; `others` is the side at which all columns but the first are aligned."""
    made = Table(box=None, pad_edge=False)
    for number, heading in enumerate(headings):
        made.add_column(words(heading), justify=others if number else "left", overflow="fold")
    for row in rows:
        made.add_row(
            *(words(cell) if isinstance(cell, str) else Text("\n").join(map(words, cell)) for cell in row)
        )
    return made


def in_letters(drawn: Table, width: int) -> str:
    """Return a table as plain lines of text, without styles, wherever it will be printed."""
    screen = Console(color_system=None, width=width)
    with screen.capture() as captured:
        screen.print(drawn)
    return "\n".join(line.rstrip() for line in captured.get().rstrip().split("\n"))


@attrs.frozen
class Forecast:
    """The time that work will still take, by its pace since a beginning."""

    done: float = 0
    """Work done at the beginning."""
    seconds: float = 0.0
    """Time of the beginning."""

    def left(self, done: float, total: float, seconds: float) -> str:
        """Return `  left minutes:seconds`; nothing while no pace is known."""
        if done == self.done < total:
            return ""
        pace = (seconds - self.seconds) / max(1, done - self.done)
        minutes, rest = divmod(round(pace * (total - done)), 60)
        hours, minutes = divmod(minutes, 60)
        return f"  left {hours}:{minutes:02}:{rest:02}" if hours else f"  left {minutes}:{rest:02}"


class FlowProgress:
    """Observer that moves a bar on a terminal, and prints plain lines elsewhere, for logs and pipes."""

    def __init__(self, screen: Console | None = None, seconds: float | None = None) -> None:
        """`seconds` are those between two messages, so that a fast flow is not slowed down."""
        screen = console() if screen is None else screen
        self._bar: Progress | None = None
        if screen.is_terminal:
            self._bar = _bar(screen, TextColumn("{task.fields[left]}"), transient=False)
            self._task = self._bar.add_task("starting", total=None, left="")
            self._bar.start()
        usual = 5.0 if self._bar is None else 0.1
        self._seconds = usual if seconds is None else seconds
        self._next = 0.0
        self._forecast: Forecast | None = None

    @hookimpl
    def after_step(self, flow: Flow, state: State) -> None:
        """Tell stage, step, mean displacement and time left if it is time, as after the first and last step."""
        now = time.monotonic()
        if now < self._next and state.total_step != state.total_steps:
            return
        self._next = now + self._seconds
        place = f"stage {state.stage_index + 1}/{state.stage_count}"
        moved = f"moved {state.displacement:.4f}"
        left = self._left(flow, state)
        if self._bar is None:
            stage = f"{place} {state.stage.name}".rstrip()
            say(f"{stage}  step {state.step}/{state.stage.steps}  {moved}{left}")
            return
        self._bar.update(
            self._task,
            completed=state.total_step,
            total=state.total_steps,
            description=f"{place}  {moved}",
            left=left.strip(),
        )

    def _left(self, flow: Flow, state: State) -> str:
        """Return the time left after a step, as `Forecast.left` does, by what steps of each stage cost."""
        # Dimensions whose products take as long as all else in a step does for a direction, as measured.
        transport = {"cpu": 500, "cuda": 10_000}[flow.device.type]
        costs = [stage.directions * (stage.dimension(flow.data.space) + transport) for stage in flow.stages]
        work = [stage.steps * cost for stage, cost in zip(flow.stages, costs, strict=True)]
        done = sum(work[: state.stage_index]) + state.step * costs[state.stage_index]
        if self._forecast is None:  # kernels are compiled in it, or data counted: its pace says nothing
            self._forecast = Forecast(done, state.seconds)
        return self._forecast.left(done, sum(work), state.seconds)

    @hookimpl
    def after_run(self) -> None:
        """Fill the bar, also if the schedule has left a stage early."""
        if self._bar is not None:
            done = self._bar.tasks[0].completed
            self._bar.update(self._task, completed=done, total=done or None)
            self._bar.stop()  # the evaluation has a bar of its own

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self._bar is not None:
            self._bar.stop()


class WorkProgress:
    """Progress of metrics, samples and completions: on stderr, as stdout has the scores."""

    def __init__(self, *, silent: bool = False, seconds: float = 5.0) -> None:
        self._console = console(stderr=True, quiet=silent)
        self._bar = _bar(self._console, TextColumn("left"), TimeRemainingColumn(compact=True), transient=True)
        self._task = self._bar.add_task("starting", total=None)
        self._seconds = seconds
        self._next = time.monotonic() + seconds
        self._work = ""
        self._forecast = Forecast()

    def tell(self, work: str, done: int, total: int) -> None:
        """Show how much of some work is done, and when the rest will be, by its pace so far."""
        now = time.monotonic()
        begins = work != self._work
        if begins:
            self._work = work
            self._forecast = Forecast(done, now)
        if self._console.is_terminal:
            self._bar.start()
            if begins:
                self._bar.reset(self._task, description=printable(work))
            self._bar.update(self._task, completed=done, total=total)
        elif now >= self._next and total > 1:
            self._next = now + self._seconds
            left = "" if begins else self._forecast.left(done, total, now)
            self._console.print(words(f"{done:,}/{total:,} {work}{left}"), soft_wrap=True)

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self._work and self._console.is_terminal:  # a bar that was never drawn would print an empty line
            self._bar.stop()


def _bar(console: Console, *left: TextColumn | TimeRemainingColumn, transient: bool) -> Progress:
    """Return a bar with the numbers done and in all, a text, and the columns for the time left."""
    text = TextColumn("{task.description}", markup=False)
    columns = (BarColumn(), MofNCompleteColumn(), text, *left)
    # A step may take minutes, so that the mean pace is taken over 10 of them.
    return Progress(*columns, console=console, transient=transient, speed_estimate_period=600.0)
