"""The tables of a step are its transport maps, in the order in which its directions were drawn."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from cswf_core.flow.coordinates import Cloud
from cswf_core.flow.settings import TableRequest
from cswf_core.interfaces import Rows
from cswf_core.kernels import tables
from cswf_plugins.cdfs.histogram import Histogram
from cswf_plugins.cdfs.sorted import Sorted
from cswf_plugins.conditions.none import NoCondition
from cswf_plugins.conditions.one_hot import OneHot
from cswf_plugins.conditions.separate import Separate
from tests.conftest import small_flow
from tests.flow.test_snapshot import image_flow


def interpolated(values, tables):
    """δ of each value by NumPy's rule: H×n."""
    positions, displacements = tables.positions[0].double().numpy(), tables.displacements[0].double().numpy()
    inside = np.clip(values, positions[:, :1], positions[:, -1:])
    delta = [np.interp(v, p, d) for v, p, d in zip(inside, positions, displacements, strict=True)]
    return torch.from_numpy(np.stack(delta) + inside - values)


def directions(flow, step: int):
    return next(flow.setup.sampler(flow.stages[0]).batches(flow.settings.seed, 0, step, check=False))


@pytest.mark.parametrize("condition", [NoCondition(), OneHot()], ids=lambda c: type(c).__name__)
def test_moving_by_the_tables_is_nearly_the_step_itself(condition):
    request = TableRequest(knots=400)
    parts = {"condition": condition, "cdf": Sorted(), "tables": request, "dtype": torch.float64}
    flow = small_flow(**parts, count=30)
    before = flow.particles.x.clone()
    state = next(iter(flow))
    theta = directions(flow, 0)
    cloud = Cloud(before, flow.particles.conditions)
    p = theta.project(cloud)
    move = theta.adjoint(interpolated(p.numpy(), state.tables), cloud) * state.eta / p.shape[0]
    missed, moved = (before + move - flow.particles.x).abs().mean(), (flow.particles.x - before).abs().mean()
    assert missed < 0.02 * moved


def test_blocks_of_directions_do_not_change_the_order_of_tables(monkeypatch):
    sorted_ = [s.tables for s in image_flow(tables=TableRequest(knots=9))]
    monkeypatch.setattr("cswf_core.flow.directions.PAYS_BELOW", -1.0)
    dense = [s.tables for s in image_flow(tables=TableRequest(knots=9))]
    for one, other in zip(sorted_, dense, strict=True):
        torch.testing.assert_close(one.positions, other.positions, atol=0.02, rtol=0)


@pytest.mark.parametrize("slab", [7, 16, 1000])
def test_a_share_of_the_directions_is_the_first_of_each_batch(slab, monkeypatch):
    monkeypatch.setattr("cswf_core.flow.memory.DIRECTIONS_PER_BATCH", 16)
    every = [s.tables for s in image_flow(tables=TableRequest(knots=5))]
    flow = image_flow(tables=TableRequest(knots=5, share=0.5))
    flow.budget.slab = slab
    half = [s.tables for s in flow]
    chosen = [*range(8), *range(16, 24), *range(32, 36)]  # 16 + 16 + 8 directions
    for whole, part in zip(every, half, strict=True):
        torch.testing.assert_close(part.positions, whole.positions[:, chosen], atol=1e-4, rtol=0)


def test_only_some_steps_hand_out_tables_and_all_move_by_them(monkeypatch):
    monkeypatch.setattr("cswf_core.flow.settings.FIRST_STEPS", 1)
    flow = image_flow(tables=TableRequest(knots=5, every=2))
    assert [s.tables is not None for s in flow] == [True, True, False, True] * 3
    assert flow.samples().digest() == image_flow(tables=TableRequest(knots=5)).run().digest()
    assert flow.samples().digest() != image_flow().run().digest()


def test_tables_are_rounded_and_particles_move_by_what_was_rounded():
    flow = image_flow(tables=TableRequest(knots=9, dtype=torch.float16))
    before = flow.particles.x.clone()
    state = next(iter(flow))
    assert state.tables.positions.dtype == torch.float16
    theta = directions(flow, 0)
    cloud = Cloud(flow.stages[0].upsampling.down(before), flow.particles.conditions)
    rows = Rows.of(theta.project(cloud))
    tables.displace(rows, state.tables.positions[0], state.tables.displacements[0])
    move = flow.stages[0].upsampling.up(theta.adjoint(rows.values, cloud)) * state.eta / rows.values.shape[0]
    torch.testing.assert_close(before + move, flow.particles.x, atol=1e-5, rtol=0)


def test_strata_have_tables_of_their_own():
    flow = small_flow(condition=Separate(), cdf=Histogram(bins=64), tables=TableRequest(knots=5))
    assert next(iter(flow)).tables.positions.shape == (3, 300, 5)


def test_levels_rise_from_0_to_1_and_are_dense_at_both_ends():
    levels = TableRequest(knots=33).levels(torch.empty(0, dtype=torch.float64))
    assert levels[0] == 0
    assert levels[-1] == 1
    assert (levels.diff() > 0).all()
    assert levels[1] < 1 / 32 / 4
    torch.testing.assert_close(levels, 1 - levels.flip(0))
