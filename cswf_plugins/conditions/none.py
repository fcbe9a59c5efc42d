"""Condition `none`: no condition at all.

What it is: the unconditional flow, SWF; particles carry no label.
Cost: nothing.
When not to use it: when you want to ask for something.
"""

from __future__ import annotations

import attrs
from torch import Tensor

from cswf_core.interfaces import ConditionEncoder, Conditions, Dataset, Draw
from cswf_plugins.references import bibtex


class WithoutVector(ConditionEncoder):
    """Base of conditions of which nothing stands beside x."""

    def length(self, data: Dataset) -> int:
        """l = 0."""
        del data
        return 0

    def project(self, theta_y: Tensor, conditions: Conditions) -> Tensor:
        """Never called: l = 0."""
        raise NotImplementedError("there is no vector to project")


@attrs.frozen(kw_only=True)
class NoCondition(WithoutVector):
    """Unconditional."""

    references = bibtex("liutkus2019sliced")
    amplifier = 0.0

    def draw(self, data: Dataset, count: int, draw: Draw) -> Conditions:
        """Return no labels and no vectors."""
        del data, count, draw
        return Conditions()
