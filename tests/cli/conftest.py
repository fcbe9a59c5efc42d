"""What tests of commands share: a run that stops, and what its record says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs

from cswf_core import hookimpl
from tests.conftest import read_json


def facts(folder: Path) -> dict[str, Any]:
    return read_json(folder / "run.json")


@attrs.frozen
class Stop:
    """Ends a run as Ctrl-C does, at a step; without one, when all is done but the record."""

    step: int | None = None

    @hookimpl
    def after_step(self, state):
        if state.total_step == self.step:
            raise KeyboardInterrupt

    @hookimpl
    def after_evaluation(self):
        if self.step is None:
            raise KeyboardInterrupt
