"""Steps that are short enough for uneven directions, what these do not see, and flows that run away."""

from __future__ import annotations

import logging
import re

import attrs
import pytest
import torch

from cswf_core.errors import RunError
from cswf_core.flow import stability
from cswf_core.flow.flow import Flow
from cswf_core.flow.settings import Parts, Settings
from cswf_core.flow.stability import (
    LARGEST_GROWTH,
    SafeStep,
    StepControl,
    largest_eigenvalue,
    safe_step,
    spread,
)
from cswf_core.interfaces import (
    Conditions,
    Dataset,
    DenseProjection,
    Key,
    Owner,
    Part,
    ProjectionSampler,
    Space,
)
from cswf_plugins.cdfs.sorted import Sorted
from cswf_plugins.conditions.none import NoCondition
from cswf_plugins.conditions.one_hot import OneHot
from cswf_plugins.projections.conv_stack import ConvStack
from cswf_plugins.projections.high_pass import HighPass
from cswf_plugins.projections.locally_connected import LocallyConnected
from cswf_plugins.projections.uniform import Uniform
from cswf_plugins.schedules.constant import Constant
from cswf_plugins.schedules.pyramid import Entry, Pyramid
from tests.conftest import random_data, small_flow
from tests.flow.kinds import ENTRIES

GREY = Space((1, 28, 28))


def images(space: Space, count: int = 60) -> Dataset:
    return Dataset(x=Key(1, "x").open(dtype=torch.float64).normal(space.dimension, count) * 0.3, space=space)


def single_stage(entry: str, **settings):
    schedule = Pyramid(entries=(Entry.from_text(entry),), directions=1000, **settings)
    return small_flow(images(GREY), projection=LocallyConnected(), schedule=schedule, count=40)


@pytest.mark.parametrize(
    ("entry", "exact"),
    [("(14×14) [13]", 1.944), ("(14×14) [7] dilation=2", 2.125), ("(11×11) [5] dilation=2", 2.066)],
)
def test_a_closer_look_at_the_largest_eigenvalue_is_right_within_some_hundredths(entry, exact):
    """The exact numbers are from 800,000 directions: half to find the vector, half to measure along it."""
    flow = single_stage(entry)
    (stage,) = flow.stages
    closely = largest_eigenvalue(flow.setup.sampler(stage), Key(0, "gain"), closely_above=0.0)
    assert stage.step_size * closely == pytest.approx(exact, rel=0.06)


@pytest.mark.parametrize("entry", ["(14×14) [7] dilation=2", "(11×11) [5] dilation=2"])
def test_stages_whose_full_steps_would_grow_are_shortened_and_converge(entry, caplog):
    flow = single_stage(entry, steps=40)
    with caplog.at_level(logging.WARNING):
        moved = [float(state.moved) for state in flow]
    assert "are too long, or nearly so, along the directions drawn most" in caplog.text
    assert entry.split(" dil")[0] in caplog.text
    assert moved[-1] < moved[0] / 2
    assert max(moved[20:]) < 1.5 * min(moved[20:])


def test_even_stages_keep_their_steps_and_say_nothing(caplog):
    schedule = Pyramid(entries=(Entry.from_text("(7×7) [5, 3]"),), directions=300, steps=16)
    flow = small_flow(images(GREY), projection=ConvStack(), schedule=schedule, count=40)
    assert [state.eta for state in flow] == [49.0] * 32
    assert not caplog.text


def test_a_stage_whose_steps_fade_is_shortened_in_proportion():
    """Not to the limit again: what a schedule makes shorter stays so."""
    entry = Entry.from_text("(7×7) [5]")
    schedules = [
        Pyramid(entries=(entry, entry), directions=200, steps=20, decay=decay) for decay in (0.0, 0.75)
    ]
    uneven = HighPass(of=LocallyConnected())
    flows = [small_flow(images(GREY), projection=uneven, schedule=schedule, count=40) for schedule in schedules]
    plain, fading = ([state.eta for state in flow] for flow in flows)
    assert fading[:10] == plain[:10]
    assert fading[20] == pytest.approx(plain[20] * 20 / 30)
    assert plain[0] < 40


def test_the_number_of_steps_costs_nothing_when_a_stage_begins():
    flow = small_flow(schedule=Constant(steps=2**40, directions=20))
    assert next(iter(flow)).step == 1


def test_directions_are_not_looked_at_for_steps_that_are_safe_along_any(monkeypatch):
    def refused(*arguments, **options):
        raise AssertionError("the largest eigenvalue is estimated")

    monkeypatch.setattr("cswf_core.flow.stability.largest_eigenvalue", refused)
    for eta in (1e-320, 1e-308, 0.4):
        flow = single_stage("(28×28) [7] dilation=2", steps=20, step_size=eta)
        assert safe_step(flow.setup.sampler(flow.stages[0]), Key(0, "gain")).factor == 1
    flow = single_stage("(28×28) [7]", steps=20)
    with pytest.raises(AssertionError):
        safe_step(flow.setup.sampler(flow.stages[0]), Key(0, "gain"))


def test_a_step_size_that_is_a_mistake_gets_no_closer_look(monkeypatch):
    def refused(*arguments):
        raise AssertionError("a matrix of second moments is made")

    monkeypatch.setattr("cswf_core.flow.stability._second_moments", refused)
    flow = single_stage("(14×14) [7] dilation=2", steps=20, step_size=1e6)
    assert safe_step(flow.setup.sampler(flow.stages[0]), Key(0, "gain")).factor == 1


def test_a_condition_makes_steps_shorter_and_is_counted():
    data, schedule = random_data(n=30), Constant(steps=20, directions=100)
    flows = [small_flow(data, schedule=schedule, condition=OneHot(joint=rule)) for rule in ("equal", "uniform")]
    safe = [safe_step(flow.setup.sampler(flow.stages[0]), Key(0, "gain")) for flow in flows]
    d, length = data.space.dimension, flows[0].setup.condition_length
    assert safe[0].eigenvalue == pytest.approx(0.5 / d, rel=0.15)
    assert safe[1].eigenvalue == pytest.approx(1 / (d + length), rel=0.2)


def test_directions_that_serve_all_steps_need_shorter_ones(caplog):
    """(1 + √(50/100))² is 2.9: along fixed directions full steps would grow, along fresh ones they do not."""
    data = Dataset(x=Key(0, "x").open().normal(50, 300), space=Space((50,)))
    schedule = Constant(steps=60, directions=100)
    assert [state.eta for state in small_flow(data, schedule=schedule, count=100)] == [50.0] * 60
    assert not caplog.text
    states = list(small_flow(data, schedule=schedule, count=100, reuse=None))
    assert states[0].eta < 25
    assert "too long" in caplog.text
    assert float(states[-1].moved) < float(states[0].moved) / 5


def test_steps_that_grow_slowly_stop_the_flow():
    """η is a little more than few directions allow: no step is absurd, but each is longer than the last."""
    data = Dataset(x=Key(0, "x").open().normal(50, 300), space=Space((50,)))
    flow = small_flow(data, schedule=Constant(steps=400, directions=45), count=100)
    with pytest.raises(RunError, match="times as long as earlier in this stage") as refusal:
        flow.run()
    assert "well below" in str(refusal.value)
    limit = float(str(refusal.value).rpartition(" ")[2])
    assert limit == pytest.approx(2 * 50 / (1 + 49 / 45), rel=0.1)
    small_flow(data, schedule=Constant(steps=100, directions=45, step_size=0.7 * limit), count=100).run()


@attrs.frozen
class Tilted(ProjectionSampler):
    """Uniform directions with one axis stretched; says nothing of being uneven."""

    stretch: float = 1.0

    def sample(self, space, count, draw):
        theta = draw.normal(count, space.dimension)
        theta[:, 0] *= self.stretch
        return theta / theta.norm(dim=1, keepdim=True)


def test_a_plugin_that_does_not_say_it_is_uneven_is_shortened_too():
    data = Dataset(x=Key(0, "x").open(dtype=torch.float64).normal(30, 200), space=Space((30,)))
    flow = small_flow(
        data, projection=Tilted(stretch=1.8), schedule=Constant(steps=60, directions=300), count=50
    )
    assert [state.eta for state in flow][-1] < 20
    even = small_flow(data, projection=Tilted(), schedule=Constant(steps=20, directions=300), count=50)
    assert [state.eta for state in even] == [30.0] * 20


def test_step_lengths_compare_means_of_several_steps_at_the_same_step_size():
    control = StepControl(Settings(), 1.0, SafeStep(1.0))

    def after(length: float, eta: float) -> float:
        control.record(torch.tensor(length), 0, eta)
        return control.growth()

    assert [after(4.0, 2.0) for _ in range(8)] + [after(1.0, 1.0) for _ in range(8)] == [1.0] * 16
    assert [after(12.0, 1.0) for _ in range(8)] == [1.0] * 7 + [12.0]
    assert LARGEST_GROWTH < 12


@pytest.mark.parametrize(
    ("settings", "schedule"),
    [
        ({"count": 100}, Constant(steps=200, directions=1, step_size=0.3)),
        ({"count": 2}, Constant(steps=100, directions=20)),
        (
            {"count": 100, "cdf": Sorted(particles=Part(count=2), data=Part(count=2))},
            Constant(steps=150, directions=50),
        ),
    ],
    ids=["one direction", "two particles", "two of each"],
)
def test_flows_whose_steps_vary_much_are_not_stopped(settings, schedule):
    x = Key(7, "x").open(dtype=torch.float64).normal(2, 200)
    x[0] *= 10
    small_flow(Dataset(x=x, space=Space((2,))), schedule=schedule, **settings).run()


def test_particles_that_begin_at_the_data_may_have_noise_added():
    data = Dataset(x=Key(7, "x").open(dtype=torch.float64).normal(2, 100), space=Space((2,)))
    parts = Parts(NoCondition(), Uniform(), Sorted(), Constant(steps=50, directions=20, entropy=0.01))
    Flow(data, parts, Settings(dtype=torch.float64), start=data).run()


@pytest.mark.parametrize("directions", [49, 50, 100])
def test_directions_kept_for_as_many_steps_as_there_are_are_fixed(directions):
    data = Dataset(x=Key(0, "x").open().normal(50, 300), space=Space((50,)))
    schedule = Constant(steps=40, directions=directions)
    one, other = (small_flow(data, schedule=schedule, count=100, reuse=reuse).run().x for reuse in (None, 40))
    assert torch.equal(one, other)


def test_the_limit_is_that_of_isotropic_directions_where_they_are_isotropic():
    d, H = 50, 45
    assert SafeStep(1 / d).limit(H) == pytest.approx(2 * d / (1 + (d - 1) / H))


STEPS = 16
"""Stages of fewer are not looked at."""


def bright(n: int = 60, brightness: float = 0.5) -> Dataset:
    """Images of 8×8 that are brighter than the noise particles begin as."""
    x = 0.1 * Key(4, "bright").open().normal(64, n) + brightness
    return Dataset(x, Space((1, 8, 8)), Conditions())


def told(caplog, projection: ProjectionSampler, *, steps: int = STEPS, **changes: object) -> list[str]:
    """The warnings of a flow's first stage, up to its first step."""
    owners = {"projection": Owner("projection", "mine", "acme-plugins", "1.2")}
    settings = {"schedule": Constant(steps=steps, directions=100), "scale": 0.1, "dtype": torch.float32}
    flow = small_flow(
        bright(), projection=projection, condition=NoCondition(), owners=owners, **{**settings, **changes}
    )
    caplog.clear()
    with caplog.at_level(logging.WARNING, logger="cswf"):
        next(iter(flow))
    return [record.getMessage() for record in caplog.records]


@attrs.frozen
class Differences(ProjectionSampler):
    """Differences of two pixels: blind to mean brightness."""

    def sample(self, space, count, draw):
        first = draw.integers(space.dimension, count)
        second = (first + 1 + draw.integers(space.dimension - 1, count)) % space.dimension
        one, other = (torch.nn.functional.one_hot(at, space.dimension) for at in (first, second))
        return (one - other).to(draw.dtype) / 2**0.5


@attrs.frozen
class Half(ProjectionSampler):
    """Directions that see the upper half of an image."""

    def sample(self, space, count, draw):
        theta = draw.sphere(count, space.dimension // 2)
        return torch.cat([theta, torch.zeros_like(theta)], dim=1)


@attrs.frozen
class Unweighed(Uniform):
    """Uniform directions, of which those that see the lower half do not count."""

    def sample(self, space, count, draw):
        seen, unseen = Half().sample(space, count, draw), draw.sphere(count, space.dimension)
        counts = (torch.arange(count) % 2 == 0).to(draw.dtype)
        theta = torch.where(counts[:, None] > 0, seen, unseen)
        return DenseProjection(theta, 2 * counts)

    isotropic = False


@attrs.frozen
class Uneven(ProjectionSampler):
    """Directions that nearly all look the same way."""

    def sample(self, space, count, draw):
        theta = 0.5 * draw.sphere(count, space.dimension)
        theta[:, 0] += 1.0
        return torch.nn.functional.normalize(theta)


@attrs.frozen
class Tempered(Uneven):
    """The same, and says so."""

    tempered = True


def share(warnings: list[str]) -> float:
    (blind,) = [text for text in warnings if "does not see" in text]
    assert re.match(r"stage constant: projection 'mine' \(acme-plugins 1\.2\) does not see", blind)
    return float(re.search(r"does not see (\S+) of the way", blind)[1])


# Particles are 0.1 N(0, I), data 0.5 + 0.1 N(0, I): of |way|² = 64 (0.25 + 0.02) brightness is 64·0.25.
@pytest.mark.parametrize(
    ("projection", "missing", "error"),
    [(Differences(), 0.25 / 0.27, 0.02), (Half(), 0.5, 0.05), (Unweighed(), 0.5, 0.05)],
    ids=str,
)
def test_directions_that_do_not_see_all_are_told_with_the_share_of_the_way_that_is_missing(
    caplog, projection, missing, error
):
    assert share(told(caplog, projection)) == pytest.approx(missing, abs=error)


def test_the_share_does_not_depend_on_how_long_rounding_errors_are_followed(caplog, monkeypatch):
    once = share(told(caplog, Differences()))
    monkeypatch.setattr(stability, "GRADIENT_ROUNDS", 100)
    assert share(told(caplog, Differences())) == once


@pytest.mark.parametrize("sampler", [Uniform(), ConvStack(patch=5), LocallyConnected(patch=3)], ids=str)
def test_directions_that_see_all_are_told_nothing(caplog, sampler):
    assert told(caplog, sampler) == []


def test_on_coarse_grids_too_nothing_is_told_of_directions_that_see_all_of_them(caplog):
    pyramid = Pyramid(entries=ENTRIES, steps=STEPS, directions=100)
    assert told(caplog, LocallyConnected(patch=3), schedule=pyramid) == []


def test_uneven_directions_are_told_to_say_so_and_those_that_do_are_not(caplog):
    (uneven,) = [text for text in told(caplog, Uneven()) if "much better than others" in text]
    assert "projection 'mine' (acme-plugins 1.2)" in uneven
    assert "tempered = True" in uneven
    assert not [text for text in told(caplog, Tempered()) if "much better than others" in text]


def test_stages_of_few_steps_are_not_looked_at(caplog):
    assert told(caplog, Half(), steps=STEPS - 1) == []


@pytest.mark.parametrize(("count", "of"), [(8, 3), (3, 8), (5, 5), (2, 0)])
def test_a_few_samples_are_spread_over_all_and_none_comes_twice(count, of):
    x = torch.arange(of)[None].double()
    chosen = spread(x, count)[0].tolist()
    assert len(chosen) == len(set(chosen)) == min(count, of)
    assert chosen == sorted(chosen)
