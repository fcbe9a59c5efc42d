"""Enlarging a line of pixels: the matrices A (size × k) of the usual kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

Line = NDArray[np.float64]


def _lanczos(lobes: int) -> Callable[[Line], Line]:
    def kernel(distance: Line) -> Line:
        inside = np.abs(distance) < lobes
        return np.where(inside, np.sinc(distance) * np.sinc(distance / lobes), 0.0)

    return kernel


def _bicubic(distance: Line) -> Line:
    """Keys' cubic convolution with a = −1/2."""
    t = np.abs(distance)
    near = (1.5 * t - 2.5) * t * t + 1
    far = ((-0.5 * t + 2.5) * t - 4) * t + 2
    return np.where(t < 1, near, np.where(t < 2, far, 0.0))


def _nearest(distance: Line) -> Line:
    """The pixel that a place lies in; on an edge, the one to the right."""
    return ((distance >= -0.5) & (distance < 0.5)).astype(np.float64)


KERNELS: Mapping[str, Callable[[Line], Line]] = {
    "lanczos5": _lanczos(5),
    "lanczos3": _lanczos(3),
    "bicubic": _bicubic,
    "nearest": _nearest,
}
"""Name → weight of a coarse pixel at a signed distance, in coarse pixels."""


def enlarging(coarse: int, fine: int, kernel: str) -> Line:
    """Return A (fine × coarse), which enlarges `coarse` pixels to `fine`; each row sums to 1.

    Pixels are areas: the centre of fine pixel i lies at (i + ½) k/size − ½ in coarse pixels. At the borders,
    weights beyond the line are left out and the others scaled up.
    """
    centre = (np.arange(fine) + 0.5) * coarse / fine - 0.5
    weights = KERNELS[kernel](centre[:, None] - np.arange(coarse))
    rows: Line = weights / weights.sum(axis=1, keepdims=True)
    return rows
