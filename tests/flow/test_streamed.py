"""Data or particles that come to the device in blocks lead to the same bits as those that are all there."""

from __future__ import annotations

import gc
from functools import partial

import attrs
import pytest
import torch

from cswf_core.errors import DataError, RunError
from cswf_core.flow import data as flow_data
from cswf_core.flow import memory
from cswf_core.flow import particles as flow_particles
from cswf_core.flow.fits import Source
from cswf_core.flow.flow import Flow
from cswf_core.flow.particles import Placement
from cswf_core.flow.settings import TableRequest
from cswf_core.interfaces import Dataset, Part, StoredImages
from cswf_core.kernels.memory import memory_limited
from cswf_core.packed import LoadedImages
from cswf_plugins.cdfs.histogram import Histogram
from cswf_plugins.cdfs.sorted import Sorted
from cswf_plugins.conditions.mask import Mask
from cswf_plugins.conditions.none import NoCondition
from cswf_plugins.conditions.one_hot import OneHot
from cswf_plugins.conditions.separate import Separate
from cswf_plugins.coordinates.whitened import Whitened
from cswf_plugins.schedules.adaptive import Adaptive
from cswf_plugins.schedules.pyramid import Pyramid
from tests.conftest import small_flow
from tests.flow import kinds
from tests.flow.kinds import KINDS, TWO_STAGES, images
from tests.marks import slow_if
from tests.ranks.forked import on_ranks

image_flow = partial(kinds.image_flow, schedule=Pyramid(entries=TWO_STAGES, steps=2, directions=40))
DATA = 700

LONG = {"schedule": Pyramid(entries=TWO_STAGES, steps=4, directions=40)}
"""Enough steps for directions, and turns, to change and to come round again inside a stage."""

STREAMED = {
    **{kind: KINDS[kind] for kind in ("plain", "classes", "mask", "carried", "float64")},
    **{kind: KINDS[kind] | LONG for kind in ("reuse", "sets", "parts")},
    "separate": {"condition": Separate()},
    "separate, binned": {"condition": Separate(), "half": True},
    "binned": {"condition": OneHot(dequantise=True), "half": True},
    "labels with noise": {"condition": OneHot(dequantise=True)},
    "a sorted part": {"cdf": Sorted(data=Part(count=200)), "condition": OneHot()},
    "a part of several blocks": {"cdf": Histogram(bins=64, data=Part(share=0.8)), "condition": OneHot()},
    "whitened": {"coordinates": Whitened(), "gaussian": True},
}


def stream(monkeypatch, what):
    """Have no data (`flow_data`) or particles (`flow_particles`) stay on the device, and blocks of 256."""
    monkeypatch.setattr(what, "fits_in_memory", lambda *_: False)
    monkeypatch.setattr(memory, "LARGEST_BLOCK", {"cpu": 256})


@pytest.fixture
def streaming(monkeypatch):
    stream(monkeypatch, flow_data)


@pytest.fixture
def in_blocks(monkeypatch):
    stream(monkeypatch, flow_particles)


def take_steps(flow: Flow, count: int) -> None:
    for _, _ in zip(range(count), flow, strict=False):
        pass


def stored(data: Dataset) -> Dataset:
    """The same images, as bytes that are read when they are asked for."""
    same = Dataset.of_stored(LoadedImages.of(data), torch.float32)
    return attrs.evolve(same, conditions=data.conditions)


ALIKE = ("float64", "carried", "separate, binned", "whitened")
"""Kinds that go the ways of others: they are for `make test-all`."""


@pytest.mark.parametrize("kind", slow_if(ALIKE, STREAMED))
def test_streamed_data_lead_to_the_same_bits(kind, monkeypatch):
    whole = image_flow(DATA, **STREAMED[kind])
    wanted = whole.run().x
    assert whole.setup.data.resident
    stream(monkeypatch, flow_data)
    streamed = image_flow(DATA, **STREAMED[kind])
    assert not streamed.setup.data.resident
    assert torch.equal(streamed.run().x, wanted)


def test_counts_and_directions_of_a_step_are_gone_with_the_step(streaming):
    """They may fill a GPU before the garbage collector comes."""
    steps = iter(image_flow(DATA, **STREAMED["classes"]))
    gc.collect()
    gc.disable()
    try:
        for _ in range(3):
            next(steps)
        assert sum(type(thing) is Source for thing in gc.get_objects()) <= 1
    finally:
        gc.enable()


@pytest.mark.parametrize("kind", ["classes", "parts", "sets"])
def test_images_that_are_not_in_memory_lead_to_the_same_bits(kind, streaming):
    changes = {**STREAMED[kind], "dtype": torch.float32}
    loaded = image_flow(DATA, **changes)
    from_store = image_flow(data=stored(images(DATA)), **changes)
    assert torch.equal(from_store.run().x, loaded.run().x)


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        ("classes", flow_data),
        ("parts", flow_data),
        pytest.param("separate", flow_data, marks=pytest.mark.slow),
        ("classes", flow_particles),
    ],
)
def test_several_ranks_that_stream_have_the_bits_of_one(kind, what, monkeypatch, tmp_path):
    stream(monkeypatch, what)
    changes = {"count": 300 if what is flow_data else 1100, **STREAMED[kind]}

    def taken(ranks=None):
        flow = image_flow(600, ranks=ranks, **changes)
        list(flow)
        return flow.samples().x if ranks is None or ranks.leads else None

    assert torch.equal(on_ranks(2, tmp_path, taken)[0], taken())


def test_a_flow_goes_on_from_a_snapshot_with_streamed_data(streaming):
    wanted = image_flow(DATA, **STREAMED["parts"]).run().x
    stopped = image_flow(DATA, **STREAMED["parts"])
    take_steps(stopped, 3)
    going_on = image_flow(DATA, **STREAMED["parts"])
    going_on.restore(stopped.snapshot())
    assert torch.equal(going_on.run().x, wanted)


def test_little_memory_streams_data_and_more_does_not():
    size = 64 * DATA * 4
    with memory_limited(2 * size):
        assert not image_flow(DATA).setup.data.resident
    with memory_limited(8 * size):
        assert image_flow(DATA).setup.data.resident


def test_an_estimator_that_needs_all_values_at_once_is_refused_with_what_to_do(streaming):
    with pytest.raises(RunError, match="take an estimator with bins, such as histogram, or fit F_q to a part"):
        image_flow(DATA, cdf=Sorted())


def test_what_needs_all_of_the_data_says_that_they_are_streamed():
    data = stored(images(DATA))
    few = attrs.evolve(data, x=attrs.evolve(data.stored, most=1000 * 4))
    with pytest.raises(DataError, match="the 700 samples are streamed, as memory does not hold them"):
        _ = few.x
    assert few.take(slice(10)).x.shape == (64, 10)


def test_fits_to_a_part_of_streamed_data_are_told(streaming, monkeypatch, caplog):
    monkeypatch.setattr(flow_data, "FEWEST_FITTED", 256)
    monkeypatch.setattr(flow_data, "MEMORY_OVER_FITTED", 10**12)
    image_flow(data=stored(images(DATA)), condition=NoCondition()).run()
    assert "is fitted to" not in caplog.text
    small_flow(stored(images(DATA)), coordinates=Whitened(), cdf=Histogram(), dtype=torch.float32).run()
    assert "what is fitted to them before the flow is fitted to 256 of 700" in caplog.text


def test_a_block_that_was_read_ahead_is_not_taken_for_one_of_another_stage(streaming):
    """A part is drawn for each stage: a flow that goes elsewhere must not use what it has read for here."""
    kind = {"cdf": Histogram(bins=64, data=Part(count=200)), "condition": NoCondition()}
    wanted, early, late = (image_flow(DATA, **kind) for _ in range(3))
    take_steps(late, 3)  # into the second stage
    take_steps(early, 1)
    early.restore(late.snapshot())
    assert torch.equal(early.run().x, wanted.run().x)


def test_images_of_a_source_without_take_can_be_read_in_any_order():
    images_of = LoadedImages.of(images(30))
    levels = images_of.levels
    for numbers in ([], [3], [3, 4, 5, 9, 1, 1]):
        out = torch.empty(len(numbers), *levels.shape[1:], dtype=torch.uint8)
        StoredImages.take(images_of, torch.tensor(numbers, dtype=torch.long), out)
        assert torch.equal(out, levels[numbers])


M = 700

IN_BLOCKS = {
    **{kind: KINDS[kind] for kind in ("plain", "classes", "float64", "clip", "offline")},
    **{kind: KINDS[kind] for kind in ("whitened", "whitened, clip", "whitened, entropy")},
    "adaptive": {"schedule": Adaptive(entries=TWO_STAGES, steps=9, directions=40, shortest=2, window=2)},
    **{kind: KINDS[kind] | LONG for kind in ("reuse", "parts", "turns")},
    "a mask": {"condition": Mask(hidden="left")},
    "separate": {"condition": Separate()},
    "tails": {"cdf": Histogram(bins=64, tail=0.05), "condition": OneHot(), "half": True},
    "a part of the data": {"cdf": Histogram(bins=64, data=Part(share=0.4)), "condition": NoCondition()},
}


ALIKE_IN_BLOCKS = ("reuse", "float64", "turns", "whitened, clip", "a part of the data")
"""Kinds that go the ways of others: they are for `make test-all`."""


@pytest.mark.parametrize("kind", slow_if(ALIKE_IN_BLOCKS, IN_BLOCKS))
def test_streamed_particles_end_with_the_same_bits(kind, monkeypatch):
    wanted = image_flow(count=M, **IN_BLOCKS[kind])
    states = [(state.distance, state.displacement) for state in wanted]
    stream(monkeypatch, flow_particles)
    flow = image_flow(count=M, **IN_BLOCKS[kind])
    assert flow.particles.in_blocks
    few = torch.tensor([3, 699, 256, 255, 3])
    seen = [(state.distance, state.displacement) for state in flow]
    torch.testing.assert_close(torch.tensor(seen), torch.tensor(states))
    assert torch.equal(flow.samples().x, wanted.samples().x)
    assert torch.equal(flow.samples(few).x, wanted.samples(few).x)
    assert torch.equal(flow.offline_samples().x, wanted.offline_samples().x)


class Elsewhere(Placement):
    """Blocks that are copied to where they move and back, as to a GPU and back."""

    def keep(self, part):
        return part.clone()

    def brought(self, stored, *, write, whole):
        for kept in stored:
            names = kept.parts if whole else kept.moving
            block = attrs.evolve(kept, parts={name: kept.parts[name].clone() for name in names})
            yield block
            for name in block.parts if write else ():
                kept.parts[name].copy_(block.parts[name])


@pytest.mark.parametrize("kind", ["classes", "clip", "whitened", "whitened, entropy", "a mask"])
def test_blocks_that_are_kept_elsewhere_end_with_the_same_bits(kind, in_blocks, monkeypatch):
    wanted = image_flow(count=M, **IN_BLOCKS[kind])
    monkeypatch.setattr(flow_particles, "Placement", Elsewhere)
    flow = image_flow(count=M, **IN_BLOCKS[kind])
    few = torch.tensor([3, 699, 256, 255, 3])
    for _ in zip(flow, wanted, strict=True):
        assert torch.equal(flow.samples(few).x, wanted.samples(few).x)
        assert flow.snapshot().tensors().keys() == wanted.snapshot().tensors().keys()
    assert torch.equal(flow.samples().x, wanted.samples().x)


@pytest.mark.parametrize("kind", ["classes", "whitened", "clip"])
def test_particles_can_be_seen_and_saved_in_the_middle_of_a_stage(kind, in_blocks):
    flow, other = (image_flow(count=M, **IN_BLOCKS[kind]) for _ in range(2))
    take_steps(flow, 3)
    few = torch.tensor([699, 0, 300])
    # On some CPUs a product of few columns has other last digits than one of many.
    torch.testing.assert_close(flow.samples().x[:, few], flow.samples(few).x)
    other.restore(flow.snapshot())
    wanted = image_flow(count=M, **IN_BLOCKS[kind]).run().x
    assert torch.equal(other.run().x, wanted)


def test_tables_of_streamed_particles_are_those_of_all(monkeypatch):
    request = TableRequest(knots=9, bits=16)
    for condition in (NoCondition(), Separate()):
        whole = [state.tables for state in image_flow(count=M, condition=condition, tables=request)]
        with monkeypatch.context() as patch:
            stream(patch, flow_particles)
            streamed = [state.tables for state in image_flow(count=M, condition=condition, tables=request)]
        for one, other in zip(whole, streamed, strict=True):
            assert all(map(torch.equal, one.tensors, other.tensors))


def test_tables_of_streamed_particles_by_class_are_refused(monkeypatch):
    stream(monkeypatch, flow_particles)
    with pytest.raises(RunError, match="a model by class needs all particles in the device's memory"):
        image_flow(count=M, condition=OneHot(), tables=TableRequest(knots=9, bits=16))


def test_samples_of_a_flow_that_is_done_stay_as_they_are_when_it_goes_on(in_blocks):
    flow = image_flow(count=M, **IN_BLOCKS["plain"])
    done = flow.run().x
    before = done.clone()
    flow.again()
    assert not torch.equal(flow.run().x, before)
    assert torch.equal(done, before)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"cdf": Sorted()}, "needs all projected particles of a direction at once"),
        (
            {"condition": Mask(hidden="boxes", masks="each")},
            "not worked on in blocks where each sees a part",
        ),
        ({"condition": OneHot(), "sets": 2}, "cannot learn online"),
    ],
)
def test_what_cannot_be_streamed_is_refused(changes, sentence, in_blocks):
    with pytest.raises(RunError, match=sentence):
        image_flow(count=M, **changes)


def test_particles_and_data_can_both_be_streamed(monkeypatch):
    wanted = image_flow(600, count=M, **IN_BLOCKS["classes"]).run().x
    monkeypatch.setattr(memory, "MEMORY_OVER_SAMPLES", 10**12)
    monkeypatch.setattr(memory, "LARGEST_BLOCK", {"cpu": 256})
    flow = image_flow(600, count=M, **IN_BLOCKS["classes"])
    assert not flow.setup.data.resident
    assert flow.particles.in_blocks
    assert torch.equal(flow.run().x, wanted)


SHORT = Pyramid(entries=TWO_STAGES, steps=1, directions=12)


def test_ranks_that_hold_together_what_one_does_not_work_in_the_same_blocks(monkeypatch, tmp_path):
    """One device is too small for particles and data, and two are not."""
    monkeypatch.setattr(memory, "LARGEST_BLOCK", {"cpu": 256})
    limit = 64 * 1000 * 4 * memory.MEMORY_OVER_SAMPLES  # 1,000 samples of 64 numbers

    def taken(ranks=None):
        with memory_limited(limit):
            flow = image_flow(1100, count=1100, ranks=ranks, condition=OneHot(), schedule=SHORT)
        list(flow)
        x = flow.samples().x if ranks is None or ranks.leads else None
        return not flow.setup.data.resident, flow.particles.placement.streamed, x

    streams, streamed, wanted = taken()
    assert streams
    assert streamed
    (streams, streamed, x), (_, also, _) = on_ranks(2, tmp_path, taken)
    assert (streams, streamed, also) == (False, False, False)
    assert torch.equal(x, wanted)


def test_ranks_with_more_and_fewer_particles_stream_all_of_them_or_none(monkeypatch, tmp_path):
    """300 particles are two groups on one rank and one on the other: 256 and 44 fit as 256 do."""
    monkeypatch.setattr(memory, "LARGEST_BLOCK", {"cpu": 256})
    limit = 64 * 100 * 4 * memory.MEMORY_OVER_SAMPLES  # 100 samples: the larger share does not fit

    def taken(ranks=None):
        with memory_limited(limit):
            flow = image_flow(80, count=300, ranks=ranks, condition=OneHot(), schedule=SHORT)
        list(flow)
        return flow.particles.placement.streamed, flow.samples().x if ranks is None or ranks.leads else None

    (one, x), (other, _) = on_ranks(2, tmp_path, taken)
    assert one
    assert other
    assert torch.equal(x, taken()[1])
