"""Splines through quantiles: what any CDF must satisfy, and what coinciding values must not break."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cswf_core.interfaces import Key
from cswf_core.kernels.splines import paces, quantiles, spline_cdf, spline_icdf


def rows(h: int, n: int, seed: int = 0) -> torch.Tensor:
    return Key(seed, "rows").open(dtype=torch.float64).normal(h, n)


def sorted_rows(h: int, n: int, seed: int = 0, grid: float | None = None) -> torch.Tensor:
    """Sorted values; on a coarse grid many of them coincide."""
    values = rows(h, n, seed)
    return (values if grid is None else (values / grid).round() * grid).sort(dim=1).values


def levels(h: int, count: int) -> torch.Tensor:
    return torch.linspace(0, 1, count, dtype=torch.float64).expand(h, count)


def F(values: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    return spline_cdf(values, paces(values), z)


def inverse(values: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
    return spline_icdf(values, paces(values), a)


def test_quantiles_are_those_that_torch_computes():
    values = sorted_rows(3, 57)
    expected = torch.quantile(values, torch.linspace(0, 1, 12, dtype=torch.float64), dim=1).T
    torch.testing.assert_close(quantiles(values, 12), expected)


@pytest.mark.parametrize("n", [2, 3, 10, 1001])
def test_as_many_quantiles_as_values_are_the_values_and_extremes_are_always_kept(n):
    values = sorted_rows(2, n).float()
    assert torch.equal(quantiles(values, n), values)
    for count in (2, 7, 500):
        assert torch.equal(quantiles(values, count)[:, [0, -1]], values[:, [0, -1]])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_spline_goes_through_its_knots(dtype):
    values = sorted_rows(4, 1000).to(dtype)
    at = levels(4, 1000).to(dtype)
    got = F(values, values)
    assert got.dtype == dtype
    torch.testing.assert_close(got, at, atol=torch.finfo(dtype).eps, rtol=0)
    torch.testing.assert_close(inverse(values, at), values)


@given(n=st.integers(2, 40), seed=st.integers(0, 1000), grid=st.sampled_from([None, 0.1, 1.0]))
def test_a_cdf_rises_from_0_to_1_and_so_does_its_inverse(n, seed, grid):
    values = sorted_rows(3, n, seed, grid)
    level = F(values, sorted_rows(3, 60, seed + 1))
    assert ((level >= 0) & (level <= 1)).all()
    assert (level.diff(dim=1) >= -1e-15).all()
    back = inverse(values, levels(3, 60))
    assert (back.diff(dim=1) >= -1e-15).all()
    assert torch.equal(back[:, [0, -1]], values[:, [0, -1]])


@given(n=st.integers(2, 40), seed=st.integers(0, 1000), grid=st.sampled_from([None, 0.1, 0.5, 2.0]))
def test_inverse_undoes_the_cdf_and_where_no_values_coincide_the_cdf_its_inverse(n, seed, grid):
    values = sorted_rows(3, n, seed, grid)
    z = torch.cat([rows(3, 60, seed + 1), values], dim=1)
    inside = (z >= values[:, :1]) & (z <= values[:, -1:])
    tolerance = {"atol": 1e-12, "rtol": 1e-12} if grid is None else {"atol": 1e-10, "rtol": 0}
    torch.testing.assert_close(inverse(values, F(values, z))[inside], z[inside], **tolerance)
    if grid is None:
        a = levels(3, 61)
        torch.testing.assert_close(F(values, inverse(values, a)), a, atol=1e-10, rtol=0)


def test_in_float32_levels_come_back_to_a_few_roundings():
    values = torch.special.ndtri(levels(1, 1002)[:, 1:-1]).float()
    a = levels(1, 5003).float()
    torch.testing.assert_close(F(values, inverse(values, a)), a, atol=5e-7, rtol=0)


def test_equally_spaced_values_give_a_straight_line():
    values = torch.linspace(-3, 5, 9, dtype=torch.float64)[None]
    z = torch.linspace(-3, 5, 101, dtype=torch.float64)[None]
    torch.testing.assert_close(F(values, z), (z + 3) / 8)
    torch.testing.assert_close(inverse(values, (z + 3) / 8), z)


def test_the_error_on_a_smooth_distribution_falls_with_the_third_power_of_the_knots():
    """F(z) = log z on [1, e], whose quantiles are known."""
    z = torch.linspace(1, math.e, 5001, dtype=torch.float64)[None]
    errors = [float((F(levels(1, K).exp(), z) - z.log()).abs().max()) for K in (11, 21, 41, 81)]
    assert errors[0] < 1e-4
    assert all(fine < coarse / 7 for coarse, fine in itertools.pairwise(errors))


def test_the_derivative_is_continuous_and_one_over_the_pace():
    values = sorted_rows(1, 9)
    expected = 1 / (paces(values) * 8)[:, 1:-1]
    step = 1e-7
    inner = values[:, 1:-1]
    left = (F(values, inner) - F(values, inner - step)) / step
    right = (F(values, inner + step) - F(values, inner)) / step
    torch.testing.assert_close(left, expected, rtol=1e-3, atol=0)
    torch.testing.assert_close(right, expected, rtol=1e-3, atol=0)


def test_a_mirrored_row_has_the_mirrored_spline():
    values, z = sorted_rows(3, 30), rows(3, 50, seed=1)
    torch.testing.assert_close(F(-values.flip(1), -z), 1 - F(values, z))


def test_a_spike_is_a_jump_of_the_cdf_and_a_flat_part_of_the_inverse():
    values = torch.tensor([[-1.0, 0.0, 0.0, 0.0, 2.0]], dtype=torch.float64)
    just_below, just_above = torch.tensor([[-1e-9]]).double(), torch.tensor([[1e-9]]).double()
    assert float(F(values, just_below)) == pytest.approx(0.25)
    assert float(F(values, torch.zeros(1, 1).double())) == 0.75
    assert float(F(values, just_above)) == pytest.approx(0.75)
    assert (inverse(values, torch.tensor([[0.25, 0.4, 0.5, 0.75]]).double()) == 0).all()


def test_spikes_at_both_ends_are_kept():
    values = torch.tensor([[-1.0, -1.0, 0.0, 3.0, 3.0, 3.0]], dtype=torch.float64)
    z = torch.tensor([[-2.0, -1.0, 0.0, 3 - 1e-9, 3.0, 4.0]], dtype=torch.float64)
    torch.testing.assert_close(F(values, z), torch.tensor([[0, 0.2, 0.4, 0.6, 1, 1]]).double())
    a = torch.tensor([[0, 0.1, 0.2, 0.4, 0.6, 0.7, 1]]).double()
    torch.testing.assert_close(inverse(values, a), torch.tensor([[-1, -1, -1, 0, 3, 3, 3]]).double())


@pytest.mark.parametrize("K", [2, 3, 10])
def test_a_constant_row_is_one_jump(K):
    values = torch.full((2, K), 0.7)
    assert F(values, torch.tensor([[0.6, 0.7, 0.8]] * 2)).tolist() == [[0, 1, 1]] * 2
    assert (inverse(values, torch.linspace(0, 1, 9).expand(2, 9)) == values[0, 0]).all()


def test_beyond_all_values_levels_are_0_and_1_and_what_is_no_number_stays_none():
    values = sorted_rows(1, 20)
    level = F(values, torch.tensor([[-math.inf, -50, 50, math.inf, math.nan]]).double())
    assert level[0, :4].tolist() == [0, 0, 1, 1]
    assert level[0, 4].isnan()
    got = inverse(values, torch.tensor([[-0.5, 1.5, math.nan]]).double())
    assert torch.equal(got[:, :2], values[:, [0, -1]])
    assert got[0, 2].isnan()


def test_gaps_of_very_different_size_give_finite_levels_in_order():
    values = torch.tensor([[-1e30, -1.0, -1e-30, 0.0, 1e-44, 1e-30, 1.0, 1e30]])
    z = torch.cat([values, torch.linspace(-2, 2, 1001)[None], values / 2], dim=1).sort(dim=1).values
    level = F(values, z)
    assert torch.isfinite(level).all()
    assert (level.diff(dim=1) >= -1e-7).all()
    back = inverse(values, torch.linspace(0, 1, 1001)[None])
    assert torch.isfinite(back).all()
    assert (back.diff(dim=1) >= 0).all()
