"""Directions that follow the particles: what they look at, how long steps are, and what cannot follow them."""

from __future__ import annotations

import attrs
import pytest
import torch
from torch import Tensor

from cswf_core.errors import PluginError, RunError
from cswf_core.flow import data as flow_data
from cswf_core.flow.settings import TableRequest
from cswf_core.interfaces import Dataset, Key, ProjectionSampler
from cswf_plugins.cdfs.histogram import Histogram
from cswf_plugins.cdfs.sorted import Sorted
from cswf_plugins.conditions.none import NoCondition
from cswf_plugins.coordinates.whitened import Whitened
from cswf_plugins.datasets.digits import Digits
from cswf_plugins.projections.conv_stack import ConvStack
from cswf_plugins.projections.exemplars import Exemplars
from cswf_plugins.projections.high_pass import HighPass
from cswf_plugins.projections.max_sliced import MaxSliced, turned
from cswf_plugins.projections.uniform import Uniform
from cswf_plugins.schedules.constant import Constant
from tests.conftest import random_data, small_flow
from tests.flow.kinds import image_flow
from tests.ranks.forked import on_ranks

SEVERAL = MaxSliced(of=HighPass(of=ConvStack()), share=0.5, rounds=1)


@attrs.frozen(eq=False)
class Spy(ProjectionSampler):
    """Keeps what it was shown."""

    looks_at: int | None = 7
    views: list[tuple[Tensor, Tensor]] = attrs.field(factory=list)

    adapts = True

    def sample(self, space, count, draw):
        return draw.sphere(count, space.dimension)

    def adapted(self, space, particles, data, draw):
        self.views.append((particles.clone(), data.clone()))
        return self


def among(few: Tensor, all_of: Tensor) -> bool:
    """Whether each column is one of the others, and none comes twice."""
    places = (few[:, :, None] - all_of[:, None]).norm(dim=0).min(dim=1)
    return float(places.values.max()) < 1e-5 and len(set(places.indices.tolist())) == few.shape[1]


@pytest.mark.parametrize("coordinates", [None, Whitened()], ids=["plain", "whitened"])
def test_particles_and_data_are_shown_in_the_coordinates_of_the_stage(coordinates):
    spy = Spy()
    flow = image_flow(projection=spy, schedule=None, coordinates=coordinates, condition=NoCondition())
    before = flow.setup.W.enter(flow.particles.x) if coordinates is not None else flow.particles.x.clone()
    next(iter(flow))
    particles, data = spy.views[0]
    middles = flow.data.x + flow.data.bin_width / 2
    assert particles.shape == data.shape == (64, 7)
    assert among(particles, before)
    assert among(data, middles if coordinates is None else flow.setup.W.enter(middles))


def test_on_a_coarse_grid_they_are_shown_there():
    class Patched(Spy):
        def patched(self, patch, dilation=1):
            return self

    spy = attrs.frozen(Patched, eq=False)(looks_at=None)
    flow = image_flow(projection=spy, condition=NoCondition())
    coarse = flow.stages[0].upsampling
    x = flow.particles.x.clone()
    next(iter(flow))
    particles, data = spy.views[0]
    torch.testing.assert_close(particles, coarse.down(x))
    torch.testing.assert_close(data, coarse.down(flow.data.x + flow.data.bin_width / 2))


def test_each_step_shows_others_and_the_first_is_drawn_twice():
    spy = Spy()
    small_flow(projection=spy, condition=NoCondition()).run()
    first, again, second, third = (particles for particles, _ in spy.views)
    assert torch.equal(first, again)
    assert not torch.equal(second, third)


@attrs.frozen
class OneWay(ProjectionSampler):
    """All directions the same."""

    adapts = True

    def sample(self, space, count, draw):
        return torch.eye(space.dimension, dtype=draw.dtype)[:1].expand(count, -1).contiguous()

    def adapted(self, space, particles, data, draw):
        return self


def test_no_step_is_longer_than_its_own_directions_allow():
    data = random_data()
    flow = small_flow(data, projection=OneWay(), condition=NoCondition(), count=len(data))
    assert flow.stages[0].step_size == 5
    state = next(iter(flow))
    assert state.eta == pytest.approx(1, rel=1e-9)
    # Such a step ends where the data are, along that direction.
    torch.testing.assert_close(flow.samples().x[0].sort().values, data.x[0].sort().values)
    shorter = Constant(steps=2, directions=50, step_size=0.25)
    assert [state.eta for state in small_flow(projection=OneWay(), schedule=shorter)] == [0.25, 0.25]


def test_noise_is_that_of_the_step_that_is_taken():
    ends = []
    for entropy in (0.0, 0.01):
        schedule = Constant(steps=1, directions=50, entropy=entropy)
        ends.append(
            small_flow(projection=OneWay(), schedule=schedule, condition=NoCondition(), count=900).run().x
        )
    assert float((ends[1] - ends[0]).std()) == pytest.approx((2 * 0.01 * 1) ** 0.5, rel=0.05)


def distance(samples: Dataset, data: Dataset) -> float:
    """SW₂ along many directions that no flow has seen."""
    theta = Key(9, "judges").open(dtype=samples.x.dtype).sphere(400, data.space.dimension)
    p, q = ((theta @ each.x.to(theta)).sort(dim=1).values for each in (samples, data))
    return float((p - q).square().mean().sqrt())


def test_with_few_directions_those_that_follow_the_particles_lead_nearer_to_digits():
    data = Digits().load(Key(0, "data").open()).take(slice(300))
    schedule, ends = Constant(steps=100, directions=8, step_size=4), {}
    for projection in (Uniform(), MaxSliced()):
        parts = {"projection": projection, "schedule": schedule, "condition": NoCondition()}
        ends[type(projection)] = distance(small_flow(data, count=300, dtype=torch.float32, **parts).run(), data)
    assert ends[MaxSliced] < 0.9 * ends[Uniform]


def test_directions_turn_to_where_particles_and_data_differ():
    draw = Key(3, "turning").open(dtype=torch.float64)
    x, y, theta = draw.normal(40, 200), draw.normal(40, 200), draw.sphere(20, 40)
    y[7] += 6
    twice = turned(turned(theta, x, y), x, y)
    assert float(theta[:, 7].abs().max()) < 0.5
    assert float(twice[:, 7].abs().min()) > 0.9
    torch.testing.assert_close(twice.norm(dim=1), torch.ones(20, dtype=torch.float64))


def test_directions_stay_where_particles_and_data_do_not_differ():
    draw = Key(3, "turning").open(dtype=torch.float64)
    x, theta = draw.normal(5, 30), draw.sphere(20, 5)
    assert torch.equal(turned(theta, x, x.flip(1)), theta)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"tables": TableRequest(knots=9, bits=16)}, "a saved model has no particles"),
        ({"reuse": 2}, "directions that are kept for several steps do not"),
        ({"reuse": None}, "directions that are kept for several steps do not"),
        ({"sets": 2, "cdf": Histogram(bins=32)}, "counts of data along directions that stay do not"),
    ],
    ids=["model", "reuse", "all", "online"],
)
def test_what_cannot_follow_them_is_refused_in_one_sentence(changes, reason):
    with pytest.raises(RunError) as error:
        small_flow(projection=MaxSliced(), **{"cdf": Sorted(), **changes}).run()
    assert str(error.value).endswith(f"follows the particles step by step, and {reason}")
    assert "MaxSliced" in str(error.value)


def test_streamed_data_are_refused(monkeypatch):
    monkeypatch.setattr(flow_data, "fits_in_memory", lambda *_: False)
    with pytest.raises(RunError, match="a device with little memory has some of the particles or data only"):
        image_flow(projection=MaxSliced(of=ConvStack())).run()


def test_several_ranks_are_refused(tmp_path):
    def refused(ranks):
        with pytest.raises(RunError, match="each of several devices has some of the particles or data only"):
            small_flow(projection=MaxSliced(), ranks=ranks).run()
        return True

    assert on_ranks(2, tmp_path, refused) == [True, True]


def test_randomness_that_does_not_come_from_the_draw_is_caught():
    class Stray(MaxSliced):
        def adapted(self, space, particles, data, draw):
            return super().adapted(space, particles + 0.1 * torch.randn_like(particles), data, draw)

    with pytest.raises(PluginError, match="directions drawn twice from one key differ"):
        small_flow(projection=attrs.frozen(Stray, kw_only=True)()).run()


@pytest.mark.parametrize(
    "projection",
    [
        SEVERAL,
        MaxSliced(of=Exemplars(of=ConvStack())),
        MaxSliced(of=MaxSliced(of=ConvStack())),
        HighPass(of=MaxSliced(of=ConvStack())),
        Exemplars(of=MaxSliced(of=ConvStack())),
    ],
    ids=["high-pass", "exemplars", "max-sliced", "inside high-pass", "inside exemplars"],
)
def test_samplers_of_samplers_work_on_every_grid(projection):
    flow = image_flow(projection=projection)
    states = list(flow)
    assert len(states) == 12
    assert torch.isfinite(flow.samples().x).all()


RECIPE = """\
data: digits
schedule: {use: constant, steps: 2, directions: 8}
projection:
  use: max-sliced
"""


@pytest.mark.parametrize(
    ("lines", "place", "advice"),
    [
        ("model:\n  save: true\n", "6:9: model.save", "do not save"),
        ("online: {sets: 2}\n", "5:9: online", "leave out online"),
        ("  reuse: 3\n", "5:10: projection.reuse", "take reuse: 1"),
        ("  reuse: all\n", "5:10: projection.reuse", "take reuse"),
    ],
    ids=["model", "online", "reuse", "all"],
)
def test_a_recipe_says_so_before_anything_is_loaded(cswf, tmp_path, lines, place, advice):
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(RECIPE + lines)
    refusal = cswf.refusal("check", recipe)
    assert f"{recipe}:{place}: projection 'max-sliced' follows the particles: {advice}" in refusal


HIDING = """
import attrs
from cswf_core import hookimpl
from cswf_core.interfaces import ProjectionSampler, parameter

@attrs.frozen(kw_only=True)
class Hiding(ProjectionSampler):
    of: ProjectionSampler = parameter("the sampler that is hidden")

    def sample(self, space, count, draw):
        return self.of.sample(space, count, draw)

@hookimpl
def register_projections(register):
    register("hiding", Hiding)
"""


def test_a_recipe_names_the_place_of_a_sampler_that_would_be_left_unseen(cswf, tmp_path):
    (tmp_path / "hiding.py").write_text(HIDING)
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(RECIPE.replace("max-sliced", "hiding\n  of: max-sliced"))
    refusal = cswf.refusal("check", recipe, "--plugins-dir", tmp_path)
    assert f"{recipe}:4:8: projection 'hiding' (hiding.py): Hiding has inside it MaxSliced, which " in refusal


def test_particles_that_are_carried_along_are_not_looked_at():
    """What takes no part in F_p changes nothing for the others."""
    options = {"projection": MaxSliced(samples=20), "condition": NoCondition(), "dtype": torch.float64}
    alone, beside = (small_flow(**options, offline=offline).run().x for offline in (0, 12))
    torch.testing.assert_close(alone, beside[:, : alone.shape[1]], atol=1e-9, rtol=0)


@attrs.frozen
class Hiding(ProjectionSampler):
    """Says nothing of the sampler inside it."""

    of: ProjectionSampler

    def sample(self, space, count, draw):
        return self.of.sample(space, count, draw)


def test_a_sampler_further_inside_is_not_left_unseen_either():
    hiding = HighPass(of=Hiding(HighPass(of=MaxSliced(of=ConvStack()))))
    for projection in (hiding, MaxSliced(of=hiding)):
        with pytest.raises(PluginError, match="Hiding has inside it HighPass, which follows the particles"):
            image_flow(projection=projection, schedule=None).run()


def test_a_wrapper_shows_the_sampler_inside_whatever_it_is_shown():
    spy = Spy()
    projection = HighPass(of=HighPass(of=spy))
    assert (projection.adapts, projection.looks_at, projection.sees_data) == (True, 7, False)
    flow = image_flow(projection=projection, condition=NoCondition(), schedule=None)
    flow.run()
    assert len(spy.views) > flow.position.total  # once more as the stage begins
    assert all(particles.shape[1] == data.shape[1] == 7 for particles, data in spy.views)
