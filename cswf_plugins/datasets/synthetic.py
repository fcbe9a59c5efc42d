"""Data `synthetic`: random images of any size and number, or random points, made on the spot.

What it is: Gaussian noise whose neighbouring pixels, and whose channels, are correlated (between two pixels
ρ^(rows apart) ρ^(columns apart), roughly as in photographs), squeezed into (−1, 1) by tanh. Images of one
class share half of their variance, a pattern of the class. Coordinates of points are independent.
Cost: nothing to download; some ten seconds for 100,000 images of 3×32×32 on two CPU cores, and 1.2 GB.
When not to use it: for anything but trying a recipe out and measuring its speed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import attrs
import numpy as np
import torch
from torch import Tensor

from cswf_core.interfaces import BIN, Conditions, Dataset, DatasetSource, Draw, Space, parameter
from cswf_core.kernels.memory import require_memory

BLOCK = 4096
"""Samples made at a time; also decides which noise falls on which sample."""


def _shape(_instance: Any, attribute: attrs.Attribute[Any], value: Sequence[int]) -> None:
    if len(value) not in (1, 3) or min(value) < 1:
        raise ValueError(f"{attribute.name} must be [C, H, W] or [d], of 1 or more each, got {list(value)}")


@attrs.frozen(kw_only=True)
class Synthetic(DatasetSource):
    """Random images, or points, of any size and number."""

    count: int = parameter("N, the number of samples", default=10_000, at_least=1, at_most=2**40)
    shape: tuple[int, ...] = parameter(
        "[C, H, W] of images, or [d] of points", default=(3, 32, 32), validator=_shape
    )
    classes: int = parameter(
        "number of classes, alike in size; 0 for none", default=0, at_least=0, at_most=2**20
    )
    correlation: float = parameter(
        "ρ, the correlation of neighbouring pixels before tanh", default=0.9, at_least=0, at_most=0.999
    )
    dequantise: Literal["step", "none"] = parameter(
        "'step': pixels are 8-bit grey levels, which the flow fills with fresh noise at every step; "
        "'none': pixels are any numbers",
        default="none",
    )

    def load(self, draw: Draw) -> Dataset:
        """Return d×N numbers in (−1, 1), made block by block; sample i is of class i mod `classes`."""
        space = Space(self.shape)
        samples = self.count + self.classes + min(BLOCK, self.count)
        roots_size = sum(size**2 for size in self.shape) if space.is_image else 0
        require_memory(
            draw.dtype.itemsize * space.dimension * samples + 8 * roots_size,
            f"{self.count:,} samples of {space} in {self.classes:,} classes",
            "take fewer or smaller ones (data.count, data.shape)",
        )
        roots = [_root(size, self.correlation) for size in self.shape] if space.is_image else []
        patterns = _noise(draw, roots, self.shape, self.classes) if self.classes else None
        labels = torch.arange(self.count) % self.classes if self.classes else None
        x = torch.empty(space.dimension, self.count, dtype=draw.dtype)
        for first in range(0, self.count, BLOCK):
            count = min(BLOCK, self.count - first)
            block = _noise(draw, roots, self.shape, count)
            if patterns is not None and labels is not None:
                block = (block + patterns[:, labels[first : first + count]]).mul_(math.sqrt(0.5))
            x[:, first : first + count] = block.mul_(0.5).tanh_()
        if self.dequantise == "step":
            x.div_(BIN).floor_().mul_(BIN)
        return Dataset(
            x=x,
            space=space,
            conditions=Conditions(labels=labels),
            classes=tuple(str(c) for c in range(self.classes)),
            bin_width=BIN if self.dequantise == "step" else 0.0,
        )


def _root(size: int, correlation: float) -> Tensor:
    """Return a square root of the matrix ρ^|i−j|: size×size, lower triangular."""
    place = np.arange(size)
    covariance = correlation ** np.abs(place[:, None] - place)
    return torch.from_numpy(np.linalg.cholesky(covariance).astype(np.float32))


def _noise(draw: Draw, roots: Sequence[Tensor], shape: Sequence[int], count: int) -> Tensor:
    """Return `count` samples of variance 1, correlated along each axis that has a root: d×count, float32."""
    # NumPy's generator, because numbers by counting would take most of a minute here.
    white = draw.host.standard_normal((*shape, count), dtype=np.float32)
    z = torch.from_numpy(white)
    for axis, root in enumerate(roots):
        before = math.prod(shape[:axis])
        z = torch.matmul(root, z.reshape(before, shape[axis], -1))
    return z.reshape(math.prod(shape), count)
