"""Resizing a line of pixels: the matrices A (size × k) of the usual kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]


def _lanczos(lobes: int) -> Callable[[Numbers], Numbers]:
    """Return the kernel sinc(x) sinc(x / lobes), which is 0 beyond its lobes."""

    def kernel(distance: Numbers) -> Numbers:
        inside = np.abs(distance) < lobes
        return np.where(inside, np.sinc(distance) * np.sinc(distance / lobes), 0.0)

    return kernel


def _bicubic(distance: Numbers) -> Numbers:
    """Return the weights of Keys' cubic convolution with a = −1/2."""
    t = np.abs(distance)
    near = (1.5 * t - 2.5) * t * t + 1
    far = ((-0.5 * t + 2.5) * t - 4) * t + 2
    return np.where(t < 1, near, np.where(t < 2, far, 0.0))


def _nearest(distance: Numbers) -> Numbers:
    """Return 1 for the pixel that a place lies in, the one to the right on an edge, and 0 for others."""
    return ((distance >= -0.5) & (distance < 0.5)).astype(np.float64)


KERNELS: Mapping[str, Callable[[Numbers], Numbers]] = {
    "lanczos5": _lanczos(5),
    "lanczos3": _lanczos(3),
    "bicubic": _bicubic,
    "nearest": _nearest,
}
"""Name → weight of a coarse pixel at a signed distance, in coarse pixels."""


def resizing(before: int, after: int, kernel: str) -> Numbers:
    """Return A (after × before), which brings a line of `before` pixels to `after`; each row sums to 1.

    Pixels are areas: the centre of new pixel i lies at (i + ½) before/after − ½ among the old ones. Where a
    line shrinks, the kernel is widened, so that it averages over what a new pixel covers. At the borders,
    weights beyond the line are left out and the others scaled up. So does Pillow.
    """
    centre = (np.arange(after) + 0.5) * before / after - 0.5
    widened = max(1.0, before / after)
    weights = KERNELS[kernel]((centre[:, None] - np.arange(before)) / widened)
    rows: Numbers = weights / weights.sum(axis=1, keepdims=True)
    return rows


def pinned_bilinear(before: int, after: int) -> Numbers:
    """Return A (after × before) of TensorFlow 1's bilinear rule, by which the published FIDs were computed.

    New pixel i lies at i·before/after, with no half pixel, between its two neighbours; beyond the last pixel
    the line goes on as that pixel. Where a line shrinks, pixels in between are passed over.
    """
    place = np.arange(after) * (before / after)
    left = np.minimum(np.floor(place).astype(int), before - 1)
    right = np.minimum(left + 1, before - 1)
    rows: Numbers = np.zeros((after, before))
    np.add.at(rows, (np.arange(after), left), 1 - (place - left))
    np.add.at(rows, (np.arange(after), right), place - left)
    return rows
