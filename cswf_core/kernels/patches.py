"""Small filters put onto a grid as rows of a matrix."""

from __future__ import annotations

import torch
from torch import Tensor


def embedded(filters: Tensor, shape: tuple[int, ...], dilation: int, row: Tensor, column: Tensor) -> Tensor:
    """Return filters on a grid as unit directions: H × C·H·W. Pixels outside the grid are cut off.

    Args:
        filters: The filters: H×C×S×S.
        shape: The grid, (C, H, W).
        dilation: Pixels from one pixel of a filter to the next.
        row: The row that each filter stands around: H.
        column: The column that each filter stands around: H.
    """
    count, channels, side, _ = filters.shape
    _, height, width = shape
    rows, rows_inside = around(row, side, dilation, height)
    columns, columns_inside = around(column, side, dilation, width)
    inside = rows_inside[:, :, None] & columns_inside[:, None, :]
    pixel = rows.clamp(0, height - 1)[:, :, None] * width + columns.clamp(0, width - 1)[:, None, :]
    plane = torch.arange(channels, device=filters.device)[:, None, None] * (height * width)
    place = (pixel[:, None] + plane).reshape(count, -1)
    value = (filters * inside[:, None]).reshape(count, -1)
    # Pixels that were cut off are clamped to the border and add zeros there, in any order.
    theta = filters.new_zeros(count, channels * height * width)
    return unit_(theta.scatter_add_(1, place, value))


def around(centre: Tensor, side: int, dilation: int, length: int) -> tuple[Tensor, Tensor]:
    """Return the S rows (or columns) of patches around their centres, and which of them are on the grid.

    Args:
        centre: The centres, in any shape; both results have another dimension of S behind.
        side: S.
        dilation: Pixels from one pixel of a patch to the next.
        length: Rows (or columns) of the grid.
    """
    places = centre[..., None] + (torch.arange(side, device=centre.device) - side // 2) * dilation
    return places, (places >= 0) & (places < length)


def unit(rows: Tensor) -> Tensor:
    """Return each row (H×d) scaled to unit length."""
    return unit_(rows.clone())


def unit_(rows: Tensor) -> Tensor:
    """Scale each row (H×d) to unit length, in place."""
    lengths: Tensor = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    return rows.div_(lengths.clamp_min(torch.finfo(rows.dtype).tiny))
