"""Observer `tensorboard`: a run's numbers and pictures, shown by TensorBoard.

What it is: event files in `tensorboard` in the run's folder, with sliced distance, displacement, step size and
seconds of a step, a grid of samples after every stage, and the scores; `tensorboard --logdir runs` shows them,
of all runs in that folder and while the flow goes on.
Cost: reading two numbers back from the device, and a few hundred bytes, per point; a picture per stage.
When not to use it: to keep a record; `metrics.jsonl` and `run.json` have the same numbers as plain text.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np
import torch
from torch import Tensor

from cswf_core.errors import RunError
from cswf_core.hookspecs import hookimpl
from cswf_core.interfaces import Observer, parameter
from cswf_core.pictures import grid as pictures

if TYPE_CHECKING:
    from cswf_core.flow.flow import Flow, State

MOST_IMAGES = 64
COLUMNS = 8


@attrs.frozen(kw_only=True)
class TensorBoard(Observer):
    """Event files for TensorBoard."""

    every: int = parameter("steps between two points", default=10, at_least=1)
    images: bool = parameter("whether a grid of samples is written after each stage", default=True)

    def watch(self, folder: Path) -> EventWriter:
        """Return the writer of one run's events; nothing is written before the first point."""
        try:
            module = importlib.import_module("torch.utils.tensorboard")
        except ImportError:
            raise RunError(
                "observer 'tensorboard' needs the package tensorboard, which is not installed: "
                "pip install tensorboard, or cswf[tensorboard]"
            ) from None
        return EventWriter(module.SummaryWriter, folder / "tensorboard", self.every, images=self.images)


class EventWriter:
    """Writes the events of one run."""

    def __init__(self, make: Any, folder: Path, every: int, *, images: bool) -> None:
        """`make` is TensorBoard's class of writers."""
        self.folder = folder
        self.every = every
        self.images = images
        self._make = make
        self._open: Any = None
        self._opened = False
        self._purge = 0
        self._last: State | None = None
        self._written = (0, 0.0)

    @hookimpl
    def after_step(self, state: State) -> None:
        """Write a point if it is time; reading its numbers waits for the device."""
        self._last = state
        if state.total_step == 1 or state.total_step % self.every == 0:
            self._point(state)

    @hookimpl
    def after_stage(self, flow: Flow) -> None:
        """Write the stage's last point, if it is not there, and a grid of samples."""
        state = self._last
        if state is None:
            return
        if state.total_step != self._written[0]:
            self._point(state)
        if self.images and flow.data.space.is_image:
            self._writer().add_image("samples", _grid(flow), state.total_step, dataformats="HWC")
        self._writer().flush()

    @hookimpl
    def after_run(self) -> None:
        """Flush the points to the disk."""
        if self._open is not None:
            self._open.flush()

    @hookimpl
    def after_evaluation(self, scores: Mapping[str, float]) -> None:
        """Write the scores, at the last step."""
        step = 0 if self._last is None else self._last.total_step
        self._scalars({f"scores/{name}": value for name, value in scores.items()}, step)
        self.after_run()

    remembered = "tensorboard"

    def keep(self) -> dict[str, Tensor]:
        """Flush the points so far to the disk; a checkpoint needs nothing else of them."""
        self.after_run()
        return {}

    def recall(self, state: Mapping[str, Tensor], total_step: int) -> None:
        """Hide the points of later steps."""
        del state
        self._purge = total_step + 1

    def close(self) -> None:
        """Flush and close the file; may be called at any time, and twice."""
        if self._open is not None:
            self._open.close()
            self._open = None

    def _point(self, state: State) -> None:
        steps, seconds = self._written
        self._written = (state.total_step, state.seconds)
        numbers = {
            "sliced_distance": state.distance,
            "displacement": state.displacement,
            "step_size": state.eta,
            "seconds_per_step": (state.seconds - seconds) / (state.total_step - steps),
            "stage": float(state.stage_index),
        }
        self._scalars({f"flow/{name}": value for name, value in numbers.items()}, state.total_step)

    def _scalars(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            if math.isfinite(value):
                self._writer().add_scalar(name, value, step)

    def _writer(self) -> Any:
        """Return the writer, opened when it is first needed: by then the run has its folder."""
        if self._open is None:
            if self.folder.is_symlink():
                raise RunError(
                    f"{self.folder} is a link, and a run writes to its own folder only; remove the link"
                )
            try:
                # What an earlier run has left in the same folder is hidden from there on.
                purge = None if self._opened else self._purge
                # After 10 seconds points are on the disk, for those who look while the flow goes on.
                self._open = self._make(str(self.folder), purge_step=purge, flush_secs=10)
                self._opened = True
            except OSError as error:
                raise RunError(f"{self.folder} cannot be written to: {error.strerror or error}") from None
        return self._open


def _grid(flow: Flow) -> Any:
    """Draw some of the particles, with a row for each class if they have any: height × width × 3 bytes."""
    labels = flow.conditions.labels
    labels = None if labels is None else labels[: flow.count]
    if labels is None or not flow.data.classes:
        samples = flow.samples(torch.arange(min(flow.count, MOST_IMAGES)))
        return np.array(pictures.grid(samples.images(), None, (), COLUMNS))
    present = torch.unique(labels)[: pictures.MOST_ROWS]
    each = min(COLUMNS, MOST_IMAGES // len(present))
    samples = flow.samples(torch.cat([(labels == c).nonzero()[:each, 0] for c in present]))
    return np.array(pictures.grid(samples.images(), samples.conditions.labels, samples.classes, each))
