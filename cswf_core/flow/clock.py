"""The parts of a step are bracketed with `clock.part(name)`; `cswf bench` has a `Stopwatch` for the `Clock`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import attrs
import torch

PARTS = ("draw", "read", "project", "count", "communicate", "tables", "lookup", "back-project", "move")
"""The parts of a step, in order; `read` is waiting for streamed data, `communicate` for other ranks."""

Work = Callable[[], tuple[float, float]]
"""() → (bytes that have to be moved, floating-point operations)."""


class Clock:
    """Times nothing, and costs nothing."""

    times = False
    """Whether parts are timed, so that those that could be fused are better run one by one."""

    @contextmanager
    def part(self, name: str, work: Work | None = None) -> Iterator[None]:
        """Bracket a part of a step; `work` is called only by a clock that counts work."""
        del name, work
        yield


@attrs.define
class PartCost:
    """The time and work of one part of the steps so far."""

    milliseconds: float = 0.0
    bytes: float = 0.0
    flops: float = 0.0


class Stopwatch(Clock):
    """Times each part, without the parts inside it, by waiting for the device, and adds up its work."""

    times = True

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.costs: dict[str, PartCost] = {}
        self._inside = 0.0
        """Milliseconds of parts that have ended inside the part that is under way."""

    @contextmanager
    def part(self, name: str, work: Work | None = None) -> Iterator[None]:
        """Add the time inside, and the work, to the part's cost."""
        self._wait()
        before = self._inside
        self._inside = 0.0
        began = time.perf_counter()
        yield
        self._wait()
        elapsed = (time.perf_counter() - began) * 1e3
        cost = self.costs.setdefault(name, PartCost())
        cost.milliseconds += elapsed - self._inside
        self._inside = before + elapsed
        if work is not None:
            moved, flops = work()
            cost.bytes += moved
            cost.flops += flops

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
