"""The clock of `cswf bench`, which times each part of a step."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import attrs
import torch

from cswf_core.flow.clock import Clock, Work


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
