"""`checkpoints/`: the newest states of a run, from which it goes on after a kill.

A checkpoint is one file; the manifest, written after it, names those that are complete, newest first, with
their checksums. Two are kept: should the newest turn out to be damaged, there is one before it.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
from torch import Tensor

from cswf_core.errors import OtherFormatError, RunError
from cswf_core.hookspecs import hookimpl
from cswf_core.runs.durable import fingerprint, read_tensors, remove_parts, write_durably, write_tensors
from cswf_core.runs.interval import Interval
from cswf_core.runs.stopping import Stopping

if TYPE_CHECKING:
    from cswf_core.flow.flow import Flow

FORMAT = 1
"""Version of the files' format."""

FACTS = {"format", "position", "habits"}
"""What a checkpoint says at least."""

KEPT = 2
"""Checkpoints that stay."""

SHARE = 0.05
"""Share of a run's time that checkpoints at the ends of stages may take."""

log = logging.getLogger("cswf")


@attrs.frozen(eq=False)
class Checkpoint:
    """A state of a run, as it was read."""

    step: int
    """Steps that were done."""
    tensors: dict[str, Tensor]
    facts: dict[str, Any]

    def part(self, name: str) -> dict[str, Tensor]:
        """Return the tensors that were written as `name/…`."""
        start = f"{name}/"
        return {k.removeprefix(start): tensor for k, tensor in self.tensors.items() if k.startswith(start)}


class CheckpointFolder:
    """The folder with a run's checkpoints."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, place: tuple[int, int], tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Add a checkpoint; those before it stay until it is complete, and one after that.

        `place` is how many steps and stages are done: a stage's last step may be, and the stage not yet.
        """
        step, stages = place
        try:
            self.path.mkdir(exist_ok=True)
        except OSError as error:
            raise RunError(f"{self.path} cannot be made: {error.strerror or error}") from None
        target = self.path / f"step-{step:08}-stage-{stages:04}.safetensors"
        write_tensors(target, tensors, {"format": FORMAT, **facts})
        entry = {
            "file": target.name,
            "step": step,
            "bytes": target.stat().st_size,
            "sha256": fingerprint(target),
        }
        others = [e for e in self._listed() if e["file"] < target.name]
        self._keep([entry, *others[: KEPT - 1]])

    def keep_newest(self) -> None:
        """Let go of all but the newest: for a run that is done."""
        listed = self._listed()
        if len(listed) > 1:
            self._keep(listed[:1])

    def _keep(self, entries: Sequence[Mapping[str, Any]]) -> None:
        """Write the manifest, and remove the files that it does not list."""
        manifest = {"format": FORMAT, "checkpoints": entries}
        write_durably(self.path / "manifest.json", json.dumps(manifest, indent=2) + "\n")
        listed = {entry["file"] for entry in entries}
        for path in self.path.glob("step-*.safetensors"):
            if path.name not in listed:
                path.unlink(missing_ok=True)

    def tidy(self) -> None:
        """Remove what a kill has left of files that were being written."""
        if self.path.is_dir():
            remove_parts(self.path)

    def newest_first(self, lost: list[str]) -> Iterator[Checkpoint]:
        """Yield the checkpoints that can be read; `lost` is told of the others, a sentence each.

        Raises `OtherFormatError` for one of another version: it is not lost, and must not be written over.
        """
        for entry in self._listed() or self._unlisted(lost):
            try:
                yield self._read(entry)
            except OtherFormatError:
                raise
            except RunError as error:
                lost.append(str(error))

    def _read(self, entry: Mapping[str, Any]) -> Checkpoint:
        path = self.path / entry["file"]
        if not path.is_file():
            raise RunError(f"{path} is missing")
        if "sha256" in entry:
            size = path.stat().st_size
            if size != entry["bytes"]:
                raise RunError(f"{path} has {size:,} bytes and should have {entry['bytes']:,}")
            if fingerprint(path) != entry["sha256"]:
                raise RunError(f"{path} is not what was written: its checksum differs")
        tensors, facts = read_tensors(path)
        if not isinstance(facts, dict) or not facts.keys() >= FACTS:
            raise RunError(f"{path} is no checkpoint of ours")
        if facts["format"] != FORMAT:
            raise OtherFormatError(
                f"{path} has format {facts['format']}, and this version of cswf reads format {FORMAT}: go on "
                "with the version that wrote it, or begin anew with --force"
            )
        return Checkpoint(int(entry["step"]), tensors, facts)

    def _listed(self) -> list[dict[str, Any]]:
        """Return what the manifest lists, newest first; nothing if it is not there or makes no sense."""
        try:
            manifest = json.loads((self.path / "manifest.json").read_text(encoding="utf-8"))
            entries = [{**e, "step": int(e["step"]), "bytes": int(e["bytes"])} for e in manifest["checkpoints"]]
            safe = all(Path(e["file"]).name == e["file"] and isinstance(e["sha256"], str) for e in entries)
        except (OSError, ValueError, TypeError, KeyError):
            return []
        return entries if safe else []

    def _unlisted(self, lost: list[str]) -> list[dict[str, Any]]:
        """Return the checkpoints that are there, newest first, where no manifest says which ones are good."""
        found = sorted(self.path.glob("step-*.safetensors"), reverse=True) if self.path.is_dir() else []
        named = [(path, re.fullmatch(r"step-(\d+)-stage-\d+", path.stem)) for path in found]
        entries = [{"file": path.name, "step": name[1]} for path, name in named if name is not None]
        if entries:
            lost.append(
                f"{self.path / 'manifest.json'} cannot be read; checkpoints are taken without checksums"
            )
        return entries


class Checkpoints:
    """Saves a flow, and what watches it, when it is time, where stages end, and at the end."""

    def __init__(
        self,
        folder: CheckpointFolder,
        interval: Interval,
        watchers: Sequence[Any],
        facts: Callable[[], Mapping[str, Any]],
    ) -> None:
        """`watchers` with `keep` and `recall` are saved with the flow; `facts` says what else belongs there."""
        self.folder = folder
        self.interval = interval
        self.watchers = {w.remembered: w for w in watchers if hasattr(w, "keep") and hasattr(w, "recall")}
        self.facts = facts
        self.stopping = Stopping()
        self.step: int | None = None
        """Steps that were done at the newest checkpoint; None: there is none."""
        self._place = (-1, -1)
        self._began = self._last = time.monotonic()
        self._spent = 0.0

    @hookimpl(trylast=True)  # after those that are saved with it
    def after_step(self, flow: Flow) -> None:
        """Save if it is time, or if a signal says that the run has to stop."""
        stopping = self.stopping.signal is not None
        steps, seconds = self.interval.steps, self.interval.seconds
        due = steps is not None and flow.position.total % steps == 0
        due = due or (seconds is not None and time.monotonic() - self._last >= seconds)
        if due or (stopping and self._wanted):
            self.save(flow)
        if stopping:
            self.stopping.stop()

    @hookimpl(trylast=True)
    def after_stage(self, flow: Flow) -> None:
        """Save, unless that would take too much of the run's time."""
        if self._wanted and self._spent <= SHARE * (time.monotonic() - self._began):
            self.save(flow)

    @hookimpl(trylast=True)
    def after_run(self, flow: Flow) -> None:
        """Save the end: what is left to do does not need the flow, and new data may arrive."""
        if self._wanted and self._place != (flow.position.stage, flow.position.step):
            self.save(flow)

    @property
    def _wanted(self) -> bool:
        return self.interval.steps is not None or self.interval.seconds is not None

    def save(self, flow: Flow) -> None:
        """Save now; if that cannot be done, say so and let the flow go on."""
        began = time.monotonic()
        snapshot = flow.snapshot()
        at = snapshot.position
        try:
            tensors = {f"flow/{name}": tensor for name, tensor in snapshot.tensors().items()}
            for name, watcher in self.watchers.items():
                tensors |= {f"{name}/{key}": tensor for key, tensor in watcher.keep().items()}
            self.folder.write((at.total, at.stage), tensors, {**self.facts(), **snapshot.facts()})
            self.step, self._place = at.total, (at.stage, at.step)
        except RunError as error:
            before = "" if self.step is None else f"; the one of step {self.step:,} stays"
            log.warning("no checkpoint at step %s: %s%s", f"{at.total:,}", error, before)
        self._last = time.monotonic()
        self._spent += self._last - began

    def recall(self, checkpoint: Checkpoint | None) -> None:
        """Let everything that watches go back to a checkpoint; None is the beginning."""
        step = 0 if checkpoint is None else checkpoint.step
        for name, watcher in self.watchers.items():
            watcher.recall({} if checkpoint is None else checkpoint.part(name), step)
        self.step = None if checkpoint is None else step
        if checkpoint is not None and "position" in checkpoint.facts:
            at = checkpoint.facts["position"]
            self._place = at["stage"], at["step"]
