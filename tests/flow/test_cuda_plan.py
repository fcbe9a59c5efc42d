"""The plan in half precision takes the same steps as the exact one: here in Triton's interpreter."""

from __future__ import annotations

from functools import partial

import attrs
import pytest
import torch

from tests.kernels.interpreted import DEVICE

from cswf_core.flow.flow import Flow  # isort: skip
from cswf_core.bench.measure import Stopwatch
from cswf_core.errors import CswfError, NotRepeatableError, RunError
from cswf_core.flow import data as flow_data
from cswf_core.flow import half as half_module
from cswf_core.flow import memory
from cswf_core.flow import particles as flow_particles
from cswf_core.flow.flow import half_stepper
from cswf_core.flow.graph import Recording, overwrite
from cswf_core.flow.half import HalfSlab, HalfStepper, refuse_too_many, runs_of
from cswf_core.flow.settings import Parts, Settings, TableRequest
from cswf_core.flow.stepper import ExactStepper
from cswf_core.interfaces import Conditions, Dataset, Key, Part, Space
from cswf_core.kernels.sparse import TILE, WIDEST_TILE, padded
from cswf_core.online import OnlineFlow
from cswf_plugins.cdfs.histogram import Histogram
from cswf_plugins.cdfs.sorted import Sorted
from cswf_plugins.conditions.continuous import Continuous
from cswf_plugins.conditions.mask import Mask
from cswf_plugins.conditions.none import NoCondition
from cswf_plugins.conditions.one_hot import OneHot
from cswf_plugins.conditions.separate import Separate
from cswf_plugins.coordinates.whitened import Whitened
from cswf_plugins.projections.conv_stack import ConvStack
from cswf_plugins.schedules.pyramid import Entry, Pyramid
from tests.marks import slow_if

pytestmark = pytest.mark.interpreter

SPACE = Space((1, 8, 8))
N = 90


def images(bin_width: float = 0.0) -> Dataset:
    draw = Key(3, "images").open()
    coarse = draw.normal(N, 1, 4, 4)
    x = torch.nn.functional.interpolate(coarse, (8, 8), mode="bilinear").reshape(N, 64).T.contiguous()
    labels = torch.arange(N) % 3
    conditions = Conditions(labels=labels, vectors=draw.normal(2, N), origin=torch.arange(N))
    return Dataset(x=x, space=SPACE, conditions=conditions, classes=("a", "b", "c"), bin_width=bin_width)


COARSE, FINE = "(4×4) [3]", "(8×8) [3]"


def build(
    kind,
    condition=None,
    cdf=None,
    *,
    coordinates=None,
    bin_width=0.0,
    entropy=0.0,
    entries=(COARSE, FINE),
    directions=24,
    steps=2,
    **more,
):
    """A flow whose steps are computed by one plan or the other."""
    schedule = Pyramid(entries=tuple(map(Entry.from_text, entries)), steps=steps, directions=directions)
    parts = Parts(condition or NoCondition(), ConvStack(), cdf or Histogram(bins=256), schedule, coordinates)
    new = partial(OnlineFlow, sets=more.pop("sets")) if "sets" in more else Flow
    settings = {"count": 60, "scale": 0.5, "half": True, **more}
    flow = new(images(bin_width), parts, Settings(**settings), device=DEVICE)
    flow.new_stepper = kind
    flow.stages = tuple(attrs.evolve(stage, entropy=entropy) for stage in flow.stages)
    return flow


CASES = {
    "sorted values": {"cdf": Sorted()},
    "labels": {"condition": OneHot(amplifier=3.0)},
    "vectors": {"condition": Continuous(amplifier=2.0)},
    "classes apart": {"condition": Separate()},
    "a mask": {"condition": Mask()},
    "a mask for each": {"condition": Mask(hidden="boxes", masks="each")},
    "directions kept": {"reuse": 2},
    "entropy and bins to fill": {"entropy": 1e-4, "bin_width": 1 / 64},
    "bins to fill, a mask and an amplifier": {"condition": Mask(amplifier=2.0), "bin_width": 1 / 64},
    "whitened": {"coordinates": Whitened(exponent=0.5), "bin_width": 1 / 64, "gaussian": True},
    "whitened, a mask, an amplifier and tails": {
        "coordinates": Whitened(exponent=0.5),
        "condition": Mask(amplifier=2.0),
        "cdf": Histogram(bins=256, tail=0.1),
        "entropy": 1e-4,
        "bin_width": 1 / 64,
    },
    "counts of the data": {"sets": 2},
    "counts, labels and bins to fill": {"condition": OneHot(amplifier=3.0), "bin_width": 1 / 64, "sets": 1},
}

SIMPLER = (
    "vectors",
    "classes apart",
    "a mask",
    "directions kept",
    "entropy and bins to fill",
    "whitened",
    "bins to fill, a mask and an amplifier",
    "counts of the data",
)
"""Parts of the other cases."""


@pytest.mark.parametrize("case", slow_if(SIMPLER, CASES))
def test_the_steps_are_those_of_the_exact_plan(case):
    exact, half = build(ExactStepper, **CASES[case]), build(HalfStepper, **CASES[case])
    one, other = ([(s.displacement, s.distance) for s in flow] for flow in (exact, half))
    torch.testing.assert_close(torch.tensor(one), torch.tensor(other), atol=0, rtol=0.05)
    gap = (exact.samples().x - half.samples().x).square().mean().sqrt()
    assert float(gap) < 0.15 * float(exact.samples().x.std())  # of few particles, some change places


@pytest.mark.parametrize(
    ("case", "entry"),
    [
        ("labels", COARSE),
        ("whitened", FINE),
        pytest.param("a mask for each", FINE, marks=pytest.mark.slow),
        pytest.param("counts of the data", COARSE, marks=pytest.mark.slow),
    ],
)
def test_a_flow_goes_on_in_the_middle_of_a_stage(case, entry):
    whole, broken, later = (build(HalfStepper, **CASES[case], entries=[entry]) for _ in range(3))
    next(iter(broken))
    later.restore(broken.snapshot())
    assert later.run().digest() == whole.run().digest()


def test_a_flow_that_goes_on_sorts_directions_for_the_side_that_its_stage_began_with(monkeypatch):
    monkeypatch.setattr("cswf_core.flow.half.SORTED_BELOW", 2)  # so few are not worth sorting
    broken, later, anew = (build(HalfStepper, entries=["(8×8) [5]"], steps=3, directions=70) for _ in range(3))
    next(iter(broken))
    snapshot = broken.snapshot()
    later.restore(snapshot)
    next(iter(later))
    assert later.snapshot().numerics == snapshot.numerics
    later.restore(snapshot)
    assert later.snapshot().numerics == snapshot.numerics  # before a step

    without = {name: value for name, value in snapshot.numerics.items() if name != "side"}
    anew.restore(attrs.evolve(snapshot, numerics=without))  # as the exact plan writes it
    next(iter(anew))
    assert anew.snapshot().numerics["side"] != snapshot.numerics["side"]  # another draw, another median


def test_a_flow_of_the_exact_plan_goes_on_in_half_precision():
    exact, half = build(ExactStepper, entries=[FINE]), build(HalfStepper, entries=[FINE])
    next(iter(exact))
    half.restore(exact.snapshot())
    gap = (half.run().x - exact.run().x).square().mean().sqrt()
    assert float(gap) < 0.15 * float(exact.samples().x.std())


@attrs.frozen(kw_only=True)
class Loose(Histogram):
    """A histogram that does not say how small its fits are."""

    compact = False


STREAMED = {
    "labels": {"condition": OneHot(amplifier=3.0), "bin_width": 1 / 64},
    "classes apart": {"condition": Separate(), "bin_width": 1 / 64},
    "a mask": {"condition": Mask(amplifier=2.0)},
    "a part": {"cdf": Histogram(bins=256, data=Part(count=60)), "bin_width": 1 / 64},
    "a sorted part": {"cdf": Sorted(data=Part(count=20))},
    "fits that are not compact": {"cdf": Loose(bins=256), "entries": [FINE], "steps": 1},
}


LIKE = ("labels", "classes apart", "a mask", "a part", "a sorted part")
"""Kinds of which tests/flow/test_streamed.py has the like: they are for `make test-all`."""


@pytest.mark.parametrize("kind", slow_if(LIKE, STREAMED))
def test_streamed_data_lead_to_the_same_bits(kind, monkeypatch):
    case = {"directions": 24, **STREAMED[kind]}
    wanted = build(HalfStepper, **case).run().digest()
    monkeypatch.setattr(flow_data, "fits_in_memory", lambda *_: False)
    monkeypatch.setattr(memory, "LARGEST_BLOCK", {"cpu": 48, "cuda": 48})
    streamed = build(HalfStepper, **case)
    assert not streamed.setup.data.resident
    assert streamed.run().digest() == wanted


STREAMED_PARTICLES = {
    "labels": {"condition": OneHot(amplifier=3.0), "bin_width": 1 / 64},
    "classes apart": {"condition": Separate()},
    "a mask": {"condition": Mask()},
    "turns": {"turn": 1},
    "noise": {"entropy": 1e-4},
    "whitened": {"coordinates": Whitened(exponent=0.5), "gaussian": True},
    "tables": {"tables": TableRequest(knots=9, bits=16)},
}


ALIKE = ("classes apart", "a mask", "turns", "noise", "whitened", "tables")
"""Kinds of which tests/flow/test_streamed.py has the like: they are for `make test-all`."""


@pytest.mark.parametrize(
    ("kind", "stays"),
    [
        ("labels", True),
        pytest.param("labels", False, marks=pytest.mark.slow),
        *(pytest.param(kind, True, marks=pytest.mark.slow) for kind in ALIKE),
    ],
)
def test_streamed_particles_end_where_others_do(kind, stays, monkeypatch):
    """Also where they do not stay on the device in half precision."""
    if not stays:
        monkeypatch.setattr(half_module, "RESIDENT_SHARE", 10**15)
    count, width = 60, 32
    if DEVICE.type == "cpu":  # blocks begin with a tile: NumPy's last digits may depend on the place in one
        count, width = 2 * WIDEST_TILE - 28, WIDEST_TILE
    case = {"directions": 20, "count": count, "entries": [COARSE], **STREAMED_PARTICLES[kind]}
    whole = build(HalfStepper, **case)
    seen = [(state.distance, state.displacement) for state in whole]
    monkeypatch.setattr(flow_particles, "fits_in_memory", lambda *_: False)
    monkeypatch.setattr(memory, "LARGEST_BLOCK", {DEVICE.type: width})
    streamed = build(half_stepper, **case)
    assert streamed.particles.in_blocks
    states = [(state.distance, state.displacement) for state in streamed]
    torch.testing.assert_close(torch.tensor(states), torch.tensor(seen), rtol=1e-4, atol=1e-6)
    assert streamed.samples().digest() == whole.samples().digest()


def test_data_that_come_in_the_middle_of_a_stage_are_those_of_the_exact_plan():
    exact, half = (
        build(kind, OneHot(amplifier=3.0), sets=2, bin_width=1 / 64, entries=[COARSE])
        for kind in (ExactStepper, HalfStepper)
    )
    for flow in (exact, half):
        next(iter(flow))
        flow.insert(images(1 / 64).take(torch.arange(30)))
    one, other = ([(s.displacement, s.distance) for s in flow] for flow in (exact, half))
    torch.testing.assert_close(torch.tensor(one), torch.tensor(other), atol=0, rtol=0.05)
    assert len(exact.particles) == len(half.particles) == 80


def test_inside_a_stage_nothing_is_brought_up_to_full_resolution(monkeypatch):
    flow = build(HalfStepper)
    steps = iter(flow)
    next(steps)  # of the 4×4 stage
    monkeypatch.setattr(
        "cswf_core.flow.coordinates.StageCoordinates.leave", lambda *_: pytest.fail("x was computed")
    )
    next(steps)


def test_slabs_change_results_by_rounding_only(monkeypatch):
    whole, wide = (build(HalfStepper, directions=150, entries=[COARSE], steps=1) for _ in range(2))
    monkeypatch.setattr(half_module, "MEMORY_OVER_VALUES", 10**15)  # a slab is then one tile, 128 directions
    one = whole.run().x
    monkeypatch.undo()
    # The sums' rounding, in float32; in later steps numbers in half precision may round the other way, too
    torch.testing.assert_close(one, wide.run().x, atol=1e-6, rtol=0)


@pytest.mark.parametrize(("share", "slabs"), [(1, [30]), (10**15, [128, 12])])
def test_the_bytes_of_a_step_are_counted_from_its_sizes(share, slabs, monkeypatch):
    monkeypatch.setattr(half_module, "MEMORY_OVER_VALUES", share)
    H = sum(slabs)
    flow = build(HalfStepper, directions=H, entries=[FINE])
    watch = flow.clock = Stopwatch(DEVICE)
    next(iter(flow))
    found = {name: share.bytes for name, share in watch.costs.items()}
    d, M = 64, 60
    drawn = 9 if DEVICE.type == "cuda" else d  # a filter of 3×3, or a row of a matrix
    assert found["draw"] == (4 + 4 + 2) * H * drawn
    assert found["project"] == sum(2 * h * (2 * d + M + N) + 2 * d * (M + N) for h in slabs)
    assert found["count"] == 2 * H * (M + N)
    assert found["lookup"] == 2 * 2 * H * M
    sums = [4] * (len(slabs) - 1)  # written by the first, read by the last
    assert found["back-project"] == 2 * H * (d + M) + d * M * (4 + 4 + 2 + 2 * sum(sums))
    assert found["move"] == 0


def test_a_lack_of_memory_halves_the_slabs(monkeypatch, caplog):
    flow = build(HalfStepper, directions=140, entries=[COARSE], steps=1)
    project = HalfSlab.projected_rows

    def hungry(slab, *rest):
        if slab.count > 128:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return project(slab, *rest)

    monkeypatch.setattr(HalfSlab, "projected_rows", hungry)
    assert torch.isfinite(flow.run().x).all()
    assert "directions at a time; results may differ in the last digits" in caplog.text


@attrs.frozen
class Pair:
    one: torch.Tensor
    other: list
    name: str = "x"


def test_what_is_prepared_takes_the_place_of_what_was():
    old, new = (Pair(torch.full((2,), v), [torch.full((3,), v), None]) for v in (1.0, 2.0))
    kept = old.one
    overwrite([old], [new])
    assert torch.equal(kept, new.one)
    assert torch.equal(old.other[0], new.other[0])
    with pytest.raises(NotRepeatableError, match="shape"):
        overwrite(torch.zeros(2), torch.zeros(3))
    with pytest.raises(NotRepeatableError, match="object cannot be copied"):
        overwrite(object(), object())
    with pytest.raises(NotRepeatableError, match="NoneType cannot be copied"):
        overwrite(None, torch.zeros(2))
    pair = (torch.zeros(2), 3)
    overwrite(pair, (torch.ones(2), 3))
    assert torch.equal(pair[0], torch.ones(2))


def test_a_recording_draws_other_steps_numbers_and_refuses_the_host():
    recording, key = Recording(DEVICE, 7), Key(5, "theta", 1, 7)
    with recording.noting():
        draw = key.open(DEVICE)
        betas = draw.beta(2.0, 3.0, 4)
        with pytest.raises(NotRepeatableError):
            _ = draw.host
    recording.turn_to(9)
    wanted = attrs.evolve(key, step=9)
    torch.testing.assert_close(betas.cpu(), wanted.open().beta(2.0, 3.0, 4))
    stored = [int(v) & (2**64 - 1) for v in draw._stream.stored]
    assert tuple(stored) == wanted.halves()
    with recording.noting():
        constant = Key(5, "always").open(DEVICE)
    recording.turn_to(11)
    stored = [int(v) & (2**64 - 1) for v in constant._stream.stored]
    assert tuple(stored) == constant.key.halves()


def test_data_and_starts_may_lie_in_memory_as_they_like():
    flow = build(HalfStepper, entries=[COARSE], steps=1)
    turned = attrs.evolve(flow.data, x=flow.data.x.T.contiguous().T)
    assert not turned.x.is_contiguous()
    other = Flow(turned, flow.parts, flow.settings, device=DEVICE)
    other.new_stepper = HalfStepper
    assert torch.equal(flow.run().x, other.run().x)


@pytest.mark.parametrize("M", [10, 1024, 5000, 100_000])
def test_moves_are_measured_on_particles_from_everywhere(M):
    few = 1024
    numbers = torch.arange(-M, 2 * M).view(3, M)[1:]
    seen, below = runs_of(numbers, few)
    assert len(seen.unique()) == min(M, few) == seen.numel()
    assert int(seen.min()) == 0
    assert M - 16 <= int(seen.max()) < M
    assert torch.equal(below, seen + M)


def test_a_number_that_is_none_in_any_particle_ends_the_flow(monkeypatch):
    monkeypatch.setattr("cswf_core.flow.half.MEASURED_PARTICLES", 192)
    flow = build(HalfStepper, count=201)  # all are measured but some, of which the last is one
    steps = iter(flow)
    next(steps)
    flow.particles.stored[0].sum[:, -1] = float("nan")
    assert int(flow.particles.stored[0].sum.isnan().any(dim=0).sum()) == 1
    with pytest.raises(CswfError, match=r"numbers are too large|finite numbers"):
        for _ in steps:
            pass


def test_more_samples_than_a_grid_of_programs_holds_are_refused():
    most = 8_388_352
    refuse_too_many(most, Settings())
    assert padded(most, WIDEST_TILE) // TILE <= 65_535 < padded(most + 1, WIDEST_TILE) // TILE
    with pytest.raises(RunError, match="half precision goes up to 8,388,352 particles or data; take"):
        refuse_too_many(most + 1, Settings())
