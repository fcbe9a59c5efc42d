"""Numbers of steps of the schedules that a factor shortens or lengthens."""

from __future__ import annotations

from cswf_core.errors import DataError

MOST = 2**40
"""Steps of a stage, and directions of a step, at most."""


def scaled(steps: int, scale: float) -> int:
    """Return K times a factor, 1 or more; raise `DataError` if that is more than any schedule has."""
    count = steps * scale
    if not count <= MOST:
        raise DataError(f"the schedule's {steps:,} steps times its scale, {scale:g}, are more than {MOST:,}")
    return max(1, round(count))
