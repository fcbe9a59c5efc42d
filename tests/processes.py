"""Processes that tests start: each ends with its test, also when that fails, and so do its own children.

And this process, after a command that was called in it.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Timer
from unittest import mock

PYTHON = sys.executable
CSWF = (PYTHON, "-m", "cswf_core")


@contextmanager
def launched(
    *command: str | Path, timeout: float = 120.0, **options: object
) -> Iterator[subprocess.Popen[str]]:
    """A process in a session of its own, with both outputs piped; killed at the end, or after some seconds.

    Jobs in the background ignore Ctrl-C, and so would their children: here a child reacts to it as one that was
    started in a terminal.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    piped = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    try:
        child = subprocess.Popen([*map(str, command)], start_new_session=True, **{**piped, **options})
    finally:
        signal.signal(signal.SIGINT, before)

    with child, killed_in_the_end(child.pid, timeout):  # then closes its pipes and waits
        yield child


@contextmanager
def killed_in_the_end(session: int, timeout: float) -> Iterator[None]:
    """Kill all processes of a session at the end, or after some seconds."""

    def end() -> None:
        with suppress(ProcessLookupError):
            os.killpg(session, signal.SIGKILL)

    watchdog = Timer(timeout, end)
    watchdog.start()
    try:
        yield
    finally:
        end()
        watchdog.cancel()


def completed(*command: str | Path, **options: object) -> subprocess.CompletedProcess[str]:
    """Start a process, wait for it to end, and return its status and what it has written."""
    with launched(*command, **options) as child:
        out, err = child.communicate()
        return subprocess.CompletedProcess(child.args, child.returncode, out, err)


@contextmanager
def as_it_was() -> Iterator[None]:
    """Restore what a command changes in this process: folder, variables, handlers of signals and of logs."""
    folder = Path.cwd()
    signals = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    handlers = logging.root.handlers[:]
    hook = sys.unraisablehook
    try:
        with mock.patch.dict(os.environ):  # --traceback is told to other processes by a variable
            yield
    finally:
        os.chdir(folder)
        for number, handler in signals.items():
            signal.signal(number, handler)
        for handler in set(logging.root.handlers) - set(handlers):
            logging.root.removeHandler(handler)
        sys.unraisablehook = hook


def wait_until(happened: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait for what another process does, and fail if it does not."""
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline, f"it has not happened within {seconds:g} seconds"
        time.sleep(0.02)
