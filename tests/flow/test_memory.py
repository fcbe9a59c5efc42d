"""Memory: fewer directions at a time when they must be, and the bits stay the same."""

from __future__ import annotations

import gc
import weakref

import attrs
import pytest
import torch

from cswf_core.errors import OutOfMemoryError
from cswf_core.flow import memory
from cswf_core.flow import particles as flow_particles
from cswf_core.flow.settings import Settings
from cswf_core.interfaces import DenseProjection
from cswf_plugins.cdfs.histogram import Histogram
from cswf_plugins.cdfs.sorted import Sorted
from cswf_plugins.projections.uniform import Uniform
from cswf_plugins.schedules.constant import Constant
from tests.conftest import small_flow
from tests.flow.kinds import KINDS, Weighed, image_flow


@attrs.frozen
class Hungry(Sorted):
    """Runs out of memory when it gets more than `most` directions at once."""

    most: int = 4

    def transport(self, p, data):
        if p.shape[0] > self.most:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return super().transport(p, data)


@attrs.frozen
class Wide(Uniform):
    """Gives projections whose products run out of memory with more than `most` directions at once."""

    most: int = 4

    def sample(self, space, count, draw):
        return WideProjection(super().sample(space, count, draw), self.most)


class WideProjection(DenseProjection):
    def __init__(self, theta, most):
        super().__init__(theta)
        self.most = most

    def project(self, x):
        if x.shape[1] > 29 and self.theta.shape[0] > self.most:
            raise RuntimeError("CUDA error: out of memory")
        return super().project(x)


@pytest.mark.parametrize(
    ("hungry", "slab"), [({"cdf": Hungry(most=4)}, 4), ({"projection": Wide(most=127)}, 150)], ids=["F", "θ"]
)
def test_what_does_not_fit_halves_the_slabs(hungry, slab, caplog):
    flow = small_flow(**hungry)
    x = flow.run().x
    assert flow.budget.slab == slab
    assert f"going on with {slab} directions at a time; results may differ in the last digits" in caplog.text
    torch.testing.assert_close(x, small_flow().run().x, atol=1e-12, rtol=0)


def test_a_step_of_streamed_particles_is_taken_again_with_fewer_directions(monkeypatch, caplog):
    wanted = small_flow(cdf=Histogram(bins=64), count=700).run().x
    monkeypatch.setattr(flow_particles, "fits_in_memory", lambda *_: False)
    monkeypatch.setattr(memory, "LARGEST_BLOCK", {"cpu": 256})
    flow = small_flow(cdf=Histogram(bins=64), count=700, projection=Wide(most=127))
    assert flow.particles.in_blocks
    x = flow.run().x
    assert flow.budget.slab == 150
    assert "going on with 150 directions at a time" in caplog.text
    torch.testing.assert_close(x, wanted, atol=1e-12, rtol=0)


@pytest.mark.parametrize("projection", [Uniform(), Weighed()], ids=str)
@pytest.mark.parametrize("slab", [1, 7])
def test_slab_sizes_change_results_by_rounding_only(slab, projection):
    schedule = Constant(steps=2, directions=30)
    flow, small = (small_flow(projection=projection, schedule=schedule) for _ in range(2))
    small.budget.slab = slab
    torch.testing.assert_close(small.run().x, flow.run().x, atol=1e-12, rtol=0)


def test_one_direction_that_does_not_fit_fails_with_one_sentence():
    with pytest.raises(OutOfMemoryError, match=r"30 particles and 40 data in 5 dimensions do not fit") as error:
        small_flow(cdf=Hungry(most=0)).run()
    assert "\n" not in str(error.value)


def test_other_words_for_a_lack_of_memory_are_understood():
    words = (
        "CUDA error: out of memory",
        "CUBLAS_STATUS_ALLOC_FAILED when calling",
        "can't allocate memory",
        "DefaultCPUAllocator: not enough memory: you tried to allocate 13194139533312 bytes.",
        "Storage size calculation overflowed with sizes=[64, 1152921504606846976]",
        "numel: integer multiplication overflow",
    )
    assert memory.is_out_of_memory(ValueError("array is too big; `arr.size * arr.dtype.itemsize` is larger"))
    assert all(memory.is_out_of_memory(RuntimeError(text)) for text in words)
    assert memory.is_out_of_memory(RuntimeError("can't start new thread"))
    assert not memory.is_out_of_memory(RuntimeError("memory of an elephant"))
    assert not memory.is_out_of_memory(ValueError("can't allocate memory"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried",
            "30 particles and 40 data in 5 dim",
        ),
        ("memory of an elephant", "memory of an elephant"),
    ],
)
def test_running_out_of_memory_elsewhere_is_one_sentence_too_and_other_errors_stay(monkeypatch, text, said):
    def full(*arguments):
        raise RuntimeError(text)

    monkeypatch.setattr("cswf_core.flow.stepper.step", full)
    with pytest.raises(OutOfMemoryError if "allocate" in text else RuntimeError, match=said):
        small_flow().run()


def test_the_budget_follows_from_the_memory_of_the_device(monkeypatch):
    device = torch.device("cpu")
    monkeypatch.setattr(memory, "total_memory", lambda device: 8 * memory.TEMPORARIES_PER_VALUE * 4 * 1000 * 10)
    few = memory.Budget(device, 1000, 4)
    assert few.slab == 10
    many, hardly_any = memory.Budget(device, 10**9, 4), memory.Budget(device, 0, 4)
    assert many.slab == 1
    assert hardly_any.slab == memory.LARGEST_SLAB["cpu"]


def test_batches_cover_all_directions_once():
    batch = memory.DIRECTIONS_PER_BATCH
    for directions in (1, batch - 1, batch, batch + 1, 50_000):
        assert sum(count for _, count in memory.batches(directions)) == directions


@pytest.mark.parametrize("kind", ["plain", "parts", "reuse"])
def test_the_plan_of_a_stage_is_gone_when_the_stage_has_ended(kind):
    """Its memory may be needed by the next one: the garbage collector would come too late."""
    flow = image_flow(**KINDS[kind])
    steps = iter(flow)
    next(steps)
    plan = weakref.ref(flow._stepper)
    gc.disable()
    try:
        while flow.position.stage == 0:
            next(steps)
        assert plan() is None
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("sizes", "remedy"),
    [
        ((784, 50_000, 60_000), "take fewer data (data.count) or fewer particles"),
        ((784, 50_000, 10_000), "take fewer particles"),
        ((12_000_000, 1000, 20), "take smaller images (data.size) or fewer particles"),
    ],
)
def test_a_lack_of_memory_names_first_what_takes_most_of_it(sizes, remedy):
    settings = Settings(names={"data": "data.count", "images": "data.size"})
    assert settings.remedy(*sizes) == remedy
