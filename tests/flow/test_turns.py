"""Halves of the particles that take turns in F_p, so that maps hold for particles they were not fitted to."""

from __future__ import annotations

import attrs
import pytest
import torch

from cswf_core.errors import RunError
from cswf_core.interfaces import Conditions, Dataset, Key, Part, Space
from cswf_core.runs.samples import spread
from cswf_plugins.cdfs.histogram import Histogram
from cswf_plugins.cdfs.sorted import Sorted
from cswf_plugins.conditions.mask import Mask
from cswf_plugins.conditions.none import NoCondition
from cswf_plugins.conditions.one_hot import OneHot
from cswf_plugins.conditions.separate import Separate
from cswf_plugins.schedules.constant import Constant
from cswf_plugins.schedules.pyramid import Entry, Pyramid
from tests.conftest import random_data, small_flow


def sizes_of_fits(data=None, cdf=Sorted, **changes):
    """Return how many values each fit had, in a flow of 31 particles: 16 in the first half, 15 in the other."""
    sizes = []

    class Spy(cdf):
        def fit(self, values):
            sizes.append(values.shape[1])
            return super().fit(values)

    flow = small_flow(data, cdf=Spy(), **{"count": 31, **changes})
    flow.run()
    return [size for size in sizes if size != len(flow.balanced_data)]


def test_halves_change_after_so_many_steps_and_offline_particles_have_no_turn():
    schedule = Constant(steps=7, directions=4)
    assert sizes_of_fits(schedule=schedule, turns=2) == [16, 16, 15, 15, 16, 16, 15]
    assert sizes_of_fits(schedule=schedule, turns=2, offline=9) == [16, 16, 15, 15, 16, 16, 15]
    assert sizes_of_fits(schedule=schedule, turns=100) == [16] * 7


def test_each_stage_begins_with_another_half_than_the_one_before():
    entries = tuple(map(Entry.from_text, ("(4×4) [dense]",) * 3))
    schedule = Pyramid(entries=entries, steps=3, directions=4)
    data = Dataset(x=Key(1, "x").open().normal(16, 40), space=Space((1, 4, 4)))
    seen = sizes_of_fits(data, schedule=schedule, turns=100)
    assert seen == [16, 16, 16, 15, 15, 15, 16, 16, 16]
    assert sizes_of_fits(data, schedule=schedule, turns=2) == [16, 16, 15, 15, 15, 16, 16, 16, 15]


def test_the_half_without_a_turn_moves_as_offline_particles_do():
    """Six steps in two turns are three steps with one half offline, and three with the other."""
    data, schedule = random_data(), Constant(steps=6, directions=60)
    half, parts = Constant(steps=3, directions=60), {"condition": NoCondition(), "reuse": None}
    x = Key(2, "x").open(dtype=torch.float64).normal(5, 30)

    def at(x):
        return Dataset(x=x, space=data.space)

    flow = small_flow(data, start=at(x), schedule=schedule, turns=3, **parts)
    whole = flow.run().x
    parts |= {"schedule": half, "count": 15, "offline": 15}
    first = small_flow(data, start=at(torch.cat([x[:, 0::2], x[:, 1::2]], 1)), **parts)
    first.run()
    then = torch.cat([first.offline_samples().x, first.samples().x], 1)
    second = small_flow(data, start=at(then), **parts)
    second.run()
    torch.testing.assert_close(second.samples().x, whole[:, 1::2], atol=1e-12, rtol=0)
    torch.testing.assert_close(second.offline_samples().x, whole[:, 0::2], atol=1e-12, rtol=0)


def test_both_halves_have_their_share_of_each_class():
    """Balanced labels come class by class, so halves must not be one behind the other."""
    flow = small_flow(condition=OneHot(labels="balanced"), count=300, turns=1)
    labels = flow.particles.conditions.labels
    one, other = (torch.bincount(labels[first::2]) for first in (0, 1))
    assert int((one - other).abs().max()) <= 1
    assert int(one.min()) > 0


def test_parts_of_a_half_are_drawn_from_it():
    schedule = Constant(steps=4, directions=4)
    flows = [
        small_flow(cdf=Sorted(particles=Part(count=count)), schedule=schedule, count=31, turns=1)
        for count in (15, 16, 31)
    ]
    assert len({flow.run().digest() for flow in flows}) == 2  # 16 and 31 are more than a half has


def test_with_turns_offline_particles_drift_less():
    """Gaussian data in 20 dimensions: without turns, offline particles lie a sixth wider than the others."""
    data = Dataset(x=Key(0, "x").open(dtype=torch.float64).normal(20, 1000), space=Space((20,)))
    shared = {"cdf": Histogram(bins=256), "schedule": Constant(steps=150, directions=40)}
    ratio = {}
    for turns in (None, 10):
        flow = small_flow(data, count=200, offline=500, turns=turns, **shared)
        flow.run()
        ratio[turns] = spread(flow.offline_samples()) / spread(flow.samples())
    assert ratio[None] > 1.12
    assert ratio[10] < 1.06


def test_turns_go_with_seen_pixels_online_learning_and_not_with_a_flow_for_each_class():
    levels = Key(4, "images").open().integers(256, 64, 50).float() / 128 - 1
    data = Dataset(levels, Space((1, 8, 8)), Conditions(origin=torch.arange(50)))
    data = attrs.evolve(data, held_out=data.take(torch.arange(5)))
    schedule = Constant(steps=4, directions=20)
    condition = Mask(held_out=3, completions=2, carried=True)
    flow = small_flow(data, condition=condition, schedule=schedule, turns=1)
    assert torch.isfinite(flow.run().x).all()
    assert torch.isfinite(small_flow(cdf=Histogram(bins=64), sets=2, turns=1).run().x).all()
    with pytest.raises(RunError, match="every particle and every datum counts: leave out turns"):
        small_flow(condition=Separate(), turns=1)
