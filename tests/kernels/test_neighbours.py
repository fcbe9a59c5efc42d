"""Nearest neighbours: those of a plain search, exact for copies, whatever the blocks."""

from __future__ import annotations

import pytest
import torch

from cswf_core.kernels import neighbours


@pytest.fixture(params=[1 << 27, 50])
def blocks(request, monkeypatch):
    monkeypatch.setattr(neighbours, "DISTANCES_AT_A_TIME", request.param)


def points(n: int, seed: int, width: int = 6) -> torch.Tensor:
    return torch.randn(n, width, generator=torch.Generator().manual_seed(seed)) + 100


def test_neighbours_are_those_of_a_plain_search(blocks):
    queries, others = points(23, 0), points(31, 1)
    distances, index = neighbours.nearest(queries, others, 4)
    plain = torch.cdist(queries.double(), others.double()).sort(dim=1)
    torch.testing.assert_close(distances.double(), plain.values[:, :4], rtol=1e-4, atol=1e-4)
    assert (index[:, 0] == plain.indices[:, 0]).float().mean() > 0.9  # float32 may swap near ties


def test_a_copy_has_distance_0_far_from_the_origin(blocks):
    others = points(40, 2) * 100
    distances, index = neighbours.nearest(others[[3, 17]], others, 1)
    assert distances.tolist() == [[0.0], [0.0]]
    assert index.tolist() == [[3], [17]]


def test_the_nearest_other_leaves_a_point_itself_out_and_its_twin_in(blocks):
    line = torch.tensor([[0.0], [1.0], [3.0], [7.0], [7.0]])
    assert neighbours.nearest_other(line, 1)[:, 0].tolist() == [1, 1, 2, 0, 0]
    same = torch.zeros(9, 2)
    assert neighbours.nearest_other(same, 3).tolist() == [[0, 0, 0]] * 9


def test_balls_are_counted(blocks):
    centres, radii = torch.tensor([[0.0], [10.0], [20.0]]), torch.tensor([1.0, 3.0, 1.0])
    counts, held = neighbours.within_any(torch.tensor([[0.5], [12.9], [11.0], [30.0]]), centres, radii)
    assert counts.tolist() == [1, 1, 1, 0]
    assert held.tolist() == [True, True, False]
