"""The log of a run, `metrics.jsonl`: a row for each logged step."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from cswf_core.documents import TensorForm, require_forms
from cswf_core.hookspecs import hookimpl
from cswf_core.runs.folder import RunFolder

if TYPE_CHECKING:
    from cswf_core.flow.flow import State


Row = dict[str, float | None]
"""step, stage, sliced_distance, displacement, seconds."""


KEPT = {"unwritten": TensorForm(torch.float64, (5,), optional=True)}
"""What a checkpoint has of the log: a row that is not in the file yet."""


class MetricsLog:
    """Observer that logs distance, displacement and seconds: every so many steps, at the first and the last."""

    remembered = "metrics"

    def __init__(self, folder: RunFolder, every: int) -> None:
        self.folder = folder
        self.every = every
        self.steps_done = 0
        self._unwritten: State | Row | None = None

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

    def keep(self) -> dict[str, Tensor]:
        """Return the row that is not in the file yet, for a checkpoint."""
        if self._unwritten is None:
            return {}
        numbers = [math.nan if value is None else value for value in _row(self._unwritten).values()]
        return {"unwritten": torch.tensor(numbers, dtype=torch.float64)}

    def recall(self, state: Mapping[str, Tensor], total_step: int) -> None:
        """Remove the rows of later steps, and take back the row that was not in the file yet."""
        self.steps_done, self._unwritten = total_step, None
        require_forms(state, KEPT, f"the checkpoint of step {total_step:,}")
        if "unwritten" in state:
            step, stage, *others = state["unwritten"].tolist()
            names = ("sliced_distance", "displacement", "seconds")
            numbers = zip(names, map(_number, others), strict=True)
            self._unwritten = {"step": int(step), "stage": int(stage), **dict(numbers)}
        rows = self.folder.read_rows("metrics.jsonl")
        last = total_step if self._unwritten is None else total_step - 1  # it may have been written after that
        before = [row for row in rows if _is_before(row.get("step"), last)]
        self.folder.write("metrics.jsonl", "".join(json.dumps(row) + "\n" for row in before))

    def _write(self, unwritten: State | Row) -> None:
        self._unwritten = None
        self.folder.append("metrics.jsonl", json.dumps(_row(unwritten)) + "\n")


def _is_before(step: object, total_step: int) -> bool:
    """Say whether a row is of this step or one before, and not a line that somebody else has written."""
    return isinstance(step, int) and step <= total_step


def _row(state: State | Row) -> Row:
    """Return the row of a state."""
    if isinstance(state, dict):
        return state
    return {
        "step": state.total_step,
        "stage": state.stage_index,
        "sliced_distance": _number(state.distance),
        "displacement": _number(state.displacement),
        "seconds": round(state.seconds, 4),
    }


def _number(value: float) -> float | None:
    """Return a finite value, or None, as JSON has no NaN for a flow that has run away."""
    return value if math.isfinite(value) else None
