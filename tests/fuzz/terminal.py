"""The command line in this process; one that is at work for long is stopped as by Ctrl-C."""

from __future__ import annotations

import io
import logging
import os
import re
import signal
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import IO

import attrs
import torch

from cswf_core import cli
from cswf_core.errors import CswfError
from tests.fuzz import oracle
from tests.fuzz.oracle import SECONDS, Fault, TooLong

WORK = {
    ("flow.py", "run"),
    ("sampling.py", "particles_at_end"),
    ("evaluate.py", "evaluate"),
    ("measure.py", "measure"),
    ("writer.py", "pack"),
    ("sweep.py", "run"),
    ("__init__.py", "check_plugin"),
}
"""Functions that work as long as they are asked to: a command that is inside of one may be stopped."""

SLICE = 0.4
"""Seconds of work after which a command is looked at, whether it is inside of such a function."""

UNFORESEEN = "this is no mistake of yours"
"""Words of the sentence behind an error that nobody has foreseen."""

STATUSES = (0, 1, 2, 130, 143)


@attrs.frozen
class Outcome:
    """How a command ended."""

    status: int
    out: str
    err: str
    stopped: bool = False
    """Whether it was stopped at work."""
    traceback: bool = False
    """Whether tracebacks were asked for."""


class _Stopwatch:
    """Stops a command: as Ctrl-C does where it works, with `TooLong` where it does something else."""

    def __init__(self) -> None:
        self.stopped = False
        self.slices = 0

    def look(self, number: int, frame: FrameType | None) -> None:
        """Look at a command after a slice of its time."""
        self.slices += 1
        stack = traceback.extract_stack(frame)
        working = any((Path(f.filename).name, f.name) in WORK for f in stack)
        if working and not self.stopped:
            self.stopped = True
            self.slices = 0
            raise KeyboardInterrupt
        if self.slices * SLICE >= SECONDS:
            raise TooLong


@contextmanager
def _watched() -> Iterator[_Stopwatch]:
    watch = _Stopwatch()
    before = signal.signal(signal.SIGPROF, watch.look)
    signal.setitimer(signal.ITIMER_PROF, SLICE, SLICE)
    try:
        yield watch
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def call(arguments: Sequence[str], folder: Path) -> Outcome:
    """Call `cswf` as a person would; `folder` is for what it prints. What nobody has foreseen is raised."""
    outputs = [_opened(folder / name) for name in ("out", "err")]
    usual = sys.stdout, sys.stderr, sys.argv
    handlers, threads = logging.root.handlers[:], torch.get_num_threads()
    signals = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    variables = dict(os.environ)
    sys.stdout, sys.stderr = outputs
    sys.argv = ["cswf", *arguments]
    status: object = None
    try:
        with _watched() as watch:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            try:
                cli.main()
            except SystemExit as ended:
                status = ended.code
    finally:
        sys.stdout, sys.stderr, sys.argv = usual
        for number, handler in signals.items():
            signal.signal(number, handler)
        for handler in set(logging.root.handlers) - set(handlers):
            logging.root.removeHandler(handler)
        os.environ.clear()
        os.environ.update(variables)
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        for output in outputs:
            output.close()
    out, err = ((folder / name).read_text("utf-8", "replace") for name in ("out", "err"))
    return Outcome(
        0 if status is None else int(str(status)), out, err, watch.stopped, "--traceback" in arguments
    )


def called_in(folder: Path, arguments: Sequence[str], outputs: Path) -> Outcome:
    """Call `cswf` in a folder; `outputs` is the folder for what it prints."""
    before = Path.cwd()
    outputs.mkdir(parents=True, exist_ok=True)
    os.chdir(folder)
    try:
        return call(arguments, outputs)
    finally:
        os.chdir(before)


def _opened(path: Path) -> IO[str]:
    return io.TextIOWrapper(path.open("wb"), encoding="utf-8", write_through=True)


def check(outcome: Outcome) -> None:
    """Raise `Fault` if an answer is no answer, and `CswfError` if the command line was refused."""
    foreseen = outcome.traceback and UNFORESEEN not in outcome.err
    if "Traceback (most recent call last)" in outcome.err and not foreseen:
        raise Fault(f"{_place(outcome.err)}: {outcome.err[-3000:]}")
    if outcome.status not in STATUSES:
        raise Fault(f"exit status {outcome.status}: {outcome.err}")
    if outcome.status in (130, 143) and not outcome.stopped:
        raise Fault(f"exit status {outcome.status} without a signal: {outcome.err}")
    for text in (outcome.out, outcome.err):
        sign = oracle.unprintable(text)
        if sign:
            raise Fault(f"a terminal would obey what is printed: {sign!r} in {text[:2000]!r}")
    if outcome.status in (1, 2):
        if not outcome.err.strip():
            raise Fault(f"exit status {outcome.status} without a word")
        raise CswfError(outcome.err)


def _place(text: str) -> str:
    """Return type and place of a traceback that was printed."""
    frames = re.findall(r'File "([^"]*)", line (\d+), in (\S+)', text)
    ours = [f for f in frames if "/cswf_core/" in f[0] or "/cswf_plugins/" in f[0]]
    file, line, name = (ours or frames or [("?", "0", "?")])[-1]
    last = re.findall(r"^unexpected (\w+)|^(\w+(?:\.\w+)*(?:Error|Exception|Interrupt))\b", text, re.MULTILINE)
    kind = next((a or b for a, b in last), "an error")
    parts = Path(file).parts
    top = next(
        (i for i, part in enumerate(parts) if part in ("cswf_core", "cswf_plugins")), max(0, len(parts) - 2)
    )
    return f"{kind} at {'/'.join(parts[top:])}:{line} {name}"
