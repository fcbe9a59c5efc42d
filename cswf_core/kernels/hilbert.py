"""Pixels along a Hilbert curve: whatever is near on the curve is near in the image."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]


def along_hilbert(height: int, width: int) -> Indices:
    """Return the pixels of a height×width grid (row · width + column) in the order a Hilbert curve meets them.

    The curve fills the smallest square of side 2^m around the grid; what lies outside the grid is left out.
    """
    side = 1 << (max(height, width) - 1).bit_length()
    rest = np.arange(side * side)
    row, column = np.zeros_like(rest), np.zeros_like(rest)
    step = 1
    while step < side:
        right = rest // 2 & 1
        down = (rest ^ right) & 1
        flip = (down == 0) & (right == 1)
        row, column = np.where(flip, step - 1 - row, row), np.where(flip, step - 1 - column, column)
        row, column = np.where(down == 0, column, row), np.where(down == 0, row, column)
        row, column = row + step * right, column + step * down
        rest //= 4
        step *= 2
    inside = (row < height) & (column < width)
    pixels: Indices = row[inside] * width + column[inside]
    return pixels
