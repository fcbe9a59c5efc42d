"""Checkpoints of a run, two kept, each with its checksum: from the newest good one it goes on after a kill.

A checkpoint is one file in `checkpoints/`; the manifest, written after it, lists the complete ones, newest
first. They are written at intervals, where stages end, at the end, and when a signal stops the run. On several
devices each rank but the first writes its particles to a file beside it; any number of ranks can go on from it.
"""

from __future__ import annotations

import json
import logging
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, ClassVar

import attrs
from torch import Tensor

from cswf_core.errors import OtherFormatError, RunError, Terminated
from cswf_core.flow.state import Snapshot
from cswf_core.hookspecs import hookimpl
from cswf_core.interfaces import Written
from cswf_core.runs.durable import (
    fingerprint,
    make_folder,
    read_tensors,
    refuse_changed,
    remove_parts,
    write_durably,
    write_tensors,
)

if TYPE_CHECKING:
    from cswf_core.flow.flow import Flow

FORMAT, SHARED = 1, 2
"""Versions of the files' format: all particles in one file, and those of several ranks in a file each."""

FACTS = {"format", "position", "habits"}
"""Facts that every checkpoint has."""

COUNT = 2
"""Checkpoints on the disk at most."""

SHARE = 0.05
"""Share of a run's time that checkpoints at the ends of stages may take."""

UNITS = {"s": 1, "min": 60, "h": 3600}
"""Seconds of each unit that a recipe may write."""

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that wait for the end of a step."""

log = logging.getLogger("cswf")


@attrs.frozen
class Interval(Written):
    """An interval of steps or of seconds; with neither, never."""

    steps: int | None = None
    seconds: float | None = None
    text: str = attrs.field(default="never", eq=False, repr=False)
    """As it was written."""

    form: ClassVar[str] = "a number of steps such as 500, a time such as 30s, 10min or 2h, or never"

    @classmethod
    def from_text(cls, text: str) -> Interval:
        """Return the interval that `500`, `30s`, `10min`, `1.5h` or `never` means."""
        if text.strip() == "never":
            return cls()
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(s|min|h)?\s*", text)
        if match is None or not float(match[1]) or not (match[2] or match[1].isdigit()):
            raise ValueError(f"'{text}' is not {cls.form}")
        if match[2] is None:
            return cls(steps=int(match[1]), text=match[1])
        return cls(seconds=float(match[1]) * UNITS[match[2]], text=match[1] + match[2])

    def __str__(self) -> str:
        return self.text


@attrs.frozen(eq=False)
class Checkpoint:
    """A state of a run, read from a file."""

    step: int
    """Steps done."""
    tensors: dict[str, Tensor]
    facts: dict[str, Any]
    files: tuple[Path, ...] = ()
    """The file that this was read from, and those with the particles of other ranks."""

    def part(self, name: str) -> dict[str, Tensor]:
        """Return the tensors that were written as `name/…`."""
        prefix = f"{name}/"
        return {k.removeprefix(prefix): tensor for k, tensor in self.tensors.items() if k.startswith(prefix)}


class CheckpointFolder:
    """The folder of a run's checkpoints and their manifest."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(
        self,
        place: tuple[int, int],
        tensors: Mapping[str, Tensor],
        facts: Mapping[str, Any],
        parts: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        """Write a checkpoint, then remove all earlier ones but the last.

        `place` is how many steps and stages are done: a stage's last step may be, and the stage not yet.
        `parts` are the entries of the files that other ranks have written.
        """
        make_folder(self.path)
        target = self.path / f"{stem(place)}.safetensors"
        several = {"format": SHARED, "ranks": len(parts) + 1} if parts else {"format": FORMAT}
        write_tensors(target, tensors, {**several, **facts})
        entry = {"step": place[0], **_entry(target), **({"parts": list(parts)} if parts else {})}
        earlier = [e for e in self._manifest() if e["file"] < target.name]
        self._list([entry, *earlier[: COUNT - 1]])

    def require(self, part: Mapping[str, Any]) -> None:
        """Raise `RunError` if the file that another rank has written could not be, or is not seen from here."""
        if "error" in part:
            raise RunError(str(part["error"]))
        path = self.path / part["file"]
        if not path.is_file() or path.stat().st_size != part["bytes"]:
            raise RunError(f"{path} of another rank is not seen here: all ranks need one folder in common")

    def keep_newest(self) -> None:
        """Remove all but the newest, as one is enough for a run that is done."""
        entries = self._manifest()
        if len(entries) > 1:
            self._list(entries[:1])

    def _list(self, entries: Sequence[Mapping[str, Any]]) -> None:
        """Write the manifest, and remove the files that it does not list."""
        manifest = {"format": FORMAT, "checkpoints": entries}
        write_durably(self.path / "manifest.json", json.dumps(manifest, indent=2) + "\n")
        listed = {file["file"] for entry in entries for file in (entry, *entry.get("parts", ()))}
        for path in self.path.glob("step-*.safetensors"):
            if path.name not in listed:
                path.unlink(missing_ok=True)

    def tidy(self) -> None:
        """Remove the unfinished files that a kill has left."""
        if self.path.is_dir():
            remove_parts(self.path)

    def newest_first(self, lost: list[str]) -> Iterator[Checkpoint]:
        """Yield the checkpoints that can be read; `lost` gets a sentence for each of the others.

        Raises `OtherFormatError` for one of another version: it is not lost, and must not be written over.
        """
        for entry in self._manifest() or self._files(lost):
            try:
                yield self._read(entry)
            except OtherFormatError:
                raise
            except RunError as error:
                lost.append(str(error))

    def _read(self, entry: Mapping[str, Any]) -> Checkpoint:
        path, parts = self.path / entry["file"], entry.get("parts", ())
        for file in (entry, *parts):
            if "sha256" in file:
                refuse_changed(self.path / file["file"], file["sha256"], file["bytes"])
        tensors, facts = read_tensors(path)
        if not isinstance(facts, dict) or not facts.keys() >= FACTS:
            raise RunError(f"{path} is no checkpoint of ours")
        if facts["format"] not in (FORMAT, SHARED):
            raise OtherFormatError(
                f"{path} has format {facts['format']}, and this version of cswf reads formats {FORMAT} and "
                f"{SHARED}: go on with the version that wrote it, or begin anew with --force"
            )
        ranks = int(facts.get("ranks", 1))
        files = path, *(self.path / part["file"] for part in parts[: ranks - 1])
        if len(files) != ranks:
            raise RunError(f"{path} has particles of one of {ranks} ranks, and files of others are missing")
        return Checkpoint(int(entry["step"]), tensors, facts, files)

    def _manifest(self) -> list[dict[str, Any]]:
        """Return the manifest's entries, newest first; none if it is missing or damaged."""
        try:
            manifest = json.loads((self.path / "manifest.json").read_text(encoding="utf-8"))
            entries = [{**e, "step": int(e["step"]), "bytes": int(e["bytes"])} for e in manifest["checkpoints"]]
            files = [file for e in entries for file in (e, *e.get("parts", ()))]
            safe = all(Path(f["file"]).name == f["file"] and isinstance(f["sha256"], str) for f in files)
        except (OSError, ValueError, TypeError, KeyError):
            return []
        return entries if safe else []

    def _files(self, lost: list[str]) -> list[dict[str, Any]]:
        """Return an entry for each checkpoint's file, newest first, where there is no manifest."""
        paths = sorted(self.path.glob("step-*.safetensors"), reverse=True) if self.path.is_dir() else []
        names = [(path, re.fullmatch(r"step-(\d+)-stage-\d+", path.stem)) for path in paths]
        entries = [
            {
                "file": path.name,
                "step": name[1],
                "parts": [{"file": part.name} for part in sorted(self.path.glob(f"{path.stem}-part-*"))],
            }
            for path, name in names
            if name is not None
        ]
        if entries:
            lost.append(
                f"{self.path / 'manifest.json'} cannot be read; checkpoints are taken without checksums"
            )
        return entries


def stem(place: tuple[int, int]) -> str:
    """Return the name, without its ending, of the checkpoint after so many steps and stages."""
    return f"step-{place[0]:08}-stage-{place[1]:04}"


def _entry(path: Path) -> dict[str, Any]:
    """Return what the manifest says of a file."""
    return {"file": path.name, "bytes": path.stat().st_size, "sha256": fingerprint(path)}


SAVE, RESTORE = "save", "restore"
"""Orders of rank 0: to write a checkpoint of one's particles, and to go back to one."""


def learn_checkpoints(flow: Flow) -> None:
    """Teach a rank what to do when rank 0 orders to save the run, or to go back to a checkpoint."""
    flow.ranks.learn(SAVE, flow, _save_part)
    flow.ranks.learn(RESTORE, flow, _restore)


def _save_part(flow: Flow, folder: str, name: str) -> list[dict[str, Any]]:
    """Write the particles of this rank, unless it is the first; return the manifest's entries for all ranks."""
    entry: dict[str, Any] = {}
    if not flow.ranks.leads:
        path = Path(folder) / f"{name}-part-{flow.ranks.rank:04}.safetensors"
        snapshot = flow.snapshot().own()
        try:
            make_folder(path.parent)
            write_tensors(path, snapshot.tensors(), {"format": SHARED, **snapshot.facts()})
            entry = _entry(path)
        except (RunError, OSError) as error:
            entry = {"error": str(error)}
    return flow.ranks.collected(entry, "checkpoint")


def _restore(flow: Flow, files: Sequence[str]) -> None:
    """Go back to a checkpoint, whose particles lie in a file for each of the ranks that wrote it."""
    parts = read_snapshots([Path(file) for file in files])
    flow.restore(Snapshot.joined(parts, flow.ranks.share(parts[0].total, flow.device)))


def read_snapshots(files: Sequence[Path]) -> list[Snapshot]:
    """Return the snapshots of the ranks that have written a checkpoint, in the order of these."""
    snapshots = []
    for number, file in enumerate(files):
        tensors, facts = read_tensors(file)
        prefix = "" if number else "flow/"  # the first file has more than particles
        own = {k.removeprefix(prefix): tensor for k, tensor in tensors.items() if k.startswith(prefix)}
        snapshots.append(Snapshot.of(own, facts))
    return snapshots


class Stopping:
    """Holds back signals until a step has ended and the run is saved; a second one does not wait.

    A second SIGHUP does: a shell and the system may both send one when a terminal is closed.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        """The signal that has arrived; None: none."""
        self._before: dict[int, Any] = {}

    @contextmanager
    def patient(self) -> Iterator[None]:
        """Note signals instead of ending at once; in threads, which get none, do nothing."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        # A signal without a handler of Python's, such as SIGTERM by default, ends the process: that stays so.
        handled = [n for n in SIGNALS if signal.getsignal(n) not in (signal.SIG_IGN, signal.SIG_DFL, None)]
        self._before = {number: signal.signal(number, self._note) for number in handled}
        try:
            yield
        finally:
            for number, handler in self._before.items():
                if signal.getsignal(number) is not signal.SIG_IGN:  # a rank that is ending anyway wants no more
                    signal.signal(number, handler)
        if self.signal is not None:  # it came too late for another step to end
            self.stop()

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.signal is None:
            self.signal = number
        elif number != signal.SIGHUP:
            self._before[number](number, frame)

    def stop(self) -> None:
        """End as the signal that has arrived would have."""
        raise KeyboardInterrupt if self.signal in (None, signal.SIGINT) else Terminated(self.signal)


class Checkpoints:
    """Observer that saves a flow and its other observers: at intervals, where stages end, and at the end."""

    def __init__(
        self,
        folder: CheckpointFolder,
        interval: Interval,
        watchers: Sequence[Any],
        facts: Callable[[], Mapping[str, Any]],
    ) -> None:
        """`watchers` with `keep` and `recall` are saved with the flow, and so is what `facts` returns."""
        self.folder = folder
        self.interval = interval
        self.watchers = {w.remembered: w for w in watchers if hasattr(w, "keep") and hasattr(w, "recall")}
        self.facts = facts
        self.stopping = Stopping()
        self.step: int | None = None
        """Steps done at the newest checkpoint; None: there is none."""
        self._place = (-1, -1)
        self._began = self._last = time.monotonic()
        self._spent = 0.0

    @hookimpl(trylast=True)  # after the observers that are saved with it
    def after_step(self, flow: Flow) -> None:
        """Save if it is time, or if a signal stops the run."""
        stopping = self.stopping.signal is not None
        steps, seconds = self.interval.steps, self.interval.seconds
        due = steps is not None and flow.position.total % steps == 0
        due = due or (seconds is not None and time.monotonic() - self._last >= seconds)
        if due or (stopping and self._enabled):
            self.save(flow)
        if stopping:
            self.stopping.stop()

    @hookimpl(trylast=True)
    def after_stage(self, flow: Flow) -> None:
        """Save, unless that would take too much of the run's time."""
        if self._enabled and self._spent <= SHARE * (time.monotonic() - self._began):
            self.save(flow)

    @hookimpl(trylast=True)
    def after_run(self, flow: Flow) -> None:
        """Save the end, from which `cswf update` goes on when new data arrive."""
        if self._enabled and self._place != (flow.position.stage, flow.position.step):
            self.save(flow)

    @property
    def _enabled(self) -> bool:
        return self.interval.steps is not None or self.interval.seconds is not None

    def save(self, flow: Flow) -> None:
        """Save now; a failure is a warning, and the flow goes on. Particles that are not finite end it."""
        began = time.monotonic()
        flow.require_finite()
        learn_checkpoints(flow)
        snapshot = flow.snapshot().own()
        at = snapshot.position
        try:
            tensors = {f"flow/{name}": tensor for name, tensor in snapshot.tensors().items()}
            for name, watcher in self.watchers.items():
                tensors |= {f"{name}/{key}": tensor for key, tensor in watcher.keep().items()}
            place = at.total, at.stage
            _, *parts = flow.ranks.order(SAVE, flow, str(self.folder.path), stem(place))
            for part in parts:
                self.folder.require(part)
            self.folder.write(place, tensors, {**self.facts(), **snapshot.facts()}, parts)
            self.step, self._place = at.total, (at.stage, at.step)
        except RunError as error:
            before = "" if self.step is None else f"; the one of step {self.step:,} stays"
            log.warning("no checkpoint at step %s: %s%s", f"{at.total:,}", error, before)
        self._last = time.monotonic()
        self._spent += self._last - began

    def recall(self, checkpoint: Checkpoint | None) -> None:
        """Take all observers back to a checkpoint; None is the beginning."""
        step = 0 if checkpoint is None else checkpoint.step
        for name, watcher in self.watchers.items():
            watcher.recall({} if checkpoint is None else checkpoint.part(name), step)
        self.step = None if checkpoint is None else step
        if checkpoint is not None and "position" in checkpoint.facts:
            at = checkpoint.facts["position"]
            self._place = at["stage"], at["step"]
