"""A round through the stages with other numbers of steps than the schedule has."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from cswf_core.errors import RunError
from cswf_core.interfaces import Stage

Steps = int | Sequence[int] | None
"""K of all stages of a round, or of each of them; None: what the schedule says."""


def with_steps(stages: Sequence[Stage], steps: Steps) -> list[Stage]:
    """Return the stages of a round with other numbers of steps; with 0, a stage is passed over."""
    each = [steps] * len(stages) if isinstance(steps, int) else steps
    if each is None:
        return list(stages)
    if len(each) != len(stages) or min(each) < 0 or max(each) < 1:
        raise RunError(
            f"a round has {len(stages)} stages, and the steps given are {list(each)}: give one number for all, "
            "or one for each, of which some may be 0"
        )
    return [_retimed(stage, count) for stage, count in zip(stages, each, strict=True)]


@attrs.frozen(eq=False)
class Retimed(Stage):
    """A stage with another number of steps, over which its step size goes the same way."""

    of: Stage | None = None

    def eta(self, step: int) -> float:
        """Return η where the other stage is as far."""
        return self.step_size if self.of is None else self.of.eta(step * self.of.steps // self.steps)


def _retimed(stage: Stage, steps: int) -> Stage:
    if type(stage).eta is Stage.eta:
        return attrs.evolve(stage, steps=steps)
    own = {field.name: getattr(stage, field.name) for field in attrs.fields(Stage)}
    return Retimed(**{**own, "steps": steps}, of=stage)
