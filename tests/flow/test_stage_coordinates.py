"""Coarse coordinates give what the plain computation in the data's space gives."""

from __future__ import annotations

import attrs
import pytest
import torch
from torch import Tensor

from cswf_core.interfaces import Dataset, Draw, Key, ProjectionSampler, Schedule, Space, Stage, Upsampling
from cswf_plugins.conditions.none import NoCondition
from tests.conftest import small_flow

COARSE, FINE = 4, 9


class Matrix(Upsampling):
    """Any linear map, as a dense matrix U (d×d_k)."""

    def __init__(self, U: Tensor) -> None:
        self.U = U
        self.space = Space((U.shape[1],))

    def up(self, t: Tensor) -> Tensor:
        return self.U @ t

    def down(self, x: Tensor) -> Tensor:
        return self.U.T @ x


@attrs.frozen
class Upsampled(ProjectionSampler):
    """The same directions, but already at full resolution and of unit length there."""

    U: Tensor

    def sample(self, space: Space, count: int, draw: Draw) -> Tensor:
        theta = draw.sphere(count, COARSE) @ self.U.T
        return theta / torch.linalg.vector_norm(theta, dim=1, keepdim=True)


@attrs.frozen
class TwoStages(Schedule):
    """A coarse stage, then one in the data's space."""

    first: Stage

    def stages(self, space: Space, projection: ProjectionSampler) -> list[Stage]:
        return [self.first, Stage(steps=2, directions=40, step_size=2.0)]


@attrs.frozen
class Masked(NoCondition):
    """Coordinates 0 to 2 are observed, and begin with what is observed."""

    def mask(self, data: Dataset, conditions: object) -> Tensor:
        return torch.arange(data.space.dimension) < 3

    def place(self, x: Tensor, conditions: object) -> Tensor:
        return x.index_fill(0, torch.arange(3), 0.25)


@attrs.frozen
class MaskedEach(Masked):
    """Every particle has a mask of its own: j observes coordinate j mod 3 and nothing else."""

    def mask(self, data: Dataset, conditions: object) -> Tensor:
        return torch.arange(data.space.dimension)[:, None] == torch.arange(30) % 3


@pytest.fixture
def U() -> Tensor:
    return Key(3, "U").open(dtype=torch.float64).normal(FINE, COARSE)


@pytest.mark.parametrize("condition", [NoCondition(), Masked(), MaskedEach()])
@pytest.mark.parametrize("bin_width", [0.0, 0.5])
@pytest.mark.parametrize("entropy", [0.0, 0.01])
def test_coarse_coordinates_equal_the_plain_computation(U, condition, bin_width, entropy):
    x = Key(1, "x").open(dtype=torch.float64).normal(FINE, 50)
    data = Dataset(x=x, space=Space((FINE,)), bin_width=bin_width)
    shared = {"steps": 5, "directions": 150, "step_size": 3.0, "entropy": entropy}
    coarse = TwoStages(Stage(upsampling=Matrix(U), **shared))
    plain = TwoStages(Stage(sampler=Upsampled(U), **shared))
    got = small_flow(data, condition=condition, schedule=coarse).run()
    expected = small_flow(data, condition=condition, schedule=plain).run()
    torch.testing.assert_close(got.x, expected.x, atol=1e-10, rtol=0)


def test_samples_in_the_middle_of_a_coarse_stage_are_in_the_data_s_space(U):
    data = Dataset(x=Key(1, "x").open(dtype=torch.float64).normal(FINE, 50), space=Space((FINE,)))
    shared = {"steps": 5, "directions": 20, "step_size": 2.0}
    coarse = small_flow(data, schedule=TwoStages(Stage(upsampling=Matrix(U), **shared)))
    plain = small_flow(data, schedule=TwoStages(Stage(sampler=Upsampled(U), **shared)))
    for _ in range(3):
        got, expected = next(iter(coarse)), next(iter(plain))
        torch.testing.assert_close(coarse.samples().x, plain.samples().x, atol=1e-10, rtol=0)
        assert got.displacement == pytest.approx(expected.displacement)
        assert got.distance == pytest.approx(expected.distance)


def test_observed_coordinates_never_move():
    data = Dataset(x=Key(1, "x").open(dtype=torch.float64).normal(FINE, 50), space=Space((FINE,)))
    x = small_flow(data, condition=Masked()).run().x
    assert (x[:3] == 0.25).all()
    assert (x[3:] != 0.25).all()
    x = small_flow(data, condition=MaskedEach()).run().x
    still = x[:3] == 0.25
    assert torch.equal(still, torch.arange(3)[:, None] == torch.arange(30) % 3)
