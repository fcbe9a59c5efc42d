"""Condition `continuous`: a vector of numbers per sample.

What it is: Y = ℝ^l, as in the toy pictures of the paper's Appendix A; Y need not be a class.
Cost: a product of H·l·(M + N).
When not to use it: for classes, where `one-hot` does the same with a lookup.
"""

from __future__ import annotations

import math
from typing import Literal

import attrs
import torch
from torch import Tensor

from cswf_core.interfaces import ConditionEncoder, Conditions, Dataset, Draw, parameter


@attrs.frozen(kw_only=True)
class JointDirections(ConditionEncoder):
    """An encoder with an amplifier ξ and a rule for the lengths of θ_x and θ_y."""

    amplifier: float = parameter(
        "ξ: how much conditions are stretched; 0 ignores them", default=10.0, at_least=0
    )
    joint: Literal["uniform", "equal", "dimension", "full"] = parameter(
        "lengths of θ_x and θ_y: 'uniform' makes θ uniform on the joint sphere (Algorithm 1), 'equal' gives "
        "both the same (paper, section 6.2), 'dimension' has |θ_x|² = d/(d+l) with d of the stage's grid, "
        "'full' with d of the whole image (released code)",
        default="uniform",
    )

    @property
    def full_dimension(self) -> bool:  # type: ignore[override]
        """Whether d is that of the whole image on every grid."""
        return self.joint == "full"

    def weights(self, dimension: int, length: int, count: int, draw: Draw) -> Tensor:
        """Return |θ_x| of each direction (`count` numbers)."""
        if self.joint == "uniform":
            return super().weights(dimension, length, count, draw)
        share = 0.5 if self.joint == "equal" else dimension / (dimension + length)
        return torch.full((count,), math.sqrt(share), dtype=draw.dtype, device=draw.device)


@attrs.frozen(kw_only=True)
class Continuous(JointDirections):
    """A vector per sample."""

    def draw(self, data: Dataset, count: int, draw: Draw) -> Conditions:
        """Return the vectors of random data, with replacement, and no labels."""
        return Conditions(vectors=super().draw(data, count, draw).vectors)
