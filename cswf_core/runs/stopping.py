"""Ctrl-C and SIGTERM wait for the end of a step, so that a run can be saved before it stops."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from cswf_core.errors import Terminated

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopping:
    """Notes the first signal; a second one is not made to wait."""

    def __init__(self) -> None:
        self.signal: int | None = None
        """The signal that has arrived; None: none."""
        self._before: dict[int, Any] = {}

    @contextmanager
    def patient(self) -> Iterator[None]:
        """Note signals instead of ending at once; in threads, which get none, do nothing."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        # SIGTERM ends a process that has not asked for it in any way: that stays so.
        asked = [n for n in SIGNALS if signal.getsignal(n) not in (signal.SIG_IGN, signal.SIG_DFL, None)]
        self._before = {number: signal.signal(number, self._note) for number in asked}
        try:
            yield
        finally:
            for number, handler in self._before.items():
                signal.signal(number, handler)
        if self.signal is not None:  # it came too late for another step to end
            self.stop()

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None:
            self._before[number](number, frame)
        self.signal = number

    def stop(self) -> None:
        """End as the signal that has arrived would have."""
        raise Terminated if self.signal == signal.SIGTERM else KeyboardInterrupt
