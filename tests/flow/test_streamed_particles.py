"""Particles that come to the device in blocks go where they go together, to the bit."""

from __future__ import annotations

import attrs
import pytest
import torch

from cswf_core.errors import RunError
from cswf_core.flow import memory
from cswf_core.flow import streaming as flow_streaming
from cswf_core.flow.particles import Placement
from cswf_core.flow.settings import TableRequest
from cswf_core.interfaces import Part
from cswf_core.kernels.memory import memory_limited
from cswf_plugins.cdfs.histogram import Histogram
from cswf_plugins.cdfs.sorted import Sorted
from cswf_plugins.conditions.mask import Mask
from cswf_plugins.conditions.none import NoCondition
from cswf_plugins.conditions.one_hot import OneHot
from cswf_plugins.conditions.separate import Separate
from cswf_plugins.schedules.pyramid import Pyramid
from tests.flow.kinds import ENTRIES, KINDS, image_flow
from tests.marks import slow_if
from tests.ranks.forked import on_ranks

M = 700

STREAMED = {
    **{kind: KINDS[kind] for kind in ("plain", "classes", "reuse", "float64", "clip", "offline", "parts")},
    **{kind: KINDS[kind] for kind in ("turns", "whitened", "whitened, clip", "whitened, entropy", "adaptive")},
    "a mask": {"condition": Mask(hidden="left")},
    "separate": {"condition": Separate()},
    "tails": {"cdf": Histogram(bins=64, tail=0.05), "condition": OneHot(), "half": True},
    "a part of the data": {"cdf": Histogram(bins=64, data=Part(share=0.4)), "condition": NoCondition()},
}


@pytest.fixture
def streaming(monkeypatch):
    """Have no particles stay on the device, and blocks of 256; data stay."""
    monkeypatch.setattr(flow_streaming, "fits_in_memory", lambda *_: False)
    monkeypatch.setattr(memory, "LARGEST_BLOCK", {"cpu": 256})


ALIKE = ("reuse", "float64", "turns", "whitened, clip", "a part of the data")
"""Kinds that go the ways of others: they are for `make test-all`."""


@pytest.mark.parametrize("kind", slow_if(ALIKE, STREAMED))
def test_streamed_particles_end_with_the_same_bits(kind, monkeypatch):
    wanted = image_flow(count=M, **STREAMED[kind])
    states = [(state.distance, state.displacement) for state in wanted]
    monkeypatch.setattr(flow_streaming, "fits_in_memory", lambda *_: False)
    monkeypatch.setattr(memory, "LARGEST_BLOCK", {"cpu": 256})
    flow = image_flow(count=M, **STREAMED[kind])
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


@pytest.mark.parametrize(
    "kind", ["classes", "clip", "whitened", "whitened, clip", "whitened, entropy", "a mask"]
)
def test_blocks_that_are_kept_elsewhere_end_with_the_same_bits(kind, streaming, monkeypatch):
    wanted = image_flow(count=M, **STREAMED[kind])
    monkeypatch.setattr(flow_streaming, "Placement", Elsewhere)
    flow = image_flow(count=M, **STREAMED[kind])
    few = torch.tensor([3, 699, 256, 255, 3])
    for _ in zip(flow, wanted, strict=True):
        assert torch.equal(flow.samples(few).x, wanted.samples(few).x)
        assert flow.snapshot().tensors().keys() == wanted.snapshot().tensors().keys()
    assert torch.equal(flow.samples().x, wanted.samples().x)


@pytest.mark.parametrize("kind", ["classes", "whitened", "clip"])
def test_particles_can_be_seen_and_saved_in_the_middle_of_a_stage(kind, streaming):
    flow, other = (image_flow(count=M, **STREAMED[kind]) for _ in range(2))
    for _, _ in zip(range(3), flow, strict=False):
        pass
    few = torch.tensor([699, 0, 300])
    # On some CPUs a product of few columns has other last digits than one of many.
    torch.testing.assert_close(flow.samples().x[:, few], flow.samples(few).x)
    other.restore(flow.snapshot())
    wanted = image_flow(count=M, **STREAMED[kind]).run().x
    assert torch.equal(other.run().x, wanted)


def test_tables_of_streamed_particles_are_those_of_all(monkeypatch):
    request = TableRequest(knots=9)
    whole = [state.tables for state in image_flow(count=M, condition=OneHot(), tables=request)]
    monkeypatch.setattr(flow_streaming, "fits_in_memory", lambda *_: False)
    monkeypatch.setattr(memory, "LARGEST_BLOCK", {"cpu": 256})
    streamed = [state.tables for state in image_flow(count=M, condition=OneHot(), tables=request)]
    for one, other in zip(whole, streamed, strict=True):
        assert torch.equal(one.positions, other.positions)
        assert torch.equal(one.displacements, other.displacements)


def test_several_ranks_that_stream_particles_have_the_bits_of_one(streaming, tmp_path):
    def taken(ranks=None):
        flow = image_flow(600, count=1100, ranks=ranks, **STREAMED["classes"])
        list(flow)
        return flow.samples().x if ranks is None or ranks.leads else None

    assert torch.equal(on_ranks(2, tmp_path, taken)[0], taken())


def test_samples_of_a_flow_that_is_done_stay_as_they_are_when_it_goes_on(streaming):
    flow = image_flow(count=M, **STREAMED["plain"])
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
def test_what_cannot_be_streamed_is_refused(changes, sentence, streaming):
    with pytest.raises(RunError, match=sentence):
        image_flow(count=M, **changes)


def test_particles_and_data_can_both_be_streamed(monkeypatch):
    wanted = image_flow(600, count=M, **STREAMED["classes"]).run().x
    monkeypatch.setattr(memory, "MEMORY_OVER_SAMPLES", 10**12)
    monkeypatch.setattr(memory, "LARGEST_BLOCK", {"cpu": 256})
    flow = image_flow(600, count=M, **STREAMED["classes"])
    assert not flow.setup.data.resident
    assert flow.particles.in_blocks
    assert torch.equal(flow.run().x, wanted)


SHORT = Pyramid(entries=ENTRIES, steps=1, directions=12)


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
