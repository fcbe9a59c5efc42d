"""`run.json`: what ran, with which versions, where, for how long, and how it ended."""

from __future__ import annotations

import datetime
import platform
import time
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Literal

import torch

from cswf_core.runs.folder import RunDirectory

Status = Literal["running", "done", "interrupted", "failed"]

PACKAGES = (
    "cswf",
    "torch",
    "torchvision",
    "numpy",
    "pluggy",
    "PyYAML",
    "attrs",
    "clean-fid",
    "safetensors",
    "click",
    "rich",
    "scikit-learn",
    "pillow",
    "scipy",
)


class Record:
    """Keeps run.json true from the first moment of a run to its end."""

    def __init__(self, directory: RunDirectory, facts: dict[str, Any]) -> None:
        self.directory = directory
        self.facts = {"format": 1, "status": "running", **facts, "started": _now(), "versions": versions()}
        self.began_with: str | None = None
        """SHA-256 of the data, as the record of a run that goes on has it."""
        self._began = time.perf_counter()

    @classmethod
    def again(cls, directory: RunDirectory, facts: dict[str, Any]) -> Record:
        """Return the record of a run that goes on: when it began, and whether it has gone on before, stay."""
        record, earlier = cls(directory, facts), directory.read_json("run.json")
        if isinstance(earlier, dict):
            data = earlier.get("data")
            record.began_with = data.get("sha256") if isinstance(data, dict) else None
            record.facts |= {key: earlier[key] for key in ("started", "resumed", "updates") if key in earlier}
        return record

    def resumed(self, step: int, lost: Sequence[str], seconds: float) -> None:
        """Note that the run goes on from a step, what of it was lost, and the seconds it took until then."""
        self._began -= seconds
        stop = {"step": step, "at": _now(), "lost": list(lost)}
        self.facts["resumed"] = [*self.facts.get("resumed", []), stop]

    @property
    def seconds(self) -> float:
        """Time that the run has taken so far, without that between a stop and going on."""
        return time.perf_counter() - self._began

    def save(self, status: Status, **facts: Any) -> None:
        """Write the file with a status and whatever else has become known."""
        self.facts.update(status=status, seconds=round(self.seconds, 3), **facts)
        if status != "running":
            self.facts["finished"] = _now()
        self.directory.write_json("run.json", self.facts)


def versions() -> dict[str, str]:
    """Return the version of Python and of every package that a result may depend on."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package.lower()] = version(package)
        except PackageNotFoundError:
            continue
    if torch.version.cuda:
        found["cuda"] = torch.version.cuda
    return found


def describe_device(device: torch.device) -> dict[str, Any]:
    """Return a device's type and the name of its hardware."""
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        return {"type": "cuda", "index": index, "name": torch.cuda.get_device_name(index)}
    return {"type": "cpu", "name": platform.machine(), "threads": torch.get_num_threads()}


def _now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
