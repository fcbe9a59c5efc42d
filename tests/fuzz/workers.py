"""Workers that fuzz: forked processes, each handed some inputs at a time; one that dies names its input."""

from __future__ import annotations

import gc
import mmap
import multiprocessing
import os
import signal
import struct
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path

import attrs

from tests.fuzz import oracle
from tests.fuzz.target import Target

PATIENCE_S = 90.0
"""Seconds on a clock after which a worker that has not come further is killed: it waits for something."""

NONE = -1
"""In a worker's slot: no input is being read."""


@attrs.define
class Failures:
    """Failures of one group."""

    group: str
    count: int
    first: int
    """The first input's number."""
    detail: str


@attrs.define
class Tally:
    """What a target's inputs were answered with."""

    inputs: int = 0
    accepted: int = 0
    refused: int = 0
    failed: int = 0
    seconds: float = 0.0
    """Of work, of all inputs."""
    slowest: float = 0.0
    slowest_input: int = 0
    growth: int = 0
    """Bytes by which a worker has grown while it read some of the inputs, at most."""
    groups: dict[str, Failures] = attrs.field(factory=dict)

    def add(self, number: int, verdict: oracle.Verdict) -> None:
        """Count an answer."""
        self.inputs += 1
        self.seconds += verdict.seconds
        self.accepted += verdict.kind == "accepted"
        self.refused += verdict.kind == "refused"
        if verdict.seconds > self.slowest:
            self.slowest, self.slowest_input = verdict.seconds, number
        if verdict.kind == "failure":
            self.failed += 1
            known = self.groups.setdefault(verdict.group, Failures(verdict.group, 0, number, verdict.detail))
            known.count += 1

    def join(self, other: Tally) -> None:
        """Add the counts of other inputs."""
        for name in ("inputs", "accepted", "refused", "failed", "seconds"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        if other.slowest > self.slowest:
            self.slowest, self.slowest_input = other.slowest, other.slowest_input
        self.growth = max(self.growth, other.growth)
        for group, failures in other.groups.items():
            mine = self.groups.setdefault(group, attrs.evolve(failures, count=0))
            mine.count += failures.count
            if failures.first < mine.first:
                mine.first, mine.detail = failures.first, failures.detail


@attrs.frozen
class Chunk:
    """Some inputs of a target: from number `first` up to `stop`."""

    target: str
    first: int
    stop: int


@attrs.define(eq=False)
class _Worker:
    process: multiprocessing.process.BaseProcess
    connection: Connection
    slot: mmap.mmap
    chunk: Chunk | None = None
    number: int = NONE
    since: float = 0.0

    def stuck(self) -> bool:
        """Say whether the worker reads one input for too long on the clock."""
        (number,) = struct.unpack("<q", self.slot[:8])
        if number != self.number:
            self.number, self.since = number, time.monotonic()
        return number != NONE and time.monotonic() - self.since > PATIENCE_S


def fuzz(
    targets: dict[str, Target],
    chunks: Sequence[Chunk],
    seed: int,
    *,
    processes: int,
    folder: Path,
    tell: Callable[[dict[str, Tally]], None] | None = None,
    deadline: float | None = None,
) -> dict[str, Tally]:
    """Have inputs read by forked workers; return what they were answered with, by target.

    `tell` hears of progress about once a second. After `deadline`, on the monotonic clock, no more are begun.
    """
    tallies = {name: Tally() for name in targets}
    waiting = deque(chunks)
    gc.collect()
    gc.freeze()  # a child that collects would copy all of it
    context = multiprocessing.get_context("fork")
    workers = [
        _started(context, targets, seed, folder / f"worker-{i}") for i in range(min(processes, len(chunks)))
    ]
    try:
        told = time.monotonic()
        while workers:
            for worker in list(workers):
                if worker.chunk is None and not _assign(worker, waiting, deadline):
                    workers.remove(worker)
                    _end(worker)
            ready = wait([w.connection for w in workers] + [w.process.sentinel for w in workers], timeout=0.5)
            for index, worker in enumerate(list(workers)):
                heard = worker.connection in ready or worker.process.sentinel in ready or worker.stuck()
                if heard and not _collect(worker, tallies, waiting):
                    place = folder / f"worker-{index}-{time.time_ns()}"
                    workers[index] = _started(context, targets, seed, place)
            if tell is not None and time.monotonic() - told > 1:
                told = time.monotonic()
                tell(tallies)
    finally:
        for worker in workers:
            worker.process.kill()
            worker.process.join()
        gc.unfreeze()
    return tallies


def _started(
    context: multiprocessing.context.ForkContext, targets: dict[str, Target], seed: int, folder: Path
) -> _Worker:
    ours, theirs = context.Pipe()
    slot = mmap.mmap(-1, 8)
    slot[:8] = struct.pack("<q", NONE)
    process = context.Process(target=_work, args=(theirs, slot, targets, seed, folder), daemon=True)
    process.start()
    theirs.close()
    return _Worker(process, ours, slot)


def _assign(worker: _Worker, waiting: deque[Chunk], deadline: float | None) -> bool:
    """Hand a worker its next inputs; say whether there were any."""
    if not waiting or (deadline is not None and time.monotonic() > deadline):
        return False
    worker.chunk = waiting.popleft()
    with suppress(OSError):  # it has died, which is seen soon
        worker.connection.send(worker.chunk)
    return True


def _end(worker: _Worker) -> None:
    with suppress(OSError):
        worker.connection.send(None)
    worker.process.join(5)
    worker.process.kill()


def _collect(worker: _Worker, tallies: dict[str, Tally], waiting: deque[Chunk]) -> bool:
    """Add a worker's counts, and say whether it lives; if not, its input has failed, and the others wait."""
    chunk = worker.chunk
    assert chunk is not None
    try:
        if worker.connection.poll():
            tallies[chunk.target].join(worker.connection.recv())
            worker.chunk = None
            return True
    except (EOFError, OSError):
        pass
    stuck = worker.stuck()
    (number,) = struct.unpack("<q", worker.slot[:8])
    worker.process.kill()
    worker.process.join()
    how = (
        f"not answered in {PATIENCE_S:g} s on the clock"
        if stuck
        else f"the process died ({worker.process.exitcode})"
    )
    if number == NONE:  # between two inputs: nobody is to blame, but somebody must hear of it
        number = chunk.first
    tallies[chunk.target].add(number, oracle.Verdict("failure", how, how))
    for first, stop in ((chunk.first, number), (number + 1, chunk.stop)):
        if first < stop:
            waiting.append(Chunk(chunk.target, first, stop))
    return False


def _work(connection: Connection, slot: mmap.mmap, targets: dict[str, Target], seed: int, folder: Path) -> None:
    """Read inputs as they are ordered, until there are no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends this
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 0)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    parent = os.getppid()
    isolate(folder)
    oracle.limit_memory()
    entered: set[str] = set()
    while True:
        try:
            chunk = connection.recv()
        except EOFError:
            return
        if chunk is None:
            return
        target = targets[chunk.target]
        if chunk.target not in entered:
            entered.add(chunk.target)
            target.enter(folder / chunk.target)
        tally = Tally()
        before = _reset_peak()
        for number in range(chunk.first, chunk.stop):
            if os.getppid() != parent:  # it was killed, and nobody is interested any more
                return
            slot[:8] = struct.pack("<q", number)
            tally.add(number, target.judge(target.given(seed, number)))
        slot[:8] = struct.pack("<q", NONE)
        tally.growth = max(0, _memory("VmHWM") - before)
        connection.send(tally)


def _reset_peak() -> int:
    """Forget how much memory this process has had at most; return how much it has now."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return _memory("VmRSS")


def _memory(name: str) -> int:
    """Return what the system says of this process's memory, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


def isolate(folder: Path) -> None:
    """Keep what is read and written inside a folder: home, data and cache; downloads fail at once."""
    home = folder / "home"
    home.mkdir(parents=True, exist_ok=True)
    for name in ("CSWF_PLUGINS_DIR", "CSWF_LOAD_PLUGINS", "CSWF_TRACEBACK", "no_proxy", "NO_PROXY"):
        os.environ.pop(name, None)
    os.environ |= {"HOME": str(home), "CSWF_DATA": str(home / "data"), "COLUMNS": "100", "NO_COLOR": "1"}
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        os.environ[name] = "http://127.0.0.1:9"
