"""A signal waits for the end of a step, and is not forgotten."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from cswf_core.errors import Terminated
from cswf_core.runs.checkpoints import CheckpointFolder, Checkpoints, Interval, Stopping
from tests.conftest import small_flow


@pytest.fixture(autouse=True)
def handlers():
    """SIGTERM as the commands have it, and SIGINT as Python has; both as before in the end."""

    def terminate(*_):
        raise Terminated

    before = [(number, signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM)]
    signal.signal(signal.SIGTERM, terminate)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in before:
        signal.signal(number, handler)


@pytest.mark.parametrize(
    ("number", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Terminated)]
)
def test_a_flow_is_saved_before_a_signal_ends_it(tmp_path, number, error):
    watching = Checkpoints(CheckpointFolder(tmp_path / "c"), Interval(seconds=1e9), (), dict)
    flow = small_flow(observers=(watching,))
    steps = iter(flow)
    next(steps)

    def stopped() -> None:
        with watching.stopping.patient():
            os.kill(os.getpid(), number)
            flow.run()

    with pytest.raises(error):
        stopped()
    assert watching.step == flow.position.total == 2


def test_a_signal_after_the_last_step_ends_the_run_too():
    stopping = Stopping()
    with pytest.raises(Terminated), stopping.patient():
        os.kill(os.getpid(), signal.SIGTERM)


def test_a_second_signal_does_not_wait():
    stopping = Stopping()
    reached = []

    def stopped() -> None:
        with stopping.patient():
            os.kill(os.getpid(), signal.SIGINT)
            reached.append("the first waits")
            os.kill(os.getpid(), signal.SIGINT)
            reached.append("the second does not")

    with pytest.raises(KeyboardInterrupt):
        stopped()
    assert reached == ["the first waits"]


def test_handlers_are_what_they_were_afterwards_and_threads_change_none():
    before = signal.getsignal(signal.SIGTERM)
    with Stopping().patient():
        assert signal.getsignal(signal.SIGTERM) != before
    assert signal.getsignal(signal.SIGTERM) == before
    found = []

    def inside():
        with Stopping().patient():
            found.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=inside)
    thread.start()
    thread.join()
    assert found == [before]
