"""Schedule `adaptive`: a pyramid that leaves each stage when it has nothing more to give.

What it is: a stage ends when its sliced distance has stopped falling beyond the noise: the mean over the last
`window` steps is no longer below that over the `window` before by more than `noise` standard errors.
Cost: as `pyramid`, but one number is read back from the device at every step.
When not to use it: for a number to publish; the steps taken depend on the data and on the seed.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import attrs

from cswf_core.interfaces import Stage, parameter
from cswf_plugins.schedules.constant import scaled
from cswf_plugins.schedules.pyramid import Pyramid


@attrs.frozen(kw_only=True)
class Adaptive(Pyramid):
    """A pyramid that leaves a stage early once its distance has stopped falling."""

    window: int = parameter(
        "steps whose mean distance is compared with that of as many before", default=20, at_least=2
    )
    noise: float = parameter(
        "standard errors by which the distance must have fallen to go on", default=2.0, at_least=0
    )
    shortest: int = parameter("steps that every stage takes at least, before `scale`", default=40, at_least=1)

    adaptive = True

    def __attrs_post_init__(self) -> None:
        """Refuse a decay, which counts from an end that is not known."""
        if self.decay:
            raise ValueError("decay counts from the last step, and 'adaptive' does not know which that will be")

    def stop(self, stage: Stage, distances: Sequence[float]) -> bool:
        """Compare the last two windows of distances."""
        del stage
        n = self.window
        if len(distances) < max(2 * n, scaled(self.shortest, self.scale)):
            return False
        earlier = distances[-2 * n : -n]
        later = distances[-n:]
        error = math.sqrt((statistics.variance(earlier) + statistics.variance(later)) / n)
        return statistics.fmean(earlier) - statistics.fmean(later) <= self.noise * error
