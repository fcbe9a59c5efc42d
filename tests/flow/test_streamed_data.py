"""Data that come some at a time lead particles to the same bits as data that are there as a whole."""

from __future__ import annotations

import gc

import attrs
import pytest
import torch

from cswf_core.errors import DataError, RunError
from cswf_core.flow import data as flow_data
from cswf_core.flow import memory
from cswf_core.flow.fits import ManyBlocks
from cswf_core.flow.flow import Flow
from cswf_core.interfaces import Dataset, Part, StoredImages
from cswf_core.kernels.memory import memory_limited
from cswf_core.packed import LoadedImages
from cswf_plugins.cdfs.histogram import Histogram
from cswf_plugins.cdfs.sorted import Sorted
from cswf_plugins.conditions.none import NoCondition
from cswf_plugins.conditions.one_hot import OneHot
from cswf_plugins.conditions.separate import Separate
from cswf_plugins.coordinates.whitened import Whitened
from tests.conftest import small_flow
from tests.flow.kinds import KINDS, image_flow, images
from tests.marks import slow_if
from tests.ranks.forked import on_ranks

DATA = 700

STREAMED = {
    **{kind: KINDS[kind] for kind in ("plain", "classes", "mask", "carried", "reuse", "sets", "float64")},
    "parts": KINDS["parts"],
    "separate": {"condition": Separate()},
    "separate, binned": {"condition": Separate(), "half": True},
    "binned": {"condition": OneHot(dequantise=True), "half": True},
    "labels with noise": {"condition": OneHot(dequantise=True)},
    "a sorted part": {"cdf": Sorted(data=Part(count=200)), "condition": OneHot()},
    "a part of several blocks": {"cdf": Histogram(bins=64, data=Part(share=0.8)), "condition": OneHot()},
    "whitened": {"coordinates": Whitened(), "gaussian": True},
}


@pytest.fixture
def streaming(monkeypatch):
    """Have no data stay on the device, and blocks of 256."""
    monkeypatch.setattr(flow_data, "fits_in_memory", lambda *_: False)
    monkeypatch.setattr(memory, "LARGEST_BLOCK", {"cpu": 256})


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
    monkeypatch.setattr(flow_data, "fits_in_memory", lambda *_: False)
    monkeypatch.setattr(memory, "LARGEST_BLOCK", {"cpu": 256})
    streamed = image_flow(DATA, **STREAMED[kind])
    assert not streamed.setup.data.resident
    assert torch.equal(streamed.run().x, wanted)


def test_counts_and_directions_of_a_step_are_gone_with_the_step(streaming):
    """They may fill a GPU before the garbage collector comes."""
    steps = iter(image_flow(DATA, **STREAMED["classes"]))
    gc.collect()
    gc.disable()
    try:
        for _ in range(4):
            next(steps)
        assert sum(type(thing) is ManyBlocks for thing in gc.get_objects()) <= 1
    finally:
        gc.enable()


@pytest.mark.parametrize("kind", ["classes", "mask", "parts", "sets"])
def test_images_that_are_not_in_memory_lead_to_the_same_bits(kind, streaming):
    changes = {**STREAMED[kind], "dtype": torch.float32}
    loaded = image_flow(DATA, **changes)
    from_store = image_flow_of(stored(images(DATA)), **changes)
    assert torch.equal(from_store.run().x, loaded.run().x)


def image_flow_of(data: Dataset, **changes) -> Flow:
    """The flow of `image_flow`, to other data."""
    parts = image_flow(50, **changes).parts
    settings = {key: changes[key] for key in ("reuse", "half") if key in changes}
    return small_flow(
        data,
        condition=parts.condition.plugin,
        projection=parts.projection.plugin,
        cdf=parts.cdf.plugin,
        schedule=parts.schedule.plugin,
        sets=changes.get("sets"),
        dtype=torch.float32,
        **settings,
    )


@pytest.mark.parametrize("kind", ["classes", "parts", "separate"])
def test_several_ranks_that_stream_have_the_bits_of_one(kind, streaming, tmp_path):
    def taken(ranks=None):
        flow = image_flow(DATA, ranks=ranks, **{"count": 300, **STREAMED[kind]})
        list(flow)
        return flow.samples().x if ranks is None or ranks.leads else None

    assert torch.equal(on_ranks(2, tmp_path, taken)[0], taken())


def test_a_flow_goes_on_from_a_snapshot_with_streamed_data(streaming):
    wanted = image_flow(DATA, **STREAMED["parts"]).run().x
    stopped = image_flow(DATA, **STREAMED["parts"])
    for _, _ in zip(range(3), stopped, strict=False):
        pass
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
    image_flow_of(stored(images(DATA)), condition=NoCondition()).run()
    assert "is fitted to" not in caplog.text
    small_flow(stored(images(DATA)), coordinates=Whitened(), cdf=Histogram(), dtype=torch.float32).run()
    assert "what is fitted to them before the flow is fitted to 256 of 700" in caplog.text


def test_a_block_that_was_read_ahead_is_not_taken_for_one_of_another_stage(streaming):
    """A part is drawn for each stage: a flow that goes elsewhere must not use what it has read for here."""
    kind = {"cdf": Histogram(bins=64, data=Part(count=200)), "condition": NoCondition()}
    wanted, early, late = (image_flow(DATA, **kind) for _ in range(3))
    for _, _ in zip(range(6), late, strict=False):  # into the second stage
        pass
    for _, _ in zip(range(2), early, strict=False):
        pass
    early.restore(late.snapshot())
    assert torch.equal(early.run().x, wanted.run().x)


def test_images_of_a_source_without_take_can_be_read_in_any_order():
    images_of = LoadedImages.of(images(30))
    levels = images_of.levels
    for numbers in ([], [3], [3, 4, 5, 9, 1, 1]):
        out = torch.empty(len(numbers), *levels.shape[1:], dtype=torch.uint8)
        StoredImages.take(images_of, torch.tensor(numbers, dtype=torch.long), out)
        assert torch.equal(out, levels[numbers])
