"""Contract of projections: H random directions θ_h, and how data meet them."""

from __future__ import annotations

import abc
from functools import cached_property
from typing import Any

import attrs
import torch
from torch import Tensor

from cswf_core.errors import DataError
from cswf_core.interfaces.contract import Contract
from cswf_core.interfaces.draw import Draw
from cswf_core.interfaces.space import Space
from cswf_core.kernels.patches import embedded


class Projection(abc.ABC):
    """H directions as a linear operator. Implement it only to be faster than a dense matrix."""

    @property
    @abc.abstractmethod
    def shape(self) -> tuple[int, int]:
        """(H, d)."""

    @abc.abstractmethod
    def project(self, x: Tensor) -> Tensor:
        """Return θ_h·x for every direction and every column: d×n → H×n."""

    @abc.abstractmethod
    def adjoint(self, a: Tensor) -> Tensor:
        """Return Σ_h a_h θ_h for every column: H×n → d×n."""

    @abc.abstractmethod
    def dense(self) -> Tensor:
        """Return the directions as rows: H×d."""


class DenseProjection(Projection):
    """Directions as the rows of a matrix θ (H×d)."""

    def __init__(self, theta: Tensor) -> None:
        self.theta = theta

    @property
    def shape(self) -> tuple[int, int]:
        """(H, d)."""
        return self.theta.shape[0], self.theta.shape[1]

    def project(self, x: Tensor) -> Tensor:
        """θ x: d×n → H×n."""
        return torch.mm(self.theta, x)

    def adjoint(self, a: Tensor) -> Tensor:
        """θᵀ a: H×n → d×n."""
        return torch.mm(self.theta.T, a)

    def dense(self) -> Tensor:
        """θ."""
        return self.theta


class PatchProjection(DenseProjection):
    """Small filters somewhere on a grid: directions whose matrix is made only if somebody asks for it.

    On CUDA, in half precision, they are packed for products straight from the filters.
    """

    def __init__(self, filters: Tensor, space: Space, dilation: int, row: Tensor, column: Tensor) -> None:
        """`filters` (H×C×S×S) of any length stand around rows and columns (H each), pixels `dilation` apart.

        What falls outside the grid is cut off, and the rest scaled to unit length.
        """
        self.filters = filters
        self.space = space
        self.dilation = dilation
        self.row = row
        self.column = column

    @cached_property
    def theta(self) -> Tensor:  # type: ignore[override]
        """The directions as rows: H×d."""
        return embedded(self.filters, self.space.shape, self.dilation, self.row, self.column)

    @property
    def shape(self) -> tuple[int, int]:
        """(H, d)."""
        return self.filters.shape[0], self.space.dimension

    def rows(self, cut: slice) -> PatchProjection:
        """Return some of the directions."""
        return PatchProjection(self.filters[cut], self.space, self.dilation, self.row[cut], self.column[cut])


class ProjectionSampler(Contract):
    """Draws directions. Subclasses are attrs classes whose fields are the parameters of the recipe.

    Only `sample` has no default.
    """

    tempered: bool = False
    """Whether E[θθᵀ] is far from even on purpose: then no step is longer than 1/λ, λ being its largest
    eigenvalue, which the engine estimates. Elsewhere steps are shortened only where they would grow."""
    isotropic: bool = False
    """Whether E[θθᵀ] = I/d on every grid: then its eigenvalues need not be estimated."""
    sees_data: bool = False
    """Whether `fitted` is overridden: then directions depend on the data, and the engine shows it these."""

    @abc.abstractmethod
    def sample(self, space: Space, count: int, draw: Draw) -> Tensor | Projection:
        """Return `count` directions of unit length in `space`, as a matrix (count × d) or an operator.

        `space` is the grid of the current stage, so an image sampler sees C×k×k and needs to know
        nothing about upsampling. Draw randomness from `draw` only. A sampler that needs an image says
        so: `space.grid("projection 'mine'")` gives (C, H, W), or an error with that name.
        """

    def patched(self, patch: int, dilation: int = 1) -> ProjectionSampler:
        """Return this sampler with patches of S×S pixels, `dilation` apart, for a schedule that says which.

        The default sets the parameters `patch` and `dilation` if the sampler has them.
        """
        wanted = {"patch": patch} if dilation == 1 else {"patch": patch, "dilation": dilation}
        mine: Any = self
        lacking = wanted.keys() - {field.name for field in attrs.fields(type(mine))}
        if lacking:
            dilated = f" dilated by {dilation}" if dilation != 1 else ""
            raise DataError(
                f"the schedule asks for patches of {patch}×{patch}{dilated}, and the projection has no "
                f"parameter '{min(lacking)}'; take locally-connected or conv-stack, or another schedule"
            )
        changed: ProjectionSampler = attrs.evolve(mine, **wanted)
        return changed

    def fitted(self, space: Space, z: Tensor) -> ProjectionSampler:
        """Return the sampler for a stage, made from the data in its coordinates (d_k×N); see `sees_data`."""
        del space, z
        return self

    def together(self, space: Space) -> int:
        """Return how many directions have to be drawn in one call, as for an orthonormal basis; usually 1."""
        del space
        return 1
