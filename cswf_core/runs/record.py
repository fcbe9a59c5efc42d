"""The record of a run, `run.json`: recipe, versions, device, times, and how it ended."""

from __future__ import annotations

import datetime
import json
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path
from typing import Any

import torch

from cswf_core.errors import printable
from cswf_core.runs.facts import DataRecord, Status
from cswf_core.runs.folder import RunFolder
from cswf_core.runs.packages import PACKAGES


class Record:
    """The facts in run.json, written when a run begins, goes on and ends."""

    def __init__(self, folder: RunFolder, facts: dict[str, Any]) -> None:
        self.folder = folder
        self.facts = {"format": 1, "status": "running", **facts, "started": _now(), "versions": versions()}
        self.began_with: DataRecord | None = None
        """The data, as the record of a run that goes on has them; None: it does not say."""
        self._began = time.perf_counter()

    @classmethod
    def again(cls, folder: RunFolder, facts: dict[str, Any]) -> Record:
        """Return the record of a run that goes on: when it began, and whether it has gone on before, stay."""
        record, earlier = cls(folder, facts), folder.facts()
        if earlier is not None:
            record.began_with = earlier.data
            before = {"started": earlier.started, "resumed": list(earlier.resumed), "updates": earlier.updates}
            before["command"] = earlier.command
            record.facts |= {key: value for key, value in before.items() if value}
        return record

    def resumed(self, step: int, lost: Sequence[str], seconds: float) -> None:
        """Add that the run goes on from a step after some seconds of work, with a sentence for each loss."""
        self._began -= seconds
        stop = {"step": step, "at": _now(), "lost": list(lost)}
        self.facts["resumed"] = [*self.facts.get("resumed", []), stop]

    @property
    def seconds(self) -> float:
        """Seconds of work so far, without the time between a stop and going on."""
        return time.perf_counter() - self._began

    def save(self, status: Status, **facts: Any) -> None:
        """Write the file with a status and more facts."""
        self.facts.update(status=status, seconds=round(self.seconds, 3), **facts)
        if status != "running":
            self.facts["finished"] = _now()
        self.folder.write_json("run.json", self.facts)


@cache
def versions() -> dict[str, str]:
    """Return the version of Python and of every package that a result may depend on."""
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        with suppress(PackageNotFoundError):
            versions[package.lower()] = version(package)
    if torch.version.cuda:
        versions["cuda"] = torch.version.cuda
    return versions


def command_line() -> str:
    """Return the command that this program was started with, as it could be typed again."""
    program, *arguments = sys.argv or [""]
    name = Path(program).name
    called = ["cswf"] if name in ("cswf", "__main__.py") else ["python", name]
    return printable(shlex.join([*called, *arguments]))


@cache
def commit() -> str:
    """Return the commit of this program's own source, `…-dirty` if files differ from it; nothing if unknown.

    pip writes down the commit of what it installs from a repository; else the source may lie in a checkout.
    """
    with suppress(PackageNotFoundError, ValueError, TypeError, KeyError):
        origin = json.loads(distribution("cswf").read_text("direct_url.json") or "{}")
        if "vcs_info" in origin:
            return str(origin["vcs_info"]["commit_id"])
    root = Path(__file__).parents[2]
    if not (root / ".git").exists() or not (root / "cswf_core").is_dir():  # a checkout of something else
        return ""
    ask = ["git", "-C", str(root), "-c", "core.fsmonitor=false", "describe", "--always", "--dirty"]
    with suppress(OSError, subprocess.SubprocessError):
        told = subprocess.run(
            [*ask, "--abbrev=40", "--exclude", "*"], capture_output=True, text=True, timeout=10, check=True
        )
        return told.stdout.strip()
    return ""


def describe_device(device: torch.device) -> dict[str, Any]:
    """Return a device's type and the name of its hardware."""
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        return {"type": "cuda", "index": index, "name": torch.cuda.get_device_name(index)}
    return {"type": "cpu", "name": platform.machine(), "threads": torch.get_num_threads()}


def _now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
