"""A flow on several ranks ends with the bits of the same flow on one, or with one error on all of them."""

from __future__ import annotations

import gc
import math
import weakref
from functools import partial

import attrs
import pytest
import torch

from cswf_core import hookimpl
from cswf_core.errors import LostRankError, NotFiniteError, RunError
from cswf_core.flow.settings import TableRequest
from cswf_core.flow.state import Snapshot
from cswf_core.interfaces import Part
from cswf_core.kernels.columns import COLUMNS_AT_A_TIME
from cswf_core.ranks import Dismissed, Share
from cswf_core.session.devices import SharedWork
from cswf_plugins.cdfs.histogram import Histogram
from cswf_plugins.cdfs.sorted import Sorted
from cswf_plugins.cdfs.spline import Spline
from cswf_plugins.conditions.none import NoCondition
from cswf_plugins.conditions.one_hot import OneHot
from cswf_plugins.conditions.separate import Separate
from cswf_plugins.coordinates.principal import Principal
from cswf_plugins.projections.data_covariance import DataCovariance
from cswf_plugins.projections.uniform import Uniform
from cswf_plugins.schedules.constant import Constant
from cswf_plugins.schedules.pyramid import Pyramid
from tests.conftest import small_flow
from tests.flow import kinds
from tests.flow.kinds import KINDS, TWO_STAGES, images
from tests.marks import slow_if
from tests.ranks.forked import on_ranks

pytestmark = pytest.mark.processes

image_flow = partial(kinds.image_flow, schedule=Pyramid(entries=TWO_STAGES, steps=2, directions=40))
ROWS = {"schedule": Constant(steps=4, directions=300)}
"""Enough directions for each rank to have some, where rows are exchanged."""

LONG = {"schedule": Pyramid(entries=TWO_STAGES, steps=4, directions=40)}
"""Enough steps for directions, and turns, to change and to come round again inside a stage."""

SHARED = {
    **KINDS,
    **{kind: KINDS[kind] | LONG for kind in ("reuse", "sets", "whitened, sets", "parts", "turns")},
    "sorted": {"cdf": Sorted(), "condition": OneHot(), **ROWS},
    "released": {"cdf": Sorted(rank="released"), "condition": NoCondition(), **ROWS},
    "spline": {"cdf": Spline(knots=32), "condition": OneHot(), **ROWS},
    "sorted parts": {"cdf": Sorted(particles=Part(share=0.4), data=Part(count=70)), **ROWS},
    "binned parts": {"cdf": Histogram(bins=64, data=Part(share=0.4)), "half": True},
    "separate": {"condition": Separate()},
    "separate, binned": {"condition": Separate(), "half": True},
    "separate, sorted": {"condition": Separate(), "cdf": Sorted(), **ROWS},
    "tails": {"cdf": Histogram(bins=64, tail=0.05), "condition": OneHot(), "half": True},
    "labels with noise": {"condition": OneHot(dequantise=True)},
    "principal": {"coordinates": Principal(), "gaussian": True, "condition": OneHot()},
    "it looks at the data": {"projection": DataCovariance(), "schedule": Constant(steps=4, directions=40)},
    "tables": {"condition": OneHot(), "tables": TableRequest(knots=9, bits=16), "turn": 3, **LONG},
    "sorted tables": {
        "cdf": Sorted(),
        "condition": NoCondition(),
        "tables": TableRequest(knots=9, bits=16),
        **ROWS,
    },
    "few sorted tables": {
        "cdf": Sorted(),
        "condition": NoCondition(),
        "tables": TableRequest(knots=9, bits=16),
    },
    "many slabs": {
        "condition": NoCondition(),
        "projection": Uniform(),
        "schedule": Constant(steps=2, directions=5000),
    },
}

PARTICLES, DATA = 700, 800
FEW = {"count": 300, "data": 400}
"""Enough for two ranks."""


class Watch:
    """Keeps what an observer sees on its way: particles, tables and distances."""

    def __init__(self, count: int) -> None:
        self.some = torch.tensor([3, count - 1, 256, 255, 200, 3])
        self.digests: list[object] = []

    @hookimpl
    def after_step(self, flow, state):
        if state.total_step % 3 == 1:
            self.digests.append(flow.samples(self.some).x)
        if state.tables is not None:
            self.digests += [*state.tables.tensors]


def ended(flow, ranks=None):
    """The samples that a flow ends with; None on ranks that do not lead."""
    for _ in flow:
        pass
    return flow.samples().x if ranks is None or ranks.leads else None


def taken(kind, ranks=None, *, count=PARTICLES, data=DATA):
    """What a flow ends with, and what was seen on the way; None on ranks that see nothing."""
    watch = Watch(count)
    changes = {"count": count, **SHARED[kind]}
    flow = image_flow(data, observers=(watch,), ranks=ranks, **changes)
    states = list(flow)
    if ranks is not None and not ranks.leads:
        return None
    seen = [flow.samples().x, flow.offline_samples().x, *watch.digests]
    return seen, [state.distance for state in states], [state.displacement for state in states]


ALIKE = {
    *("reuse", "float64", "clip", "offline", "whitened, mask", "whitened, a mask"),
    *("whitened, clip", "whitened, sets", "whitened, entropy", "released", "spline", "sorted parts"),
    *("binned parts", "separate, sorted", "labels with noise", "sorted tables", "few sorted tables"),
    *("sorted", "tempered", "masks", "carried", "clip and mask", "separate"),
    *("principal", "many slabs"),
}
"""Kinds that go the ways of others: they are for `make test-all`."""


@pytest.mark.parametrize("kind", slow_if(ALIKE, SHARED))
def test_the_result_does_not_depend_on_the_number_of_ranks(kind, tmp_path):
    several = kind in ("classes", "sorted")
    sizes, few = ((2, 4), {"count": 1100, "data": 1100}) if several else ((2,), FEW)
    alone, distances, moves = taken(kind, **few)
    work = partial(taken, kind, **few)
    for size in sizes:
        (shared, *numbers), *others = on_ranks(size, tmp_path / str(size), work)
        assert others == [None] * (size - 1)
        assert len(shared) == len(alone)
        assert all(torch.equal(a, b) for a, b in zip(shared, alone, strict=True))
        assert numbers[0] == pytest.approx(distances, rel=1e-5)
        assert numbers[1] == pytest.approx(moves, rel=1e-5)


RESUMED = ("classes", "mask", "whitened", "turns", "adaptive")


@pytest.mark.parametrize("kind", slow_if(("mask", "whitened", "turns"), RESUMED))
def test_a_flow_goes_on_with_another_number_of_ranks(kind, tmp_path):
    alone, *_ = taken(kind)
    changes = {"count": PARTICLES, **SHARED[kind]}

    def stopped(ranks):
        flow = image_flow(DATA, ranks=ranks, **changes)
        next(state for state in flow if state.total_step == 3)
        return flow.snapshot()

    def resumed(ranks, parts):
        flow = image_flow(DATA, ranks=ranks, **changes)
        flow.restore(Snapshot.joined(parts, ranks.share(parts[0].share.total, flow.device)))
        return ended(flow, ranks)

    for before, after in ((1, 3), (3, 2)) if kind == "classes" else ((2, 1),):
        parts = on_ranks(before, tmp_path / f"{before}", stopped)
        (x, *_) = on_ranks(
            after, tmp_path / f"{before}-{after}", lambda ranks, parts=parts: resumed(ranks, parts)
        )
        assert torch.equal(x, alone[0]), (before, after)


def test_few_particles_of_several_ranks_are_saved_and_found_again(tmp_path):
    def stopped(ranks):
        flow = image_flow(50, ranks=ranks, count=30, condition=OneHot())
        next(state for state in flow if state.total_step == 3)
        snapshot = flow.snapshot()
        return snapshot.tensors(), snapshot.facts()

    parts = [Snapshot.of(*part) for part in on_ranks(2, tmp_path, stopped)]
    assert sorted(part.x.shape[1] for part in parts) == [0, 30]
    flow, whole = (image_flow(50, count=30, condition=OneHot()) for _ in range(2))
    flow.restore(Snapshot.joined(parts, Share(0, 30, 30)))
    assert flow.run().digest() == whole.run().digest()


def test_a_snapshot_of_other_particles_is_refused():
    flow, other = image_flow(50, count=30), image_flow(50, count=31)
    next(iter(flow))
    snapshot = attrs.evolve(flow.snapshot(), share=Share(0, 10, 31))
    with pytest.raises(RunError, match="it has particles of 64×30 of float32, and"):
        other.restore(snapshot)


def test_a_first_rank_that_ends_while_others_do_not_listen_is_missed_by_them(tmp_path):
    def broken(ranks):
        if ranks.leads:
            ranks.dismiss()
        else:
            with pytest.raises(LostRankError, match="another rank was lost"):
                ranks.sums(torch.zeros(1, dtype=torch.float64))
        raise Dismissed

    on_ranks(2, tmp_path, broken, seconds=20)


def test_all_ranks_end_with_the_same_sentence_when_one_has_particles_that_are_none(tmp_path):
    def work(ranks):
        schedule = Constant(steps=9, directions=40)
        flow = small_flow(cdf=Histogram(), schedule=schedule, ranks=ranks, count=600)
        steps = iter(flow)
        for _ in range(3):
            next(steps)
        if ranks.rank == 1:
            flow.particles.stored[0].x[0, 0] = math.nan
        with pytest.raises(NotFiniteError) as error:
            next(steps)
        return str(error.value)

    first, other = on_ranks(2, tmp_path, work, seconds=30)
    assert first == other
    assert first.startswith("particles are not finite after step 4 of stage 1 'constant': ")


def test_two_flows_of_the_same_ranks_have_their_own_particles(tmp_path):
    def both(ranks):
        flows = [image_flow(300, ranks=ranks, count=count) for count in (300, 280)]
        return [flow.samples().x.shape[1] for flow in flows] if ranks.leads else None

    assert on_ranks(2, tmp_path, both)[0] == [300, 280]


def test_a_flow_of_one_process_is_gone_when_its_last_name_is():
    flow = image_flow(50, count=30)
    flow.run()
    gone = weakref.ref(flow)
    gc.disable()
    try:
        del flow
        assert gone() is None
    finally:
        gc.enable()


def test_data_that_come_later_and_their_particles_are_shared_too(tmp_path):
    def learned(ranks=None):
        data = images(1100)
        then = attrs.evolve(data.take(slice(800, 1100)), held_out=None)
        flow = image_flow(DATA, ranks=ranks, count=PARTICLES, condition=OneHot(), sets=2)
        flow.again(steps=2, arriving=then)
        return ended(flow, ranks)

    alone = learned()
    assert alone.shape[1] > PARTICLES
    assert torch.equal(on_ranks(3, tmp_path, learned)[0], alone)


def test_a_rank_may_have_no_particles_or_data_at_all(tmp_path):
    def few(ranks=None):
        flow = image_flow(50, ranks=ranks, count=30, condition=OneHot())
        x = ended(flow, ranks)
        return len(flow.particles) if x is None else x

    first, *others = on_ranks(3, tmp_path, few)
    assert sorted(map(int, others)) == [0, 30] or others == [0, 0]
    assert torch.equal(first, few())


@pytest.mark.parametrize("total", [0, 1, 255, 256, 257, 5000])
@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_shares_are_whole_groups_and_cover_everything_once(total, size):
    shares = [Share.of(total, rank, size, "cpu") for rank in range(size)]
    assert [share.first for share in shares] == [0, *(share.stop for share in shares[:-1])]
    assert shares[-1].stop == total
    assert all(share.first % COLUMNS_AT_A_TIME["cpu"] == 0 or share.first == total for share in shares)
    sizes = [-(-len(share) // COLUMNS_AT_A_TIME["cpu"]) for share in shares]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    "columns", [None, slice(3, 900), slice(1, None, 2), slice(0, 10), torch.tensor([999, 0, 256, 300, 255])]
)
def test_a_share_of_some_columns_are_those_that_are_here(columns):
    every = torch.arange(1000)
    wanted = every if columns is None else every[columns]
    shares = [Share.of(1000, rank, 3, "cpu") for rank in range(3)]
    parts = []
    for share in shares:
        own = share.own(columns)
        here = every[share.cut]
        parts.append(here if own is None else here[own])
    assert torch.equal(torch.cat(parts).sort().values, wanted.sort().values)


def test_ranks_with_other_data_are_refused(tmp_path):
    def disagreeing(ranks):
        with pytest.raises(RunError, match="rank 1 has other data than rank 0"):
            ranks.agree("data", f"number {ranks.rank}")
        with pytest.raises(RunError, match="rank 1 compares its memory, and rank 0 its recipe: all ranks need"):
            ranks.least(3) if ranks.rank else ranks.agree("recipe", "digits")

    on_ranks(2, tmp_path, disagreeing)


def lengths(items, device, tell):
    """The sum of each item, and how many items there were with it."""
    tell("lengths", len(items), len(items))
    return torch.stack([items.flatten(1).float().sum(dim=1), torch.full((len(items),), len(items))], dim=1)


def test_work_on_many_items_is_shared_out_in_whole_batches(tmp_path):
    items, heard = torch.arange(60).view(15, 2, 2), []

    def worked(ranks):
        share_out = SharedWork(ranks, torch.device("cpu"))
        return share_out(lengths, items, 4, lambda *news: heard.append(news)) if ranks.leads else None

    rows, *_ = on_ranks(3, tmp_path, worked)
    assert torch.equal(rows[:, 0], items.flatten(1).sum(dim=1).float())
    assert rows[:, 1].tolist() == [4] * 4 + [4] * 4 + [7] * 7
