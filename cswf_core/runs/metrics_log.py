"""`metrics.jsonl`: a row per logged step."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

from cswf_core.hookspecs import hookimpl
from cswf_core.runs.directory import RunDirectory

if TYPE_CHECKING:
    from cswf_core.flow.flow import State


class MetricsLog:
    """Writes sliced distance, displacement and seconds every so many steps, and at the first and last."""

    def __init__(self, directory: RunDirectory, every: int) -> None:
        self.path = directory.file("metrics.jsonl")
        self.every = every
        self.steps_done = 0
        self._unwritten: State | None = None

    @hookimpl
    def after_step(self, state: State) -> None:
        """Append a row if it is time."""
        self.steps_done = state.total_step
        if state.total_step % self.every and state.total_step != 1:
            self._unwritten = state
        else:
            self._write(state)

    @hookimpl
    def after_stage(self) -> None:
        """Append a row for a stage's last step, wherever the schedule has left it."""
        if self._unwritten is not None:
            self._write(self._unwritten)

    def _write(self, state: State) -> None:
        self._unwritten = None
        row = {
            "step": state.total_step,
            "stage": state.stage_index,
            "sliced_distance": _number(state.distance),
            "displacement": _number(state.displacement),
            "seconds": round(state.seconds, 4),
        }
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


def _number(value: float) -> float | None:
    """JSON has no NaN: None where a flow has run away."""
    return value if math.isfinite(value) else None
