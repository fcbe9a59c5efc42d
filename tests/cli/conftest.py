"""What tests of commands share: a small run, one that stops, what its record says, and plugins of one file."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent, indent
from typing import Any

import attrs
import pytest

from cswf_core import hookimpl
from cswf_core.plugins import KINDS
from tests.conftest import read_json

TINY = (
    "schedule.steps=2",
    "schedule.directions=16",
    "particles.count=20",
    "evaluate.metrics.0.directions=50",
    "outputs.frames=0",
)
"""Changes of `digits` with which a run takes a moment."""


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in an empty folder."""
    monkeypatch.chdir(tmp_path)


def write_plugin(file: Path, kind: str, body: str, head: str = "") -> None:
    """Write a plugin that has a file's name; `body` is that of its class, and `head` stands before it."""
    hook, contract = KINDS[kind]
    imports = "import attrs\nfrom cswf_core import hookimpl\nfrom cswf_core.interfaces import *\n"
    own = f"@attrs.frozen\nclass Own({contract.__name__}):\n{indent(dedent(body), '    ')}\n"
    registered = f"@hookimpl\ndef {hook}(register):\n    register({file.stem!r}, Own)\n"
    file.parent.mkdir(exist_ok=True)
    file.write_text(f"{imports}{dedent(head)}\n{own}\n{registered}", encoding="utf-8")


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
