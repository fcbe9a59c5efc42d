"""A case of the soak: a work, the faults that befall it, and how a person brings it to its end all the same."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

import attrs

from cswf_core.runs.folder import RunFolder
from tests.apart import Apart
from tests.soak import faults, results
from tests.soak.faults import FAULTS, OF_RANKS, Fault, FaultyPlugin, Running, Signals
from tests.soak.ledger import Finding, Ledger
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
    def of(cls, seed: int, number: int, works: Sequence[Work] = tuple(WORKS.values())) -> Plan:
        """Return the plan: the kinds of faults in turn, the rest drawn."""
        name = f"{seed}:{number}"
        draw = random.Random(name)
        at, place = divmod(number, ROUND)
        shared = place == len(FAULTS) and any(work.ranks > 1 for work in works)
        kinds = OF_RANKS if shared else FAULTS
        first = kinds[at % len(kinds)]() if shared else kinds[place % len(FAULTS)]()
        fitting = [
            work
            for work in works
            if (work.ranks > 1) == shared and (work.plugins or not isinstance(first, FaultyPlugin))
        ]
        work = draw.choice(fitting)
        others = [make() for make in draw.choices(FAULTS, k=draw.choice((0, 0, 1, 2)))]
        later = [f for f in others if isinstance(f, Signals) or (isinstance(f, FaultyPlugin) and work.plugins)]
        return cls(name, work, (first, *(later if not shared else ())), draw)


class Case:
    """A plan that is carried out in a folder of its own."""

    def __init__(self, plan: Plan, base: Path, whole: Whole, apart: Apart, ledger: Ledger) -> None:
        self.plan, self.work, self.draw = plan, plan.work, plan.draw
        self.whole, self.apart, self.ledger = whole, apart, ledger
        self.base = base / f"case-{plan.name.replace(':', '-')}"
        self.folder = self.base / "place"
        self.seconds = whole.seconds
        self.lines: list[str] = []
        """The commands so far, as a person would type them, and how each ended."""
        self._rivals: list[tuple[Arguments, Running, object]] = []
        self._stack = ExitStack()
        self._ruined: set[str] = set()
        self._destroyed = False
        self._warned = self._unsaved = False
        """Whether a command has said that bits may differ, as where memory was short."""

    @property
    def target(self) -> Path:
        """The file or folder of the results."""
        return self.work.target(self.folder)

    def carry_out(self) -> None:
        """Disturb the work, bring it to its end, and compare."""
        self.folder.mkdir(parents=True)
        if self.whole.source is not None:
            shutil.copytree(self.whole.source, self.folder / "source")
        done = False
        for number, fault in enumerate(self.plan.faults):
            arguments = self.work.begin(self.folder) if number == 0 else self.work.again(self.folder)
            done = self._disturbed(arguments, fault)
            if done:
                break
        if not done or self._destroyed:
            self._finish()
        self._compare()

    def clean(self, *, keep: bool = False) -> None:
        """Take away what was mounted in the case's folder, and remove that unless it is kept."""
        if self.folder.is_mount():
            if keep:
                shutil.copytree(self.folder, self.base / "copy")
            faults.unmount(self.folder)
        if not keep and self.base.exists():
            shutil.rmtree(self.base)

    def _disturbed(self, arguments: Arguments, fault: Fault) -> bool:
        """Call a command under a fault; return whether it came to its end all the same."""
        self.ledger.befell(fault.name)
        fault.before(self)
        stale, half = self._says_running(), self._is_half_made()
        ended = self._call(arguments, fault)
        before = set(results.unusable_checkpoints(self.folder)) if self.folder.exists() else set()
        for sentence in before if not (self._destroyed or fault.destroys) else ():
            self._note("loss", sentence)
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
        killed = -signal.SIGKILL in fault.allowed
        if not killed and not self._destroyed and fault.name != "read-only" and not self._rivals:
            for name in results.unfinished(self.folder):
                self._note("leftover", f"{name} after status {ended.status}")
        if not (isinstance(fault, Signals) and not killed):
            return
        if self._says_running() and not stale and ended.status != 0 and len(fault.numbers) == 1:
            self._note("leftover", f"run.json says running after {fault.name}, status {ended.status}")
        if self._is_half_made() and not half:
            names = sorted(path.name for path in self.target.iterdir())
            self._note("leftover", f"a half-made folder with {names} after {fault.name}, status {ended.status}")

    def _finish(self) -> None:
        """Bring the work to its end as a person would: go on; if that is refused, begin anew."""
        refused = False
        for _ in range(ATTEMPTS):
            goes_on = self.work.goes_on(self.folder) and not refused
            ended = self._call(self.work.anew(self.folder) if refused else self.work.again(self.folder))
            if ended.status == 0:
                return
            if goes_on and not self._destroyed:
                self._note("loss", f"it does not go on: {_last(ended.err)}")
            refused = True
            for stub in [path for path in self.folder.rglob("*") if faults.is_stub(path)]:
                stub.unlink()
        self._note("loss", f"it cannot be brought to its end: {_last(ended.err)}")

    def _compare(self) -> None:
        """Compare what the work has left with what it leaves undisturbed."""
        try:
            here = results.of(self.target)
        except (OSError, ValueError, KeyError) as error:
            self._note("loss", f"the results cannot be read: {error}")
            return
        whole = self.whole.files
        if self._unsaved:  # the last checkpoint may be an earlier one; none are in a folder that was ruined
            whole, here = (
                {n: d for n, d in each.items() if "checkpoints/step-" not in n and not self._is_ruined(n)}
                for each in (whole, here)
            )
        ignored = set(whole) if self._warned else self._ruined
        for sentence in results.differences(whole, here, ignored):
            self._note("loss", f"{self.target.name}: {sentence}")
        more = [name for name in here if name not in whole]
        if more:
            self._note("leftover", f"{', '.join(more)}: there in the end")
        for sentence in results.unusable_checkpoints(self.folder):
            self._note("loss", sentence)
        for name in results.unfinished(self.folder):
            self._note("leftover", f"{name} in the end")

    def _is_ruined(self, name: str) -> bool:
        """Say whether a file, or a folder that it is in, was damaged."""
        return any(str(path) in self._ruined for path in (Path(name), *Path(name).parents))

    def _call(self, arguments: Arguments, fault: Fault | None = None) -> Ended:
        """Call a command, under a fault or under none, and note what must not be."""
        limit = LIMIT_S[self.work.ranks]
        environment = {"SOAK_CASE": self.plan.name, **({} if fault is None else fault.environment)}
        largest = None if fault is None else fault.largest_file
        with ExitStack() as stack:
            self._stack = stack
            self._arguments, self._rivals = arguments, []
            running, wait = self._start(stack, arguments, limit, environment, largest)
            if fault is not None:
                fault.during(self, running)
            ended = wait()
            others = [other() for other in self._rivals]  # type: ignore[operator]
            self._await_end_of_processes(running)
        allowed = frozenset({0}) if fault is None else fault.allowed
        for each in (ended, *others):
            self._judge(each, allowed, fault)
        return ended

    def _start(self, stack, arguments, limit, environment, largest):
        """Start a command; return it, and what waits for its end."""
        files = [self.base / f"{name}-{len(self.lines)}" for name in ("out", "err")]
        self.lines.append("cswf " + subprocess.list2cmdline(arguments))
        handles = [stack.enter_context(file.open("w")) for file in files]
        child = stack.enter_context(
            self.apart(
                *arguments,
                timeout=limit,
                environment=environment,
                largest_file=largest,
                stdout=handles[0].fileno(),
                stderr=handles[1].fileno(),
            )
        )
        running, began, line = Running(child.pid), time.monotonic(), len(self.lines) - 1
        stack.callback(running.close)

        def wait() -> Ended:
            status = child.wait()
            self.ledger.ended(arguments[0], status)
            self.lines[line] += f"  # {status}"
            hung = time.monotonic() - began >= limit
            return Ended(
                arguments, status, files[1].read_text(errors="replace"), hung, -status in running.unhandled
            )

        return running, wait

    def rival(self) -> None:
        """Call a command in the folder of the one that is running, at the same time."""
        ways = (self.work.begin, self.work.again, self.work.anew)
        arguments = self.draw.choice(ways)(self.folder)
        _, wait = self._start(
            self._stack, arguments, LIMIT_S[self.work.ranks], {"SOAK_CASE": self.plan.name}, None
        )
        self._rivals.append(wait)

    def _judge(self, ended: Ended, allowed: frozenset[int], fault: Fault | None) -> None:
        """Note a traceback, a hang, or an exit status that must not be."""
        name = "no fault" if fault is None else fault.name
        self._warned = self._warned or MAY_DIFFER in ended.err
        self._unsaved = self._unsaved or NO_CHECKPOINT in ended.err
        if ended.hung:
            self._note("hang", f"{ended.arguments[0]} takes over {LIMIT_S[self.work.ranks]:g} s after {name}")
            return
        ours = ended.err.count("Traceback") > ended.err.count(PYTHON_BEGINS)
        if ours or "unexpected" in ended.err:
            self._note("traceback", f"{ended.arguments[0]} after {name}: {_last(ended.err)}")
        if "lost: " in ended.err and not self._destroyed:
            self._note("loss", f"{ended.arguments[0]} after {name}: {_line(ended.err, 'lost: ')}")
        told = ended.status in (1, 2)
        if ended.unhandled:
            self.ledger.unhandled += 1
        elif ended.status not in allowed and not (told and (fault is None or self._destroyed)):
            self._note(
                "status", f"{ended.arguments[0]} ends with {ended.status} after {name}: {_last(ended.err)}"
            )
        elif told and not ended.err.strip():
            self._note("status", f"{ended.arguments[0]} ends with {ended.status} after {name} and says nothing")

    def _await_end_of_processes(self, running: Running) -> None:
        """Note processes that are there after the command has ended, and its grace."""
        deadline = time.monotonic() + ALIVE_S[self.work.ranks]
        while _group_lives(running.pid) or (self.work.ranks > 1 and _marked(self.plan.name)):
            if time.monotonic() > deadline:
                self._note("leftover", f"processes are alive after {self.lines[-1]}")
                for pid in _marked(self.plan.name):
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                return
            time.sleep(0.05)

    def _note(self, kind: str, sentence: str) -> None:
        finding = Finding(kind, self.plan.name, f"{self.work.name}: {sentence.replace(str(self.base), '…')}")
        self.ledger.note(finding)


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


def _line(text: str, word: str) -> str:
    """Return the first line that has a word in it."""
    return next(line for line in text.splitlines() if word in line)


def undisturbed(work: Work, base: Path, apart: Apart, source: Path | None) -> Whole:
    """Do a work without any fault, and return what it leaves."""
    folder = base / "whole" / work.name.replace(" ", "-")
    folder.mkdir(parents=True)
    if source is not None:
        shutil.copytree(source, folder / "source")
    began = time.monotonic()
    ended = apart.completed(*work.begin(folder), timeout=LIMIT_S[work.ranks])
    seconds = time.monotonic() - began
    if ended.returncode != 0:
        raise RuntimeError(f"{work.name} fails undisturbed: {ended.stderr}")
    return Whole(folder, results.of(work.target(folder)), seconds, source)
