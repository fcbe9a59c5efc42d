"""Particles that are carried along: they move like the others, and F_p does not know them."""

from __future__ import annotations

import attrs
import pytest
import torch

from cswf_core.errors import DataError, RunError
from cswf_core.interfaces import Conditions, Dataset, Key, Space
from cswf_core.kernels.columns import COLUMNS_AT_A_TIME
from cswf_core.runs.samples import spread
from cswf_plugins.cdfs.histogram import Histogram
from cswf_plugins.cdfs.sorted import Sorted
from cswf_plugins.cdfs.spline import Spline
from cswf_plugins.conditions.mask import Mask
from cswf_plugins.conditions.one_hot import OneHot
from cswf_plugins.projections.conv_stack import ConvStack
from cswf_plugins.schedules.constant import Constant
from cswf_plugins.schedules.pyramid import Entry, Pyramid
from tests.conftest import random_data, small_flow

CDFS = [Sorted(), Sorted(rank="released"), Histogram(bins=64), Spline(knots=30)]
NAMES = ["sorted", "released", "histogram", "spline"]


@pytest.mark.parametrize("cdf", CDFS, ids=NAMES)
def test_the_others_do_not_notice_offline_particles(cdf):
    parts = {"condition": OneHot(amplifier=3.0), "cdf": cdf, "schedule": Constant(steps=3, directions=40)}
    M = COLUMNS_AT_A_TIME["cpu"]  # a product of more columns may have other last digits
    alone, beside = small_flow(**parts, count=M), small_flow(**parts, count=M, offline=11)
    assert (beside.count, len(beside.particles), beside.samples().x.shape[1]) == (M, M + 11, M)
    distances = [[state.distance for state in flow] for flow in (alone, beside)]
    assert distances[1] == pytest.approx(distances[0], rel=1e-9)
    if cdf == Sorted():  # ranks of all, or a search among some: the same but for the last digit
        torch.testing.assert_close(beside.samples().x, alone.samples().x, atol=1e-13, rtol=0)
    else:
        assert beside.samples().digest() == alone.samples().digest()
    offline = beside.offline_samples()
    assert offline.x.shape == (5, 11)
    assert float((offline.x - offline.x.mean(dim=1, keepdim=True)).abs().min()) > 0


@pytest.mark.parametrize("cdf", CDFS, ids=NAMES)
def test_an_offline_particle_that_begins_where_another_does_ends_where_it_ends(cdf):
    # Twins have the same place in two groups of columns: on some CPUs it decides about last digits of products.
    M = COLUMNS_AT_A_TIME["cpu"]
    data, first = random_data(), small_flow(count=M)
    twins = torch.arange(M).repeat(2)
    start = attrs.evolve(
        data, x=first.particles.x[:, twins], conditions=first.particles.conditions.take(twins), classes=()
    )
    flow = small_flow(data, cdf=cdf, start=start, count=M, offline=M, schedule=Constant(steps=4, directions=40))
    samples = flow.run()
    torch.testing.assert_close(flow.offline_samples().x, samples.x, atol=1e-10, rtol=0)


def test_offline_particles_are_refused_where_a_part_is_seen_and_where_data_arrive():
    with pytest.raises(RunError, match="offline particles cannot be carried along where a part of the image"):
        small_flow(images(), condition=Mask(), offline=5)
    with pytest.raises(RunError, match="no offline particles can be carried along where data arrive later"):
        small_flow(cdf=Histogram(bins=64), offline=5, sets=2)


def images(seed: int = 1) -> Dataset:
    """Twenty random images, and six others that are held out and depend on the seed."""

    def some(key: Key, count: int) -> Dataset:
        levels = key.open(dtype=torch.float64).integers(256, 64, count).double()
        return Dataset(levels / 128 - 1, Space((1, 8, 8)), Conditions(), bin_width=1 / 128)

    return attrs.evolve(some(Key(0, "seen"), 20), held_out=some(Key(seed, "held out"), 6))


def completing(seed: int, **condition: object):
    schedule = Pyramid(entries=(Entry.from_text("(4×4) [3]"), Entry.from_text("(8×8) [3]")), steps=4)
    mask = Mask(held_out=3, completions=2, **condition)
    parts = {"projection": ConvStack(), "schedule": attrs.evolve(schedule, directions=150)}
    return small_flow(images(seed), condition=mask, count=25, **parts)


@pytest.mark.parametrize("carried", [True, False])
def test_the_others_do_not_notice_particles_that_complete_held_out_images(carried):
    one, other = (completing(seed, carried=carried).run() for seed in (1, 2))
    held_out = one.conditions.origin < 0
    assert held_out.tolist() == [True] * 6 + [False] * 19
    assert torch.equal(one.x[:, ~held_out], other.x[:, ~held_out]) == carried
    assert not torch.isclose(one.x[:, held_out], other.x[:, held_out]).all(dim=0).any()


def test_particles_that_are_carried_along_come_to_the_data_too():
    flow = completing(1, carried=True)
    samples, originals = flow.run(), flow.originals()
    assert torch.equal(samples.x[:32, :6], originals[:32, :6])
    assert float(samples.x[32:, :6].std()) == pytest.approx(float(samples.x[32:, 6:].std()), rel=0.2)


def test_of_all_particles_some_must_take_part():
    with pytest.raises(DataError, match="none is left for F_p"):
        small_flow(images(), condition=Mask(held_out=3, completions=2, carried=True), count=6)
    small_flow(images(), condition=Mask(held_out=3, completions=2), count=6)


@pytest.mark.parametrize(
    ("count", "steps", "eta", "wider"),
    [
        (100, 60, 12, 1.57),
        pytest.param(100, 120, 6, 1.59, marks=pytest.mark.slow),
        pytest.param(400, 60, 12, 1.24, marks=pytest.mark.slow),
        pytest.param(1600, 60, 12, 1.07, marks=pytest.mark.slow),
    ],
)
def test_offline_samples_spread_wider_the_fewer_particles_there_are(count, steps, eta, wider):
    """docs/paper.md quotes these: 1,000 normal points in 12 dimensions. Shorter steps do not help."""
    x = Key(0, "points").open(dtype=torch.float64).normal(12, 1000)
    schedule = Constant(steps=steps, directions=100, step_size=eta)
    flow = small_flow(Dataset(x=x, space=Space((12,))), count=count, offline=500, schedule=schedule)
    batched = spread(flow.run())
    assert batched == pytest.approx(float(x.std()), rel=0.02)
    assert spread(flow.offline_samples()) / batched == pytest.approx(wider, rel=0.03)
