"""Directions as a sparse matrix: a curve that keeps neighbours together, and products that skip zeros."""

from __future__ import annotations

import pytest
import torch

from cswf_core.flow.directions import SparseProjection, places
from cswf_core.interfaces import Key, Space
from cswf_core.kernels import sparse
from cswf_core.kernels.sparse import along_hilbert
from cswf_plugins.projections.conv_stack import ConvStack
from cswf_plugins.projections.uniform import Uniform

SPACE = Space((3, 16, 12))


@pytest.mark.parametrize("shape", [(1, 1), (2, 2), (8, 8), (5, 9), (12, 7), (1, 6)])
def test_the_curve_meets_every_pixel_once(shape):
    pixels = along_hilbert(*shape)
    assert sorted(pixels.tolist()) == list(range(shape[0] * shape[1]))


@pytest.mark.parametrize("side", [2, 4, 16, 32])
def test_on_a_square_of_two_to_the_m_each_pixel_touches_the_next(side):
    pixels = along_hilbert(side, side)
    row, column = pixels // side, pixels % side
    assert (abs(row[1:] - row[:-1]) + abs(column[1:] - column[:-1]) == 1).all()


def local(count: int = 300, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return ConvStack(patch=3).sample(SPACE, count, Key(4, "theta").open(dtype=dtype))


def projection(theta: torch.Tensor) -> tuple[SparseProjection, torch.Tensor]:
    where = places(SPACE, torch.device("cpu"))
    found = sparse.arrange(theta, None, where, theta.dtype)
    return SparseProjection(found, where), theta[found.order]


@pytest.mark.parametrize("sampler", [ConvStack(patch=3), Uniform()])
def test_products_are_those_of_the_dense_matrix(sampler):
    theta = sampler.sample(SPACE, 300, Key(4, "theta").open(dtype=torch.float64))
    operator, ordered = projection(theta)
    x, a = torch.randn(SPACE.dimension, 20).double(), torch.randn(300, 20).double()
    assert operator.shape == (300, SPACE.dimension)
    assert torch.equal(operator.dense(), ordered)
    torch.testing.assert_close(operator.project(x), ordered @ x)
    torch.testing.assert_close(operator.adjoint(a), ordered.T @ a)


def test_some_of_the_directions_are_a_projection_too():
    operator, ordered = projection(local())
    part = operator.rows(slice(37, 170))
    x = torch.randn(SPACE.dimension, 5).double()
    torch.testing.assert_close(part.project(x), ordered[37:170] @ x)


def test_local_directions_touch_few_cells_and_dense_ones_all():
    where, draw = places(SPACE, torch.device("cpu")), Key(4, "theta").open()
    theta = ConvStack(patch=3).sample(SPACE, 2000, draw)
    assert sparse.arrange(theta, None, where, torch.float32).share() < 0.45
    assert sparse.arrange(theta, None, None, torch.float32).share() == 1
    dense = Uniform().sample(SPACE, 200, draw)
    assert sparse.arrange(dense, None, where, torch.float32).share() == 1


def test_a_direction_of_zeros_does_no_harm():
    theta = local(5)
    theta[2] = 0
    operator, ordered = projection(theta)
    assert torch.equal(operator.dense(), ordered)
