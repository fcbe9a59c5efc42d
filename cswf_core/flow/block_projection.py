"""Directions with many zeros as an operator that skips them."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from cswf_core.interfaces import Projection, Space
from cswf_core.kernels import sparse
from cswf_core.kernels.sparse import Places, SparseDirections

PAYS_BELOW = 0.6
"""Share of blocks that are not zero up to which skipping the others is quicker than one dense product."""


@lru_cache(maxsize=32)
def places(space: Space, device: torch.device) -> Places | None:
    """Return the order of a grid's coordinates along a Hilbert curve; None for data that are no images."""
    return Places.of(space.shape, device) if space.is_image else None


class BlockProjection(Projection):
    """H directions s_h t_h, sorted by where they look; the rest of their batch has to be sorted alike."""

    def __init__(self, directions: SparseDirections, where: Places) -> None:
        self.directions = directions
        self.where = where

    @property
    def shape(self) -> tuple[int, int]:
        """(H, d)."""
        return self.directions.shape

    def project(self, x: Tensor) -> Tensor:
        """d×n → H×n, over the coordinates that are looked at."""
        return sparse.project(self.directions, x[self.where.order])

    def adjoint(self, a: Tensor) -> Tensor:
        """H×n → d×n."""
        product = sparse.back_project(self.directions, a)
        return torch.empty_like(product).index_copy_(0, self.where.order, product)

    def dense(self) -> Tensor:
        """The directions as rows, H×d."""
        H, d = self.shape
        theta = self.directions.theta[:H, :d]
        return torch.empty_like(theta).index_copy_(1, self.where.order, theta)

    def rows(self, cut: slice) -> BlockProjection:
        """Return some of the directions."""
        d = self.shape[1]
        part = sparse.arrange(
            self.directions.theta[: self.shape[0], :d][cut], None, None, self.directions.theta.dtype
        )
        return BlockProjection(part, self.where)

    def flops(self, samples: int) -> float:
        """Return the operations of a product with `samples` columns."""
        return self.directions.flops(samples)
