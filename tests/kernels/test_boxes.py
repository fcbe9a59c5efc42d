"""Tiles are low where that is quicker."""

from __future__ import annotations

import pytest
import torch

from cswf_core.kernels.sparse import LOW_TILE, TILE, Strips


@pytest.mark.parametrize(
    ("resolution", "side", "directions", "rows"),
    [
        (32, 7, 10_000, (LOW_TILE, LOW_TILE)),
        (32, 15, 10_000, (TILE, LOW_TILE)),
        (24, 7, 10_000, (TILE, TILE)),
        (16, 7, 10_000, (TILE, TILE)),
        (8, 7, 10_000, (TILE, TILE)),
        (16, 7, 1_536, (LOW_TILE, LOW_TILE)),
        (24, 7, 3_456, (LOW_TILE, LOW_TILE)),
        (64, 15, 10_000, (LOW_TILE, LOW_TILE)),
    ],
)
def test_tiles_are_low_where_the_table_of_an_h200_says_so(resolution, side, directions, rows):
    """The table is in docs/performance.md, under Low tiles, with times of both kinds."""
    assert Strips.of((3, resolution, resolution), directions, side, torch.device("cpu")).rows == rows
