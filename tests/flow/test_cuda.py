"""The same flow on a GPU; skipped where there is none."""

from __future__ import annotations

from functools import partial

import attrs
import pytest
import torch

import cswf_core
from cswf_core.errors import NotFiniteError, OutOfMemoryError
from cswf_core.flow import data as flow_data
from cswf_core.flow import memory
from cswf_core.flow import particles as flow_particles
from cswf_core.flow.flow import Flow
from cswf_core.flow.settings import Parts, Settings, TableRequest
from cswf_core.interfaces import Conditions, Dataset, Key, Part, Space
from cswf_core.interfaces.contract import Interval
from cswf_core.kernels.sparse import WIDEST_TILE, padded
from cswf_core.online import OnlineFlow
from cswf_core.runs.checkpoints import CheckpointFolder, Checkpoints
from cswf_plugins.cdfs.histogram import Histogram
from cswf_plugins.cdfs.sorted import Sorted
from cswf_plugins.conditions.colorize import Colorize
from cswf_plugins.conditions.mask import Mask
from cswf_plugins.conditions.none import NoCondition
from cswf_plugins.conditions.one_hot import OneHot
from cswf_plugins.conditions.separate import Separate
from cswf_plugins.conditions.super_resolution import SuperResolution
from cswf_plugins.coordinates.principal import Principal
from cswf_plugins.coordinates.whitened import Whitened
from cswf_plugins.projections.conv_stack import ConvStack
from cswf_plugins.projections.data_covariance import DataCovariance
from cswf_plugins.projections.exemplars import Exemplars
from cswf_plugins.projections.high_pass import HighPass
from cswf_plugins.projections.locally_connected import LocallyConnected
from cswf_plugins.projections.low_rank import LowRank
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
    ConvStack(width=6),
    HighPass(of=LocallyConnected()),
    Orthogonal(patch=3),
    DataCovariance(patch=3),
    LowRank(),
    Exemplars(of=LowRank(flat=0.5)),
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


def test_a_card_with_too_little_memory_halves_the_slabs():
    count = 400_000
    expected = gpu_flow(count).run().x
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.empty_cache()
    try:
        torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + 5 * 2**29) / total)
        flow = gpu_flow(count)
        gap = (flow.run().x - expected).abs()
        assert float(gap.max()) < 5e-4
        assert float(gap.mean()) < 5e-6  # sums are rounded in other places
        assert flow.budget.slab < 300
        torch.cuda.empty_cache()
        torch.cuda.set_per_process_memory_fraction(400 * 2**20 / total)
        with pytest.raises(OutOfMemoryError, match="out of memory on cuda"):
            gpu_flow(count).run()
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def test_the_demo_runs_on_a_gpu():
    from sklearn.datasets import load_digits
    from sklearn.neighbors import KNeighborsClassifier

    samples = cswf_core.build_flow("digits", device="cuda").run()
    real = load_digits()
    classifier = KNeighborsClassifier(5).fit(real.data * 2 / 17 - 1 + 1 / 17, real.target)
    assert (classifier.predict(samples.x.T.numpy()) == samples.conditions.labels.numpy()).mean() >= 0.9


def image_flow(
    condition=None,
    *,
    cdf=None,
    sampler=None,
    coordinates=None,
    steps=12,
    directions=600,
    sets=None,
    plan=None,
    **settings,
):
    space = Space((3, 16, 16))
    coarse = Key(3, "x").open().normal(4000, 3, 4, 4)
    x = torch.nn.functional.interpolate(coarse, (16, 16), mode="bilinear").reshape(4000, -1).T.contiguous()
    conditions = Conditions(labels=torch.arange(4000) % 5)
    data = Dataset(x=x, space=space, conditions=conditions, classes=tuple("abcde"), bin_width=1 / 128)
    entries = tuple(map(Entry.from_text, ("(4×4) [3]", "(8×8) [5]", "(16×16) [5]")))
    schedule = Pyramid(entries=entries, steps=steps, directions=directions)
    parts = Parts(condition or NoCondition(), sampler or ConvStack(), cdf or Histogram(), schedule, coordinates)
    settings = Settings(**{"count": 3000, "scale": 0.5, **settings})
    flow = (Flow if sets is None else partial(OnlineFlow, sets=sets))(data, parts, settings, device="cuda")
    if plan is not None:
        flow.new_stepper = plan
    return flow


CONDITIONS = [NoCondition(), OneHot(), OneHot(joint="equal"), Mask(), Separate()]


@pytest.mark.parametrize("condition", CONDITIONS, ids=lambda c: type(c).__name__)
def test_half_precision_goes_the_way_of_float32(condition):
    exact, fast = (image_flow(condition, cdf=Histogram(bins=2048), half=half) for half in (False, True))
    one, other = (torch.tensor([(s.displacement, s.distance) for s in flow]) for flow in (exact, fast))
    torch.testing.assert_close(one, other, atol=0, rtol=0.03)


@pytest.mark.parametrize("condition", CONDITIONS, ids=lambda c: type(c).__name__)
def test_recorded_steps_give_the_same_bits_as_others_and_twice(condition, monkeypatch):
    recorded = [image_flow(condition, half=True).run().digest() for _ in range(2)]
    monkeypatch.setattr("cswf_core.flow.half.WORTHWHILE_STEPS", 10**9)
    assert recorded == [image_flow(condition, half=True).run().digest()] * 2


@pytest.mark.parametrize("coordinates", [Whitened(), Principal()], ids=lambda c: type(c).__name__)
@pytest.mark.parametrize("condition", [NoCondition(), OneHot(), Mask()], ids=lambda c: type(c).__name__)
def test_coordinates_go_the_same_way_in_half_precision_and_recorded(condition, coordinates, monkeypatch):
    more = {
        "cdf": Histogram(bins=2048, tail=0.01),
        "coordinates": coordinates,
        "sampler": Exemplars(of=LowRank()),
        "gaussian": True,
    }
    exact, fast = (image_flow(condition, half=half, **more) for half in (False, True))
    one, other = (torch.tensor([(s.displacement, s.distance) for s in flow]) for flow in (exact, fast))
    torch.testing.assert_close(one, other, atol=0, rtol=0.03)
    monkeypatch.setattr("cswf_core.flow.half.WORTHWHILE_STEPS", 10**9)
    assert fast.samples().digest() == image_flow(condition, half=True, **more).run().digest()


@pytest.mark.parametrize(
    ("condition", "offline", "turn"),
    [
        *((NoCondition(), offline, turn) for offline, turn in [(0, None), (300, None), (300, 10), (300, 4)]),
        *((condition, 0, None) for condition in (OneHot(), Mask(), Separate())),
    ],
)
def test_steps_are_recorded_and_numbers_differ_from_step_to_step(condition, offline, turn, monkeypatch):
    from cswf_core.flow.half import HalfStepper  # needs Triton

    plans = []
    flow = image_flow(
        condition,
        half=True,
        steps=20,
        offline=offline,
        turn=turn,
        plan=lambda setup: plans.append(HalfStepper(setup)) or plans[-1],
    )
    moved = [state.displacement for state in flow]
    assert all(any(plan._graphs.values()) for plan in plans)
    assert len(set(moved)) == len(moved)
    monkeypatch.setattr("cswf_core.flow.half.WORTHWHILE_STEPS", 10**9)
    again = image_flow(condition, half=True, steps=20, offline=offline, turn=turn)
    assert flow.samples().digest() == again.run().digest()
    assert not offline or flow.offline_samples().digest() == again.offline_samples().digest()


@pytest.mark.parametrize("worthwhile", [4, 10**9])
@pytest.mark.parametrize("condition", [NoCondition(), OneHot()], ids=lambda c: type(c).__name__)
def test_inside_a_stage_nobody_waits_for_the_device(condition, worthwhile, monkeypatch):
    monkeypatch.setattr("cswf_core.flow.half.WORTHWHILE_STEPS", worthwhile)
    flow = image_flow(condition, half=True, steps=12)
    steps = iter(flow)
    for _ in range(3):
        next(steps)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(6):
            next(steps)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_directions_that_are_kept_are_kept_on_a_gpu_too():
    once, always = (image_flow(half=True, reuse=reuse, cdf=Histogram(bins=1024)).run() for reuse in (4, 1))
    assert once.digest() != always.digest()
    assert torch.isfinite(once.x).all()


@pytest.mark.parametrize("directions", [128, 256, 512])
def test_slabs_change_results_by_rounding_only(directions, monkeypatch):
    expected = [(s.displacement, s.distance) for s in image_flow(half=True, steps=3)]
    row = 2 * (padded(3000, WIDEST_TILE) + padded(4000, WIDEST_TILE))
    share = torch.cuda.get_device_properties(0).total_memory // (row * directions)
    monkeypatch.setattr("cswf_core.flow.half.MEMORY_OVER_VALUES", share)
    got = [(s.displacement, s.distance) for s in image_flow(half=True, steps=3)]
    torch.testing.assert_close(torch.tensor(got), torch.tensor(expected), atol=0, rtol=1e-3)


CHANGES = [{}, {"reuse": 4}, {"sets": 3}, {"turn": 8}]


@pytest.mark.parametrize("changes", CHANGES, ids=lambda c: "".join(c) or "fresh")
@pytest.mark.parametrize("condition", CONDITIONS, ids=lambda c: type(c).__name__)
def test_a_flow_that_goes_on_ends_with_the_same_bits_on_a_gpu_too(condition, changes):
    if "sets" in changes and not isinstance(condition, (NoCondition, OneHot)):
        pytest.skip("what is observed cannot be learned online")
    if "turn" in changes and isinstance(condition, Separate):
        pytest.skip("a flow for each class has no turns")
    whole = image_flow(condition, half=True, **changes)
    total = len(list(whole))
    for after in (1, total // 3, total // 2 + 1, total - 1):
        flow = image_flow(condition, half=True, **changes)
        next(state for state in flow if state.total_step == after)
        other = image_flow(condition, half=True, **changes)
        other.restore(flow.snapshot())
        assert other.run().digest() == whole.samples().digest(), after


@pytest.mark.parametrize("turn", [None, 8])
@pytest.mark.parametrize("request_", [TableRequest(knots=17, bits=16), TableRequest(knots=9, bits=4)])
@pytest.mark.parametrize("condition", [NoCondition(), OneHot()], ids=lambda c: type(c).__name__)
def test_tables_are_the_same_on_a_gpu_recorded_or_not(condition, request_, turn, monkeypatch):
    settings = {"tables": request_, "turn": turn}
    recorded = image_flow(condition, half=True, **settings)
    found = [state.tables for state in recorded]

    exact = [state.tables for state in image_flow(condition, cdf=Histogram(bins=2048), **settings)]
    monkeypatch.setattr("cswf_core.flow.half.WORTHWHILE_STEPS", 10**9)
    launched = [state.tables for state in image_flow(condition, half=True, **settings)]
    for one, other, third in zip(found, launched, exact, strict=True):
        assert all(map(torch.equal, one.tensors, other.tensors))
        torch.testing.assert_close(one.centre, third.centre, atol=0.1, rtol=0)


FAITHFUL = {
    "clipped": ({"clip": 0.9}, {}),
    "carried along": ({"offline": 300}, {}),
    "in turns": ({"offline": 300, "turn": 3}, {}),
    "of a part": ({}, {"cdf": Histogram(bins=512, particles=Part(share=0.5), data=Part(count=2000))}),
    "noisy labels": ({}, {"condition": OneHot(joint="full", dequantise=True, theta="laplace")}),
    "networks": ({}, {"projection": ConvStack(width=6, covering="placed")}),
}


@pytest.mark.parametrize("name", FAITHFUL)
def test_options_of_the_released_code_give_nearly_the_same_in_half_precision(name):
    """Half precision against float32 on the GPU, in a pyramid; both end as near to the data."""
    settings, changes = FAITHFUL[name]
    x = Key(2, "x").open().integers(256, 192, 3000).float() / 128 - 1
    labels = torch.arange(3000) % 10
    data = Dataset(
        x=x * labels.float() / 9,
        space=Space((3, 8, 8)),
        conditions=Conditions(labels=labels),
        classes=tuple("0123456789"),
        bin_width=1 / 128,
    )
    entries = tuple(map(Entry.from_text, ("(2×2) [dense]", "(4×4) [3]", "(8×8) [5, 3]")))
    schedule = Pyramid(entries=entries, steps=10, directions=640, step_size="released")
    parts = {"condition": NoCondition(), "projection": ConvStack(), "cdf": Histogram(bins=512), **changes}
    distances, samples, carried = [], [], []
    for half in (False, True):
        flow = Flow(
            data, Parts(**parts, schedule=schedule), Settings(count=2000, half=half, **settings), device="cuda"
        )
        states = list(flow)
        assert (flow.products == "float16") == half
        distances.append(float(states[-1].distance))
        samples.append(flow.samples().x)
        assert samples[-1].shape[1] == 2000
        if "offline" in settings:
            carried.append(float(flow.offline_samples().x.std()))
        if "clip" in settings:
            assert float(samples[-1].abs().max()) <= 0.9
    assert carried == [] or carried[0] == pytest.approx(carried[1], rel=0.01)
    assert distances[0] == pytest.approx(distances[1], rel=0.05)
    assert float(samples[0].std()) == pytest.approx(float(samples[1].std()), rel=0.01)
    assert distances[1] < 0.2


STREAMED = {
    "labels": {"condition": OneHot(amplifier=3.0)},
    "classes apart": {"condition": Separate()},
    "a part": {"cdf": Histogram(bins=256, data=Part(count=5000))},
    "a small part": {"cdf": Histogram(bins=256, data=Part(count=1000))},
    "whitened": {"coordinates": Whitened()},
    "a mask": {"condition": Mask()},
    "float64": {"dtype": torch.float64},
    "512 bins and tails": {"cdf": Histogram(bins=512, tail=0.003)},
}


@pytest.mark.parametrize("streamed", ["data", "particles", "both"])
@pytest.mark.parametrize("kind", STREAMED)
def test_streamed_data_and_particles_lead_to_the_same_bits(kind, streamed, monkeypatch):
    levels = Key(4, "images").open().integers(256, 64, 10_000)
    conditions = Conditions(labels=torch.arange(10_000) % 3, origin=torch.arange(10_000))
    data = Dataset(levels.float() / 128 - 1, Space((1, 8, 8)), conditions, ("a", "b", "c"), bin_width=1 / 128)
    entries = tuple(map(Entry.from_text, ("(4×4) [3]", "(8×8) [3]")))

    def taken() -> tuple[Flow, str]:
        changes = dict(STREAMED[kind])
        settings = Settings(count=9000, half=True, dtype=changes.pop("dtype", torch.float32))
        parts = {"condition": NoCondition(), "projection": ConvStack(), "cdf": Histogram(bins=256), **changes}
        schedule = Pyramid(entries=entries, steps=9, directions=300)
        flow = Flow(data, Parts(**parts, schedule=schedule), settings, device="cuda")
        return flow, flow.run().digest()

    _, wanted = taken()
    monkeypatch.setattr(memory, "LARGEST_BLOCK", {"cuda": 4096})
    monkeypatch.setattr(flow_data, "BYTES_PER_COPY", 1 << 16)  # several to a block
    if streamed != "data":
        monkeypatch.setattr(flow_particles, "fits_in_memory", lambda *_: False)
    if streamed != "particles":
        monkeypatch.setattr(flow_data, "fits_in_memory", lambda *_: False)
    flow, digest = taken()
    assert flow.setup.data.resident == (streamed == "particles")
    assert flow.particles.in_blocks == (streamed != "data")
    assert digest == wanted


@pytest.mark.parametrize("precision", ["exact", "half"])
def test_particles_that_are_none_end_a_flow_within_50_steps_and_the_step_is_named(precision):
    """One coordinate of one particle is enough, also of one whose moves are not measured."""
    data = random_data(d=16, n=600)
    parts = Parts(NoCondition(), Uniform(), Histogram(), Constant(steps=300, directions=100, step_size=1.0))
    settings = Settings(dtype=torch.float32, count=2000, half=precision == "half")
    flow = Flow(data, parts, settings, device="cuda")
    steps, done = iter(flow), []

    def broken() -> None:
        for state in steps:
            done.append(state.step)
            if state.step == 70:
                [*flow.particles.stored[0].parts.values()][-1][3, 1999] = torch.nan

    with pytest.raises(NotFiniteError, match=r"particles are not finite after step \d+ of stage 1"):
        broken()
    assert 70 <= done[-1] <= 120


def test_particles_that_are_none_are_not_written_from_a_gpu(tmp_path):
    folder = CheckpointFolder(tmp_path / "checkpoints")
    watching = Checkpoints(folder, Interval(steps=10), (), dict)
    parts = Parts(NoCondition(), Uniform(), Histogram(), Constant(steps=300, directions=100, step_size=1.0))
    settings = Settings(dtype=torch.float32, count=2000)
    flow = Flow(random_data(d=16, n=600), parts, settings, device="cuda", observers=(watching,))
    steps = iter(flow)
    for _ in range(23):
        next(steps)
    [*flow.particles.stored[0].parts.values()][-1][3, 1999] = torch.inf
    with pytest.raises(NotFiniteError, match="particles are not finite after step"):
        list(steps)
    assert next(folder.newest_first([])).step == 20
