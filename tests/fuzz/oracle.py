"""The judge of answers: a result or one sentence, within 2 seconds and bounded memory, or it is a failure."""

from __future__ import annotations

import faulthandler
import resource
import signal
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from cswf_core.errors import CswfError

SECONDS = 2.0
"""Time on a core, not on a clock, that an answer may take: other work on the machine is no false alarm."""

PATIENCE_S = 90.0
"""Seconds on a clock after which a process that waits, or never returns to Python, is ended."""

ROOM = 1 << 30
"""Bytes of address space that a process may take beyond what it begins with (RLIMIT_AS)."""

LARGEST_FILE = 1 << 28

LONGEST = 20_000
"""Characters of a sentence, or of one in a list of mistakes."""


class Fault(Exception):  # noqa: N818
    """An answer that is wrong although nothing was raised: a silent difference, or a sentence that is none."""


class TooLong(BaseException):
    """The time is over."""


@contextmanager
def limited_time(seconds: float) -> Iterator[None]:
    """Raise `TooLong` after so many seconds of work of this process, user's and system's."""

    def end(number: int, frame: FrameType | None) -> None:
        raise TooLong

    before = signal.signal(signal.SIGPROF, end)
    faulthandler.dump_traceback_later(PATIENCE_S, exit=True)
    signal.setitimer(signal.ITIMER_PROF, seconds, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        faulthandler.cancel_dump_traceback_later()
        signal.signal(signal.SIGPROF, before)


@contextmanager
def limited_memory() -> Iterator[None]:
    """Let this process have so much more address space than it has now, and write no large files."""
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limits = {resource.RLIMIT_AS: taken + ROOM, resource.RLIMIT_FSIZE: LARGEST_FILE}
    before = {kind: resource.getrlimit(kind) for kind in limits}
    for kind, limit in limits.items():
        resource.setrlimit(kind, (limit, before[kind][1]))
    try:
        yield
    finally:
        for kind, limits_before in before.items():
            resource.setrlimit(kind, limits_before)


def judge(answer: Callable[[], Any], seconds: float = SECONDS) -> str:
    """Call a function that reads an input; return whether it was `accepted` or `refused`, or raise.

    Any other exception comes out as it is. Hypothesis groups failures by their types and places.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with limited_time(seconds):
                answer()
        return "accepted"
    except CswfError as error:
        lines = str(error).split("\n")  # a list of mistakes has a line for each
        if not any(line.strip() for line in lines):
            raise Fault("an error without words") from error
        if max(map(len, lines)) > LONGEST:
            raise Fault(f"a sentence of more than {LONGEST} characters") from error
        return "refused"
    except TooLong as error:
        stack = "".join(traceback.format_exception(error, chain=False))
    except (SystemExit, KeyboardInterrupt) as error:
        raise Fault(f"it ends with {error!r}") from error
    # Not from `error`: where it was interrupted varies, and would be a group of its own each time.
    raise Fault(f"not answered in {seconds:g} s:\n{stack[-4000:]}")
