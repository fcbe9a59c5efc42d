"""Requests for particles, and the groups of a fixed size in which these are made."""

from __future__ import annotations

from collections.abc import Callable

import attrs
from torch import Tensor

from cswf_core.flow.particles import Particles
from cswf_core.interfaces import Conditions, Masked, Observation


@attrs.frozen(eq=False)
class Originals:
    """Images of which new particles see a part."""

    images: Tensor
    """d×m, on the CPU."""
    origin: Tensor
    """The image of each particle: n."""
    observation: Observation
    """What is seen: the same of every image, or a mask with a column for each; on the device."""
    width: float = 0.0
    """The images' grey levels are filled with uniform noise of this width."""

    def observed(self, particles: Tensor) -> Observation:
        """Return what these particles see."""
        if self.observation.shared or not isinstance(self.observation, Masked):
            return self.observation
        mask = self.observation.mask
        return Masked(mask[:, self.origin[particles].to(mask.device)])


@attrs.frozen(eq=False)
class Request:
    """The particles that a person wants."""

    conditions: Callable[[Tensor], Conditions]
    """The numbers of some particles → Y of each, on the CPU: so that Y of all need never be in memory."""
    count: int
    seed: int
    scale: float = 1.0
    """They begin as N(0, scale² I), or as the Gaussian that the model has,"""
    start: Tensor | None = None
    """or here: d×n, on the CPU."""
    originals: Originals | None = None


@attrs.define(eq=False)
class Group:
    """Particles that are moved together."""

    particles: Particles
    first: int
    """The number of the first of them among all."""
    observation: Observation | None
    originals: Tensor | None
    """The images of which they see a part: d×n."""
    strata: list[Tensor] | None
    """The particles of each stratum; None: there is one for all."""
