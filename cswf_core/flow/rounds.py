"""Rounds through a flow's stages after the first, with other numbers of steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs

from cswf_core.errors import RunError
from cswf_core.interfaces import Stage

Steps = int | Sequence[int] | None
"""K of all stages of a round, or of each of them; None: as many as the schedule says."""


@attrs.frozen(eq=False)
class Retimed(Stage):
    """A stage with another number of steps, over which the curve of its step size is stretched."""

    of: Stage | None = None

    def __getattr__(self, name: str) -> Any:
        if name == "of":  # while it is being made
            raise AttributeError(name)
        return getattr(self.of, name)  # attributes that a schedule's own stages have

    def eta(self, step: int) -> float:
        """Return η at the same fraction of the other stage."""
        return self.step_size if self.of is None else self.of.eta(step * self.of.steps // self.steps)


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
    names = [field.name for field in attrs.fields(Stage) if field.name != "steps"]
    return [
        Retimed(steps=count, of=stage, **{name: getattr(stage, name) for name in names})
        for stage, count in zip(stages, each, strict=True)
    ]
