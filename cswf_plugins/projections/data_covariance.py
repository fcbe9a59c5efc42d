"""Projection `data-covariance`: filters that look where the data vary little.

What it is: patch filters t ~ N(0, Σ^(−a)), where Σ is the covariance of the data's patches, averaged over all
places. At a = 0 they are those of `locally-connected`; at a = 1 the projections of the data onto all
directions have the same spread, and fine detail counts as much as brightness.
Cost: at the beginning of a stage an eigenvalue decomposition, O(C³S⁶), and as for `high-pass` the estimate
of E[θθᵀ]'s largest eigenvalue, which shortens the steps.
When not to use it: with a above about 0.1 and few steps. The longest safe step then hardly moves anything
coarse.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import torch
from torch import Tensor

from cswf_core.errors import DataError
from cswf_core.interfaces import Draw, Projection, ProjectionSampler, Space, parameter
from cswf_core.kernels.patches import unit
from cswf_plugins.projections.patches import covers, embed, inverse_root, patch_side


@attrs.frozen(kw_only=True)
class DataCovariance(ProjectionSampler):
    """Filters from a power of the inverse covariance of the data's patches."""

    patch: int = patch_side()
    exponent: float = parameter(
        "a: filters have covariance Σ^(−a); 0 is isotropic, 1 evens out the data",
        default=0.1,
        at_least=0,
        at_most=2,
    )
    ridge: float = parameter(
        "added to Σ, as a share of its mean variance, so that no direction is blown up", default=1e-3, above=0
    )

    tempered = True
    sees_data = True

    def sample(self, space: Space, count: int, draw: Draw) -> Tensor | Projection:
        """Refuse: filters are known once the data have been seen, by what `fitted` returns."""
        del space, count, draw
        raise DataError("projection 'data-covariance' needs to see the data first: call fitted(space, z)")

    def fitted(self, space: Space, z: Tensor) -> ProjectionSampler:
        """Return a sampler with the square root of Σ^(−a), from the data in a stage's coordinates (d_k×N)."""
        _, height, width = space.grid("projection 'data-covariance'")
        whole = covers(self.patch, height, width)
        if not whole and self.patch > min(height, width):
            raise DataError(f"patches of {self.patch} pixels do not fit into a grid of {height}×{width}")
        patches = z.T if whole else _patches(z, space, self.patch)
        return self.of_tensors(space, {"root": inverse_root(patches, self.exponent, self.ridge)}, z)

    def of_tensors(self, space: Space, tensors: Mapping[str, Tensor], like: Tensor) -> ProjectionSampler:
        """Return a sampler with that square root of Σ^(−a)."""
        channels, height, width = space.grid("projection 'data-covariance'")
        side = None if covers(self.patch, height, width) else self.patch
        return _CovarianceFilters(channels=channels, side=side, root=tensors["root"].to(like).contiguous())


@attrs.frozen(kw_only=True, eq=False)
class _CovarianceFilters(ProjectionSampler):
    """Filters t = R g, g ~ N(0, I), with R Rᵀ = Σ^(−a)."""

    channels: int
    side: int | None
    """Side of the patches; None is the whole grid."""
    root: Tensor
    """R, C·S²×C·S²."""

    tempered = True

    def tensors(self) -> dict[str, Tensor]:
        """Return R."""
        return {"root": self.root}

    def sample(self, space: Space, count: int, draw: Draw) -> Tensor | Projection:
        """Return filters of unit length: count × C·H·W."""
        filters = draw.normal(count, self.root.shape[1]) @ self.root.T
        if self.side is None:
            return unit(filters)
        return embed(filters.reshape(count, self.channels, self.side, self.side), space, 1, draw)


def _patches(z: Tensor, space: Space, side: int) -> Tensor:
    """Return patches of evenly spaced samples at all places, 200,000 at most: n × C·S²."""
    places = (space.shape[1] - side + 1) * (space.shape[2] - side + 1)
    count = max(1, min(z.shape[1], 200_000 // places))
    chosen = torch.linspace(0, z.shape[1] - 1, count, device=z.device).long()
    images = z[:, chosen].T.reshape(count, *space.shape)
    windows = images.unfold(2, side, 1).unfold(3, side, 1)  # n × C × places × places × S × S
    return windows.permute(0, 2, 3, 1, 4, 5).reshape(count * places, -1)
