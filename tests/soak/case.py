"""A case of the soak: a work, the faults that befall it, and how a person brings it to its end all the same."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

import attrs

from cswf_core.runs.folder import RunFolder
from tests.apart import Apart
from tests.soak import results
from tests.soak.faults import DONE, FAULTS, OF_RANKS, STUB, Fault, FaultyPlugin, Running, Signals, called
from tests.soak.works import WORKS, Arguments, Work

LIMIT_S = {1: 60.0, 2: 180.0}
"""Seconds that a command of so many ranks may take: many times what it takes on a machine with other work."""

ALIVE_S = {1: 5.0, 2: 45.0}
"""Seconds after which no process of a command that has ended is there."""

MAY_DIFFER = "results may differ in the last digits"
"""What a command says that has gone on with less memory, and sums in another order."""

NO_CHECKPOINT = "no checkpoint at step"
"""What a command says that has done its work without saving all of it: the disk was full."""

PYTHON_BEGINS = "Fatal Python error: init_import_site"
"""What Python itself says of a signal that comes while it begins, before any program can handle it."""

INCOMPLETE = "could not be written"
"""What a command says that has done its work, but for a page that a further call writes."""

ATTEMPTS = 5
"""Commands that a person calls to bring a work to its end, at most."""

ROUND = len(FAULTS) + 1
"""Cases in which each kind of fault comes once, and one of those of several ranks."""

Record = Callable[[str, str], None]


@attrs.frozen
class Whole:
    """What an undisturbed work leaves, and how long that takes."""

    folder: Path
    files: Mapping[str, str]
    seconds: float
    source: Path | None = None
    """The results of another work that this one begins with."""


@attrs.frozen
class Ended:
    """A command that has ended."""

    arguments: Arguments
    status: int
    err: str
    hung: bool = False
    unhandled: bool = False


@attrs.frozen
class Plan:
    """What a case does, as its seed and number say."""

    name: str
    work: Work
    faults: tuple[Fault, ...]
    draw: random.Random

    @classmethod
    def of(cls, name: str, works: Sequence[Work] = tuple(WORKS.values())) -> Plan:
        """Return the plan of `seed:number`: the kinds of faults in turn, the rest drawn."""
        draw = random.Random(name)
        at, place = divmod(int(name.partition(":")[2]), ROUND)
        shared = place == len(FAULTS) and any(work.ranks > 1 for work in works)
        first = OF_RANKS[at % len(OF_RANKS)]() if shared else FAULTS[place % len(FAULTS)]()
        fitting = [work for work in works if (work.ranks > 1) == shared]
        if isinstance(first, FaultyPlugin):
            fitting = [work for work in fitting if work.plugins]
        work = draw.choice(fitting)
        others = [make() for make in draw.choices(FAULTS, k=0 if shared else draw.choice((0, 0, 1, 2)))]
        later = [f for f in others if isinstance(f, Signals) or (isinstance(f, FaultyPlugin) and work.plugins)]
        return cls(name, work, (first, *later), draw)


class Case:
    """A plan that is carried out in a folder of its own."""

    def __init__(self, plan: Plan, base: Path, whole: Whole, apart: Apart, record: Record) -> None:
        self.plan, self.work, self.draw = plan, plan.work, plan.draw
        self.whole, self.apart, self.record = whole, apart, record
        self.base = base
        self.folder = base / "place"
        self.target = self.work.target(self.folder)
        self.seconds = whole.seconds
        self.lines: list[str] = []
        """The commands so far, as a person would type them, and how each ended."""
        self.findings: list[str] = []
        """What must not be, a sentence for each: loss, traceback, status, hang or leftover."""
        self._rivals: list[Callable[[], Ended]] = []
        self._stack = ExitStack()
        self._ruined: set[str] = set()
        self._destroyed = False
        self._warned = self._unsaved = False
        """Whether a command has said that bits may differ, as where memory was short."""

    def carry_out(self) -> None:
        """Disturb the work, bring it to its end, and compare."""
        self.folder.mkdir(parents=True)
        if self.whole.source is not None:
            shutil.copytree(self.whole.source, self.folder / "source")
        try:
            begun = self.work.begin(self.folder)
            done = any(
                self._disturbed(self.work.again(self.folder) if number else begun, fault)
                for number, fault in enumerate(self.plan.faults)
            )
            if not done or self._destroyed:
                self._finish()
            self._compare()
        finally:
            if self.folder.is_mount():  # as soon as nothing uses it
                called("umount", "--lazy", self.folder)

    def moment(self) -> float:
        """Return a moment within the work: mostly anywhere, at times right at its beginning or near its end."""
        kind = self.draw.random()
        if kind < 0.15:
            return self.draw.uniform(0.0, 0.1)
        return self.draw.uniform(0.0 if kind < 0.85 else 0.7, 1.05) * self.seconds

    def note(self, kind: str, sentence: str) -> None:
        """Note what must not be."""
        self.findings.append(f"{kind}: {self.work.name}: {sentence}")

    def _disturbed(self, arguments: Arguments, fault: Fault) -> bool:
        """Call a command under a fault; return whether it came to its end all the same."""
        fault.before(self)
        self.record("fault", fault.name)
        stale, half = self._says_running(), self._is_half_made()
        ended = self._call(arguments, fault)
        before = results.unusable_checkpoints(self.folder) if self.folder.exists() else []
        for sentence in set(before) if not (self._destroyed or fault.destroys) else ():
            self.note("loss", sentence)
        fault.after(self, ended.status)
        self._destroyed = self._destroyed or fault.destroys
        self._ruined |= fault.ruined
        self._inspect(ended, fault, stale=stale, half=half)
        return ended.status == 0 and INCOMPLETE not in ended.err

    def _says_running(self) -> bool:
        """Say whether the record of the work's run says that it is running."""
        record = RunFolder(self.target).read_json("run.json") if self.target.is_dir() else None
        return isinstance(record, dict) and record.get("status") == "running"

    def _is_half_made(self) -> bool:
        """Say whether there is a folder for a run, and no run that can go on."""
        makes = self.work.command in ("run", "update")
        return makes and self.target.is_dir() and not self.work.goes_on(self.folder)

    def _inspect(self, ended: Ended, fault: Fault, *, stale: bool, half: bool) -> None:
        """Look at what a disturbed command has left.

        An earlier one may have been killed while it ran (`stale`), or have left a folder that is `half` made.
        """
        after = f"after {fault.name}, status {ended.status}"
        killed = -signal.SIGKILL in fault.allowed
        if not (killed or self._destroyed or fault.name == "read-only" or self._rivals):
            for name in results.unfinished(self.folder):
                self.note("leftover", f"{name} {after}")
        if killed or not isinstance(fault, Signals):
            return
        if self._says_running() and not stale and ended.status != 0 and len(fault.numbers) == 1:
            self.note("leftover", f"run.json says running {after}")
        if self._is_half_made() and not half:
            names = sorted(path.name for path in self.target.iterdir())
            self.note("leftover", f"a half-made folder with {names} {after}")

    def _finish(self) -> None:
        """Bring the work to its end as a person would: go on; if that is refused, begin anew."""
        refused = False
        for _ in range(ATTEMPTS):
            goes_on = self.work.goes_on(self.folder) and not refused
            ended = self._call(self.work.anew(self.folder) if refused else self.work.again(self.folder))
            if ended.status == 0:
                return
            if goes_on and not self._destroyed:
                self.note("loss", f"it does not go on: {_last(ended.err)}")
            refused = True
            for path in list(self.folder.rglob("*")):
                if path.is_file() and path.stat().st_size == len(STUB) and path.read_bytes() == STUB:
                    path.unlink()
        self.note("loss", f"it cannot be brought to its end: {_last(ended.err)}")

    def _compare(self) -> None:
        """Compare what the work has left with what it leaves undisturbed."""
        try:
            here = results.of(self.target)
        except (OSError, ValueError, KeyError) as error:
            self.note("loss", f"the results cannot be read: {error}")
            return
        whole = self.whole.files
        if self._unsaved:  # the last checkpoint may be an earlier one; none are in a folder that was ruined
            whole, here = (
                {n: d for n, d in each.items() if "checkpoints/step-" not in n and not self._is_ruined(n)}
                for each in (whole, here)
            )
        for sentence in results.differences(whole, here, set(whole) if self._warned else self._ruined):
            self.note("loss", f"{self.target.name}: {sentence}")
        for name in here:
            if name not in whole:
                self.note("leftover", f"{name}: there in the end")
        for sentence in results.unusable_checkpoints(self.folder):
            self.note("loss", sentence)
        for name in results.unfinished(self.folder):
            self.note("leftover", f"{name} in the end")

    def _is_ruined(self, name: str) -> bool:
        """Say whether a file, or a folder that it is in, was damaged."""
        return any(str(path) in self._ruined for path in (Path(name), *Path(name).parents))

    def _call(self, arguments: Arguments, fault: Fault | None = None) -> Ended:
        """Call a command, under a fault or under none, and note what must not be."""
        with ExitStack() as self._stack:
            self._rivals = []
            running, wait = self._start(arguments, fault or Fault("no fault"))
            if fault is not None:
                fault.during(self, running)
            ended = wait()
            others = [other() for other in self._rivals]
            self._await_end_of_processes(running)
        for each in (ended, *others):
            self._judge(each, fault)
        return ended

    def _start(self, arguments: Arguments, fault: Fault) -> tuple[Running, Callable[[], Ended]]:
        """Start a command; return it, and what waits for its end."""
        line = len(self.lines)
        limit = LIMIT_S[self.work.ranks]
        self.lines.append("cswf " + subprocess.list2cmdline(arguments))
        out, err = (self.base / f"{name}-{line}" for name in ("out", "err"))
        child = self._stack.enter_context(
            self.apart(
                *arguments,
                timeout=limit,
                environment={"SOAK_CASE": self.plan.name, "CSWF_TRACEBACK": "0", **fault.environment},
                largest_file=fault.largest_file,
                stdout=self._stack.enter_context(out.open("w")).fileno(),
                stderr=self._stack.enter_context(err.open("w")).fileno(),
            )
        )
        running, began = Running(child.pid), time.monotonic()
        self._stack.callback(os.close, running.descriptor)

        def wait() -> Ended:
            status = child.wait()
            self.record("command", arguments[0])
            self.record("status", str(status))
            self.lines[line] += f"  # {status}"
            hung = time.monotonic() - began >= limit
            return Ended(arguments, status, err.read_text(errors="replace"), hung, -status in running.unhandled)

        return running, wait

    def rival(self) -> None:
        """Call a command in the folder of the one that is running, at the same time."""
        ways = (self.work.begin, self.work.again, self.work.anew)
        _, wait = self._start(self.draw.choice(ways)(self.folder), Fault("rival"))
        self._rivals.append(wait)

    def _judge(self, ended: Ended, fault: Fault | None) -> None:
        """Note a traceback, a hang, or an exit status that must not be."""
        name = f"{ended.arguments[0]} after {'no fault' if fault is None else fault.name}"
        allowed = {DONE} if fault is None else fault.allowed
        self._warned = self._warned or MAY_DIFFER in ended.err
        self._unsaved = self._unsaved or NO_CHECKPOINT in ended.err
        if ended.hung:
            self.note("hang", f"{name} takes over {LIMIT_S[self.work.ranks]:g} s")
            return
        ours = ended.err.count("Traceback") > ended.err.count(PYTHON_BEGINS)
        if ours or "unexpected" in ended.err:
            self.note("traceback", f"{name}: {_last(ended.err)}")
        if "lost: " in ended.err and not self._destroyed:
            lost = next(line for line in ended.err.splitlines() if "lost: " in line)
            self.note("loss", f"{name}: {lost}")
        told = ended.status in (1, 2)
        if ended.unhandled:
            self.record("status", "before the handler")
        elif ended.status not in allowed and not (told and (fault is None or self._destroyed)):
            self.note("status", f"{name} ends with {ended.status}: {_last(ended.err)}")
        elif told and not ended.err.strip():
            self.note("status", f"{name} ends with {ended.status} and says nothing")

    def _await_end_of_processes(self, running: Running) -> None:
        """Note processes that are there after the command has ended, and its grace."""
        deadline = time.monotonic() + ALIVE_S[self.work.ranks]
        while _group_lives(running.pid) or (self.work.ranks > 1 and _marked(self.plan.name)):
            if time.monotonic() > deadline:
                self.note("leftover", f"processes are alive after {self.lines[-1]}")
                for pid in _marked(self.plan.name):
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                return
            time.sleep(0.05)


def _group_lives(pid: int) -> bool:
    try:
        os.killpg(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _marked(case: str) -> list[int]:
    """Return the processes that a command of a case has started."""
    pids = []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if f"SOAK_CASE={case}".encode() in environ.read_bytes().split(b"\0"):
                pids.append(int(environ.parent.name))
    return pids


def _last(text: str) -> str:
    """Return the last line of what a command has said."""
    return (text.strip().splitlines() or ["(nothing)"])[-1]


def undisturbed(work: Work, folder: Path, apart: Apart, source: Path | None) -> Whole:
    """Do a work without any fault, and return what it leaves."""
    folder.mkdir(parents=True)
    if source is not None:
        shutil.copytree(source, folder / "source")
    began = time.monotonic()
    ended = apart.completed(*work.begin(folder), timeout=LIMIT_S[work.ranks])
    seconds = time.monotonic() - began
    assert ended.returncode == 0, f"{work.name} fails undisturbed: {ended.stderr}"
    return Whole(folder, results.of(work.target(folder)), seconds, source)
