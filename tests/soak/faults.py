"""Faults that befall a command: what each does before it, while it runs and after it."""

from __future__ import annotations

import os
import random
import resource
import select
import shutil
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from signal import SIGHUP, SIGINT, SIGKILL, SIGTERM
from typing import Protocol

import attrs

from cswf_core.runs.folder import RunFolder

DONE, FAILED, MISTAKE = 0, 1, 2
ENDS = {SIGHUP: 129, SIGINT: 130, SIGTERM: 143, SIGKILL: -9}
"""The status of a command that a signal has ended."""

STUB = "not a folder any more"
"""Content of a file that lies where a folder was; a person removes it when told that it is in the way."""

START_S = 0.5
"""Seconds of a processor that a command may take until its handlers of signals are there."""


class Scene(Protocol):
    """What a fault knows of its case."""

    folder: Path
    """Where the work is done."""
    target: Path
    """The file or folder of its results."""
    seconds: float
    """How long the work takes undisturbed."""
    draw: random.Random

    def rival(self) -> None:
        """Call the command that is running once more, at the same time."""


class Running:
    """A command that is running."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._descriptor = os.pidfd_open(pid)
        """Names this very process: its number may be another's later."""
        self.unhandled: set[int] = set()
        """Signals that were sent before there was a handler, which end the process without a word."""

    def close(self) -> None:
        """Forget the process."""
        os.close(self._descriptor)

    def lasts(self, seconds: float) -> bool:
        """Wait, and say whether it runs still."""
        readable, _, _ = select.select([self._descriptor], [], [], seconds)
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
            signal.pidfd_send_signal(self._descriptor, number)

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
    allowed: frozenset[int] = frozenset({DONE})
    """Statuses that a command may end with."""
    destroys: bool = False
    """Whether what was written before may be gone, so that to begin anew is no loss."""
    ruined: set[str] = attrs.field(factory=set)
    """Files that this fault has changed, and that nothing could restore."""
    largest_file: int | None = None
    environment: dict[str, str] = attrs.field(factory=dict)

    def before(self, scene: Scene) -> None:
        """Prepare the fault."""

    def during(self, scene: Scene, running: Running) -> None:
        """Disturb the command."""

    def after(self, scene: Scene, status: int) -> None:
        """Undo what a person would have to."""


def moment(scene: Scene) -> float:
    """Return a moment within a work: mostly anywhere, at times right at its beginning or near its end."""
    kind = scene.draw.random()
    if kind < 0.15:
        return scene.draw.uniform(0.0, 0.1)
    return scene.draw.uniform(0.0 if kind < 0.85 else 0.7, 1.05) * scene.seconds


@attrs.define
class Signals(Fault):
    """One or two signals at random moments."""

    numbers: tuple[int, ...] = ()
    whole_group: bool = False
    """Whether children get them too, as with Ctrl-C in a terminal."""

    def during(self, scene: Scene, running: Running) -> None:
        """Send them."""
        for count, number in enumerate(self.numbers):
            if not running.lasts(moment(scene) if count == 0 else scene.draw.uniform(0.0, 0.3)):
                return
            children = running.children() if self.whole_group else []
            running.send(number)
            for child in children:
                with suppress(ProcessLookupError):
                    os.kill(child, number)


@attrs.define
class LostRank(Fault):
    """One of several ranks is killed."""

    def during(self, scene: Scene, running: Running) -> None:
        """Kill one of them."""
        if running.lasts(moment(scene)):
            ranks = running.children()
            if ranks:
                with suppress(ProcessLookupError):
                    os.kill(scene.draw.choice(ranks), SIGKILL)


@attrs.define
class SmallFiles(Fault):
    """No file can be larger than some bytes, as on a disk that is nearly full."""

    def before(self, scene: Scene) -> None:
        """Choose how many."""
        self.largest_file = int(10 ** scene.draw.uniform(2.5, 5.8))


@attrs.define
class SmallDisk(Fault):
    """The folder is a file system of its own that gets full; later it is enlarged."""

    def before(self, scene: Scene) -> None:
        """Make it; what is in the folder takes some of it."""
        used = sum(path.stat().st_size + 4096 for path in scene.folder.rglob("*"))
        room = used + int(10 ** scene.draw.uniform(3.6, 5.8))
        aside = scene.folder.with_name("aside")
        scene.folder.rename(aside)
        scene.folder.mkdir()
        mount("-t", "tmpfs", "-o", f"size={room}", "soak", str(scene.folder))
        for path in aside.iterdir():
            (shutil.copytree if path.is_dir() else shutil.copy2)(path, scene.folder / path.name)
        shutil.rmtree(aside)

    def after(self, scene: Scene, status: int) -> None:
        """Enlarge it."""
        mount("-o", "remount,size=256m", str(scene.folder))


@attrs.define
class ReadOnly(Fault):
    """Nothing can be made in the folders any more."""

    folders: list[Path] = attrs.field(factory=list)

    def during(self, scene: Scene, running: Running) -> None:
        """Forbid it."""
        if not running.lasts(moment(scene)):
            return
        below = [path for path in scene.target.rglob("*") if path.is_dir()] if scene.target.is_dir() else []
        self.folders = [scene.target if scene.target.is_dir() else scene.folder, *below]
        for folder in self.folders:
            with suppress(OSError, subprocess.CalledProcessError):
                forbid(folder)

    def after(self, scene: Scene, status: int) -> None:
        """Allow it again."""
        for folder in self.folders:
            with suppress(OSError, subprocess.CalledProcessError):
                allow(folder)


@attrs.define
class Vanishing(Fault):
    """The folder of the results is gone; it may come back, as that of another machine does."""

    comes_back: bool = False

    def during(self, scene: Scene, running: Running) -> None:
        """Take it away."""
        if running.lasts(moment(scene)) and scene.target.exists():
            with suppress(OSError):
                scene.target.rename(scene.folder / "vanished")

    def after(self, scene: Scene, status: int) -> None:
        """Bring it back, or not."""
        vanished = scene.folder / "vanished"
        if not vanished.exists():
            return
        if not self.comes_back and scene.target.name != "source":
            remove(vanished)
            return
        remove(scene.target)
        vanished.rename(scene.target)


@attrs.define
class Damage(Fault):
    """The command is killed; then a file of its results is removed, cut, or put in place of a folder."""

    def during(self, scene: Scene, running: Running) -> None:
        """Kill it."""
        if running.lasts(moment(scene)):
            running.send(SIGKILL)

    def after(self, scene: Scene, status: int) -> None:
        """Damage a file, unless the work is done."""
        if status != -SIGKILL or not scene.target.is_dir() or scene.target.name == "source":
            return
        paths = [path for path in sorted(scene.target.rglob("*")) if not _is_settled(path, scene.target)]
        if not paths:
            return
        path = scene.draw.choice(paths)
        self.ruined.add(str(path.relative_to(scene.target)))
        if path.is_dir():
            shutil.rmtree(path)
            if scene.draw.random() < 0.5:
                path.write_text(STUB)
        elif scene.draw.random() < 0.5:
            path.unlink()
        else:
            os.truncate(path, scene.draw.randrange(path.stat().st_size + 1))


def _is_settled(path: Path, target: Path) -> bool:
    """Say whether a file is one of a run that is done, which nobody looks after any more, or unfinished."""
    above = [folder for folder in path.parents if folder.is_relative_to(target)]
    return any(part.endswith(".part") for part in path.parts) or any(
        RunFolder(folder).done for folder in (path, *above)
    )


@attrs.define
class Rival(Fault):
    """Another process does the same in the same folder."""

    def during(self, scene: Scene, running: Running) -> None:
        """Start it."""
        if running.lasts(scene.draw.uniform(0.0, 0.8) * scene.seconds):
            scene.rival()


@attrs.define
class LittleMemory(Fault):
    """From a moment on, the process gets no more memory."""

    def during(self, scene: Scene, running: Running) -> None:
        """Limit its address space to little more than it has."""
        if running.lasts(moment(scene)):
            with suppress(OSError, ValueError, StopIteration):
                room = running.memory + int(scene.draw.uniform(0, 3e7))
                resource.prlimit(running.pid, resource.RLIMIT_AS, (room, room))


@attrs.define
class FaultyPlugin(Fault):
    """A plugin fails at one of its calls."""

    kind: str = "raise"

    def before(self, scene: Scene) -> None:
        """Order it."""
        part = scene.draw.choice(("projection", "cdf", "metric", "observer"))
        number = 1 if part == "metric" else scene.draw.randint(1, 40)
        self.environment = {"SOAK_FAULT": f"{part}:{self.kind}:{number}"}

    def during(self, scene: Scene, running: Running) -> None:
        """Where it hangs, lose patience: a first signal waits for the step to end, a second does not."""
        if self.kind == "hang" and running.lasts(scene.seconds * 1.5 + 1.0):
            first, second = scene.draw.choice([(SIGINT, SIGINT), (SIGTERM, SIGTERM), (SIGTERM, SIGINT)])
            running.send(first)
            if running.lasts(0.5):
                running.send(second)


def mount(*arguments: str) -> None:
    """Call `mount`; raise if that is not possible."""
    subprocess.run(["mount", *arguments], check=True, capture_output=True)


def remove(path: Path) -> None:
    """Remove a file or folder, if it is there."""
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def is_stub(path: Path) -> bool:
    """Say whether a file lies where a folder was."""
    return path.is_file() and path.stat().st_size == len(STUB) and path.read_bytes() == STUB.encode()


def forbid(folder: Path) -> None:
    """Let nothing be made in a folder; for root, whom permissions do not bind, by an attribute of it."""
    if os.geteuid() == 0:
        subprocess.run(["chattr", "+i", str(folder)], check=True, capture_output=True)
    else:
        folder.chmod(0o555)


def allow(folder: Path) -> None:
    """Let files be made in a folder again."""
    if os.geteuid() == 0:
        subprocess.run(["chattr", "-i", str(folder)], check=True, capture_output=True)
    else:
        folder.chmod(0o755)


def can_mount(folder: Path) -> bool:
    """Say whether this process may mount a file system."""
    place = folder / "mounted"
    place.mkdir()
    try:
        mount("-t", "tmpfs", "-o", "size=64k", "soak", str(place))
        unmount(place)
    except (OSError, subprocess.CalledProcessError):
        return False
    finally:
        place.rmdir()
    return True


def unmount(place: Path) -> None:
    """Take a file system away again, as soon as nothing uses it."""
    subprocess.run(["umount", "--lazy", str(place)], check=True, capture_output=True)


def can_forbid(folder: Path) -> bool:
    """Say whether a folder can be made one where nothing is made."""
    place = folder / "forbidden"
    place.mkdir()
    try:
        forbid(place)
        (place / "file").touch()
    except PermissionError:
        return True
    except (OSError, subprocess.CalledProcessError):
        return False
    finally:
        with suppress(OSError, subprocess.CalledProcessError):
            allow(place)
        shutil.rmtree(place)
    return False


def signalled(*numbers: int, whole_group: bool = False) -> Callable[[], Fault]:
    """Return what makes the fault of one or two signals."""
    ends = frozenset({DONE, *(ENDS[signal.Signals(number)] for number in numbers)})
    words = ", then ".join(signal.Signals(number).name for number in numbers)
    name = words + (" to all" if whole_group else "")
    return lambda: Signals(name, ends, numbers=numbers, whole_group=whole_group)


def plugin(kind: str) -> Callable[[], Fault]:
    """Return what makes the fault of a plugin."""
    ends = {DONE, FAILED, MISTAKE} | ({130, 143} if kind == "hang" else set())
    return lambda: FaultyPlugin(f"plugin: {kind}", frozenset(ends), kind=kind)


TOLD = frozenset({DONE, FAILED, MISTAKE})
"""Ends of a command that cannot do what it should, and says why."""

FAULTS: tuple[Callable[[], Fault], ...] = (
    signalled(SIGKILL),
    signalled(SIGTERM),
    signalled(SIGINT),
    signalled(SIGHUP),
    signalled(SIGINT, SIGINT),
    signalled(SIGTERM, SIGTERM),
    signalled(SIGTERM, SIGKILL),
    signalled(SIGHUP, SIGTERM),
    lambda: SmallFiles("files limited", TOLD),
    lambda: SmallDisk("disk full", TOLD),
    lambda: ReadOnly("read-only", TOLD),
    lambda: Vanishing("folder vanishes", TOLD, destroys=True),
    lambda: Vanishing("folder comes back", TOLD, destroys=True, comes_back=True),
    lambda: Damage("file damaged", frozenset({DONE, -SIGKILL}), destroys=True),
    lambda: Rival("two processes", TOLD),
    lambda: LittleMemory("memory limited", TOLD),
    plugin("raise"),
    plugin("exit"),
    plugin("hang"),
    plugin("nan"),
    plugin("shape"),
    plugin("memory"),
    plugin("device memory"),
)
"""All faults, each as what makes one anew; those of several ranks are `OF_RANKS`."""

OF_RANKS: tuple[Callable[[], Fault], ...] = (
    signalled(SIGKILL),
    signalled(SIGTERM),
    signalled(SIGINT, whole_group=True),
    signalled(SIGHUP),
    lambda: LostRank("rank killed", TOLD),
)
"""Faults of works that several ranks do."""
