"""Where the time of a step goes: parts of steps, with the work that each one does.

The engine brackets its parts with `clock.part(name)`. The usual clock does nothing and costs nothing; a
`Stopwatch` is what `cswf bench` puts in its place.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import attrs
import torch

PARTS = ("draw", "read", "project", "count", "communicate", "tables", "lookup", "back-project", "move")
"""The parts of a step, in order; `read` is waiting for streamed data, `communicate` for other ranks."""

Work = Callable[[], tuple[float, float]]
"""() → (bytes that have to move, floating-point operations done)."""


class Clock:
    """Times nothing."""

    times = False
    """Whether parts are timed, so that those that could be one piece of work are better done one by one."""

    @contextmanager
    def part(self, name: str, work: Work | None = None) -> Iterator[None]:
        """Bracket a part of a step; `work` is asked only where somebody counts."""
        del name, work
        yield


@attrs.define
class Share:
    """What one part of the steps took so far."""

    milliseconds: float = 0.0
    bytes: float = 0.0
    flops: float = 0.0


class Stopwatch(Clock):
    """Times each part by waiting for the device before and after it, and adds up its work.

    A part inside another one does not count as time of that.
    """

    times = True

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.shares: dict[str, Share] = {}
        self._inside = 0.0
        """Milliseconds of parts that have ended inside the one that is under way."""

    @contextmanager
    def part(self, name: str, work: Work | None = None) -> Iterator[None]:
        """Add what happens inside to the part's share."""
        self._wait()
        before, self._inside = self._inside, 0.0
        began = time.perf_counter()
        yield
        self._wait()
        share, took = self.shares.setdefault(name, Share()), (time.perf_counter() - began) * 1e3
        share.milliseconds += took - self._inside
        self._inside = before + took
        if work is not None:
            moved, flops = work()
            share.bytes += moved
            share.flops += flops

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
