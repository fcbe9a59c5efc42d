"""One Euler step of Algorithm 1: project, transport, back-project."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import attrs
import torch
from torch import Tensor

from cswf_core.flow.memory import Chunks
from cswf_core.interfaces import Conditions, DenseProjection, Projection, Stratum

Transport = Callable[[Tensor, Tensor], Tensor]
"""(p: T×M, q: T×N) → F_q⁻¹(F_p(p)): T×M."""


Meeting = Callable[[Tensor, Conditions, int], Tensor]
"""(ξ θ_y: T×l, conditions of n samples, n) → ξ θ_y·y: T×n."""


@attrs.frozen(eq=False)
class Cloud:
    """Samples in a stage's coordinates: z (d_k×n), with their conditions."""

    z: Tensor
    conditions: Conditions


@attrs.frozen(eq=False)
class Tile:
    """Some directions of a step, as θ_h = [s_h t_h, θ_y]: s_h makes the whole have unit length."""

    projection: Projection
    """The filters t_h, T×d_k."""
    scale: Tensor | None = None
    """s_h, T×1; None is 1."""
    theta_y: Tensor | None = None
    """ξ θ_y, T×l; None where there is no condition."""
    meet: Meeting | None = None
    """How ξ θ_y meets conditions."""

    def rows(self, first: int, last: int) -> Tile:
        """Return the directions from `first` up to, not including, `last`."""
        if (first, last) == (0, self.projection.shape[0]):
            return self
        cut = slice(first, last)
        return Tile(
            DenseProjection(self.projection.dense()[cut]),
            None if self.scale is None else self.scale[cut],
            None if self.theta_y is None else self.theta_y[cut],
            self.meet,
        )

    def project(self, cloud: Cloud) -> Tensor:
        """Return s_h t_h·z + ξ θ_y·y: T×n."""
        values = self.projection.project(cloud.z)
        if self.scale is not None:
            values = values * self.scale
        if self.theta_y is not None and self.meet is not None:
            values = values + self.meet(self.theta_y, cloud.conditions, cloud.z.shape[1])
        return values

    def adjoint(self, a: Tensor) -> Tensor:
        """Return Σ_h a_h s_h t_h: T×n → d_k×n. The θ_y part is left out: velocity masking."""
        return self.projection.adjoint(a if self.scale is None else a * self.scale)


def velocity(
    tiles: Iterable[Tile], particles: Cloud, data: Cloud, transport: Transport, chunks: Chunks
) -> tuple[Tensor, Tensor]:
    """Return −v̂, the mean over directions of δ_h θ_h (d_k×M), and SW₂², the mean of δ² (a scalar).

    p_h = θ_h·(z, ξy) of the particles, q_h that of the data, δ_h = F_q⁻¹(F_p(p_h)) − p_h.
    """
    total = torch.zeros_like(particles.z)
    squares = torch.zeros((), dtype=torch.float64, device=total.device)
    count = 0
    for tile in tiles:
        done, H = 0, tile.projection.shape[0]
        while done < H:
            slab = tile.rows(done, min(done + chunks.slab, H))
            rows = slab.projection.shape[0]
            parts = chunks.attempt(partial(_slab, slab, particles, data, transport, chunks), rows)
            if parts is not None:
                total += parts[0]
                squares += parts[1]
                done += rows
        count += H
    return total / count, squares / count


def _slab(
    slab: Tile, particles: Cloud, data: Cloud, transport: Transport, chunks: Chunks
) -> tuple[Tensor, Tensor]:
    """Return Σ_h δ_h θ_h (d_k×M) and the sum over directions of the mean of δ_h²."""
    p, q = slab.project(particles), slab.project(data)
    delta = chunks.map(lambda p, q: transport(p, q) - p, p, q)
    return slab.adjoint(delta), delta.square().mean(dim=1).double().sum()


def apart(transport: Transport, strata: Sequence[Stratum]) -> Transport:
    """Return a transport that maps each stratum's particles onto that stratum's data only."""

    def transported(p: Tensor, q: Tensor) -> Tensor:
        image = torch.empty_like(p)
        for particles, data in strata:
            image[:, particles] = transport(p[:, particles], q[:, data])
        return image

    return transported
