"""Histograms as distributions, and transport through them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cswf_core.kernels import histogram
from cswf_core.kernels.rows import Rows
from cswf_plugins.cdfs.histogram import Histogram
from cswf_plugins.cdfs.sorted import Sorted


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


def test_level_and_value_undo_each_other_where_there_are_values_and_levels_end_at_0_and_1():
    fit = Histogram(bins=64).fit(values(4, 5000))
    levels = torch.linspace(0, 1, 201).double().expand(4, 201)
    torch.testing.assert_close(fit.cdf(fit.icdf(levels)), levels)
    z = torch.linspace(-1, 1, 50).double().expand(4, 50)
    torch.testing.assert_close(fit.icdf(fit.cdf(z)), z)
    beyond = torch.tensor([[-1e6, 1e6]] * 4).double()
    assert torch.equal(fit.cdf(beyond), torch.tensor([[0.0, 1.0]] * 4).double())


def test_quantiles_are_monotone_and_end_at_the_extremes():
    q = values(3, 1000)
    knots = Histogram(bins=128).fit(q).icdf(torch.linspace(0, 1, 64, dtype=q.dtype).expand(3, -1))
    assert (knots.diff(dim=1) >= 0).all()
    torch.testing.assert_close(knots[:, 0], q.amin(dim=1))
    torch.testing.assert_close(knots[:, -1], q.amax(dim=1))


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


def test_a_gaussian_goes_to_a_gaussian_by_its_known_map():
    p, q = values(3, 60_000), values(3, 60_000, 1) * 3 - 2
    image = Histogram(bins=1024).transport(p, Histogram(bins=1024).fit(q))
    inner = p.abs() < 1.5
    torch.testing.assert_close(image[inner], (3 * p - 2)[inner], atol=0.08, rtol=0)


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
    tail=st.sampled_from([0.0, 0.01, 0.25]),
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


def test_a_value_beyond_the_counted_range_is_pulled_back_to_the_datas_extreme():
    p, q = values(1, 2000), values(1, 2000, 1)
    estimator = Histogram(bins=256)
    through = estimator.between(estimator.fit(p), estimator.fit(q))
    far = torch.tensor([[-50.0, 50.0]]).double()
    rows = Rows(far.clone(), p.amin(dim=1), p.amax(dim=1))
    through.displace(rows)
    torch.testing.assert_close(far + rows.values, torch.stack([q.amin(dim=1), q.amax(dim=1)], dim=1))


def test_the_noise_is_even_and_different_in_each_row():
    rows = Rows(torch.zeros(3, 10_000), -torch.ones(3), torch.ones(3), noise=torch.tensor([1.0, 1.0, 0.5]))
    noise = rows.read()
    ordered = noise[:2].sort(dim=1).values
    torch.testing.assert_close(ordered, torch.linspace(-0.5, 0.5, 10_000).expand(2, -1), atol=3e-4, rtol=0)
    assert float(noise[2].abs().max()) <= 0.25
    assert not torch.equal(noise[0], noise[1])


def test_a_number_of_bins_that_is_no_power_of_two_is_refused_with_one_that_is():
    with pytest.raises(ValueError, match="bins must be a power of two, such as 256, got 300"):
        Histogram(bins=300)
