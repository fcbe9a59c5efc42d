"""Halves of the particles that take turns in F_p, so that maps hold for particles they were not fitted to."""

from __future__ import annotations

import attrs
import pytest
import torch

from cswf_core.errors import RunError
from cswf_core.flow.stage import StageSetup
from cswf_core.interfaces import Conditions, Dataset, Key, Part, Space
from cswf_core.plugins import Registry
from cswf_core.recipe import load_recipe
from cswf_core.recipe.build import build_flow
from cswf_core.runs.samples import spread
from cswf_plugins.cdfs.histogram import Histogram
from cswf_plugins.cdfs.sorted import Sorted
from cswf_plugins.conditions.mask import Mask
from cswf_plugins.conditions.none import NoCondition
from cswf_plugins.conditions.one_hot import OneHot
from cswf_plugins.conditions.separate import Separate
from cswf_plugins.schedules.adaptive import Adaptive
from cswf_plugins.schedules.constant import Constant
from cswf_plugins.schedules.pyramid import Entry, Pyramid
from tests.conftest import random_data, small_flow
from tests.flow.kinds import images


@pytest.fixture
def fitted(monkeypatch):
    """The particles that F_p was fitted to at each step of the flows of a test, by number, in order."""
    steps = []
    original = StageSetup.participants

    def participants(self, step, *block):
        chosen = original(self, step, *block)
        every = torch.arange(len(self.particles))
        members = chosen.particles
        steps.append(every[members.columns[0]].sort().values if members.partial else every)
        return chosen

    monkeypatch.setattr(StageSetup, "participants", participants)
    return steps


EVEN, ODD = torch.arange(0, 31, 2), torch.arange(1, 31, 2)


def halves(steps):
    """Return for each step which half took part: 0 or 1."""
    assert all(torch.equal(step, EVEN) or torch.equal(step, ODD) for step in steps)
    return [int(step[0]) for step in steps]


def test_halves_change_after_so_many_steps_and_offline_particles_have_no_turn(fitted):
    schedule = Constant(steps=7, directions=4)
    small_flow(schedule=schedule, turn=2, count=31).run()
    small_flow(schedule=schedule, turn=2, count=31, offline=9).run()
    assert halves(fitted) == [0, 0, 1, 1, 0, 0, 1] * 2


@pytest.mark.parametrize("kind", [Pyramid, Adaptive])
def test_turns_go_on_from_stage_to_stage(kind, fitted):
    entries = tuple(map(Entry.from_text, ("(4×4) [dense]",) * 3))
    data = Dataset(x=Key(1, "x").open().normal(16, 40), space=Space((1, 4, 4)))
    flow = small_flow(data, schedule=kind(entries=entries, steps=3, directions=4), count=31, turn=2)
    flow.run()
    assert halves(fitted) == [0, 0, 1, 1, 0, 0, 1, 1, 0][: flow.position.total]


def test_the_half_without_a_turn_moves_as_offline_particles_do():
    """Six steps in two turns are three steps with one half offline, and three with the other."""
    data, schedule = random_data(), Constant(steps=6, directions=60)
    half, parts = Constant(steps=3, directions=60), {"condition": NoCondition(), "reuse": None}
    x = Key(2, "x").open(dtype=torch.float64).normal(5, 30)

    def at(x):
        return Dataset(x=x, space=data.space)

    flow = small_flow(data, start=at(x), schedule=schedule, turn=3, **parts)
    whole = flow.run().x
    parts |= {"schedule": half, "count": 15, "offline": 15}
    first = small_flow(data, start=at(torch.cat([x[:, 0::2], x[:, 1::2]], 1)), **parts)
    first.run()
    then = torch.cat([first.offline_samples().x, first.samples().x], 1)
    second = small_flow(data, start=at(then), **parts)
    second.run()
    torch.testing.assert_close(second.samples().x, whole[:, 1::2], atol=1e-12, rtol=0)
    torch.testing.assert_close(second.offline_samples().x, whole[:, 0::2], atol=1e-12, rtol=0)


def test_both_halves_have_their_share_of_each_class(fitted):
    """Balanced labels come class by class, so halves must not be one behind the other."""
    flow = small_flow(condition=OneHot(labels="balanced"), count=300, turn=1)
    flow.run()
    labels = flow.particles.conditions.labels
    one, other = (torch.bincount(labels[step]) for step in fitted[:2])
    assert int((one - other).abs().max()) <= 1
    assert int(one.min()) > 0


def test_parts_of_a_half_are_drawn_from_it(fitted):
    cdf = Sorted(particles=Part(count=10))
    small_flow(cdf=cdf, schedule=Constant(steps=4, directions=4), count=31, turn=1).run()
    assert [(len(step), set((step % 2).tolist())) for step in fitted] == [(10, {0}), (10, {1})] * 2
    assert not torch.equal(fitted[0], fitted[2])


def test_with_turns_offline_particles_drift_less():
    """Gaussian data in 20 dimensions: without turns, offline particles lie a sixth wider than the others."""
    data = Dataset(x=Key(0, "x").open(dtype=torch.float64).normal(20, 1000), space=Space((20,)))
    shared = {"cdf": Histogram(bins=256), "schedule": Constant(steps=150, directions=40)}
    ratio = {}
    for turn in (None, 10):
        flow = small_flow(data, count=200, offline=500, turn=turn, **shared)
        flow.run()
        ratio[turn] = spread(flow.offline_samples()) / spread(flow.samples())
    assert ratio[None] > 1.12
    assert ratio[10] - 1 < 0.5 * (ratio[None] - 1)  # from 0.30 to 0.42 of it with three seeds


def test_particles_that_see_held_out_images_and_are_carried_along_have_no_turn(fitted):
    condition = Mask(held_out=3, completions=2, carried=True)
    flow = small_flow(images(), condition=condition, schedule=Constant(steps=4, directions=20), turn=1)
    flow.run()
    mine = (flow.particles.conditions.origin >= 0).nonzero()[:, 0]
    assert len(mine) == len(flow.particles) - 6
    for number, step in enumerate(fitted):
        assert torch.equal(step, mine[number % 2 :: 2])


def test_particles_that_come_online_join_the_halves(fitted):
    flow = small_flow(condition=NoCondition(), cdf=Histogram(bins=64), sets=2, turn=1)
    flow.run()
    more = random_data(n=20, seed=5)
    flow.insert(attrs.evolve(more, conditions=Conditions(), classes=()))
    flow.again()
    fitted.clear()
    flow.run()
    assert len(flow.particles) > 30
    assert all(torch.equal(one, torch.arange(one[0], len(flow.particles), 2)) for one in fitted)


def test_turns_that_make_no_sense_are_refused():
    with pytest.raises(RunError, match="every particle and every datum counts: leave out turn"):
        small_flow(condition=Separate(), turn=1)
    with pytest.raises(RunError, match="the flow has 3 steps and a turn 3: half of the particles"):
        small_flow(turn=3)
    with pytest.raises(RunError, match="one particle has no halves"):
        small_flow(turn=1, count=1, offline=4)


def test_a_flow_that_leaves_its_stages_before_the_second_turn_says_so(caplog):
    entries = (Entry.from_text("(4×4) [dense]"),)
    data = Dataset(x=Key(1, "x").open().normal(16, 40), space=Space((1, 4, 4)))
    schedule = Adaptive(entries=entries, steps=200, directions=40, shortest=4, window=2)
    flow = small_flow(data, schedule=schedule, turn=150)
    flow.run()
    assert flow.position.total < 150
    assert (
        "in its first turn: half of the particles never took part in F_p. Take a turn of fewer" in caplog.text
    )
    caplog.clear()
    small_flow(data, schedule=schedule, turn=2).run()
    assert not caplog.text


def test_recipes_have_turns_only_where_a_model_is_saved_and_where_they_were_tried():
    registry = Registry.discover()
    digits = ["model.turn=5", "particles.count=20", "schedule.steps=10", "schedule.directions=8"]
    for save, turn in ((True, 5), (False, None)):
        recipe = load_recipe("digits", [*digits, f"model.save={str(save).lower()}"], registry=registry)
        assert build_flow(recipe, device="cpu").settings.turn == turn
    model = {
        name: load_recipe(name, [], registry=registry).model
        for name in ("cifar10-unconditional", "fid-cifar10", "cifar10-model")
    }
    assert {(section.knots, section.turn) for section in model.values()} == {(25, 100)}
    others = (
        "cifar10-class",
        "fid-cifar10-class",
        "cifar10-inpainting",
        "cifar10-colorize",
        "celeba-inpainting",
    )
    for name in others:
        section = load_recipe(name, [], registry=registry).model
        assert (section.knots, section.turn) == (13, None), name
