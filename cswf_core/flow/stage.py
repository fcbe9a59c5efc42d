"""A stage's own coordinates: exact, and as small as the grid its directions live on.

Where directions are θ = U t with t on a coarse grid, a step needs only z = Uᵀx, since θ·x = t·z, and moves x
only by multiples of U. So z is computed when the stage begins, each update u changes it by G u with
G = UᵀPU, where P zeroes observed coordinates, and the updates are added up in S. When the stage ends, x
receives P U S. Up to rounding, this is what steps on x itself would have given.
"""

from __future__ import annotations

from torch import Tensor

from cswf_core.interfaces import Projection, Space, Stage


class Coordinates:
    """The linear algebra of one stage; with no upsampling U is the identity and costs nothing."""

    def __init__(self, stage: Stage, space: Space, observed: Tensor | None) -> None:
        """`observed` marks what must not move: d×1 for all particles, d×M for each."""
        self.upsampling = stage.upsampling
        self.space = space if stage.upsampling is None else stage.upsampling.space
        self.observed = observed

    def enter(self, x: Tensor) -> Tensor:
        """Return z = Uᵀx: d×n → d_k×n."""
        return x if self.upsampling is None else self.upsampling.down(x)

    def leave(self, u: Tensor) -> Tensor:
        """Return P U u, the change of x that a sum of updates makes: d_k×n → d×n."""
        change = u if self.upsampling is None else self.upsampling.up(u)
        return change if self.observed is None else change.masked_fill(self.observed, 0)

    def gram(self, u: Tensor) -> Tensor:
        """Return G u, the change of z that an update makes: d_k×n → d_k×n."""
        if self.upsampling is not None and self.observed is None:
            return self.upsampling.gram(u)
        return self.enter(self.leave(u))

    def scale(self, projection: Projection) -> Tensor | None:
        """Return 1/‖U t_h‖ for every direction (H×1), None where that is 1 because U is the identity."""
        if self.upsampling is None:
            return None
        t = projection.dense().T
        return (t * self.upsampling.gram(t)).sum(dim=0).rsqrt()[:, None]
