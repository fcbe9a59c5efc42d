"""Checkpoints of a run, two kept, each with its checksum: from the newest good one it goes on after a kill.

A checkpoint is one file in `checkpoints/`; the manifest, written after it, lists the complete ones, newest
first, each with the checksum of all that is in it. Without a manifest, checkpoints are refused. They are
written at intervals, where stages end, at the end, and when a signal stops the run. On several devices each
rank but the first writes its particles to a file beside it; any number of ranks can go on from it.
"""

from __future__ import annotations

import json
import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import attrs
from torch import Tensor

from cswf_core.documents import Amount, Count, Digest, MisfitError, Size, read_document, structured
from cswf_core.errors import CswfError, OtherFormatError, RunError, Terminated
from cswf_core.flow.state import Position, Snapshot, SnapshotFacts
from cswf_core.hookspecs import hookimpl
from cswf_core.interfaces.contract import Interval
from cswf_core.runs.durable import (
    FileEntry,
    make_folder,
    read_tensors,
    tensors_under,
    write_durably,
    write_tensors,
)
from cswf_core.runs.folder import PluginRecord

if TYPE_CHECKING:
    from cswf_core.flow.flow import Flow

NAME = "manifest.json"

FORMAT = 2
"""The version of checkpoints."""


@attrs.frozen(kw_only=True)
class CheckpointEntry(FileEntry):
    """A checkpoint: its file, and those with the particles of other ranks."""

    step: Count
    """Steps done."""
    parts: tuple[FileEntry, ...] = ()

    @property
    def files(self) -> tuple[FileEntry, ...]:
        """All its files."""
        return (self, *self.parts)


@attrs.frozen(kw_only=True)
class CheckpointManifest:
    """The checkpoints that are complete, newest first."""

    format: Literal[1] = 1
    checkpoints: tuple[CheckpointEntry, ...] = ()


@attrs.frozen(kw_only=True)
class CheckpointFacts:
    """The facts of a checkpoint beside those of the flow: of what run it is."""

    open_ended: ClassVar[bool] = True
    """Those of the flow are beside them."""
    recipe: str
    """As YAML."""
    data_sha256: Digest
    device: str
    """Its type."""
    versions: dict[str, str]
    """Of packages that the last digits may depend on."""
    plugins: tuple[PluginRecord, ...]
    """Those that take part."""
    seconds: Amount
    """Of the run so far."""


@attrs.frozen(kw_only=True)
class FormatFacts:
    """What a checkpoint says about its own form."""

    open_ended: ClassVar[bool] = True
    format: int
    ranks: Size = 1
    """How many ranks have written it, each a file."""


SHARE = 0.05
"""Share of a run's time that checkpoints at the ends of stages may take."""

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that wait for the end of a step."""

log = logging.getLogger("cswf")


@attrs.frozen(eq=False)
class Checkpoint:
    """A state of a run, read from a file."""

    step: int
    """Steps done."""
    tensors: dict[str, Tensor]
    facts: dict[str, Any]
    files: tuple[Path, ...] = ()
    """The file that this was read from, and those with the particles of other ranks."""
    position: Position | None = None
    """How far the flow had come."""

    def part(self, name: str) -> dict[str, Tensor]:
        """Return the tensors that were written as `name/…`."""
        return tensors_under(self.tensors, name)


class CheckpointFolder:
    """The folder of a run's checkpoints and their manifest."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(
        self,
        place: tuple[int, int],
        tensors: Mapping[str, Tensor],
        facts: Mapping[str, Any],
        parts: Sequence[FileEntry] = (),
    ) -> None:
        """Write a checkpoint, then remove all earlier ones but the last.

        `place` is how many steps and stages are done: a stage's last step may be, and the stage not yet.
        `parts` are the entries of the files that other ranks have written.
        """
        make_folder(self.path)
        if not (self.path / NAME).exists() and not self._files():  # one that is missing later has been lost
            self._list(())
        target = self.path / f"{stem(place)}.safetensors"
        write_tensors(target, tensors, {"format": FORMAT, "ranks": len(parts) + 1, **facts})
        entry = CheckpointEntry.of(target, step=place[0], parts=tuple(parts))
        earlier = [e for e in self.listed() if e.file < target.name]
        self._list([entry, *earlier[:1]])

    def require(self, part: Mapping[str, Any]) -> FileEntry:
        """Return the entry of another rank's file; raise `RunError` if it failed, or is not seen here."""
        if "error" in part:
            raise RunError(str(part["error"]))
        entry = FileEntry(**part)
        path = self.path / entry.file
        if not path.is_file() or path.stat().st_size != entry.bytes:
            raise RunError(f"{path} of another rank is not seen here: all ranks need one folder in common")
        return entry

    def keep_newest(self) -> None:
        """Remove all but the newest, as one is enough for a run that is done."""
        entries = self.listed()
        if len(entries) > 1:
            self._list(entries[:1])
        elif entries:
            self._remove_all_but(entries)  # a kill may have come between the manifest and this

    def _list(self, entries: Sequence[CheckpointEntry]) -> None:
        """Write the manifest, and remove the files that it does not list."""
        listed = [attrs.asdict(entry) for entry in entries]
        for each in listed:
            if not each["parts"]:
                del each["parts"]
        write_durably(self.path / NAME, json.dumps({"format": 1, "checkpoints": listed}, indent=2) + "\n")
        self._remove_all_but(entries)

    def _remove_all_but(self, entries: Sequence[CheckpointEntry]) -> None:
        listed = {file.file for entry in entries for file in entry.files}
        for path in self._files():
            if path.name not in listed:
                path.unlink(missing_ok=True)

    def listed(self) -> tuple[CheckpointEntry, ...]:
        """Return the manifest's entries, newest first; none if it is missing or damaged."""
        try:
            return self._manifest().checkpoints
        except RunError:
            return ()

    def newest_first(self, lost: list[str]) -> Iterator[Checkpoint]:
        """Yield the checkpoints that can be read; `lost` gets a sentence for each of the others.

        Raises `OtherFormatError` for one of another version: it is not lost, and must not be written over; and
        `RunError` if there are checkpoints without a good manifest.
        """
        try:
            entries = self._manifest().checkpoints
        except RunError as error:
            if not self._files():
                return
            raise RunError(
                f"{error}: nothing says whether the checkpoints beside it are what was written. Bring it "
                f"back, or remove {self.path} to begin anew"
            ) from None
        for entry in entries:
            try:
                yield self._read(entry)
            except OtherFormatError:
                raise
            except RunError as error:
                lost.append(str(error))

    def _read(self, entry: CheckpointEntry) -> Checkpoint:
        for file in entry.files:
            file.refuse_changed(self.path)
        path = self.path / entry.file
        tensors, facts = read_tensors(path)
        try:
            form: FormatFacts = structured(facts, FormatFacts)
            if form.format == FORMAT:
                known: SnapshotFacts = structured(facts, SnapshotFacts)
        except MisfitError as error:
            raise RunError(f"{path} is no checkpoint of ours: {error}") from None
        if form.format != FORMAT:
            raise OtherFormatError(
                f"{path} has format {form.format}, and this version of cswf reads format {FORMAT}: "
                "resume with the version that wrote it, or start again with --force"
            )
        if entry.step != known.position.total:
            raise RunError(f"{path} is of step {known.position.total:,}, and listed as that of {entry.step:,}")
        files = tuple(self.path / file.file for file in entry.files)
        if len(files) != form.ranks:
            raise RunError(f"{path} is one of {form.ranks} files, and {len(files)} are listed")
        return Checkpoint(entry.step, tensors, facts, files, known.position)

    def _manifest(self) -> CheckpointManifest:
        return read_document(self.path / NAME, CheckpointManifest)

    def _files(self) -> list[Path]:
        return list(self.path.glob("step-*.safetensors"))


def stem(place: tuple[int, int]) -> str:
    """Return the name, without its ending, of the checkpoint after so many steps and stages."""
    return f"step-{place[0]:08}-stage-{place[1]:04}"


def define_checkpoint_commands(flow: Flow) -> None:
    """Define the commands of rank 0 to save the run, and to go back to a checkpoint; for all ranks."""
    flow.ranks.define_command("save", flow, _save_part)
    flow.ranks.define_command("restore", flow, _restore)


def _save_part(flow: Flow, folder: str, name: str) -> list[dict[str, Any]]:
    """Write the particles of this rank, unless it is the first; return the manifest's entries for all ranks."""
    entry: dict[str, Any] = {}
    if not flow.ranks.leads:
        path = Path(folder) / f"{name}-part-{flow.ranks.rank:04}.safetensors"
        snapshot = flow.snapshot()
        try:
            make_folder(path.parent)
            write_tensors(path, snapshot.tensors(), {"format": FORMAT, **snapshot.facts()})
            entry = attrs.asdict(FileEntry.of(path))
        except (RunError, OSError) as error:
            entry = {"error": str(error)}
    return flow.ranks.collected(entry, "checkpoint")


def _restore(flow: Flow, files: Sequence[str]) -> None:
    """Go back to a checkpoint, whose particles lie in a file for each of the ranks that wrote it."""
    parts = []
    for number, file in enumerate(files):
        tensors, facts = read_tensors(Path(file))
        own = tensors if number else tensors_under(tensors, "flow")  # the first file has more than particles
        parts.append(Snapshot.of(own, facts))
    flow.restore(Snapshot.joined(parts, flow.ranks.share(parts[0].share.total, flow.device)))


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
        steps = self.interval.steps
        seconds = self.interval.seconds
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
        define_checkpoint_commands(flow)
        snapshot = flow.snapshot()
        at = snapshot.position
        try:
            tensors = {f"flow/{name}": tensor for name, tensor in snapshot.tensors().items()}
            for name, watcher in self.watchers.items():
                tensors |= {f"{name}/{key}": tensor for key, tensor in watcher.keep().items()}
            place = at.total, at.stage
            _, *parts = flow.ranks.command("save", flow, str(self.folder.path), stem(place))
            others = [self.folder.require(part) for part in parts]
            self.folder.write(place, tensors, {**self.facts(), **snapshot.facts()}, others)
            self.step = at.total
            self._place = (at.stage, at.step)
        except RunError as error:
            before = "" if self.step is None else f"; the one of step {self.step:,} stays"
            log.warning("no checkpoint at step %s: %s%s", f"{at.total:,}", error, before)
        self._last = time.monotonic()
        self._spent += self._last - began

    def recall(self, checkpoint: Checkpoint | None) -> None:
        """Take all observers back to a checkpoint; None is the beginning."""
        step = 0 if checkpoint is None else checkpoint.step
        for name, watcher in self.watchers.items():
            try:
                watcher.recall({} if checkpoint is None else checkpoint.part(name), step)
            except CswfError:
                raise
            except Exception as error:
                reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
                raise RunError(f"'{name}' cannot go back to step {step:,} ({reason})") from error
        self.step = None if checkpoint is None else step
        if checkpoint is not None and checkpoint.position is not None:
            self._place = checkpoint.position.stage, checkpoint.position.step
