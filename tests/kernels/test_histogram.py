"""Histograms as distributions, transport through them, and tails that are straight lines."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from cswf_core.checks import checked
from cswf_core.flow.directions import Place
from cswf_core.flow.fits import Fitter, Members, one_block
from cswf_core.flow.memory import Clock
from cswf_core.flow.settings import TableRequest
from cswf_core.flow.tables import TabulatedMaps
from cswf_core.flow.transport import Participants
from cswf_core.kernels import histogram
from cswf_core.kernels.rows import Rows
from cswf_core.ranks import Ranks
from cswf_plugins.cdfs.histogram import Histogram
from cswf_plugins.cdfs.sorted import Sorted
from cswf_plugins.conditions.none import NoCondition
from tests.conftest import small_flow


def values(H: int, n: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(H, n, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@given(n=st.integers(1, 300), bins=st.sampled_from([2, 16, 128]), seed=st.integers(0, 99))
def test_every_value_is_counted_once_and_in_its_bin(n, bins, seed):
    rows = Rows.of(values(3, n, seed))
    below = histogram.counted(rows, bins)
    assert torch.equal(below[:, 0], torch.zeros(3, dtype=torch.int32))
    assert torch.equal(below[:, -1], torch.full((3,), n, dtype=torch.int32))
    edges = rows.low[:, None] + (rows.high - rows.low)[:, None] / bins * torch.arange(1, bins)
    wanted = (rows.values[:, None, :] < edges[:, :, None] - 1e-12).sum(dim=2)
    assert (below[:, 1:-1] - wanted).abs().max() <= 1  # a value on an edge


def test_level_and_value_undo_each_other_where_there_are_values_and_end_at_0_and_1_and_the_extremes():
    q = values(4, 5000)
    fit = Histogram(bins=64).fit(q)
    levels = torch.linspace(0, 1, 201).double().expand(4, 201)
    quantiles = fit.icdf(levels)
    torch.testing.assert_close(fit.cdf(quantiles), levels)
    torch.testing.assert_close(quantiles[:, [0, -1]], torch.stack([q.amin(dim=1), q.amax(dim=1)], dim=1))
    z = torch.linspace(-1, 1, 50).double().expand(4, 50)
    torch.testing.assert_close(fit.icdf(fit.cdf(z)), z)
    beyond = torch.tensor([[-1e6, 1e6]] * 4).double()
    assert torch.equal(fit.cdf(beyond), torch.tensor([[0.0, 1.0]] * 4).double())


@pytest.mark.parametrize(("M", "N"), [(4000, 4000), (3000, 5000), (5000, 2000)])
def test_transport_is_that_of_sorted_values_up_to_a_bin(M, N):
    p, q = values(4, M), values(4, N, 1) * 2 + 1
    exact = Sorted(rank="half").transport(p, Sorted(rank="half").fit(q))
    for bins in (256, 1024):
        image = Histogram(bins=bins).transport(p, Histogram(bins=bins).fit(q))
        bin_width = (q.amax(dim=1) - q.amin(dim=1)).max() / bins
        inner = (p > p.quantile(0.05)) & (p < p.quantile(0.95))
        assert float((image - exact).abs()[inner].max()) < 3 * bin_width + 0.03
        assert float((image - exact).square().mean().sqrt()) < bin_width + 0.02


def test_extremes_go_to_extremes_and_a_spike_to_its_place():
    p, q = values(1, 500), torch.cat([torch.full((1, 900), -1.0), values(1, 100, 2)], dim=1).double()
    estimator = Histogram(bins=512)
    image = estimator.transport(p, estimator.fit(q))
    torch.testing.assert_close(image.amin(), q.amin())
    torch.testing.assert_close(image.amax(), q.amax())
    width = float(q.amax() - q.amin()) / 512
    assert float(((image + 1).abs() <= width).double().mean()) > 0.85


@given(
    n=st.integers(1, 200),
    copies=st.integers(1, 3),
    bins=st.sampled_from([2, 16, 128]),
    tail=st.sampled_from([0.0, 0.01, 0.05, 0.25]),
    far=st.lists(st.floats(-40, 40), max_size=3),
    seed=st.integers(0, 99),
)
def test_values_that_are_the_datas_stay_in_place_whatever_lies_far_from_them(n, copies, bins, tail, far, seed):
    p = torch.cat([values(2, n, seed), torch.tensor([far] * 2).double().view(2, -1)], dim=1)
    estimator = Histogram(bins=bins, tail=tail)
    image = estimator.transport(p, estimator.fit(p.repeat(1, copies)))
    torch.testing.assert_close(image, p, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize(("M", "N"), [(500, 499), (499, 500), (500, 600), (600, 500)])
@pytest.mark.parametrize("far", [20.0, -20.0])
def test_a_value_far_from_all_draws_no_other_to_it_if_there_are_some_data_more_or_less(M, N, far):
    both = values(20, max(M, N))
    both[:, 0] = far
    p, q, estimator = both[:, :M], both[:, :N], Histogram(bins=512)
    moved = (estimator.transport(p, estimator.fit(q)) - p)[:, 1:]
    assert float(moved.abs().max()) < 1  # it was 17 when bins were stretched


def test_values_that_were_not_counted_stay_between_particles_and_data_that_are_alike():
    p = values(1, 300)
    p[0, :2] = torch.tensor([-20.0, 20.0])
    estimator = Histogram(bins=256)
    others = torch.tensor([[-19.0, -10.0, -4.0, 4.0, 10.0, 19.0]]).double()
    rows = Rows(others.clone(), p.amin(dim=1), p.amax(dim=1))
    estimator.between(estimator.fit(p), estimator.fit(p)).displace(rows)
    assert float(rows.values.abs().max()) < 1e-9
    moved = Rows(others.clone(), p.amin(dim=1), p.amax(dim=1))
    estimator.between(estimator.fit(p), estimator.fit(p.clamp(-3, 3))).displace(moved)
    torch.testing.assert_close(others + moved.values, others.clamp(-3, 3), atol=0.2, rtol=0)


def test_no_value_goes_into_a_gap_of_the_data_that_parts_them_as_an_edge_does():
    p = torch.linspace(-1, 1, 3000).double()[None]
    q = torch.cat([values(1, 2500).abs() + 5, -values(1, 2500, 1).abs() - 5], dim=1)
    estimator = Histogram(bins=256)
    image = estimator.transport(p, estimator.fit(q))
    width = float(q.amax() - q.amin()) / 256
    assert ((image.abs() > 5 - width) & (image.sign() == p.sign())).all()


def test_the_noise_is_even_and_different_in_each_row():
    rows = Rows(torch.zeros(3, 10_000), -torch.ones(3), torch.ones(3), noise=torch.tensor([1.0, 1.0, 0.5]))
    noise = rows.read()
    ordered = noise[:2].sort(dim=1).values
    torch.testing.assert_close(ordered, torch.linspace(-0.5, 0.5, 10_000).expand(2, -1), atol=3e-4, rtol=0)
    assert float(noise[2].abs().max()) <= 0.25
    assert not torch.equal(noise[0], noise[1])


@pytest.mark.parametrize(
    ("given", "said"),
    [({"bins": 300}, "bins must be a power of two, such as 256, got 300"), ({"tail": 0.3}, "tail must be")],
)
def test_a_number_of_bins_is_a_power_of_two_and_a_tail_at_most_a_quarter(given, said):
    with pytest.raises(ValueError, match=said):
        Histogram(**given)


TAILS = [0.01, 0.05, 0.25]


def skewed(H: int, n: int, seed: int) -> Tensor:
    """Values with one heavy tail and one light one, neither where nor as wide as `values`."""
    return values(H, n, seed).mul(0.7).exp() * 2 - 3


def image(p: Tensor, q: Tensor, tail: float, bins: int = 256) -> Tensor:
    estimator = Histogram(bins=bins, tail=tail)
    return estimator.transport(p, estimator.fit(q))


def bends(p: Tensor, tail: float, bins: int = 256) -> Tensor:
    """Where the tails begin: edges of p's bins beyond which there is no more than `tail` of it: H×2."""
    counts = Histogram(bins=bins).fit(p)
    found = []
    for low, high, below in zip(counts.low, counts.high, counts.below.double() / p.shape[1], strict=True):
        edges = torch.linspace(0, 1, bins + 1).double() * (high - low) + low
        found.append(torch.stack([edges[below <= tail][-1], edges[below >= 1 - tail][0]]))
    return torch.stack(found)


@given(
    M=st.integers(1, 300),
    N=st.integers(1, 300),
    tail=st.sampled_from(TAILS),
    bins=st.sampled_from([2, 16, 128]),
    seed=st.integers(0, 99),
)
def test_maps_never_fall_and_are_finite(M, N, tail, bins, seed):
    p, q = values(3, M, seed), skewed(3, N, seed + 1)
    T = image(p, q, tail, bins).gather(1, p.argsort(dim=1))
    assert torch.isfinite(T).all()
    assert (T.diff(dim=1) >= -1e-9).all()


@pytest.mark.parametrize("tail", TAILS)
def test_inside_the_map_is_as_before_and_outside_it_is_a_line(tail):
    p, q = values(4, 4000), skewed(4, 3000, 1)
    before, after = (image(p, q, t) for t in (0.0, tail))
    for row, (low, high) in enumerate(bends(p, tail)):
        inside = (p[row] >= low) & (p[row] <= high)
        assert torch.equal(after[row, inside], before[row, inside])
        assert 1 - 2 * tail <= float(inside.double().mean()) < 1 - 0.8 * 2 * tail + 0.01
        for outside in (p[row] < low, p[row] > high):
            x, y = p[row, outside], after[row, outside]
            slopes = (y - y.mean()) @ (x - x.mean()) / (x - x.mean()).square().sum()
            torch.testing.assert_close(y, y.mean() + slopes * (x - x.mean()), atol=1e-9, rtol=0)
            assert float((before[row, outside] - y).abs().max()) > 0.01


@pytest.mark.parametrize("tail", TAILS)
def test_the_means_of_both_tails_are_those_of_the_data_s(tail):
    """Of what lies beyond T(bend): E[(T(p) − T(b))⁺] = E[(q − T(b))⁺], and so on the other side."""
    p, q = values(4, 20_000), skewed(4, 30_000, 1)
    T, ends = image(p, q, tail, 1024), bends(p, tail, 1024)
    plain = Histogram(bins=1024)
    rows = Rows(ends.clone(), p.amin(dim=1), p.amax(dim=1))
    plain.between(plain.fit(p), plain.fit(q)).displace(rows)
    for mapped, theirs, bend in zip(T, q, ends + rows.values, strict=True):
        for side, end in ((-1, bend[0]), (1, bend[1])):
            mine, wanted = (float((side * (each - end)).clamp_min(0).mean()) for each in (mapped, theirs))
            assert mine == pytest.approx(wanted, rel=0.06)


def test_the_means_are_exact_where_values_are_spread_evenly_in_wide_bins():
    """T(bend) lies inside a bin of q: one part of it counts, on either side."""
    counts = torch.tensor([3, 1, 4, 9, 5, 2, 6, 1]) * 1000
    q = torch.cat([k + (torch.arange(n) + 0.5).double() / n for k, n in enumerate(counts.tolist())])[None]
    q[0, 0], q[0, -1] = 0, 8  # so that bins are these
    p = torch.linspace(-1, 1, 8001).double()[None]
    T = image(p, q, 0.15, 8)[0]
    for side, bend in ((-1, -0.75), (1, 0.75)):
        end = image(p, q, 0.0, 8)[0, (p[0] - bend).abs().argmin()]
        assert 0.05 < float(end) % 1 < 0.95
        mine, wanted = (float((side * (each - end)).clamp_min(0).mean()) for each in (T, q[0]))
        assert mine == pytest.approx(wanted, rel=2e-3)


def test_the_outermost_particle_no_longer_goes_to_the_outermost_image():
    p = values(1, 5000)
    q = values(1, 5000, 1)
    q[0, 0] = 40.0  # far from all others
    assert float(image(p, q, 0.0).amax()) == pytest.approx(40)
    assert float(image(p, q, 0.01).amax()) < 15


@pytest.mark.parametrize("tail", TAILS)
def test_a_gaussian_goes_to_a_gaussian_by_its_known_map_in_the_tails_too(tail):
    p, q = values(3, 60_000), values(3, 60_000, 1) * 3 - 2
    got = image(p, q, tail, 1024)
    inner = p.abs() < 1.5
    torch.testing.assert_close(image(p, q, 0.0, 1024)[inner], (3 * p - 2)[inner], atol=0.08, rtol=0)
    outermost = p.abs() > 3
    missed, before = ((each - 3 * p + 2)[outermost].square().mean() for each in (got, image(p, q, 0.0, 1024)))
    assert float(missed) ** 0.5 < 0.35
    assert float(missed) < 0.8 * float(before)


def test_without_a_tail_nothing_is_straightened():
    p, q = values(4, 700).float(), skewed(4, 900, 1).float()
    estimator = Histogram(bins=128)
    counts = estimator.fit(p), estimator.fit(q)
    images = histogram.inverse(counts[1], counts[0].below.double() * 900 / 700)
    bin_width = (counts[0].high - counts[0].low)[:, None] / 128
    delta = images - (counts[0].low[:, None] + bin_width * torch.arange(129.0))
    inner = (counts[0].below > 70) & (counts[0].below < 630)  # where neither has a gap
    tables = [histogram.composed(*counts, *tail)[:, :, 0] for tail in ((), (0.0,), (0.01,))]
    assert all(torch.equal(table[inner], delta[inner]) for table in tables)
    assert torch.equal(*tables[:2])
    assert not torch.equal(*tables[1:])
    assert not Histogram().extrapolates
    assert Histogram(tail=0.01).extrapolates


@pytest.mark.parametrize("tail", [0.0, *TAILS])
def test_a_value_beyond_the_counted_range_goes_where_the_range_ends(tail):
    p, q = values(2, 2000), skewed(2, 2000, 1)
    estimator = Histogram(bins=256, tail=tail)
    through = estimator.between(estimator.fit(p), estimator.fit(q))
    far = torch.tensor([[-50.0, 50.0]] * 2).double()
    rows = Rows(far.clone(), p.amin(dim=1), p.amax(dim=1))
    through.displace(rows)
    ends = image(p, q, tail) if tail else q
    torch.testing.assert_close(far + rows.values, torch.stack([ends.amin(dim=1), ends.amax(dim=1)], dim=1))


@pytest.mark.parametrize("tail", [0.0, *TAILS])
def test_rows_of_one_value_stay_finite_whichever_side_they_are_on(tail):
    p, q = values(3, 50), skewed(3, 60, 1)
    p[0] = 1.5
    q[1] = -0.5
    p[2], q[2] = 0.25, 4.0
    T = image(p, q, tail)
    assert torch.isfinite(T).all()
    torch.testing.assert_close(T[1], torch.full((50,), -0.5).double())
    torch.testing.assert_close(T[2], torch.full((50,), 4.0).double())
    assert (T[0] == T[0, 0]).all()
    assert q[0].amin() <= T[0, 0] <= q[0].amax()


@pytest.mark.parametrize("tail", [0.0, 0.05])
def test_displacing_in_place_is_the_transport(tail):
    p, q = values(3, 400), skewed(3, 500, 1)
    estimator = Histogram(bins=64, tail=tail)
    rows = Rows.of(p.clone())
    squares = estimator.displace(rows, estimator.fit(q))
    torch.testing.assert_close(p + rows.values, image(p, q, tail, 64))
    torch.testing.assert_close(squares, rows.values.square().sum(dim=1))


@pytest.mark.parametrize("tail", [0.0, 0.05])
def test_tables_of_a_model_are_read_off_the_map(tail):
    p, q = values(3, 4000), skewed(3, 5000, 1)
    fitter = Fitter(checked(Histogram(bins=512, tail=tail)), Clock(), Ranks())
    data = one_block(lambda: q, Members([5000]), fitter)
    particles = Participants(particles=Members([4000]))
    request = TableRequest(knots=801, bits=16)
    maps = TabulatedMaps(fitter, particles, data, request=request, directions=3, cells=None)
    rows = Rows.of(p.clone())
    maps.displace(rows, fitter.begin(Rows.of(q), Members([5000]))(), Place(0))
    apart = (p + rows.values - image(p, q, tail, 512)).abs()
    assert float((apart < 0.05).float().mean()) > 0.995  # not where the map jumps


def test_a_flow_with_tails_gets_nearer_and_is_another():
    parts = {"condition": NoCondition(), "count": 400}
    flows = {tail: small_flow(cdf=Histogram(bins=64, tail=tail), **parts) for tail in (0.0, 0.05)}
    states = {tail: list(flow) for tail, flow in flows.items()}
    assert states[0.05][-1].distance < 0.5 * states[0.05][0].distance
    assert not torch.equal(flows[0.0].samples().x, flows[0.05].samples().x)
