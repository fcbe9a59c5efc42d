"""Base of conditions whose Y is a part of the image itself: where Y comes from, and ξ."""

from __future__ import annotations

import attrs
import torch

from cswf_core.errors import DataError
from cswf_core.interfaces import Conditions, Dataset, Draw, parameter
from cswf_plugins.conditions.none import WithoutVector


@attrs.frozen(kw_only=True)
class Observing(WithoutVector):
    """A condition that sees a part of each image, which is projected with x.

    Y₀ comes from the data, as in the paper. Some particles can be given held-out images instead, several to
    each, to see how the flow completes what it has never seen.
    """

    amplifier: float = parameter("ξ: how much what is seen is stretched; 0 ignores it", default=1.0, at_least=0)
    held_out: int = parameter("held-out images that some of the particles complete", default=0, at_least=0)
    completions: int = parameter("particles for each of them", default=5, at_least=1)
    carried: bool = parameter(
        "whether these particles are carried along, and take no part in F_p: the paper's offline samples",
        default=False,
    )

    @property
    def carries_held_out(self) -> bool:  # type: ignore[override]
        """Whether particles that see held-out images take no part in F_p."""
        return self.carried

    def draw(self, data: Dataset, count: int, draw: Draw) -> Conditions:
        """Return the image that each particle completes: held-out ones first, then random ones of the data."""
        completing = self.held_out * self.completions
        available = 0 if data.held_out is None else len(data.held_out)
        if self.held_out > available:
            raise DataError(
                f"condition.held_out asks for {self.held_out:,} images, and only {available:,} are held out"
            )
        if completing > count:
            raise DataError(
                f"{self.held_out:,} held-out images with {self.completions:,} completions each need "
                f"{completing:,} particles, and there are {count:,}; raise particles.count, or lower "
                "condition.held_out"
            )
        if self.carried and completing == count:
            raise DataError(
                f"all {count:,} particles complete held-out images and are carried along, and none is left for "
                "F_p; raise particles.count, or lower condition.held_out"
            )
        held_out = torch.repeat_interleave(-1 - torch.arange(self.held_out), self.completions)
        return Conditions(origin=torch.cat([held_out, draw.integers(len(data), count - completing)]))
