"""Counts of the data: whole numbers that do not depend on the pieces the data came in, nor on their order."""

from __future__ import annotations

from types import SimpleNamespace

import attrs
import pytest
import torch

from cswf_core.errors import CswfError, DataError, RunError
from cswf_core.flow.coordinates import Cloud
from cswf_core.flow.directions import Place
from cswf_core.interfaces import CDFEstimator, Conditions, Coordinates, Dataset, Key, LinearMap, Space
from cswf_core.online import Counts
from cswf_core.online.counts import CountedData, FixedPoint, Tally
from cswf_plugins.cdfs.histogram import Histogram
from cswf_plugins.conditions.continuous import Continuous
from cswf_plugins.conditions.mask import Mask
from cswf_plugins.conditions.none import NoCondition
from cswf_plugins.conditions.one_hot import OneHot
from cswf_plugins.conditions.separate import Separate
from cswf_plugins.coordinates.whitened import Whitened
from cswf_plugins.projections.conv_stack import ConvStack
from cswf_plugins.projections.data_covariance import DataCovariance
from cswf_plugins.projections.orthogonal import Orthogonal
from cswf_plugins.schedules.constant import Constant
from cswf_plugins.schedules.pyramid import Entry, Pyramid
from tests.conftest import random_data, small_flow

N = 150
PYRAMID = Pyramid(
    entries=tuple(map(Entry.from_text, ("(2×2) [2]", "(4×4) [3]", "(8×8) [3]"))), steps=2, directions=40
)


def images(n: int = N) -> Dataset:
    draw = Key(4, "images").open()
    x = draw.integers(256, 64, n).float() / 128 - 1
    x[:20] = -1  # a black background: many values that are equal
    conditions = Conditions(labels=torch.arange(n) % 3, vectors=draw.normal(2, n), origin=torch.arange(n))
    return Dataset(x, Space((1, 8, 8)), conditions, ("a", "b", "c"), bin_width=1 / 128)


CASES = {
    "points": {"data": random_data(n=N), "condition": NoCondition()},
    "points by class": {"data": random_data(n=N), "condition": OneHot(amplifier=3.0, room=7)},
    "images in bins": {"data": images(), "condition": NoCondition()},
    "by class": {"data": images(), "condition": OneHot(amplifier=10.0)},
    "by vector": {"data": images(), "condition": Continuous(amplifier=7.3)},
    "coarse grids": {"data": images(), "condition": OneHot(), "projection": ConvStack(), "schedule": PYRAMID},
    "drawn together": {"data": images(), "projection": Orthogonal()},
    "whitened": {"data": images(), "condition": OneHot(), "coordinates": Whitened()},
    "whitened, coarse grids": {
        "data": images(),
        "condition": Continuous(amplifier=7.3),
        "projection": ConvStack(),
        "schedule": PYRAMID,
        "coordinates": Whitened(exponent=1),
        "dtype": torch.float32,
    },
    "in float32": {"data": images(), "projection": ConvStack(), "schedule": PYRAMID, "dtype": torch.float32},
}


def learner(data, **parts):
    """A flow that keeps counts in 32 bins along two sets of directions."""
    parts = {"schedule": Constant(steps=2, directions=50), "cdf": Histogram(bins=32), "sets": 2, **parts}
    return small_flow(data, **parts)


def counted(flow, data, pieces) -> Counts:
    """The counts of data that come in pieces, each a tensor of the samples' numbers."""
    whole = flow.counts()
    tallies = [Tally.empty(*tally.counts.shape) for tally in whole.tallies]
    counts = Counts(tallies, whole.fixed_point, whole.sets, W=whole.W)
    for piece in pieces:
        counts.insert(data.take(piece), map(flow.setup.sampler, flow.setup.round), flow.settings.seed)
    return counts


def same(one: Counts, other: Counts) -> bool:
    mine, theirs = one.tensors(), other.tensors()
    return mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in mine)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_ten_pieces_in_any_order_give_the_counts_of_all_at_once(case):
    flow = learner(**case)
    everything = counted(flow, case["data"], [torch.arange(N)])
    mixed = torch.from_numpy(Key(5, "order").open().host.permutation(N))
    cuts = (1, 2, 3, 9, 30, 60, 61, 100, 120)  # ten pieces, some of one sample
    apart = counted(flow, case["data"], mixed.tensor_split(cuts))
    assert apart.samples == everything.samples == N
    assert apart.pieces == 10
    assert same(apart, everything)
    assert int(everything.tallies[0].counts.sum()) == N * len(everything.tallies[0].counts)


def smooth(n: int = N) -> Dataset:
    """Images whose fine detail varies a thousandth as much as the rest."""
    data = images(n)
    blocks = data.x.reshape(4, 2, 4, 2, n).mean(dim=(1, 3), keepdim=True).expand(4, 2, 4, 2, n)
    return attrs.evolve(data, x=(blocks.reshape(64, n) + 1e-3 * data.x).clamp(-1, 1))


COORDINATES = {"plain": None, "whitened": Whitened(), "white": Whitened(exponent=1)}


@pytest.mark.parametrize("coordinates", COORDINATES.values(), ids=COORDINATES.keys())
def test_counts_are_those_of_the_projected_values(coordinates):
    data = attrs.evolve(smooth(), bin_width=0.0)
    flow = learner(data, condition=OneHot(), schedule=PYRAMID, projection=ConvStack(), coordinates=coordinates)
    counts = counted(flow, data, [torch.arange(N)])
    for index, stage in enumerate(flow.stages):
        sampler = flow.setup.sampler(stage)
        theta = next(sampler.batches(flow.settings.seed, index, 1, check=True))
        z = sampler.coordinates.enter_data(data.x.double())
        values = theta.project(Cloud(z, data.conditions))
        (fit,) = CountedData(counts, index, sampler, 1, flow.parts.cdf).source(1).along(theta)()
        edges = fit.low[:, None] + (fit.high - fit.low)[:, None] / 32 * torch.arange(33)
        direct = (values[:, :, None] < edges[:, None]).sum(dim=1)
        assert int((direct - fit.below).abs().max()) <= 1  # a value at an edge


@pytest.mark.parametrize("coordinates", COORDINATES.values(), ids=COORDINATES.keys())
@pytest.mark.parametrize("stage", [1, 2])
def test_projections_are_sums_without_rounding(coordinates, stage):
    data = smooth()
    flow = learner(data, condition=OneHot(), schedule=PYRAMID, projection=ConvStack(), coordinates=coordinates)
    fixed, sampler = flow.counts().fixed_point, flow.setup.sampler(flow.stages[stage])
    drawn = next(sampler.batches(0, stage, 0, check=True))
    fine = fixed.directions(drawn, sampler, data.bin_width, flow.counts().W).projection.dense()
    samples = next(fixed.pieces(attrs.evolve(data, x=4 * data.x), torch.device("cpu")))
    finest = 2.0 ** (26 - fixed.theta)
    theta, x = (fine * finest).long(), (samples.x * 2 ** (24 - fixed.x)).long()
    assert torch.equal(theta.double() / finest, fine)
    assert torch.equal(x.double() / 2 ** (24 - fixed.x), samples.x)
    whole = theta @ x  # in whole numbers, which know no rounding
    assert torch.equal(whole.double() / finest / 2 ** (24 - fixed.x), fine @ samples.x)
    assert int((theta.abs() @ x.abs()).max()) < 2**53  # whatever comes first
    assert fixed.unit == 2.0 ** (fixed.x + fixed.theta - 32)


def test_directions_have_as_much_room_as_their_coordinates_stretch():
    data = smooth()
    plain, whitened = (learner(data, coordinates=c) for c in (None, Whitened(exponent=1)))
    assert plain.counts().facts()["lattice"] == {"x": 3, "y": 3, "theta": 0}
    counts = whitened.counts()
    longest = float(counts.W.gains.max())
    assert longest > 100
    assert 2.0 ** (counts.fixed_point.theta - 1) < longest <= 2.0**counts.fixed_point.theta
    assert counts.facts()["lattice"] == {"x": 3, "y": 3, "theta": counts.fixed_point.theta}
    assert Counts.of_tensors(counts.tensors(), counts.facts()).fixed_point == counts.fixed_point
    assert FixedPoint.of(data, Half(), torch.empty(64, 0)).theta == -1


class Half(LinearMap):
    """W = I/2."""

    def enter(self, x):
        return x / 2

    def leave(self, w):
        return 2 * w

    adjoint = enter

    def tensors(self):
        return {}


@attrs.frozen
class Halved(Coordinates):
    """Coordinates that cannot be made again."""

    def fit(self, space, x):
        return Half()


def test_fits_come_in_the_order_that_is_asked_for():
    data = images()
    flow = learner(data)
    counts = counted(flow, data, [torch.arange(N)])
    target = CountedData(counts, 0, flow.setup.sampler(flow.stages[0]), 1, flow.parts.cdf).source(0)

    def fit_of(place: Place, count: int):
        (fit,) = target.along(SimpleNamespace(place=place, count=count))()
        return fit

    everything, order = fit_of(Place(0), 50), torch.tensor([7, 3, 49])
    chosen, some = fit_of(Place(0, order=order), 3), fit_of(Place(0, first=10), 5)
    assert torch.equal(chosen.below, everything.below[order])
    assert torch.equal(some.low, everything.low[10:15])


def test_bins_reach_from_the_least_value_to_the_greatest_and_are_as_narrow_as_can_be():
    draw = Key(6, "values").open()
    scale = torch.tensor([1, 10, 1000, 10**9])[:, None]
    values = (draw.normal(4, 200).double() * scale + 5 * scale).long()
    tally = Tally.empty(4, 16)
    tally.add(values.clone())
    low, high = tally.edges()
    assert bool((low <= values.amin(dim=1)).all())
    assert bool((high > values.amax(dim=1)).all())
    finer = (tally.level - 1).clamp_min(0)
    reach = (values.amax(dim=1) >> finer) - (values.amin(dim=1) >> finer)
    assert bool((reach[tally.level > 0] >= 16).all())
    assert bool((tally.counts[:, 0] > 0).all())


def test_a_value_far_away_moves_no_other_out_of_its_place():
    values = torch.arange(100)[None]
    tally = Tally.empty(1, 16)
    tally.add(values.clone())
    tally.add(torch.tensor([[100_000]]))
    assert int(tally.counts.sum()) == 101
    assert int(tally.level) == 13  # bins of 8,192
    assert tally.counts.flatten().tolist() == [100, *[0] * 11, 1, 0, 0, 0]


def test_counts_can_be_kept_and_taken_up_again():
    data = images()
    flow = learner(data)
    half = counted(flow, data, [torch.arange(60)])
    tensors = {name: tensor.clone() for name, tensor in half.tensors().items()}
    again = Counts.of_tensors(tensors, half.facts())
    again.insert(data.take(torch.arange(60, N)), map(flow.setup.sampler, flow.setup.round), flow.settings.seed)
    assert same(again, counted(flow, data, [torch.arange(N)]))
    assert (again.samples, again.pieces) == (N, 2)


def test_counts_of_another_version_or_another_flow_are_refused():
    flow = learner(images())
    counts = flow.counts()
    with pytest.raises(RunError, match="format 7, and this version of cswf reads format 2"):
        Counts.of_tensors(counts.tensors(), {**counts.facts(), "format": 7})
    with pytest.raises(RunError, match="it lacks the tensor"):
        Counts.of_tensors({"a": torch.ones(1)} | dict(list(counts.tensors().items())[:2]), counts.facts())
    differing = "and 32 bins, and this flow has 2 sets of 50 directions in 1 stages, and 64"
    with pytest.raises(RunError, match=differing):
        counts.check(flow.stages, 64, 2)


def test_points_far_beyond_the_first_are_refused():
    flow = learner(random_data())
    far = attrs.evolve(random_data(), x=random_data().x * 100)
    with pytest.raises(DataError, match="go up to"):
        flow.insert(far)


REFUSED = {
    "no counts": ({"cdf": None}, "Sorted.*cannot be made of counts"),
    "directions by the data": ({"projection": DataCovariance()}, "draws directions by the data"),
    "a mask": ({"condition": Mask()}, "shows particles a part"),
    "classes apart": ({"condition": Separate()}, "has a flow for each class"),
    "coordinates made once": (
        {"coordinates": Halved()},
        "^coordinates 'Halved' .* has no of_tensors, which saved",
    ),
    "a prior": ({"condition": OneHot(prior=(1, 1, 3))}, "several times"),
}


@pytest.mark.parametrize(("parts", "sentence"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_learn_online_says_so(parts, sentence):
    with pytest.raises(CswfError, match=sentence):
        learner(images(), **parts)


def test_an_estimator_without_bins_need_not_know_of_counts():
    assert CDFEstimator.bins is None
    with pytest.raises(NotImplementedError, match="cannot be made of counts"):
        CDFEstimator.of_counts(Histogram(), torch.zeros(1, 2), 0, torch.zeros(1), torch.ones(1))
