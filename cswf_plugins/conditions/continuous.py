"""Condition `continuous`: a vector of numbers per sample.

What it is: Y = ℝ^l, as in the toy pictures of the paper's Appendix A; Y need not be a class.
Cost: a product of H·l·(M + N).
When not to use it: for classes, where `one-hot` does the same with a lookup.
"""

from __future__ import annotations

import attrs

from cswf_core.interfaces import Conditions, Dataset, Draw
from cswf_plugins.conditions.joint import JointDirections


@attrs.frozen(kw_only=True)
class Continuous(JointDirections):
    """A vector per sample."""

    def draw(self, data: Dataset, count: int, draw: Draw) -> Conditions:
        """Return the vectors of random data, with replacement, and no labels."""
        return Conditions(vectors=super().draw(data, count, draw).vectors)
