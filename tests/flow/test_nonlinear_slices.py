"""Nonlinear slices: functions of x in the place of θ·x, with gradients by autograd or by hand."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest
import torch

from cswf_core.errors import PluginError, RunError
from cswf_core.interfaces import DenseProjection, Key, NonlinearProjection, Owner, ProjectionSampler
from cswf_core.model import load_model
from cswf_core.model.writer import ModelWriter
from cswf_core.plugins import Registry
from cswf_core.recipe import build_flow, load_recipe
from cswf_plugins.cdfs.histogram import Histogram
from cswf_plugins.conditions.mask import Mask
from cswf_plugins.conditions.none import NoCondition
from cswf_plugins.conditions.one_hot import OneHot
from cswf_plugins.coordinates.whitened import Whitened
from cswf_plugins.projections.high_pass import HighPass
from cswf_plugins.schedules.constant import Constant
from tests.conftest import random_data, small_flow
from tests.flow.kinds import image_flow
from tests.model.conftest import SMALL
from tests.ranks.forked import on_ranks

EXAMPLES = Path(__file__).parents[2] / "examples/plugins"
OWNERS = {"projection": Owner("projection", "mine", "acme-plugins", "1.2")}


class Cubes(NonlinearProjection):
    """g(x) = θ·x + (θ·x)³/20."""

    def __init__(self, theta):
        self.theta = theta

    @property
    def shape(self):
        return tuple(self.theta.shape)

    def project(self, x):
        p = self.theta @ x
        return p + p**3 / 20


class ByHand(Cubes):
    """The same, with its gradient."""

    def adjoint(self, a, x=None):
        return self.theta.T @ (a * (1 + 3 * (self.theta @ x) ** 2 / 20))


class Wrong(ByHand):
    """A gradient that forgets the inner derivative."""

    def adjoint(self, a, x=None):
        return self.theta.T @ a


class Lines(Cubes):
    """Linear functions."""

    def project(self, x):
        return self.theta @ x


@attrs.frozen
class Slices(ProjectionSampler):
    """Slices of a kind."""

    kind: type = Cubes

    adapts = False

    def sample(self, space, count, draw):
        return self.kind(draw.sphere(count, space.dimension))

    def patched(self, patch, dilation=1):
        return self


@attrs.frozen
class Matrix(Slices):
    """The same directions as a matrix, whose steps are measured too."""

    kind: type = DenseProjection

    adapts = True

    def adapted(self, space, particles, data, draw):
        return self


def test_the_gradient_by_autograd_is_the_one_by_hand():
    draw = Key(2, "gradient").open(dtype=torch.float64)
    theta, x, a = draw.sphere(9, 5), draw.normal(5, 7), draw.normal(9, 7)
    by_hand = ByHand(theta).adjoint(a, x)
    gradient = Cubes(theta).adjoint(a, x)
    torch.testing.assert_close(gradient, by_hand)
    assert not gradient.requires_grad
    some = slice(2, 6)
    torch.testing.assert_close(
        Cubes(theta).rows(some).adjoint(a[some], x), ByHand(theta[some]).adjoint(a[some], x)
    )
    assert Cubes(theta).rows(some).shape == (4, 5)
    torch.testing.assert_close(Cubes(theta).rows(some).project(x), Cubes(theta[some]).project(x))


@pytest.mark.parametrize("condition", [NoCondition(), OneHot(amplifier=3.0)], ids=["none", "one-hot"])
def test_linear_functions_move_particles_as_their_matrix_does(condition):
    # Steps that neither has to shorten: λ is estimated at several particles for the one, at once for the other.
    parts = {"schedule": Constant(steps=3, directions=300, step_size=2), "condition": condition}
    lines, matrix = (small_flow(projection=each, **parts) for each in (Slices(Lines), Matrix()))
    torch.testing.assert_close(lines.run().x, matrix.run().x, atol=1e-9, rtol=0)


@pytest.mark.parametrize("coordinates", [None, Whitened()], ids=["plain", "whitened"])
def test_smaller_slabs_give_the_same(coordinates):
    parts = {"schedule": Constant(steps=2, directions=100), "coordinates": coordinates}
    flow, small = (image_flow(projection=Slices(), dtype=torch.float64, **parts) for _ in range(2))
    small.budget.slab = 7
    torch.testing.assert_close(small.run().x, flow.run().x, atol=1e-10, rtol=0)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a process that is forked has no autograd of a GPU")
def test_several_ranks_have_the_bits_of_one(tmp_path):
    """Slopes differ from particle to particle, and steps must not differ from rank to rank."""

    def taken(ranks=None):
        parts = {"schedule": Constant(steps=3, directions=60), "cdf": Histogram(bins=64)}
        flow = small_flow(random_data(n=300), projection=Slices(), count=300, ranks=ranks, **parts)
        etas = [state.eta for state in flow]
        return etas, flow.samples().x if ranks is None or ranks.leads else None

    (etas, x), (others, _) = on_ranks(2, tmp_path, taken)
    assert etas == others
    alone_etas, alone_x = taken()
    assert etas == alone_etas
    assert torch.equal(x, alone_x)


@pytest.fixture(scope="module")
def circular() -> ProjectionSampler:
    """The example of a nonlinear slice."""
    return Registry.discover(EXAMPLES, {}).find("projection", "circular").factory()


def test_distances_from_random_points_bring_particles_to_the_data(circular):
    data = random_data(d=5, n=60)
    schedule = Constant(steps=30, directions=60)
    flow = small_flow(data, projection=circular, schedule=schedule, condition=NoCondition())
    distances = [state.distance for state in flow]
    assert distances[-1] < 0.25 * distances[0]
    away = (flow.samples().x.mean(dim=1) - data.x.mean(dim=1)).norm()
    assert away < 0.3 * data.x.mean(dim=1).norm()


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({}, "on a coarse grid"),
        ({"condition": Mask(), "schedule": Constant(steps=2, directions=9)}, "where a part"),
    ],
    ids=["pyramid", "mask"],
)
def test_coarse_grids_and_observations_are_refused(changes, where):
    with pytest.raises(PluginError, match="nonlinear slices work on the data's own grid") as error:
        image_flow(projection=Slices(), owners=OWNERS, **changes).run()
    assert str(error.value).startswith("projection 'mine' (acme-plugins 1.2): ")
    assert f"and not {where}" in str(error.value)


def test_online_learning_is_refused():
    with pytest.raises(
        RunError, match=r"^projection 'mine' .* has nonlinear slices, and online learning counts"
    ):
        small_flow(projection=Slices(), owners=OWNERS, sets=2, cdf=Histogram(bins=32)).run()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_wrong_gradient_is_refused_and_a_right_one_is_not(dtype):
    with pytest.raises(PluginError, match="adjoint must return Σ a ∇g") as error:
        small_flow(projection=Slices(Wrong), owners=OWNERS, dtype=dtype).run()
    assert str(error.value).startswith("projection 'mine' (acme-plugins 1.2): ")
    assert torch.isfinite(small_flow(projection=Slices(ByHand), dtype=dtype).run().x).all()


def test_a_sampler_that_needs_a_matrix_says_which_slices_have_none():
    with pytest.raises(PluginError, match="sample raised TypeError: nonlinear slices have no matrix"):
        image_flow(projection=HighPass(of=Slices()), schedule=Constant(steps=2, directions=9)).run()


def test_a_saved_model_retraces_its_run(tmp_path):
    changes = [*SMALL, "projection=circular", "particles.count=200", "schedule.steps=5", "model.knots=41"]
    recipe = load_recipe("digits", changes, plugins_dir=EXAMPLES)
    samples = build_flow(recipe, device="cpu", observers=[ModelWriter(tmp_path, recipe)]).run()
    again = load_model(tmp_path, plugins_dir=EXAMPLES).retrace(device="cpu")
    torch.testing.assert_close(again.x, samples.x, atol=2e-3, rtol=0)
