"""Signals that end a command as Ctrl-C does: SIGTERM, and SIGHUP of a terminal that is closed."""

from __future__ import annotations

import os
import signal

from cswf_core.errors import Terminated

OUTPUTS = (1, 2)
"""Descriptors of what a command prints to."""


def install() -> None:
    """Have signals end the command; one that is ignored, as `nohup` has it, stays so. Quick: called first."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _end)


def ignore() -> None:
    """Let no signal disturb the end of the process: its work is done, and its status known."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def leave_lost_terminal() -> None:
    """Print into nothing from now on where a terminal was closed: it would answer with an error."""
    for output in OUTPUTS:
        try:
            os.write(output, b"")
        except OSError:
            nothing = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nothing, output)
            os.close(nothing)


def _end(number: int, *_: object) -> None:
    """End as Ctrl-C does; a shell and the system may both send SIGHUP, and one is enough."""
    if signal.getsignal(signal.SIGHUP) is _end:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    if number == signal.SIGHUP:
        leave_lost_terminal()
    raise Terminated(number)
