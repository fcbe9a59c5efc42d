"""Directions with weights: X moves by η/H Σ w δ θ, and SW₂² and λ count them too."""

from __future__ import annotations

import attrs
import pytest
import torch

from cswf_core.errors import PluginError
from cswf_core.interfaces import DenseProjection, Key, Owner, Projection, ProjectionSampler, Space
from cswf_core.model import load_model
from cswf_core.model.writer import ModelWriter
from cswf_core.recipe import build_flow, load_recipe
from cswf_plugins.cdfs.histogram import Histogram
from cswf_plugins.cdfs.sorted import Sorted
from cswf_plugins.conditions.none import NoCondition
from cswf_plugins.conditions.one_hot import OneHot
from cswf_plugins.projections.conv_stack import ConvStack
from cswf_plugins.projections.exemplars import Exemplars
from cswf_plugins.projections.high_pass import HighPass
from cswf_plugins.projections.locally_connected import LocallyConnected
from cswf_plugins.projections.max_sliced import MaxSliced
from cswf_plugins.projections.uniform import Uniform
from cswf_plugins.schedules.constant import Constant
from tests.conftest import random_data, small_flow
from tests.flow.kinds import images
from tests.model.conftest import SMALL

OWNERS = {"projection": Owner("projection", "mine", "acme-plugins", "1.2")}


def weighted(weigh, of=Uniform) -> type:
    """A class of samplers like another, whose directions have the weights that `weigh(theta, draw)` returns."""

    class Weighted(of):
        isotropic = False

        def sample(self, space, count, draw):
            drawn = of.sample(self, space, count, draw)
            theta = drawn.dense() if isinstance(drawn, Projection) else drawn
            return DenseProjection(theta, weigh(theta, draw))

    return attrs.frozen(Weighted, kw_only=True)


def uneven(theta, draw):
    """Weights that are 1 on average."""
    return 0.5 + draw.uniform(len(theta))


def ones(theta, draw):
    return torch.ones_like(theta[:, 0])


@pytest.mark.parametrize("condition", [NoCondition(), OneHot(amplifier=3.0)], ids=["none", "one-hot"])
def test_weights_of_one_change_no_bit(condition):
    plain = small_flow(condition=condition).run()
    assert small_flow(condition=condition, projection=weighted(ones)()).run().digest() == plain.digest()


def test_particles_move_by_weighted_displacements_and_the_distance_counts_them():
    data = random_data(n=40)
    flow = small_flow(data, projection=weighted(uneven)(), condition=NoCondition())
    x, H, eta = flow.particles.x.clone(), 300, 5.0
    state = next(iter(flow))
    draw = Key(0, "directions", 0, 0, 0).open(dtype=torch.float64)
    theta = draw.sphere(H, 5)
    w = 0.5 + draw.uniform(H)
    p, cdf = theta @ x, Sorted()
    delta = cdf.transport(p, cdf.fit(theta @ data.x)) - p
    torch.testing.assert_close(flow.samples().x, x + eta / H * theta.T @ (w[:, None] * delta))
    assert state.distance**2 == pytest.approx(float((w * delta.square().mean(dim=1)).mean()), rel=1e-9)


@pytest.mark.parametrize(
    "changes",
    [{}, {"half": True}, {"reuse": 3}, {"sets": 2}],
    ids=["plain", "binned", "reuse", "sets"],
)
def test_weights_follow_their_directions_however_a_step_is_computed(changes):
    """Half of the directions, each counting twice, are all of them with the others at 0."""

    class Half(LocallyConnected):
        def sample(self, space, count, draw):
            theta = LocallyConnected.sample(self, space, 2 * count, draw)
            return DenseProjection(theta[::2].contiguous(), ones(theta[::2], draw))

    class Zeros(LocallyConnected):
        def sample(self, space, count, draw):
            theta = LocallyConnected.sample(self, space, count, draw)
            return DenseProjection(theta, 2 * (torch.arange(count) % 2 == 0).to(theta))

    # A condition would draw numbers for each direction: those of half as many are not every second one.
    # Where data are counted, the noise in their bins belongs to a direction's number.
    data = attrs.evolve(images(), bin_width=0.0) if "sets" in changes else images()
    runs = [
        small_flow(
            data,
            cdf=Histogram(bins=64),
            projection=attrs.frozen(kind, kw_only=True)(patch=3),
            schedule=Constant(steps=4, directions=directions, step_size=8),
            condition=NoCondition(),
            **changes,
        )
        for kind, directions in ((Half, 40), (Zeros, 80))
    ]
    torch.testing.assert_close(runs[1].run().x, runs[0].run().x, atol=1e-9, rtol=0)


@pytest.mark.parametrize(
    ("weigh", "complaint"),
    [
        (lambda theta, draw: uneven(theta, draw) - 1, r"weights must return numbers of 0 or more, got -0\.\d"),
        (lambda theta, draw: ones(theta, draw) / 0 * 0, "weights must return finite numbers, got 300 of 300"),
        (lambda theta, draw: ones(theta, draw)[1:], "weights must return a 300 tensor .* got 299 of float64"),
        (lambda theta, draw: ones(theta, draw)[:, None], "weights must return a 300 tensor .* got 300×1"),
        (lambda theta, draw: ones(theta, draw).float(), "weights must return a 300 tensor of float64"),
        (lambda theta, draw: [1.0] * len(theta), "weights must return a 300 tensor .* got list"),
    ],
    ids=["negative", "nan", "short", "column", "float32", "list"],
)
def test_faulty_weights_are_refused_by_name(weigh, complaint):
    with pytest.raises(PluginError, match=complaint) as error:
        small_flow(projection=weighted(weigh)(), owners=OWNERS).run()
    assert str(error.value).startswith("projection 'mine' (acme-plugins 1.2): ")


@attrs.frozen
class Axes(ProjectionSampler):
    """One coordinate at a time, the first of which counts three times as much as it should."""

    adapts = False
    tempered = True

    def sample(self, space, count, draw):
        at = draw.integers(space.dimension, count)
        theta = torch.nn.functional.one_hot(at, space.dimension).to(draw.dtype)
        return DenseProjection(theta, torch.where(at == 0, 3.0, 0.5).to(draw.dtype))


@attrs.frozen
class Following(Axes):
    """The same, measured at each step."""

    adapts = True
    tempered = False

    def adapted(self, space, particles, data, draw):
        return self


@pytest.mark.parametrize("projection", [Axes(), Following()], ids=["estimated", "measured"])
def test_the_largest_eigenvalue_counts_weights(projection):
    schedule = Constant(steps=20, directions=4000)
    state = next(iter(small_flow(projection=projection, condition=NoCondition(), schedule=schedule)))
    assert state.eta == pytest.approx(5 / 3, rel=0.1)


@pytest.mark.parametrize(
    "outer",
    [
        lambda inner: HighPass(of=inner),
        lambda inner: MaxSliced(of=inner).adapted(Space((1, 8, 8)), *[torch.randn(64, 9)] * 2, None),
        lambda inner: Exemplars(of=inner, patch=5).fitted(Space((1, 8, 8)), torch.randn(64, 300)),
    ],
    ids=["high-pass", "max-sliced", "exemplars"],
)
def test_samplers_of_samplers_keep_weights(outer):
    inner = weighted(lambda theta, draw: 2 * ones(theta, draw), ConvStack)(patch=5)
    drawn = outer(inner).sample(Space((1, 8, 8)), 50, Key(0, "directions").open())
    assert drawn.weights.tolist()[-1] == 2
    assert set(drawn.weights.tolist()) <= {1.0, 2.0}


def test_some_directions_with_weights_and_others_without_are_refused():
    class Now(Uniform):
        isotropic = False

        def sample(self, space, count, draw):
            theta = Uniform.sample(self, space, count, draw)
            return DenseProjection(theta, ones(theta, draw)) if draw.key.step > 0 else theta

    with pytest.raises(
        PluginError, match="some directions of a stage have weights, or are nonlinear, and others"
    ):
        small_flow(projection=attrs.frozen(Now)()).run()


PLUGIN = '''
"""Uniform directions that do not count alike."""
import attrs
from cswf_core import hookimpl
from cswf_core.interfaces import DenseProjection, ProjectionSampler

@attrs.frozen
class Weighted(ProjectionSampler):
    """Uniform directions with weights."""

    def sample(self, space, count, draw):
        return DenseProjection(draw.sphere(count, space.dimension), 2 * draw.uniform(count))

@hookimpl
def register_projections(register):
    register("weighted", Weighted)
'''


def test_a_saved_model_with_weights_retraces_its_run(tmp_path):
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins/weighted.py").write_text(PLUGIN)
    changes = [*SMALL, "projection=weighted", "particles.count=300"]
    recipe = load_recipe("digits", changes, plugins_dir=tmp_path / "plugins")
    writer = ModelWriter(tmp_path / "model", recipe)
    samples = build_flow(recipe, device="cpu", observers=[writer]).run()
    model = load_model(tmp_path / "model", plugins_dir=tmp_path / "plugins")
    torch.testing.assert_close(model.retrace(device="cpu").x, samples.x, atol=2e-3, rtol=0)
    flow = model.flow(torch.device("cpu"))
    for _ in range(2):  # on a GPU, only directions without weights have a fast path, the second time too
        stages = [flow._enter(number) for number in range(len(flow.stages))]
        for stage in stages:
            assert not stage.sampler.plain


def test_weights_that_are_not_1_on_average_are_refused():
    """As those of a softmax that was not multiplied by the number of directions."""
    with pytest.raises(PluginError, match="weights must return numbers that are 1 on average, got"):
        small_flow(projection=weighted(lambda theta, draw: torch.softmax(theta[:, 0], dim=0))()).run()
