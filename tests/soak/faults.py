"""Faults that befall a command: what each does before it, while it runs and after it."""

from __future__ import annotations

import os
import resource
import select
import shutil
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from signal import SIGHUP, SIGINT, SIGKILL, SIGTERM
from typing import TYPE_CHECKING

import attrs
import pytest

from cswf_core.runs.folder import RunFolder

if TYPE_CHECKING:
    from tests.soak.case import Case

DONE, FAILED, MISTAKE = 0, 1, 2
ENDS = {SIGHUP: 129, SIGINT: 130, SIGTERM: 143, SIGKILL: -9}
"""The status of a command that a signal has ended."""

TOLD = frozenset({DONE, FAILED, MISTAKE})
"""Ends of a command that cannot do what it should, and says why."""

STUB = b"not a folder any more"
"""Content of a file that lies where a folder was; a person removes it when told that it is in the way."""

START_S = 0.5
"""Seconds of a processor that a command may take until its handlers of signals are there."""

FAILURES = (OSError, subprocess.CalledProcessError)


class Running:
    """A command that is running."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.descriptor = os.pidfd_open(pid)
        """Names this very process: its number may be another's later."""
        self.unhandled: set[int] = set()
        """Signals that were sent before there was a handler, which end the process without a word."""

    def lasts(self, seconds: float) -> bool:
        """Wait, and say whether it runs still."""
        readable, _, _ = select.select([self.descriptor], [], [], seconds)
        return not readable

    def send(self, number: int) -> None:
        """Send a signal, and note whether it was too early for a handler."""
        with suppress(OSError, ValueError, IndexError):
            handled = int(self._status("SigCgt"), 16) >> (number - 1) & 1
            fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
            worked = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
            if not handled and worked < START_S:
                self.unhandled.add(number)
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.descriptor, number)

    @property
    def memory(self) -> int:
        """Bytes of its address space."""
        return int(self._status("VmSize").split()[0]) * 1024

    def _status(self, key: str) -> str:
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith(f"{key}:"))

    def children(self) -> list[int]:
        """Return the processes that it has started."""
        pids = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError, IndexError):
                if int(stat.read_text().rpartition(")")[2].split()[1]) == self.pid:
                    pids.append(int(stat.parent.name))
        return pids


@attrs.define
class Fault:
    """Nothing: the base of all faults."""

    name: str
    allowed: frozenset[int] = TOLD
    """Statuses that a command may end with."""
    destroys: bool = False
    """Whether what was written before may be gone, so that to begin anew is no loss."""
    ruined: set[str] = attrs.field(factory=set)
    """Files that this fault has changed, and that nothing could restore."""
    largest_file: int | None = None
    environment: dict[str, str] = attrs.field(factory=dict)

    def before(self, case: Case) -> None:
        """Prepare the fault; skip the test where the machine cannot have it."""

    def during(self, case: Case, running: Running) -> None:
        """Disturb the command, at a moment."""
        if running.lasts(case.moment()):
            self.strike(case, running)

    def strike(self, case: Case, running: Running) -> None:
        """Disturb the command now."""

    def after(self, case: Case, status: int) -> None:
        """Undo what a person would have to."""


@attrs.define
class Signals(Fault):
    """One or two signals at random moments."""

    numbers: tuple[int, ...] = ()
    whole_group: bool = False
    """Whether children get them too, as with Ctrl-C in a terminal."""

    def strike(self, case: Case, running: Running) -> None:
        for number in self.numbers:
            children = running.children() if self.whole_group else []
            running.send(number)
            for child in children:
                with suppress(ProcessLookupError):
                    os.kill(child, number)
            if not running.lasts(case.draw.uniform(0.0, 0.3)):
                return


@attrs.define
class LostRank(Fault):
    """One of several ranks is killed."""

    def strike(self, case: Case, running: Running) -> None:
        ranks = running.children()
        if ranks:
            with suppress(ProcessLookupError):
                os.kill(case.draw.choice(ranks), SIGKILL)


@attrs.define
class SmallFiles(Fault):
    """No file can be larger than some bytes, as on a disk that is nearly full."""

    def before(self, case: Case) -> None:
        self.largest_file = int(10 ** case.draw.uniform(2.5, 5.8))


@attrs.define
class SmallDisk(Fault):
    """The folder is a file system of its own that gets full; later it is enlarged."""

    def before(self, case: Case) -> None:
        used = sum(path.stat().st_size + 4096 for path in case.folder.rglob("*"))
        room = used + int(10 ** case.draw.uniform(3.6, 5.8))
        aside = case.folder.with_name("aside")
        case.folder.rename(aside)
        case.folder.mkdir()
        try:
            called("mount", "-t", "tmpfs", "-o", f"size={room}", "soak", case.folder)
        except FAILURES:
            pytest.skip("no disk gets full: this process may mount no file system")
        shutil.copytree(aside, case.folder, dirs_exist_ok=True)
        shutil.rmtree(aside)

    def after(self, case: Case, status: int) -> None:
        called("mount", "-o", "remount,size=256m", case.folder)


@attrs.define
class ReadOnly(Fault):
    """Nothing can be made in the folders any more."""

    folders: list[Path] = attrs.field(factory=list)

    def before(self, case: Case) -> None:
        self.folders = [case.base / "forbidden"]
        self.folders[0].mkdir()
        try:
            forbid(self.folders[0])
            (self.folders[0] / "file").touch()
        except PermissionError:
            return
        except FAILURES:
            pass
        finally:
            self.after(case, 0)
        pytest.skip("no folder becomes read-only: root may write anywhere, and chattr does not work")

    def strike(self, case: Case, running: Running) -> None:
        below = [path for path in case.target.rglob("*") if path.is_dir()] if case.target.is_dir() else []
        self.folders = [case.target if case.target.is_dir() else case.folder, *below]
        for folder in self.folders:
            with suppress(*FAILURES):
                forbid(folder)

    def after(self, case: Case, status: int) -> None:
        for folder in self.folders:
            with suppress(*FAILURES):
                forbid(folder, again=True)


@attrs.define
class Vanishing(Fault):
    """The folder of the results is gone; it may come back, as that of another machine does."""

    comes_back: bool = False

    def strike(self, case: Case, running: Running) -> None:
        with suppress(OSError):
            case.target.rename(case.folder / "vanished")

    def after(self, case: Case, status: int) -> None:
        vanished = case.folder / "vanished"
        if not vanished.exists():
            return
        if not self.comes_back and case.target.name != "source":
            remove(vanished)
            return
        remove(case.target)
        vanished.rename(case.target)


@attrs.define
class Damage(Fault):
    """The command is killed; then a file of its results is removed, cut, or put in place of a folder."""

    def strike(self, case: Case, running: Running) -> None:
        running.send(SIGKILL)

    def after(self, case: Case, status: int) -> None:
        if status != -SIGKILL or not case.target.is_dir() or case.target.name == "source":
            return
        paths = [path for path in sorted(case.target.rglob("*")) if not _is_settled(path, case.target)]
        if not paths:
            return
        path = case.draw.choice(paths)
        self.ruined.add(str(path.relative_to(case.target)))
        if path.is_dir():
            shutil.rmtree(path)
            if case.draw.random() < 0.5:
                path.write_bytes(STUB)
        elif case.draw.random() < 0.5:
            path.unlink()
        else:
            os.truncate(path, case.draw.randrange(path.stat().st_size + 1))


def _is_settled(path: Path, target: Path) -> bool:
    """Say whether a file is one of a run that is done, which nobody looks after any more, or unfinished."""
    above = [folder for folder in path.parents if folder.is_relative_to(target)]
    unfinished = any(part.endswith(".part") for part in path.parts)
    return unfinished or any(RunFolder(folder).done for folder in (path, *above))


@attrs.define
class Rival(Fault):
    """Another process does the same in the same folder."""

    def strike(self, case: Case, running: Running) -> None:
        case.rival()


@attrs.define
class LittleMemory(Fault):
    """From a moment on, the process gets no more memory than a little."""

    def strike(self, case: Case, running: Running) -> None:
        with suppress(OSError, ValueError, StopIteration):
            room = running.memory + int(case.draw.uniform(0, 3e7))
            resource.prlimit(running.pid, resource.RLIMIT_AS, (room, room))


@attrs.define
class FaultyPlugin(Fault):
    """A plugin fails at one of its calls."""

    kind: str = "raise"

    def before(self, case: Case) -> None:
        part = case.draw.choice(("projection", "cdf", "metric", "observer"))
        number = 1 if part == "metric" else case.draw.randint(1, 40)
        self.environment = {"SOAK_FAULT": f"{part}:{self.kind}:{number}"}

    def during(self, case: Case, running: Running) -> None:
        """Where it hangs, lose patience: a first signal waits for the step to end, a second does not."""
        if self.kind == "hang" and running.lasts(case.seconds * 1.5 + 1.0):
            first, second = case.draw.choice([(SIGINT, SIGINT), (SIGTERM, SIGTERM), (SIGTERM, SIGINT)])
            running.send(first)
            if running.lasts(0.5):
                running.send(second)


def called(*arguments: str | Path) -> None:
    """Call a program; raise if it is missing or fails."""
    subprocess.run(arguments, check=True, capture_output=True)


def remove(path: Path) -> None:
    """Remove a file or folder, if it is there."""
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def forbid(folder: Path, again: bool = False) -> None:
    """Let nothing be made in a folder, or allow it `again`; permissions do not bind root, an attribute does."""
    if os.geteuid() == 0:
        called("chattr", "-i" if again else "+i", folder)
    else:
        folder.chmod(0o755 if again else 0o555)


def signalled(*numbers: int, whole_group: bool = False) -> Callable[[], Fault]:
    """Return what makes the fault of one or two signals."""
    ends = frozenset({DONE, *(ENDS[signal.Signals(number)] for number in numbers)})
    words = ", then ".join(signal.Signals(number).name for number in numbers)
    name = words + (" to all" if whole_group else "")
    return partial(Signals, name, ends, numbers=numbers, whole_group=whole_group)


PLUGIN_FAULTS = ("raise", "exit", "hang", "nan", "shape", "memory", "device memory")

FAULTS: tuple[Callable[[], Fault], ...] = (
    *(signalled(number) for number in (SIGKILL, SIGTERM, SIGINT, SIGHUP)),
    signalled(SIGINT, SIGINT),
    signalled(SIGTERM, SIGTERM),
    signalled(SIGTERM, SIGKILL),
    signalled(SIGHUP, SIGTERM),
    partial(SmallFiles, "files limited"),
    partial(SmallDisk, "disk full"),
    partial(ReadOnly, "read-only"),
    partial(Vanishing, "folder vanishes", destroys=True),
    partial(Vanishing, "folder comes back", destroys=True, comes_back=True),
    partial(Damage, "file damaged", frozenset({DONE, -SIGKILL}), destroys=True),
    partial(Rival, "two processes"),
    partial(LittleMemory, "memory limited"),
    *(
        partial(FaultyPlugin, f"plugin: {kind}", TOLD | ({130, 143} if kind == "hang" else set()), kind=kind)
        for kind in PLUGIN_FAULTS
    ),
)
"""All faults, each as what makes one anew; those of several ranks are `OF_RANKS`."""

OF_RANKS: tuple[Callable[[], Fault], ...] = (
    *(signalled(number) for number in (SIGKILL, SIGTERM, SIGHUP)),
    signalled(SIGINT, whole_group=True),
    partial(LostRank, "rank killed"),
)
