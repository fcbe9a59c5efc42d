"""Schedule `constant`: one stage, the same step K times.

What it is: Algorithm 1, and with `entropy` the SWF of Liutkus et al.
Cost: K steps of H directions.
When not to use it: for images of more than a few hundred pixels, which want coarse stages first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import attrs

from cswf_core.errors import DataError
from cswf_core.interfaces import ProjectionSampler, Schedule, Space, Stage, parameter

MOST = 2**40
"""Steps of a stage, and directions of a step, at most."""


@attrs.frozen(kw_only=True)
class Constant(Schedule):
    """K equal steps."""

    steps: int = parameter("K, the number of steps", at_least=1, at_most=MOST)
    directions: int = parameter("H, the number of directions at each step", at_least=1, at_most=MOST)
    step_size: float | Literal["dimension"] = parameter(
        "η: a number, or 'dimension' for η = d as in the paper", default="dimension", above=0
    )
    scale: float = parameter("K is multiplied by this", default=1.0, above=0)
    entropy: float = parameter("λ: every step adds √(2λη) of Gaussian noise", default=0.0, at_least=0)

    def stages(self, space: Space, projection: ProjectionSampler) -> Sequence[Stage]:
        """Return the one stage."""
        del projection
        eta = float(space.dimension) if self.step_size == "dimension" else float(self.step_size)
        return [
            Stage(
                name="constant",
                steps=scaled(self.steps, self.scale),
                directions=self.directions,
                step_size=eta,
                entropy=self.entropy,
            )
        ]


def scaled(steps: int, scale: float) -> int:
    """Return K times a factor, 1 or more; raise `DataError` if that is more than any schedule has."""
    count = steps * scale
    if not count <= MOST:
        raise DataError(f"the schedule's {steps:,} steps times its scale, {scale:g}, are more than {MOST:,}")
    return max(1, round(count))
