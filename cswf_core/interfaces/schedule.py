"""Contract of schedules: the stages of a flow, and in which coordinates each one runs."""

from __future__ import annotations

import abc
from collections.abc import Sequence

import attrs
from torch import Tensor

from cswf_core.interfaces.contract import Contract
from cswf_core.interfaces.projection import ProjectionSampler
from cswf_core.interfaces.space import Space


class Upsampling(abc.ABC):
    """A linear map U from a coarse grid to the data's space; a stage's directions are θ = U t."""

    space: Space
    """The coarse grid, on which filters t are drawn."""

    @abc.abstractmethod
    def up(self, t: Tensor) -> Tensor:
        """Return U t: d_k×n → d×n."""

    @abc.abstractmethod
    def down(self, x: Tensor) -> Tensor:
        """Return Uᵀ x: d×n → d_k×n."""

    def gram(self, t: Tensor) -> Tensor:
        """Return UᵀU t: d_k×n → d_k×n. Override it where that is cheaper than going up and down."""
        return self.down(self.up(t))


@attrs.frozen(eq=False)
class Stage:
    """K Euler steps of one kind."""

    steps: int
    """K, the most steps the stage takes."""
    directions: int
    """H, the number of directions drawn at each step."""
    step_size: float
    """η; see `eta`."""
    name: str = ""
    """What logs and reports call it, such as `(8×8) [5]`."""
    sampler: ProjectionSampler | None = None
    """Where directions come from; None is the recipe's projection."""
    upsampling: Upsampling | None = None
    """The coordinates the stage runs in; None is the data's own."""
    tempered: bool = False
    """Whether E[θθᵀ] is far from even because of the coordinates; see `ProjectionSampler.tempered`."""
    entropy: float = 0.0
    """λ: every step adds √(2λη) ε, ε ~ N(0, I), to the particles."""

    def eta(self, step: int) -> float:
        """Return η of a step, counted from 0; a stage whose step size changes overrides this."""
        del step
        return self.step_size

    def dimension(self, space: Space) -> int:
        """Return d_k, the dimension of its coordinates, for data in `space`."""
        return (space if self.upsampling is None else self.upsampling.space).dimension


class Schedule(Contract):
    """Plans a flow. Subclasses are attrs classes whose fields are the parameters."""

    adaptive: bool = False
    """Whether `stop` is overridden: then it is asked after every step, with a number read from the device."""

    @abc.abstractmethod
    def stages(self, space: Space, projection: ProjectionSampler) -> Sequence[Stage]:
        """Return the stages for data in `space`, in order.

        `projection` is the recipe's, for a schedule whose stages vary it: `attrs.evolve(projection, patch=7)`.
        """

    def check(self, projection: ProjectionSampler) -> None:
        """Raise `DataError` if the stages need more of the projection than it has, whatever the data are.

        Recipes are checked with it before data are loaded; the default finds nothing amiss.
        """
        del projection

    def stop(self, stage: Stage, distances: Sequence[float]) -> bool:
        """Say whether to leave the stage early, given SW₂ to the data before each of its steps so far.

        Only schedules that are `adaptive` are asked.
        """
        del stage, distances
        return False
