"""A flow that goes on from a snapshot is the flow that never stopped; fingerprints know its directions."""

from __future__ import annotations

import attrs
import pytest
import torch

from cswf_core import hookimpl
from cswf_core.errors import PluginError, RunError
from cswf_core.flow.coordinates import StageCoordinates
from cswf_core.flow.directions import (
    Directions,
    DirectionSampler,
    Draws,
    fingerprint,
    first_directions,
    same_fingerprint,
)
from cswf_core.flow.state import Snapshot
from cswf_core.interfaces import DenseProjection, NonlinearProjection, ProjectionSampler, Space
from cswf_core.runs.durable import read_tensors, write_tensors
from cswf_plugins.cdfs.sorted import Sorted
from cswf_plugins.conditions.none import NoCondition
from cswf_plugins.conditions.one_hot import OneHot
from cswf_plugins.coordinates.whitened import Whitened
from cswf_plugins.projections.conv_stack import ConvStack
from cswf_plugins.projections.data_covariance import DataCovariance
from cswf_plugins.projections.exemplars import Exemplars
from cswf_plugins.projections.high_pass import HighPass
from cswf_plugins.projections.locally_connected import LocallyConnected
from cswf_plugins.projections.low_rank import LowRank
from cswf_plugins.projections.max_sliced import MaxSliced
from cswf_plugins.projections.orthogonal import Orthogonal
from cswf_plugins.projections.uniform import Uniform
from cswf_plugins.schedules.constant import Constant
from tests.conftest import random_data, small_flow
from tests.flow.kinds import KINDS, Weighed, image_flow, images
from tests.flow.test_nonlinear_slices import Slices
from tests.marks import slow_if


def stopped(after: int, **changes) -> Snapshot:
    """Take some steps and return where that leads; the flow goes on as if nothing had been asked."""
    flow = image_flow(**changes)
    state = next(state for state in flow if state.total_step == after)
    found = flow.snapshot()
    assert found.position.total == state.total_step
    next(iter(flow), None)
    return found


ALIKE = ("mask", "float64", "clip", "carried", "whitened, mask", "whitened, clip", "whitened, sets")
"""Kinds that go the ways of others: they are for `make test-all`."""


FOLLOWING = MaxSliced(of=HighPass(of=ConvStack()), share=0.5, rounds=1)

SAVED = KINDS | {
    "following": {"projection": FOLLOWING, "condition": NoCondition()},
    "following, classes": {"projection": FOLLOWING, "condition": OneHot()},
    "nonlinear": {"projection": Slices(), "schedule": Constant(steps=6, directions=40)},
}


@pytest.mark.parametrize("kind", slow_if(ALIKE, SAVED))
def test_a_flow_that_goes_on_ends_with_the_same_bits(kind, tmp_path):
    whole = image_flow(**SAVED[kind])
    saved = []
    for state in whole:
        # The end of a stage, the middle of one, and of a draw that is reused
        if state.total_step in (4, 7, 10):
            snapshot = whole.snapshot()
            write_tensors(tmp_path / "a", snapshot.tensors(), snapshot.facts())
            saved.append(Snapshot.of(*read_tensors(tmp_path / "a")))
    for snapshot in saved:
        flow = image_flow(**SAVED[kind])
        flow.restore(snapshot)
        assert flow.run().digest() == whole.samples().digest(), snapshot.position
        assert flow.offline_samples().digest() == whole.offline_samples().digest(), snapshot.position


def test_between_two_stages_only_the_particles_are_kept():
    class Watch:
        @hookimpl
        def after_stage(self, flow):
            found.append(flow.snapshot())

    found: list[Snapshot] = []
    whole = image_flow(observers=(Watch(),)).run()
    assert [s.position.step for s in found] == [0, 0, 0]
    assert all(s.z is None and s.sum is None and not s.numerics for s in found)
    for snapshot in found:
        flow = image_flow()
        flow.restore(snapshot)
        assert flow.run().digest() == whole.digest()


def test_a_snapshot_stays_what_it_was_when_the_flow_goes_on():
    flow = image_flow()
    next(iter(flow))
    kept = flow.snapshot()
    before = {name: tensor.clone() for name, tensor in kept.tensors().items()}
    flow.run()
    other = image_flow()
    other.restore(kept)
    other.run()
    assert all(torch.equal(before[name], tensor) for name, tensor in kept.tensors().items())


def test_in_other_coordinates_w_moves_for_x_and_is_kept_at_full_resolution_too():
    kept = {after: stopped(after, coordinates=Whitened()) for after in (2, 10)}
    coarse, full = kept[2], kept[10]
    assert coarse.sum.shape == coarse.z.shape == (4, 30)
    assert full.z.shape == (64, 30)
    assert full.sum is None
    flow = image_flow(coordinates=Whitened())
    flow.restore(full)
    torch.testing.assert_close(flow.samples().x, flow.setup.W.leave(full.z))
    assert (flow.samples().x - full.x).abs().max() > 0.01  # x is as it was when the stage began


@pytest.mark.parametrize("after", [2, 10])
def test_a_restored_flow_is_where_it_was_before_it_takes_a_step_and_counts_on(after):
    flow = image_flow()
    next(state for state in flow if state.total_step == after)
    kept = flow.snapshot()
    other, third = image_flow(), image_flow()
    other.restore(kept)
    assert other.samples().digest() == flow.samples().digest()
    third.restore(other.snapshot())
    state = next(iter(third))
    assert (state.stage_index, state.step, state.total_step) == (after // 4, after % 4 + 1, after + 1)
    assert state.seconds > 0
    assert third.run().digest() == flow.run().digest()


def test_another_round_goes_through_all_stages_again_whether_planned_beforehand_or_later():
    flow, planned = image_flow(), image_flow()
    planned.again(steps=2)
    first = flow.run()
    flow.again(steps=2)
    states = list(flow)
    assert [state.stage_index for state in states] == [3, 3, 4, 4, 5, 5]
    assert states[-1].total_step == states[-1].total_steps == 3 * 4 + 3 * 2
    assert flow.finished
    assert flow.samples().digest() != first.digest()
    assert flow.samples().digest() == planned.run().digest()


def test_sets_of_directions_come_round_again():
    assert [Draws(1, 3).number(step) for step in range(7)] == [0, 1, 2, 0, 1, 2, 0]
    assert [Draws(2, 2).number(step) for step in range(7)] == [0, 0, 1, 1, 0, 0, 1]
    assert [Draws(1).number(step) for step in range(4)] == [0, 1, 2, 3]


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
    sampler = DirectionSampler.of_stage(stage, StageCoordinates(data.space), parts, length, like)
    return sampler.fitted(data.x.float)


def printed(projection: ProjectionSampler, *, seed: int = 0, **changes: object) -> str:
    sampler = sampler_of(projection, **changes)
    return fingerprint(sampler, first_directions(sampler, seed, 0))


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


UNIFORM = {"projection": Uniform()}
LABELLED = {**UNIFORM, "condition": OneHot(amplifier=3.0), "length": 3}
STACK = {"projection": ConvStack(patch=5, power=0.5)}
SEEDED = [*({"projection": each} for each in SAMPLERS), {"projection": Far()}, {**UNIFORM, "directions": 3}]
PRINTS = [
    *((drawn, {}, True) for drawn in SEEDED),
    *((drawn, {"seed": 1}, False) for drawn in SEEDED),
    (STACK, {"projection": ConvStack(patch=5, power=0.6)}, False),
    (STACK, {"projection": ConvStack(patch=3, power=0.5)}, False),
    (STACK, {"projection": LocallyConnected(patch=5)}, False),
    *((LABELLED, {"condition": OneHot(amplifier=amplifier)}, True) for amplifier in (0.25, 1.0, 40.0)),
    *((LABELLED, {"condition": OneHot(joint=rule)}, False) for rule in ("equal", "dimension")),
    (LABELLED, {"length": 4}, True),  # where Y has another length, θ_x alone is compared
    (LABELLED, {"condition": None, "length": 0}, True),
    (LABELLED, {"condition": None, "length": 0, "seed": 1}, False),
    (UNIFORM, {"projection": Weighed()}, False),
]


@pytest.mark.parametrize(("one", "change", "same"), PRINTS)
def test_a_fingerprint_is_that_of_directions_whatever_their_number_and_size(one, change, same):
    assert same_fingerprint(printed(**one), printed(**{**one, **change})) == same


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
