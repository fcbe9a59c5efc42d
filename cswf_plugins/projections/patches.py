"""Small filters for the samplers with patches: their shares, windows and places on a large grid."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cswf_core.interfaces import DenseProjection, Draw, PatchProjection, Projection, Space, parameter
from cswf_core.kernels.patches import embedded


def patch_side(
    meaning: str = "S, the side of a patch in pixels; a pyramid sets it", default: int | None = 7
) -> Any:
    """Return the parameter for a patch's side; up to 1,024 the number of paths to its middle is finite."""
    return parameter(meaning, default=default, at_least=1, at_most=1024)


def patch_distance(meaning: str = "distance between neighbouring pixels of a patch") -> Any:
    """Return the parameter for the distance between a patch's pixels."""
    return parameter(meaning, default=1, at_least=1, at_most=2**20)


def patch_covering() -> Any:
    """Return the parameter that says what patches as large as the grid are."""
    return parameter(
        "a patch as large as the grid, or larger: the 'whole' grid, or 'placed' and cut off like any other",
        default="whole",
    )


def window(layers: int, power: float) -> NDArray[np.float64]:
    """Return the standard deviation of a filter's entries along one axis: 2L+1 numbers, the largest is 1."""
    paths = np.ones(1)
    for _ in range(layers):
        paths = np.convolve(paths, np.ones(3))
    deviations: NDArray[np.float64] = (paths / paths.max()) ** power
    return deviations


@lru_cache
def _window_on(layers: int, power: float, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Keep the window on its device: a copy there at every step would make it wait."""
    return torch.from_numpy(window(layers, power)).to(device, dtype)


def faded(filters: Tensor, power: float) -> Tensor:
    """Return filters (count×C×S×S, S odd), faded out towards their rim by the window: the same shape."""
    line = _window_on(filters.shape[-1] // 2, power, filters.device, filters.dtype)
    return filters * line[:, None] * line


def counts(shares: tuple[float, ...], total: int) -> list[int]:
    """Cut a number into whole parts in the proportion of shares, as nearly as can be; they add up to it."""
    edges = [0.0]
    for share in shares:
        edges.append(edges[-1] + share)
    whole = edges[-1] or 1.0
    places = [round(total * edge / whole) for edge in edges]
    return [after - before for before, after in pairwise(places)]


def inverse_root(patches: Tensor, exponent: float, ridge: float) -> Tensor:
    """Return Σ^(−a/2), Σ being the covariance of patches (n×D), up to a factor: D×D.

    `ridge` is added to Σ, as a share of its mean variance, so that no direction is blown up.
    """
    spread = patches - patches.mean(dim=0)
    values, vectors = torch.linalg.eigh((spread.T @ spread / len(patches)).double())
    mean = values.mean()
    values = torch.where(mean > 0, values.clamp_min(0) + ridge * mean, 1.0)
    # The symmetric root is the same on every device; eigenvectors have signs as they please.
    root: Tensor = vectors * values.pow(-exponent / 2) @ vectors.T
    scaled: Tensor = root / torch.linalg.matrix_norm(root)  # directions get unit length later
    return scaled.to(patches)


def covers(patch: int, height: int, width: int) -> bool:
    """Return whether a patch is as large as the grid; then it can stand for the whole grid."""
    return patch >= height and patch >= width


def embed(filters: Tensor, space: Space, dilation: int, draw: Draw) -> Tensor | Projection:
    """Put each filter (count×C×S×S) somewhere on the grid: unit directions, count × C·H·W.

    The centre is uniform over all pixels; what falls outside is cut off, and the rest scaled to unit length.
    """
    if math.prod(filters.shape[1:]) == 1:  # now and then a normal number is 0, which has no direction
        filters = torch.where(filters < 0, -1.0, 1.0).to(filters.dtype)
    _, height, width = space.shape
    row, column = (draw.integers(length, len(filters)) for length in (height, width))
    return embed_at(filters, space, dilation, row, column)


def embed_at(filters: Tensor, space: Space, dilation: int, row: Tensor, column: Tensor) -> Tensor | Projection:
    """Put each filter (count×C×S×S) around a row and a column (count each): unit directions, count × C·H·W.

    On a GPU, where they are packed without it, the matrix is left for somebody who asks for it.
    """
    if filters.is_cuda:
        return PatchProjection(filters, space, dilation, row, column)
    return embedded(filters, space.shape, dilation, row, column)


def joined(parts: Sequence[Tensor | Projection]) -> Tensor | Projection:
    """Put directions one after the other: filters of one size as such, others as a matrix."""
    patches = [part for part in parts if isinstance(part, PatchProjection) and part.weights is None]
    if len(patches) == len(parts) and len({(p.filters.shape[1:], p.dilation) for p in patches}) == 1:
        filters, row, column = (
            torch.cat([getattr(part, name) for part in patches]) for name in ("filters", "row", "column")
        )
        return PatchProjection(filters, patches[0].space, patches[0].dilation, row, column)
    theta = torch.cat([part.dense() if isinstance(part, Projection) else part for part in parts])
    weights = [part.weights if isinstance(part, Projection) else None for part in parts]
    if all(each is None for each in weights):
        return theta
    alike = [theta.new_ones(len(part) if isinstance(part, Tensor) else part.shape[0]) for part in parts]
    return DenseProjection(
        theta, torch.cat([one if w is None else w for w, one in zip(weights, alike, strict=True)])
    )
