"""The CDF plugin `spline`: close to `sorted`, and sound on odd rows."""

from __future__ import annotations

import pytest
import torch

from cswf_core.interfaces import Key
from cswf_core.kernels.sorting import rank_transport
from cswf_plugins.cdfs.sorted import Sorted
from cswf_plugins.cdfs.spline import Spline
from tests.conftest import random_data, small_flow


def rows(h: int, n: int, seed: int = 0) -> torch.Tensor:
    return Key(seed, "rows").open(dtype=torch.float64).normal(h, n)


def transported(p: torch.Tensor, q: torch.Tensor, knots: int = 1000) -> torch.Tensor:
    """F_q⁻¹∘F_p at p."""
    estimator = Spline(knots=knots)
    return estimator.fit(q).icdf(estimator.fit(p).cdf(p))


def by_ranks(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """The map of `sorted`."""
    return rank_transport(p, q.sort(dim=1).values, 0.5)


def inner(p: torch.Tensor, tail: float) -> torch.Tensor:
    """Which entries leave a share `tail` of their row on either side."""
    low, high = (torch.quantile(p, a, dim=1, keepdim=True) for a in (tail, 1 - tail))
    return (p > low) & (p < high)


def test_a_gaussian_sample_is_transported_onto_another_gaussian():
    """The map is known, 3 + 2z; what is left is the sampling error of 20,000 values."""
    p, q = rows(8, 20_000), 3 + 2 * rows(8, 20_000, seed=1)
    error = transported(p, q) - (3 + 2 * p)
    assert float(error.square().mean().sqrt()) < 0.04
    assert float(error[inner(p, 0.01)].abs().max()) < 0.15


@pytest.mark.parametrize("N", [5000, 6000])
def test_transport_agrees_with_sorted_on_5_000_values(N):
    p, q = rows(8, 5000), rows(8, N, seed=1)
    difference = transported(p, q) - by_ranks(p, q)
    assert float(difference.square().mean().sqrt()) < 0.01
    assert float(difference[inner(p, 0.01)].abs().max()) < 0.05


def test_more_knots_come_nearer_to_sorted():
    p, q = rows(8, 5000), rows(8, 5000, seed=1)
    exact = by_ranks(p, q)
    errors = [float((transported(p, q, K) - exact).square().mean()) for K in (10, 100, 1000)]
    assert errors[0] > 2 * errors[1] > 4 * errors[2]


def test_with_a_knot_at_every_value_transport_is_that_of_sorted():
    p, q = rows(8, 900), rows(8, 900, seed=1)
    torch.testing.assert_close(transported(p, q), by_ranks(p, q))
    p, q = p[:, :50].float(), q[:, :50].float()
    torch.testing.assert_close(transported(p, q), by_ranks(p, q), atol=1e-4, rtol=0)


def test_a_flow_with_a_knot_at_every_value_is_the_flow_of_sorted():
    flows = [small_flow(random_data(n=40), cdf=cdf, count=40) for cdf in (Spline(), Sorted(rank="half"))]
    one, other = (flow.run().x for flow in flows)
    torch.testing.assert_close(one, other)


def test_rows_in_float32_stay_in_float32_and_knots_are_two_at_least():
    fitted = Spline().fit(rows(2, 50).float())
    assert {t.dtype for t in (fitted.values, fitted.cdf(fitted.values))} == {torch.float32}
    with pytest.raises(ValueError, match="knots must be at least 2"):
        Spline(knots=1)


def test_one_value_is_a_point_mass():
    p, q = rows(3, 1), rows(3, 1, seed=1)
    assert torch.equal(transported(p, q), q)
    assert torch.equal(transported(rows(3, 20), q), q.expand(3, 20))
    assert Spline().fit(p).cdf(torch.cat([p - 1, p, p + 1], dim=1)).tolist() == [[0, 1, 1]] * 3


@pytest.mark.parametrize("knots", [2, 3, 1000])
def test_three_values_keep_their_extremes(knots):
    p, q = rows(4, 3), rows(4, 3, seed=1)
    image = transported(p, q, knots).sort(dim=1).values
    expected = q.sort(dim=1).values
    assert torch.equal(image[:, [0, -1]], expected[:, [0, -1]])
    if knots > 2:
        torch.testing.assert_close(image, expected)


def test_constant_rows_give_finite_maps():
    p, q = torch.zeros(2, 10), torch.ones(2, 7)
    assert torch.equal(transported(p, q), torch.ones(2, 10))
    assert torch.isfinite(transported(p, rows(2, 30).float())).all()


def test_a_spike_of_the_data_receives_its_share_of_the_particles():
    """Three tenths of the data are 0, as black pixels are."""
    p, q = rows(4, 20_000), rows(4, 20_000, seed=1)
    q[:, :6000] = 0
    share = (transported(p, q) == 0).double().mean(dim=1)
    torch.testing.assert_close(share, torch.full((4,), 0.3, dtype=torch.float64), atol=0.002, rtol=0)


def test_no_result_depends_on_reading_numbers_back_from_the_device():
    """Tensors on `meta` have shapes and no numbers: whatever asked for one would raise."""
    p, q = torch.empty(3, 50, device="meta"), torch.empty(3, 70, device="meta")
    estimator = Spline(knots=20)
    assert estimator.fit(q).icdf(estimator.fit(p).cdf(p)).shape == (3, 50)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")
def test_a_gpu_gives_the_same_spline_and_never_waits():
    p, q = rows(4, 3000), rows(4, 2000, seed=1)
    expected = transported(p, q, 100)
    p, q = p.cuda(), q.cuda()
    torch.cuda.set_sync_debug_mode("error")
    try:
        got = transported(p, q, 100)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.testing.assert_close(got.cpu(), expected, atol=1e-10, rtol=0)
