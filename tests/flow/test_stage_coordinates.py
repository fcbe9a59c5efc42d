"""Coarse coordinates give what the plain computation in the data's space gives."""

from __future__ import annotations

import attrs
import pytest
import torch
from torch import Tensor

from cswf_core.interfaces import (
    Conditions,
    Dataset,
    Draw,
    Key,
    Masked,
    Observation,
    ProjectionSampler,
    Schedule,
    Space,
    Stage,
    Upsampling,
)
from cswf_plugins.conditions.none import NoCondition
from cswf_plugins.schedules.constant import Constant
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
class Seen(NoCondition):
    """Coordinates 0 to 2 are observed, stretched by the amplifier."""

    amplifier: float = 1.0

    def draw(self, data: Dataset, count: int, draw: Draw) -> Conditions:
        return Conditions(origin=draw.integers(len(data), count))

    def observation(self, data: Dataset, conditions: object, draw: Draw) -> Observation:
        return Masked(torch.arange(data.space.dimension) < 3)


@attrs.frozen
class SeenEach(Seen):
    """Every particle has a mask of its own: j observes coordinate j mod 3 and nothing else."""

    def observation(self, data: Dataset, conditions: object, draw: Draw) -> Observation:
        return Masked(torch.arange(data.space.dimension)[:, None] == torch.arange(30) % 3)


class MeanSeen(Observation):
    """The mean of all coordinates."""

    def seen(self, x: Tensor) -> Tensor:
        return x.mean(dim=0, keepdim=True).expand_as(x)


@attrs.frozen
class SeenMean(Seen):
    """Nothing of x is known but its mean."""

    def observation(self, data: Dataset, conditions: object, draw: Draw) -> Observation:
        return MeanSeen()


CONDITIONS = [NoCondition(), Seen(), Seen(3.0), Seen(0.0), SeenEach(), SeenMean(), SeenMean(2.0)]


@pytest.fixture
def U() -> Tensor:
    return Key(3, "U").open(dtype=torch.float64).normal(FINE, COARSE)


@pytest.fixture
def data() -> Dataset:
    return Dataset(x=Key(1, "x").open(dtype=torch.float64).normal(FINE, 50), space=Space((FINE,)))


@pytest.mark.parametrize("condition", CONDITIONS)
@pytest.mark.parametrize("bin_width", [0.0, 0.5])
@pytest.mark.parametrize("entropy", [0.0, 0.01])
def test_coarse_coordinates_equal_the_plain_computation(U, data, condition, bin_width, entropy):
    data = attrs.evolve(data, bin_width=bin_width)
    shared = {"steps": 5, "directions": 150, "step_size": 3.0, "entropy": entropy}
    coarse = TwoStages(Stage(upsampling=Matrix(U), **shared))
    plain = TwoStages(Stage(sampler=Upsampled(U), **shared))
    got = small_flow(data, condition=condition, schedule=coarse).run()
    expected = small_flow(data, condition=condition, schedule=plain).run()
    torch.testing.assert_close(got.x, expected.x, atol=1e-10, rtol=0)


def test_samples_in_the_middle_of_a_coarse_stage_are_in_the_data_s_space(U, data):
    shared = {"steps": 5, "directions": 20, "step_size": 2.0}
    coarse = small_flow(data, schedule=TwoStages(Stage(upsampling=Matrix(U), **shared)))
    plain = small_flow(data, schedule=TwoStages(Stage(sampler=Upsampled(U), **shared)))
    for _ in range(3):
        got, expected = next(iter(coarse)), next(iter(plain))
        torch.testing.assert_close(coarse.samples().x, plain.samples().x, atol=1e-10, rtol=0)
        assert got.displacement == pytest.approx(expected.displacement)
        assert got.distance == pytest.approx(expected.distance)


@pytest.mark.parametrize("bin_width", [0.0, 0.5])
@pytest.mark.parametrize("condition", [Seen(), Seen(3.0), Seen(0.0), SeenEach()])
def test_observed_coordinates_never_move(data, condition, bin_width):
    flow = small_flow(attrs.evolve(data, bin_width=bin_width), condition=condition)
    samples, given = flow.run(), flow.originals()
    assert torch.equal(samples.x == given, flow.observation.mask.expand(FINE, 30))
    assert (given - data.x[:, samples.conditions.origin] <= bin_width).all()


def test_an_observed_mean_stays_what_it_was(data):
    flow = small_flow(data, condition=SeenMean(2.0))
    torch.testing.assert_close(flow.run().x.mean(dim=0), flow.originals().mean(dim=0))


def test_amplifier_0_ignores_what_is_observed(data):
    data.x[3:] = data.x[:1]  # what is hidden is known from what is seen
    parts = {"schedule": Constant(steps=40, directions=200), "count": 200}
    samples = (small_flow(data, condition=Seen(amplifier), **parts).run().x for amplifier in (0.0, 1.0))
    ignored, followed = (float(torch.corrcoef(x[[0, 5]])[0, 1]) for x in samples)
    assert abs(ignored) < 0.3
    assert followed > 0.6
