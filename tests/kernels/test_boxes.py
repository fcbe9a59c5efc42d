"""Tiles are low where that is quicker."""

from __future__ import annotations

import pytest
import torch

from cswf_core.kernels.blocks import TILE
from cswf_core.kernels.boxes import LOW, Strips


@pytest.mark.parametrize(
    ("resolution", "side", "directions", "rows"),
    [
        (32, 7, 10_000, (LOW, LOW)),
        (32, 3, 10_000, (LOW, LOW)),
        (32, 15, 10_000, (TILE, LOW)),
        (64, 15, 10_000, (LOW, LOW)),
        (24, 7, 3_456, (LOW, LOW)),
        (16, 11, 1_536, (TILE, LOW)),
        (16, 7, 10_000, (TILE, TILE)),
        (16, 11, 10_000, (TILE, TILE)),
        (8, 7, 10_000, (TILE, TILE)),
    ],
)
def test_tiles_are_low_where_an_h200_was_quicker_with_low_ones(resolution, side, directions, rows):
    """As measured with 50,000 particles; see docs/performance.md."""
    assert Strips.of((3, resolution, resolution), directions, side, torch.device("cpu")).rows == rows
