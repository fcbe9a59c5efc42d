"""The same flow on a GPU; skipped where there is none."""

from __future__ import annotations

import attrs
import pytest
import torch

from cswf_core.errors import OutOfMemoryError
from cswf_core.flow.flow import Flow
from cswf_core.flow.parts import Parts, Settings
from cswf_core.interfaces import Dataset, Key, Space
from cswf_plugins.cdfs.sorted import Sorted
from cswf_plugins.conditions.colorize import Colorize
from cswf_plugins.conditions.mask import Mask
from cswf_plugins.conditions.none import NoCondition
from cswf_plugins.conditions.one_hot import OneHot
from cswf_plugins.conditions.super_resolution import SuperResolution
from cswf_plugins.projections.conv_stack import ConvStack
from cswf_plugins.projections.data_covariance import DataCovariance
from cswf_plugins.projections.high_pass import HighPass
from cswf_plugins.projections.locally_connected import LocallyConnected
from cswf_plugins.projections.orthogonal import Orthogonal
from cswf_plugins.projections.uniform import Uniform
from cswf_plugins.schedules.constant import Constant
from cswf_plugins.schedules.pyramid import Entry, Pyramid
from tests.conftest import random_data

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.float64, 1e-11)])
@pytest.mark.parametrize("condition", [NoCondition(), OneHot(amplifier=10.0), OneHot(joint="equal")])
def test_a_gpu_gives_the_same_samples_as_a_cpu(condition, dtype, tolerance):
    """Starts, directions and noise are drawn on each device, from the same keys.

    Few samples: among many, values nearer than float32 can tell apart change ranks, and so places.
    """
    data = attrs.evolve(random_data(d=16, n=60), bin_width=0.1)
    parts = Parts(condition, Uniform(), Sorted(), Constant(steps=3, directions=300, entropy=0.01))
    flows = [Flow(data, parts, Settings(dtype=dtype, count=40), device=device) for device in ("cpu", "cuda")]
    one, other = (flow.run().x for flow in flows)
    torch.testing.assert_close(one, other, atol=tolerance, rtol=0)


SAMPLERS = [
    ConvStack(),
    HighPass(of=LocallyConnected()),
    Orthogonal(patch=3),
    DataCovariance(patch=3),
]


@pytest.mark.parametrize("sampler", SAMPLERS, ids=lambda s: type(s).__name__)
@pytest.mark.parametrize(
    "condition",
    [Mask(hidden="boxes", masks="each"), Mask(amplifier=2.0), SuperResolution(size=2), Colorize()],
    ids=lambda c: type(c).__name__,
)
def test_a_pyramid_gives_the_same_samples_on_a_gpu(sampler, condition):
    space = Space((3, 8, 6))
    x = Key(3, "x").open(dtype=torch.float64).uniform(space.dimension, 60) * 2 - 1
    data = Dataset(x=x, space=space, bin_width=1 / 128)
    entries = tuple(map(Entry.from_text, ("(1×1) [1]", "(4×3) [3]", "(8×6) [5, 3]")))
    parts = Parts(condition, sampler, Sorted(), Pyramid(entries=entries, steps=2, directions=150))
    settings = Settings(dtype=torch.float64, count=40)
    one, other = (Flow(data, parts, settings, device=device) for device in ("cpu", "cuda"))
    torch.testing.assert_close(one.run().x, other.run().x, atol=1e-9, rtol=0)


def test_a_gpu_keeps_observed_pixels_to_the_bit():
    data = Dataset(
        x=Key(3, "x").open().integers(256, 192, 500).float() / 128 - 1,
        space=Space((3, 8, 8)),
        bin_width=1 / 128,
    )
    entries = tuple(map(Entry.from_text, ("(2×2) [2]", "(8×8) [5, 3]")))
    parts = Parts(Mask(), ConvStack(), Sorted(), Pyramid(entries=entries, steps=4, directions=150))
    flow = Flow(data, parts, Settings(count=400), device="cuda")
    samples = flow.run()
    seen = flow.observation.mask.cpu().T.reshape(1, 3, 8, 8).expand(400, 3, 8, 8)
    originals = attrs.evolve(data, x=data.originals(samples.conditions)).images()
    assert torch.equal(samples.images()[seen], originals[seen])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_random_numbers_are_the_same_on_both_devices(dtype):
    draws = [Key(7, "both").open(device, dtype) for device in ("cpu", "cuda")]
    one, other = (draw.uniform(1000).cpu() for draw in draws)
    assert torch.equal(one, other)
    one, other = (draw.normal(1000).cpu() for draw in draws)
    torch.testing.assert_close(one, other)
    one, other = (draw.integers(1000, 50).cpu() for draw in draws)
    assert torch.equal(one, other)


def gpu_flow(count: int = 2000, **settings) -> Flow:
    x = Key(2, "x").open().uniform(64, 3000)
    data = Dataset(x=x, space=Space((1, 8, 8)), bin_width=0.1)
    parts = Parts(NoCondition(), Uniform(), Sorted(), Constant(steps=4, directions=300))
    return Flow(data, parts, Settings(count=count, **settings), device="cuda")


def test_one_seed_gives_the_same_bits_twice():
    assert gpu_flow().run().digest() == gpu_flow().run().digest()
    assert gpu_flow().run().digest() != gpu_flow(seed=1).run().digest()


@pytest.mark.parametrize("rows", [1, 7, 64])
def test_chunk_sizes_change_no_bit(rows):
    flow = gpu_flow()
    flow._chunks.rows = rows
    assert flow.run().digest() == gpu_flow().run().digest()


def test_a_card_with_too_little_memory_halves_the_chunk_and_gives_the_same_bits():
    count = 400_000
    expected = gpu_flow(count).run().digest()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.empty_cache()
    try:
        torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + 5 * 2**29) / total)
        flow = gpu_flow(count)
        flow._chunks.rows = 300
        assert flow.run().digest() == expected
        assert flow._chunks.rows < 300
        torch.cuda.empty_cache()
        torch.cuda.set_per_process_memory_fraction(400 * 2**20 / total)
        with pytest.raises(OutOfMemoryError, match="out of memory on cuda"):
            gpu_flow(count).run()
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def test_the_demo_runs_on_a_gpu():
    from sklearn.datasets import load_digits
    from sklearn.neighbors import KNeighborsClassifier

    samples = Flow.from_recipe("digits", device="cuda").run()
    real = load_digits()
    classifier = KNeighborsClassifier(5).fit(real.data * 2 / 17 - 1 + 1 / 17, real.target)
    assert (classifier.predict(samples.x.T.numpy()) == samples.conditions.labels.numpy()).mean() >= 0.9
