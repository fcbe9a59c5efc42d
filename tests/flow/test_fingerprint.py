"""Fingerprints: directions are drawn twice when a stage begins, and known again by what a vector gives."""

from __future__ import annotations

import attrs
import pytest
import torch

from cswf_core.errors import PluginError, RunError
from cswf_core.flow.coordinates import StageCoordinates
from cswf_core.flow.directions import Directions, DirectionSampler
from cswf_core.flow.fingerprint import fingerprint, first_directions, same_fingerprint
from cswf_core.interfaces import DenseProjection, NonlinearProjection, ProjectionSampler, Space
from cswf_plugins.cdfs.sorted import Sorted
from cswf_plugins.conditions.none import NoCondition
from cswf_plugins.conditions.one_hot import OneHot
from cswf_plugins.projections.conv_stack import ConvStack
from cswf_plugins.projections.data_covariance import DataCovariance
from cswf_plugins.projections.exemplars import Exemplars
from cswf_plugins.projections.high_pass import HighPass
from cswf_plugins.projections.locally_connected import LocallyConnected
from cswf_plugins.projections.low_rank import LowRank
from cswf_plugins.projections.orthogonal import Orthogonal
from cswf_plugins.projections.uniform import Uniform
from cswf_plugins.schedules.constant import Constant
from tests.conftest import random_data, small_flow
from tests.flow.kinds import image_flow, images

SAMPLERS = (
    Uniform(),
    Orthogonal(),
    LocallyConnected(patch=3),
    ConvStack(patch=5),
    LowRank(patch=5),
    HighPass(of=ConvStack(patch=5)),
    DataCovariance(patch=3),
    Exemplars(of=ConvStack(patch=5), patch=5),
)


def sampler_of(
    projection: ProjectionSampler, condition: object = None, length: int = 0, directions: int = 200
) -> DirectionSampler:
    """Draws directions for images of 8×8, with Y of this length."""
    stage, data = Constant(steps=1, directions=directions).stages(Space((1, 8, 8)), projection)[0], images()
    parts = small_flow(data, condition=condition or NoCondition(), projection=projection, cdf=Sorted()).parts
    like = torch.empty(64, 0)
    return DirectionSampler.of_stage(
        stage, StageCoordinates(data.space), parts, length, lambda: data.x.float(), like
    )


def printed(projection: ProjectionSampler, *, seed: int = 0, **changes: object) -> str:
    sampler = sampler_of(projection, **changes)
    return fingerprint(sampler, first_directions(sampler, seed, 0))


@pytest.mark.parametrize("projection", SAMPLERS, ids=lambda projection: type(projection).__name__)
def test_built_in_samplers_draw_the_same_directions_twice_and_others_with_another_seed(projection):
    assert printed(projection) == printed(projection)
    assert not same_fingerprint(printed(projection), printed(projection, seed=1))


def stray(self, space, count, draw):
    """Directions with numbers in them that come from no draw."""
    return torch.nn.functional.normalize(torch.randn(count, space.dimension, dtype=draw.dtype))


@attrs.define
class Counting(ProjectionSampler):
    """Directions that depend on how often they have been drawn."""

    calls: int = 0

    def sample(self, space, count, draw):
        self.calls += 1
        return draw.sphere(count, space.dimension).roll(self.calls, dims=1)


@pytest.mark.parametrize(
    "projection", [attrs.frozen(type("Stray", (Uniform,), {"sample": stray}))(), Counting()], ids=str
)
def test_directions_that_do_not_come_again_are_refused_when_a_stage_begins(projection):
    flow = small_flow(projection=projection)
    owner = flow.parts.projection.owner
    with pytest.raises(PluginError, match="directions drawn twice from one key differ") as error:
        next(iter(flow))
    assert str(error.value).startswith(f"{owner}: ")
    assert flow.position.total == 0


def test_theta_y_that_does_not_come_again_is_refused_too():
    class Stray(OneHot):
        def directions(self, length, count, draw):
            return stray(self, Space((length,)), count, draw)

    with pytest.raises(PluginError, match="directions drawn twice from one key differ"):
        small_flow(condition=attrs.frozen(Stray)(amplifier=1.0)).run()


@pytest.mark.parametrize("projection", [Uniform(), ConvStack(patch=5)], ids=["uniform", "conv-stack"])
def test_rounding_does_not_change_who_directions_are(projection):
    sampler = sampler_of(projection, OneHot(), length=3)
    drawn = first_directions(sampler, 0, 0)
    noise = torch.Generator().manual_seed(0)

    def rounded(directions: Directions) -> Directions:
        theta = directions.projection.dense()
        shaken = theta + 1e-6 * torch.randn(theta.shape, generator=noise)
        return attrs.evolve(directions, projection=DenseProjection(shaken))

    original = fingerprint(sampler, drawn)
    assert all(same_fingerprint(original, fingerprint(sampler, rounded(drawn))) for _ in range(20))


@pytest.mark.parametrize(
    "changed",
    [
        ConvStack(patch=5, power=0.6),
        ConvStack(patch=3, power=0.5),
        LocallyConnected(patch=5),
    ],
    ids=["power", "patch", "sampler"],
)
def test_a_small_change_of_a_sampler_is_noticed(changed):
    assert not same_fingerprint(printed(ConvStack(patch=5, power=0.5)), printed(changed))


def test_few_directions_have_a_fingerprint_too():
    one, other = (printed(Uniform(), directions=3, seed=seed) for seed in (0, 1))
    assert same_fingerprint(one, printed(Uniform(), directions=3))
    assert not same_fingerprint(one, other)


@pytest.mark.parametrize("amplifier", [0.25, 1.0, 40.0])
def test_another_amplifier_is_no_other_direction(amplifier):
    usual = printed(Uniform(), condition=OneHot(amplifier=3.0), length=3)
    assert same_fingerprint(usual, printed(Uniform(), condition=OneHot(amplifier=amplifier), length=3))


@pytest.mark.parametrize("joint", ["equal", "dimension"])
def test_another_share_of_both_parts_is_another_direction(joint):
    one, other = (printed(Uniform(), condition=OneHot(joint=rule), length=3) for rule in ("uniform", joint))
    assert not same_fingerprint(one, other)


def test_where_y_has_another_length_theta_x_alone_is_compared():
    three, four = (printed(Uniform(), condition=OneHot(), length=length) for length in (3, 4))
    assert three != four
    assert same_fingerprint(three, four)
    assert same_fingerprint(three, printed(Uniform()))
    assert not same_fingerprint(three, printed(Uniform(), seed=1))


def test_weights_belong_to_directions():
    class Weighed(Uniform):
        def sample(self, space, count, draw):
            theta = super().sample(space, count, draw)
            return DenseProjection(theta, 0.5 + draw.uniform(count))

    assert not same_fingerprint(printed(Uniform()), printed(attrs.frozen(Weighed)()))


@pytest.mark.parametrize("after", [6, 8], ids=["inside a stage", "at its end"])
def test_a_snapshot_is_refused_by_a_flow_with_other_directions(after):
    flow = image_flow(projection=ConvStack(patch=3, power=0.5))
    next(state for state in flow if state.total_step == after)
    snapshot = flow.snapshot()
    same, other = image_flow(projection=ConvStack(power=0.5)), image_flow(projection=ConvStack(power=0.6))
    same.restore(snapshot)
    assert same.run().digest() == flow.run().digest()
    with pytest.raises(RunError, match=r"stage .*: projection .*ConvStack.* draws other directions than"):
        other.restore(snapshot)


def test_a_snapshot_without_fingerprints_goes_on():
    flow = small_flow(random_data())
    next(iter(flow))
    old = attrs.evolve(flow.snapshot(), fingerprints={})
    again = small_flow(random_data())
    again.restore(old)
    assert again.run().digest() == flow.run().digest()


@attrs.frozen
class Far(ProjectionSampler):
    """Distances from points far away: numbers much larger than those of directions."""

    def sample(self, space, count, draw):
        return Distances(draw.sphere(count, space.dimension) * 50)


class Distances(NonlinearProjection):
    def __init__(self, centres):
        self.centres = centres

    @property
    def shape(self):
        return tuple(self.centres.shape)

    def project(self, x):
        return torch.cdist(self.centres, x.T)


def test_nonlinear_slices_are_known_again_whatever_their_size():
    assert same_fingerprint(printed(Far()), printed(Far()))
    assert not same_fingerprint(printed(Far()), printed(Far(), seed=1))
