"""Projection `orthogonal`: directions in orthonormal blocks, so that none repeats what another has seen.

What it is: a random orthonormal basis of the whole grid, or, with `patch`, of every patch of a randomly
shifted tiling of the image; all these together are again a basis. With H a multiple of d the mean of
θθᵀ is I/d exactly and not only on average, and a step of η = d solves all d problems at once.
Cost: a QR decomposition of each block: O(d³) for the whole grid, O(d C²S⁴) in patches.
When not to use it: for the whole grid of large images, where the decomposition costs more than the step.
"""

from __future__ import annotations

from itertools import pairwise

import attrs
import torch
from torch import Tensor

from cswf_core.interfaces import Draw, ProjectionSampler, Space
from cswf_plugins.projections.patches import covers, patch_side
from cswf_plugins.references import bibtex


@attrs.frozen(kw_only=True)
class Orthogonal(ProjectionSampler):
    """Random orthonormal bases of the grid or of its patches."""

    references = bibtex("rowland2019orthogonal")

    patch: int | None = patch_side("S, the side of the patches of a tiling; the whole grid if left out", None)

    def sample(self, space: Space, count: int, draw: Draw) -> Tensor:
        """Return as many whole bases as fit into `count`, and a random part of one more: count × d."""
        d = space.dimension
        whole = [self._basis(space, draw) for _ in range(count // d)]
        left = count % d
        if left:
            chosen = draw.uniform(d).argsort()[:left]
            whole.append(self._basis(space, draw)[chosen])
        return torch.cat(whole)

    def together(self, space: Space) -> int:
        """Return d: a basis is drawn at once."""
        return space.dimension

    def _basis(self, space: Space, draw: Draw) -> Tensor:
        """Return an orthonormal basis of the space, as rows: d×d."""
        d = space.dimension
        if self.patch is None:
            return rotations(1, d, draw)[0]
        _, height, width = space.grid("projection 'orthogonal' with patches")
        if covers(self.patch, height, width):
            return rotations(1, d, draw)[0]
        pixels = torch.arange(d, device=draw.device).reshape(space.shape)
        by_size: dict[int, list[Tensor]] = {}
        for rows in _cuts(height, self.patch, draw):
            for columns in _cuts(width, self.patch, draw):
                inside = pixels[:, rows, columns].flatten()
                by_size.setdefault(len(inside), []).append(inside)
        basis = torch.zeros(d, d, dtype=draw.dtype, device=draw.device)
        for size, patches in by_size.items():
            places = torch.stack(patches)
            basis[places[:, :, None], places[:, None, :]] = rotations(len(patches), size, draw)
        return basis


def rotations(count: int, size: int, draw: Draw) -> Tensor:
    """Return `count` orthogonal matrices, uniform in the sense of Haar: count × size × size."""
    q, r = torch.linalg.qr(draw.normal(count, size, size))
    # QR alone prefers some signs; those of R's diagonal make Q uniform.
    signs = torch.diagonal(r, dim1=1, dim2=2).sign()
    rotated: Tensor = q * torch.where(signs == 0, torch.ones_like(signs), signs)[:, None, :]
    return rotated


def _cuts(length: int, patch: int, draw: Draw) -> list[slice]:
    """Cut a line of pixels into pieces of `patch`, the first and the last perhaps shorter."""
    first = int(draw.integers(patch, 1)) + 1
    edges = [0, *range(first, length, patch), length]
    return [slice(a, b) for a, b in pairwise(edges) if a < b]
