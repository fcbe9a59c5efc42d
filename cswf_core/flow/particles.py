"""The particles: where they are, in the data's space and in the current stage's coordinates."""

from __future__ import annotations

import torch
from torch import Tensor

from cswf_core.flow.coordinates import Coordinates
from cswf_core.flow.step import Cloud
from cswf_core.interfaces import Conditions


class Particles:
    """M particles x (d×M) with conditions Y that never move.

    Inside a stage with an upsampling U, `_x` stays what it was on entering, z = Uᵀx moves, and `_sum` keeps
    the sum S of all updates. Without one, z is x itself.
    """

    def __init__(self, x: Tensor, conditions: Conditions) -> None:
        self.conditions = conditions
        self._x = x
        self._coordinates: Coordinates | None = None
        self._z = x
        self._sum: Tensor | None = None

    def __len__(self) -> int:
        return int(self._x.shape[1])

    @property
    def x(self) -> Tensor:
        """The particles in the data's space, also in the middle of a stage: d×M."""
        if self._coordinates is None or self._sum is None:
            return self._x
        return self._x + self._coordinates.leave(self._sum)

    def some(self, index: Tensor) -> Tensor:
        """Return those particles that `index` (m) names, in the data's space: d×m."""
        if self._coordinates is None or self._sum is None:
            return self._x[:, index]
        if self._coordinates.observation is not None:  # it may be another one for each particle
            return self.x[:, index]
        return self._x[:, index] + self._coordinates.leave(self._sum[:, index])

    @property
    def cloud(self) -> Cloud:
        """The particles in the current stage's coordinates."""
        return Cloud(self._z, self.conditions)

    @property
    def sum(self) -> Tensor | None:
        """The sum S of the stage's updates (d_k×M); None where updates go to x directly.

        Whoever adds to it without `move` has to reckon with z = z₀ + G S, of which `cloud` knows z₀ only.
        """
        return self._sum

    def enter(self, coordinates: Coordinates) -> None:
        """Begin a stage."""
        self._coordinates = coordinates
        self._z = coordinates.enter(self._x)
        self._sum = None if coordinates.upsampling is None else torch.zeros_like(self._z)

    @property
    def entered(self) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """x as it was on entering the stage, z and S; without an upsampling x, as it is now, is all."""
        return (self._x, None, None) if self._sum is None else (self._x, self._z, self._sum)

    def restore(self, z: Tensor, total: Tensor) -> None:
        """Go on inside a stage that was entered before, with its z and S: d_k×M each."""
        self._z, self._sum = (part.to(self._x, copy=True) for part in (z, total))

    def join(self, x: Tensor, conditions: Conditions) -> None:
        """Let more particles in, x (d×m) with all conditions (of M + m), between stages or inside one."""
        self.conditions = conditions
        inside = self._coordinates
        if inside is not None and self._sum is not None:
            z = inside.enter(x)
            self._z = torch.cat([self._z, z], dim=1)
            self._sum = torch.cat([self._sum, torch.zeros_like(z)], dim=1)
        self._x = torch.cat([self._x, x], dim=1)
        if self._sum is None:
            self._z = self._x

    def leave(self) -> None:
        """End a stage: x takes on what the stage has changed."""
        self._x = self.x
        self._coordinates, self._sum, self._z = None, None, self._x

    def move(self, u: Tensor) -> Tensor:
        """Add the update U u (u: d_k×M), but not to observed coordinates; return its mean length (a scalar)."""
        assert self._coordinates is not None, "particles move inside a stage"
        if self._sum is None:
            change = self._coordinates.leave(u)
            self._x += change
            lengths: Tensor = torch.linalg.vector_norm(change, dim=0)
            return lengths.mean()
        change = self._coordinates.gram(u)
        self._z += change
        self._sum += u
        return (u * change).sum(dim=0).clamp_min(0).sqrt().mean()

    def shake(self, noise: Tensor) -> None:
        """Add noise (d×M) to the particles, but not to observed coordinates."""
        assert self._coordinates is not None, "particles are shaken inside a stage"
        if self._coordinates.observation is not None:
            noise = self._coordinates.observation.free(noise)
        self._x += noise
        if self._sum is not None:
            self._z += self._coordinates.enter(noise)


def mean_length(x: Tensor) -> float:
    """Return the mean length of samples x: d×n."""
    lengths: Tensor = torch.linalg.vector_norm(x, dim=0)
    return float(lengths.mean())
