"""A coarse grid inside a fine one: U enlarges filters, separably in rows and columns."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from cswf_core.interfaces import Space, Upsampling
from cswf_core.kernels.resizing import resizing


class Enlarged(Upsampling):
    """U = A_rows ⊗ A_columns for each channel, scaled so that G = UᵀU is near the identity."""

    def __init__(self, coarse: Space, fine: Space, kernel: str) -> None:
        self.space = coarse
        self.fine = fine
        sides = zip(coarse.shape[1:], fine.shape[1:], strict=True)
        lines = [resizing(k, size, kernel) * math.sqrt(k / size) for k, size in sides]
        self._lines = [torch.from_numpy(line) for line in lines]
        self._grams = [line.T @ line for line in self._lines]
        self._placed: dict[tuple[torch.device, torch.dtype], tuple[list[Tensor], list[Tensor]]] = {}

    def up(self, t: Tensor) -> Tensor:
        """Return U t: C·k·k×n → C·H·W×n."""
        (rows, columns), _ = self._on(t)
        return self._both(t, self.space, rows, columns)

    def down(self, x: Tensor) -> Tensor:
        """Return Uᵀ x: C·H·W×n → C·k·k×n."""
        (rows, columns), _ = self._on(x)
        return self._both(x, self.fine, rows.T, columns.T)

    def gram(self, t: Tensor) -> Tensor:
        """Return UᵀU t by the small matrices AᵀA: C·k·k×n → C·k·k×n."""
        _, (rows, columns) = self._on(t)
        return self._both(t, self.space, rows, columns)

    def _on(self, like: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        place = like.device, like.dtype
        if place not in self._placed:
            self._placed[place] = [m.to(*place) for m in self._lines], [m.to(*place) for m in self._grams]
        return self._placed[place]

    @staticmethod
    def _both(x: Tensor, space: Space, rows: Tensor, columns: Tensor) -> Tensor:
        """Apply one matrix along the rows' axis and another along the columns' axis."""
        channels, height, width = space.shape
        n = x.shape[1]
        tall = torch.matmul(rows, x.reshape(channels, height, width * n))
        wide = torch.matmul(columns, tall.reshape(channels * rows.shape[0], width, n))
        return wide.reshape(channels * rows.shape[0] * columns.shape[0], n)
