"""Signals that end a command: Ctrl-C, and as it SIGTERM, and SIGHUP of a terminal that is closed."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from types import ModuleType

from cswf_core.errors import Terminated

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that end a command."""

PAUSE_S = 0.02
"""Seconds after which a signal is sent again that had no effect."""

RECENT_S = 10.0
"""Seconds in which an error that follows a signal is taken for its consequence."""

_raised: list[tuple[float, KeyboardInterrupt]] = []
"""What signals have raised, and when."""


def install() -> None:
    """Have signals end the command; one that is ignored, as `nohup` has it, stays so. Quick: called first."""
    _raised.clear()
    sys.unraisablehook = partial(_tell_unless_signal, sys.unraisablehook)  # before a handler raises anything
    for number in ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _end)


def ignore() -> None:
    """Let no signal disturb the end of the process: its work is done, and its status known."""
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)


def status_of(interruption: BaseException | None) -> int:
    """Return the exit status of a command that a signal has ended, by what that has raised."""
    return interruption.exit_status if isinstance(interruption, Terminated) else 128 + signal.SIGINT


def just_raised() -> KeyboardInterrupt | None:
    """Return what a signal has raised just now, if one has: a library may have made another error of it."""
    when, interruption = _raised[-1] if _raised else (0.0, None)
    return interruption if time.monotonic() - when < RECENT_S else None


def imported(name: str) -> ModuleType:
    """Import a module; raise again what a signal has raised meanwhile, if the module's own imports discard it.

    PyTorch imports NumPy as it is loaded itself, and goes on after any exception, also after Ctrl-C.
    """
    before = len(_raised)
    module = importlib.import_module(name)
    if len(_raised) > before:
        raise _raised[-1][1]
    return module


def leave_lost_terminal() -> None:
    """Print into nothing from now on where a terminal was closed: it would answer with an error."""
    for output in (1, 2):
        try:
            os.write(output, b"")
        except OSError:
            nothing = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nothing, output)
            os.close(nothing)


def _tell_unless_signal(
    tell: Callable[[sys.UnraisableHookArgs], object], unraisable: sys.UnraisableHookArgs
) -> None:
    """Send a signal again that has come while Python deletes an object, of which no error gets out."""
    if not isinstance(unraisable.exc_value, KeyboardInterrupt):
        tell(unraisable)
        return
    number = status_of(unraisable.exc_value) - 128
    if number == signal.SIGHUP:
        signal.signal(number, _end)
    again = threading.Timer(PAUSE_S, os.kill, (os.getpid(), number))  # when the object is gone
    again.daemon = True
    again.start()


def _end(number: int, *_: object) -> None:
    """End as Ctrl-C does; a shell and the system may both send SIGHUP, and one is enough."""
    if number != signal.SIGINT and signal.getsignal(signal.SIGHUP) is _end:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    if number == signal.SIGHUP:
        leave_lost_terminal()
    interruption = KeyboardInterrupt() if number == signal.SIGINT else Terminated(number)
    _raised.append((time.monotonic(), interruption))
    raise interruption
