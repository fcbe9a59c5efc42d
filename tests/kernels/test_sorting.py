"""CDFs by sorting: the paper's formulas, and what any CDF must satisfy."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cswf_core.interfaces import Key
from cswf_core.kernels.sorting import (
    interpolated_cdf,
    interpolated_icdf,
    rank_transport,
    released_cdf,
    released_icdf,
)
from cswf_plugins.cdfs.sorted import Sorted
from tests.flow.test_against_the_paper import paper_cdf, paper_icdf

SHIFTS = [0.0, 0.5]


def rows(h: int, n: int, seed: int = 0) -> torch.Tensor:
    return Key(seed, "rows").open(dtype=torch.float64).normal(h, n)


def test_cdf_and_inverse_follow_the_paper_s_formulas():
    sample, query = rows(1, 13), rows(1, 40, seed=1)
    ordered = sample.sort(dim=1).values
    got = interpolated_cdf(ordered, query, 0.0)
    expected = [paper_cdf(sample[0].tolist(), z) for z in query[0].tolist()]
    torch.testing.assert_close(got[0], torch.tensor(expected, dtype=torch.float64))
    levels = torch.linspace(0, 1, 31, dtype=torch.float64)[None]
    got = interpolated_icdf(ordered, levels, 0.0)
    expected = [paper_icdf(sample[0].tolist(), a) for a in levels[0].tolist()]
    torch.testing.assert_close(got[0], torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize("shift", SHIFTS)
@given(n=st.integers(2, 40), m=st.integers(1, 40), seed=st.integers(0, 1000))
def test_a_cdf_rises_from_0_to_1_and_its_inverse_undoes_it(shift, n, m, seed):
    ordered = rows(3, n, seed).sort(dim=1).values
    z = rows(3, m, seed + 1).sort(dim=1).values
    level = interpolated_cdf(ordered, z, shift)
    assert (level >= 0).all()
    assert (level <= 1).all()
    assert (level.diff(dim=1) >= 0).all()
    inside = (z >= ordered[:, :1]) & (z <= ordered[:, -1:])
    back = interpolated_icdf(ordered, level, shift)
    torch.testing.assert_close(back[inside], z[inside])


@pytest.mark.parametrize("rank", ["paper", "half"])
def test_a_value_beyond_every_particle_goes_to_an_extreme_of_the_data(rank):
    estimator = Sorted(rank=rank)
    p, q = estimator.fit(rows(2, 20)), estimator.fit(rows(2, 35, seed=1))
    far = torch.tensor([[-50.0, 50.0]] * 2, dtype=torch.float64)
    expected = torch.stack([q.ordered[:, 0], q.ordered[:, -1]], dim=1)
    torch.testing.assert_close(q.icdf(p.cdf(far)), expected)


@pytest.mark.parametrize("rank", ["paper", "half"])
@given(M=st.integers(1, 50), N=st.integers(1, 50), seed=st.integers(0, 1000))
def test_transport_by_ranks_equals_the_composition(rank, M, N, seed):
    p, q = rows(3, M, seed), rows(3, N, seed + 1)
    estimator = Sorted(rank=rank)
    composed = estimator.fit(q).icdf(estimator.fit(p).cdf(p))
    torch.testing.assert_close(estimator.transport(p, estimator.fit(q)), composed)


@given(n=st.integers(1, 50), seed=st.integers(0, 1000))
def test_transport_keeps_mass_when_there_are_as_many_of_both(n, seed):
    p, q = rows(3, n, seed), rows(3, n, seed + 1)
    ordered = q.sort(dim=1).values
    torch.testing.assert_close(rank_transport(p, ordered, 0.5).sort(dim=1).values, ordered)


def test_transport_follows_a_permutation_of_the_particles():
    p, q, order = rows(4, 30), rows(4, 20, seed=1), torch.randperm(30)
    ordered = q.sort(dim=1).values
    assert torch.equal(rank_transport(p[:, order], ordered, 0.0), rank_transport(p, ordered, 0.0)[:, order])


def test_equal_values_and_constant_rows_give_finite_maps():
    p, q = torch.zeros(2, 10), torch.ones(2, 7)
    assert torch.equal(rank_transport(p, q.sort(dim=1).values, 0.5), torch.ones(2, 10))
    assert torch.isfinite(Sorted().fit(p).cdf(p)).all()


def released_level(values: list[float], z: float) -> float:
    """The released code's level of z among values, by its rule for one number."""
    ordered, n = sorted(values), len(values)
    smaller = sum(value < z for value in ordered)
    below, above = max(smaller - 1, 0), min(smaller, n - 1)
    rise, gap = z - ordered[below], ordered[above] - ordered[below]
    fraction = min(max(rise / gap, 0), 1) if gap else float(rise > 0)
    return (below + fraction + 0.5) / n


def released_value(values: list[float], a: float) -> float:
    """The released code's value at level a, by its rule for one number."""
    ordered, N = sorted(values), len(values)
    j = min(max(math.floor(a * N), 0), N - 1)
    return ordered[j] + (a - j / N) * (ordered[min(j + 1, N - 1)] - ordered[j])


def released_map(p: torch.Tensor, q: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    """F_q⁻¹∘F_p at z by the released code's rule, number by number; levels above 1 are left as they are."""
    triples = zip(p.tolist(), q.tolist(), z.tolist(), strict=True)
    images = [[released_value(b, released_level(a, x)) for x in row] for a, b, row in triples]
    return torch.tensor(images, dtype=torch.float64)


@pytest.mark.parametrize("grid", [None, 0.5], ids=["distinct", "ties"])
@pytest.mark.parametrize(("M", "N"), [(1, 1), (1, 7), (7, 1), (20, 53), (30, 30), (53, 20), (20, 40), (40, 20)])
def test_released_rank_is_the_released_rule_number_by_number(M, N, grid):
    p, q, others = rows(3, M), rows(3, N, seed=1), 2 * rows(3, 40, seed=2)
    if grid is not None:
        p, q, others = ((values / grid).round() * grid for values in (p, q, others))
    z = torch.cat([p, others, p.amin(1, keepdim=True) - 1, p.amax(1, keepdim=True) + 1], dim=1)
    estimator = Sorted(rank="released")
    data = estimator.fit(q)
    expected = released_map(p, q, z)
    torch.testing.assert_close(data.icdf(estimator.fit(p).cdf(z)), expected, atol=1e-12, rtol=0)
    torch.testing.assert_close(estimator.transport(p, data), expected[:, :M], atol=1e-12, rtol=0)


def test_released_levels_are_a_half_below_the_row_one_above_it_and_equal_for_equal_values():
    ordered = torch.tensor([[0.0, 0.0, 2.0, 2.0, 4.0]], dtype=torch.float64)
    z = torch.tensor([[-9.0, 0.0, 1.0, 2.0, 3.0, 4.0, 9.0]], dtype=torch.float64)
    expected = torch.tensor([[0.1, 0.1, 0.4, 0.5, 0.8, 0.9, 1.0]], dtype=torch.float64)
    torch.testing.assert_close(released_cdf(ordered, z), expected, atol=1e-15, rtol=0)


@pytest.mark.parametrize("N", [1, 2, 20])
def test_released_inverse_hardly_interpolates_and_takes_levels_outside_of_0_and_1(N):
    q = rows(3, N)
    a = torch.linspace(-0.5, 1.5, 101, dtype=torch.float64).expand(3, -1)
    expected = [[released_value(row, level) for level in a[0].tolist()] for row in q.tolist()]
    got = released_icdf(q.sort(dim=1).values, a)
    torch.testing.assert_close(got, torch.tensor(expected, dtype=torch.float64), atol=1e-12, rtol=0)


def test_released_rank_on_constant_rows_goes_to_one_value_of_the_data():
    p, q = torch.zeros(2, 10), rows(2, 7).float()
    estimator = Sorted(rank="released")
    data = estimator.fit(q)
    image = estimator.transport(p, data)
    # Level ½/10 of every particle: j = 0, and a twentieth of the first gap.
    expected = torch.lerp(data.ordered[:, :1], data.ordered[:, 1:2], 0.05).expand(2, 10)
    torch.testing.assert_close(image, expected)
    assert image.dtype == torch.float32
    assert torch.equal(estimator.transport(q, estimator.fit(p)), torch.zeros(2, 7))
