"""Commands in processes of their own, which end with the test that starts them, also when it fails."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start `cswf` with arguments in a process of its own, which hears Ctrl-C even if this one ignores it."""
    children: list[subprocess.Popen[str]] = []

    def call(*arguments: str | Path, **options: object) -> subprocess.Popen[str]:
        program = [sys.executable, "-m", "cswf_core", *map(str, arguments)]
        pipes = {"text": True, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        hearing = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
        children.append(subprocess.Popen(program, **pipes, preexec_fn=hearing, **options))
        return children[-1]

    yield call
    for child in children:
        child.kill()
        child.wait()
        for pipe in (child.stdout, child.stderr):
            pipe.close()


@pytest.fixture
def end(start) -> Callable[..., tuple[int, str]]:
    """Start `cswf`, send it a signal as soon as a file is there, and return its status and standard error."""

    def call(number: int, file: Path, *arguments: str | Path) -> tuple[int, str]:
        child = start(*arguments)
        deadline = time.monotonic() + 60
        while not file.exists() and child.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        child.send_signal(number)
        _, err = child.communicate(timeout=60)
        return child.returncode, err

    return call
