"""The parts of a step are bracketed with `clock.part(name)`; `cswf bench` puts a `Stopwatch` in its place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

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
