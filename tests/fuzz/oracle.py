"""The judge of answers: a result or one sentence, within 2 seconds and bounded memory, or it is a failure."""

from __future__ import annotations

import resource
import signal
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Literal

import attrs

from cswf_core.errors import CswfError

SECONDS = 2.0
"""Time on a core, not on a clock, that an answer may take: other work on the machine is no false alarm."""

ROOM = 1 << 30
"""Bytes of address space that a worker may take beyond what it begins with (RLIMIT_AS)."""

LONGEST = 20_000
"""Characters of a sentence, or of one in a list of mistakes."""

Kind = Literal["accepted", "refused", "failure"]

ROOT = Path(__file__).resolve().parents[2]


class Fault(Exception):  # noqa: N818
    """An answer that is wrong although nothing was raised: a silent difference, or a sentence that is none."""


class TooLong(BaseException):
    """The time is over."""


@attrs.frozen
class Verdict:
    """What an input was answered with."""

    kind: Kind
    group: str = ""
    """Of a failure: its type and place, which all failures of one cause share."""
    detail: str = ""
    """Of a failure: the traceback's end, or what is wrong."""
    seconds: float = 0.0


@contextmanager
def limited_time(seconds: float = SECONDS) -> Iterator[None]:
    """Raise `TooLong` after so many seconds of work of this process, user's and system's."""

    def end(number: int, frame: FrameType | None) -> None:
        raise TooLong

    before = signal.signal(signal.SIGPROF, end)
    signal.setitimer(signal.ITIMER_PROF, seconds, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def limit_memory(room: int = ROOM) -> None:
    """Let this process have so much more address space than it has now, and write no large files."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + room
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 28, 1 << 28))


def judge(answer: Callable[[], Any], seconds: float = SECONDS) -> Verdict:
    """Call a function that reads an input, and say how it was answered."""
    began = time.process_time()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with limited_time(seconds):
                answer()
        kind, group, detail = "accepted", "", ""
    except CswfError as error:
        fault = fault_of(str(error))
        kind, group, detail = ("failure", *_described(error, fault)) if fault else ("refused", "", "")
    except TooLong as error:
        kind, group, detail = "failure", *_described(error, f"not answered in {seconds:g} s")
    except Fault as error:
        kind, group, detail = "failure", str(error).partition(": ")[0], str(error)
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        kind, group, detail = "failure", *_described(error, "")
    return Verdict(kind, group, detail, time.process_time() - began)


def fault_of(sentence: str) -> str:
    """Return what is wrong with an error's words; nothing if they can be read.

    A list of mistakes has a line for each, so that lines are allowed; signs that move a cursor are looked for
    where they are printed, by the target `command`.
    """
    if not sentence.strip():
        return "an error without words"
    if max(map(len, sentence.split("\n"))) > LONGEST:
        return f"a sentence of more than {LONGEST} characters"
    return ""


def unprintable(text: str) -> str:
    """Return the first sign of a text that a terminal would obey instead of showing it, or nothing."""
    return next((sign for sign in text if not (sign.isprintable() or sign in "\n\r\t")), "")


def _described(error: BaseException, words: str) -> tuple[str, str]:
    """Return the group of a failure, and its traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [f for f in frames if ("cswf_core" in f.filename or "cswf_plugins" in f.filename)]
    last = (ours or frames)[-1] if frames else None
    place = "?" if last is None else f"{_short(last.filename)}:{last.lineno} {last.name}"
    title = f"{type(error).__name__} at {place}" + (f" ({words})" if words else "")
    lines = "".join(traceback.format_exception(error, chain=False))
    return title, lines if len(lines) < 4000 else f"{lines[:1500]}\n…\n{lines[-2500:]}"


def _short(file: str) -> str:
    path = Path(file)
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else "/".join(path.parts[-2:])
