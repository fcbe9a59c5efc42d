"""Small filters placed on a large grid, for the samplers with patches."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from cswf_core.interfaces import Draw, Space


def covers(patch: int, height: int, width: int) -> bool:
    """Return whether a patch is as large as the grid; then it can stand for the whole grid."""
    return patch >= height and patch >= width


def embed(filters: Tensor, space: Space, dilation: int, draw: Draw) -> Tensor:
    """Put each filter (count×C×S×S) somewhere on the grid: unit directions, count × C·H·W.

    The centre is uniform over all pixels; what falls outside is cut off, and the rest scaled to unit length.
    """
    if math.prod(filters.shape[1:]) == 1:  # now and then a normal number is 0, which has no direction
        filters = torch.where(filters < 0, -1.0, 1.0).to(filters.dtype)
    _, height, width = space.shape
    row, column = (draw.integers(length, len(filters)) for length in (height, width))
    return embed_at(filters, space, dilation, row, column)


def embed_at(filters: Tensor, space: Space, dilation: int, row: Tensor, column: Tensor) -> Tensor:
    """Put each filter (count×C×S×S) around a row and a column (count each): unit directions, count × C·H·W."""
    count, channels, side, _ = filters.shape
    _, height, width = space.shape
    rows, rows_inside = around(row, side, dilation, height)
    columns, columns_inside = around(column, side, dilation, width)
    inside = rows_inside[:, :, None] & columns_inside[:, None, :]
    pixel = rows.clamp(0, height - 1)[:, :, None] * width + columns.clamp(0, width - 1)[:, None, :]
    plane = torch.arange(channels, device=filters.device)[:, None, None] * (height * width)
    place = (pixel[:, None] + plane).reshape(count, -1)
    value = (filters * inside[:, None]).reshape(count, -1)
    # Pixels that were cut off are clamped to the border and add zeros there, in any order.
    theta = torch.zeros(count, space.dimension, dtype=filters.dtype, device=filters.device)
    return unit(theta.scatter_add_(1, place, value))


def around(centre: Tensor, side: int, dilation: int, length: int) -> tuple[Tensor, Tensor]:
    """Return the S rows (or columns) of patches around their centres, and which of them are on the grid.

    The shape of both is the centres' shape and S; `length` is the number of the grid's rows (or columns).
    """
    places = centre[..., None] + (torch.arange(side, device=centre.device) - side // 2) * dilation
    return places, (places >= 0) & (places < length)


def unit(rows: Tensor) -> Tensor:
    """Scale each row (H×d) to unit length."""
    lengths: Tensor = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    return rows / lengths.clamp_min(torch.finfo(rows.dtype).tiny)
