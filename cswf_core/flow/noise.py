"""Noise for particles and data, drawn in blocks of columns by global index.

Sample j gets the same noise however many samples there are and wherever they are computed: numbers are drawn
sample by sample, so that those of the first samples do not depend on how many follow.
"""

from __future__ import annotations

import attrs
import torch
from torch import Tensor

from cswf_core.flow.coordinates import Coordinates
from cswf_core.interfaces import Key

BLOCK = 4096
"""Columns per key."""


def gaussian(key: Key, shape: tuple[int, int], like: Tensor) -> Tensor:
    """Return N(0, 1) entries for d×n = `shape`."""
    d, n = shape
    noise = torch.empty(shape, dtype=like.dtype, device=like.device)
    for index, first in enumerate(range(0, n, BLOCK)):
        columns = min(BLOCK, n - first)
        block = attrs.evolve(key, index=index).open(like.device, like.dtype).normal(columns, d)
        noise[:, first : first + columns] = block.T
    return noise


def dequantised(z: Tensor, bin_width: float, dimension: int, coordinates: Coordinates, key: Key) -> Tensor:
    """Return data in a stage's coordinates (z = UᵀLx, d_k×n) with fresh uniform noise in every pixel's bin.

    The noise is drawn for all `dimension` coordinates of x and brought into the stage's coordinates, so that
    the result is UᵀL(x + noise) exactly.
    """
    if bin_width == 0:
        return z
    noisy = torch.empty_like(z)
    for index, first in enumerate(range(0, z.shape[1], BLOCK)):
        columns = slice(first, min(first + BLOCK, z.shape[1]))
        draw = attrs.evolve(key, index=index).open(z.device, z.dtype)
        noise = draw.uniform(columns.stop - first, dimension).mul_(bin_width).T.contiguous()
        torch.add(z[:, columns], coordinates.enter_data(noise), out=noisy[:, columns])
    return noisy
