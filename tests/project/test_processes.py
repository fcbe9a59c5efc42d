"""A process that a test starts does not outlive it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.processes import PYTHON, completed, launched, wait_until

pytestmark = pytest.mark.processes

PARENT = "import subprocess, sys; p = subprocess.Popen(['sleep', '60']); print(p.pid, flush=True); p.wait()"


def gone(pid: int) -> bool:
    status = Path(f"/proc/{pid}/stat")
    return not status.exists() or status.read_text().rpartition(")")[2].split()[0] == "Z"


def test_a_process_and_its_children_end_when_a_test_fails():
    started = []

    def fails() -> None:
        with launched(PYTHON, "-c", PARENT) as child:
            started.extend([child.pid, int(child.stdout.readline())])
            raise AssertionError

    with pytest.raises(AssertionError):
        fails()
    for pid in started:
        wait_until(lambda pid=pid: gone(pid), seconds=10)


def test_a_command_apart_ends_when_a_test_fails(apart, tmp_path):
    started = []

    def fails() -> None:
        with apart("run", "digits", "--out", tmp_path / "run", "--device", "cpu") as child:
            started.append(child)
            raise AssertionError

    with pytest.raises(AssertionError):
        fails()
    assert started[0].returncode == -signal.SIGKILL
    assert gone(started[0].pid)


def test_a_process_ends_after_its_time():
    assert completed("sleep", "60", timeout=0.2).returncode == -signal.SIGKILL


def test_ctrl_c_reaches_a_process_also_from_a_job_in_the_background():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with launched("sleep", "60") as child:
            os.kill(child.pid, signal.SIGINT)
            assert child.wait() == -signal.SIGINT
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
