"""Condition `brightness`: the mean of an image's pixels.

What it is: Y = ℝ, a sample's mean brightness, so that one can ask for bright or dark images. Any other number
that can be computed from a sample works in the same way: override `encode`, and the rest has defaults. Cost:
next to nothing. When not to use it: for classes; that is `one-hot`.
"""

from __future__ import annotations

import attrs

from cswf_core import hookimpl
from cswf_core.hookspecs import Register
from cswf_core.interfaces import ConditionEncoder, Conditions, Dataset, parameter


@attrs.frozen(kw_only=True)
class Brightness(ConditionEncoder):
    """Mean brightness, from −1 (black) to 1 (white)."""

    amplifier: float = parameter("ξ: how much brightness is stretched; 0 ignores it", default=10.0, at_least=0)

    def encode(self, data: Dataset) -> Conditions:
        """Return the mean of each sample's pixels, each in the middle of its grey level: 1×n."""
        return Conditions(vectors=data.x.mean(dim=0, keepdim=True) + data.bin_width / 2)


@hookimpl
def register_conditions(register: Register) -> None:
    """Offer `brightness`."""
    register("brightness", Brightness)
