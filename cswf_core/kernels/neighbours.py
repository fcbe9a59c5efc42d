"""Nearest neighbours by brute force: products of matrices, some rows at a time."""

from __future__ import annotations

import torch
from torch import Tensor

from cswf_core.kernels.memory import total_memory

DISTANCES_AT_A_TIME = 1 << 27
"""Distances computed at a time, at most: half a gigabyte in float32."""


def nearest(queries: Tensor, points: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the distances from queries (n×D) to their k nearest points (m×D), and which: n×k, nearest first.

    Neighbours are found by |a|² + |b|² − 2 a·b, which loses the digits of small distances; the distances
    returned are those of the differences themselves, so that a copy has distance 0.
    """
    squares = points.square().sum(dim=1)
    values = _values(points)
    rows = max(1, values // len(points))
    nearest = []
    for first in range(0, len(queries), rows):
        closeness = torch.addmm(squares, queries[first : first + rows], points.T, alpha=-2)
        nearest.append(closeness.topk(k, dim=1, largest=False).indices)
    index = torch.cat(nearest)
    distances = torch.empty(index.shape, dtype=queries.dtype, device=queries.device)
    step = max(1, values // (k * queries.shape[1]))
    for first in range(0, len(queries), step):
        part = index[first : first + step]
        differences = points[part] - queries[first : first + step, None]
        distances[first : first + step] = torch.linalg.vector_norm(differences, dim=2)
    order = distances.argsort(dim=1, stable=True)
    return distances.gather(1, order), index.gather(1, order)


def nearest_other(points: Tensor, k: int) -> Tensor:
    """Return the distances of each point (n×D) to its k nearest others: n×k, nearest first.

    A point's twin, another with the same values, is an other.
    """
    distances, index = nearest(points, points, k + 1)
    itself = index == torch.arange(len(points), device=points.device)[:, None]
    # A point that lies among many twins may not have found itself: any of them may stand for it.
    itself[:, 0] |= ~itself.any(dim=1)
    return distances[~itself].reshape(len(points), k)


def within_any(queries: Tensor, centres: Tensor, radii: Tensor) -> tuple[Tensor, Tensor]:
    """Return in how many balls (m centres×D, m radii) each query (n×D) lies, and which balls hold any: n, m."""
    rows = max(1, _values(centres) // len(centres))
    counts = []
    held = torch.zeros(len(centres), dtype=torch.bool, device=centres.device)
    squares = centres.square().sum(dim=1)
    for first in range(0, len(queries), rows):
        part = queries[first : first + rows]
        far = torch.addmm(squares, part, centres.T, alpha=-2) + part.square().sum(dim=1, keepdim=True)
        inside = far <= radii.square()
        counts.append(inside.sum(dim=1))
        held |= inside.any(dim=0)
    return torch.cat(counts), held


def _values(points: Tensor) -> int:
    """Return how many distances to compute at a time, for points (m×D) of this type on this device."""
    return min(DISTANCES_AT_A_TIME, total_memory(points.device) // 32 // points.element_size())
