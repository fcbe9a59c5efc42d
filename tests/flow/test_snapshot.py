"""A flow that goes on from a snapshot is the flow that never stopped; another round goes on from its end."""

from __future__ import annotations

import pytest
import torch

from cswf_core import hookimpl
from cswf_core.flow.directions import Draws, DrawsInTurn
from cswf_core.flow.state import Snapshot
from cswf_core.runs.durable import read_tensors, write_tensors
from cswf_plugins.coordinates.whitened import Whitened
from tests.flow.kinds import KINDS, image_flow
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


@pytest.mark.parametrize("kind", slow_if(ALIKE, KINDS))
def test_a_flow_that_goes_on_ends_with_the_same_bits(kind, tmp_path):
    whole = image_flow(**KINDS[kind])
    states = list(whole)
    for after in range(1, len(states), 3):
        snapshot = stopped(after, **KINDS[kind])
        write_tensors(tmp_path / "a", snapshot.tensors(), snapshot.facts())
        flow = image_flow(**KINDS[kind])
        flow.restore(Snapshot.of(*read_tensors(tmp_path / "a")))
        assert flow.run().digest() == whole.samples().digest(), after
        assert flow.offline_samples().digest() == whole.offline_samples().digest(), after


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


@pytest.mark.parametrize("after", [2, 6, 10])
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
    assert [DrawsInTurn(1, 3).number(step) for step in range(7)] == [0, 1, 2, 0, 1, 2, 0]
    assert [DrawsInTurn(2, 2).number(step) for step in range(7)] == [0, 0, 1, 1, 0, 0, 1]
    assert [Draws(1).number(step) for step in range(4)] == [0, 1, 2, 3]
