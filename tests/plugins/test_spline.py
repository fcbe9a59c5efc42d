"""The CDF plugin `spline`: close to `sorted`, and sound on odd rows."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from cswf_core.interfaces import Key
from cswf_core.kernels.sorting import rank_transport
from cswf_core.kernels.splines import running_sums
from cswf_plugins.cdfs.spline import Spline


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


def test_more_knots_come_nearer_to_sorted():
    p, q = rows(8, 5000), rows(8, 6000, seed=1)
    exact = by_ranks(p, q)
    difference = transported(p, q) - exact
    assert float(difference.square().mean().sqrt()) < 0.01
    assert float(difference[inner(p, 0.01)].abs().max()) < 0.05
    errors = [float((transported(p, q, K) - exact).square().mean()) for K in (10, 100, 1000)]
    assert errors[0] > 2 * errors[1] > 4 * errors[2]


def test_with_a_knot_at_every_value_transport_is_that_of_sorted():
    p, q = rows(8, 900), rows(8, 900, seed=1)
    torch.testing.assert_close(transported(p, q), by_ranks(p, q))
    p, q = p[:, :50].float(), q[:, :50].float()
    torch.testing.assert_close(transported(p, q), by_ranks(p, q), atol=1e-4, rtol=0)


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


def test_a_spike_of_the_data_receives_its_share_of_the_particles():
    """Three tenths of the data are 0, as black pixels are."""
    p, q = rows(4, 20_000), rows(4, 20_000, seed=1)
    q[:, :6000] = 0
    share = (transported(p, q) == 0).double().mean(dim=1)
    torch.testing.assert_close(share, torch.full((4,), 0.3, dtype=torch.float64), atol=0.002, rtol=0)


@pytest.mark.parametrize("rule", ["monotone", "released"])
def test_no_result_depends_on_reading_numbers_back_from_the_device(rule):
    """Tensors on `meta` have shapes and no numbers: whatever asked for one would raise."""
    p, q = torch.empty(3, 50, device="meta"), torch.empty(3, 70, device="meta")
    estimator = Spline(knots=20, rule=rule)
    assert estimator.fit(q).icdf(estimator.fit(p).cdf(p)).shape == (3, 50)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")
@pytest.mark.parametrize("rule", ["monotone", "released"])
def test_a_gpu_gives_the_same_spline_and_never_waits(rule):
    p, q = rows(4, 3000), rows(4, 2003, seed=1)
    estimator = Spline(knots=100, rule=rule)
    expected = estimator.transport(p, estimator.fit(q))
    p, q = p.cuda(), q.cuda()
    torch.cuda.set_sync_debug_mode("error")
    try:
        got = estimator.transport(p, estimator.fit(q))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.testing.assert_close(got.cpu(), expected, atol=1e-10, rtol=0)


def block_sums(terms: list[float]) -> list[float]:
    """Running sums of at most 256 terms: 16 at a time, then the earlier sixteens."""
    sums, before = [], 0.0
    for start in range(0, len(terms), 16):
        inside = 0.0
        for term in terms[start : start + 16]:
            inside += term
            sums.append(inside + before)
        before += inside
    return sums


def released_level(values: list[float], pieces: int, z: float) -> float:
    """The released code's level of z among values that are not all equal, by its rule for one number."""
    low, high, M = min(values), max(values), len(values)
    scaled = sorted((value - low) / (high - low) for value in values)
    x = (z - low) / (high - low)
    if x <= 0 or x >= 1:
        return x
    share = np.linspace(0, 1, pieces + 1)
    edges = [0.0, *(scaled[int(share[k] * M)] for k in range(1, pieces)), 1.0]
    levels = [0.0, *block_sums([int(count) / M for count in np.histogram(scaled, edges)[0]])]
    k = next(k for k in range(pieces) if edges[k] < x <= edges[k + 1])
    h, w = levels[k + 1] - levels[k], edges[k + 1] - edges[k]

    def derivative(knot: int) -> float:
        if knot in (0, pieces):
            return 1.0
        heights = (levels[knot] - levels[knot - 1]) + (levels[knot + 1] - levels[knot])
        return heights / ((edges[knot] - edges[knot - 1]) + (edges[knot + 1] - edges[knot]))

    along, s = (x - edges[k]) / w, h / w
    bend = along * (1 - along)
    rise = h * (s * along * along + derivative(k) * bend)
    return levels[k] + rise / (s + (derivative(k + 1) + derivative(k) - 2 * s) * bend)


def released_value(values: list[float], a: float) -> float:
    """The released code's value at level a, by its rule for one number."""
    ordered, N = sorted(values), len(values)
    j = min(max(math.floor(a * N), 0), N - 1)
    return ordered[j] + (a - j / N) * (ordered[min(j + 1, N - 1)] - ordered[j])


@pytest.mark.parametrize("grid", [None, 0.5], ids=["distinct", "ties"])
@pytest.mark.parametrize(
    ("M", "N", "pieces"),
    [
        (53, 97, 10),
        (97, 53, 10),
        (60, 60, 20),
        (200, 200, 100),
        (53, 1, 1),
        (12, 30, 12),
        (12, 31, 40),
        (5, 3, 7),
    ],
)
def test_the_released_rule_number_by_number(M, N, pieces, grid):
    """For the particles, other values, and beyond all of them; with M = N the last bit of a level matters."""
    p, q, others = rows(3, M), rows(3, N, seed=1), 2 * rows(3, 40, seed=2)
    if grid is not None:
        p, q, others = ((values / grid).round() * grid for values in (p, q, others))
    z = torch.cat([p, others, p.amin(1, keepdim=True) - 1, p.amax(1, keepdim=True) + 1], dim=1)
    estimator = Spline(knots=pieces + 1, rule="released")
    data = estimator.fit(q)
    got = estimator.fit(p).cdf(z)
    expected = [[released_level(a, pieces, x) for x in r] for a, r in zip(p.tolist(), z.tolist(), strict=True)]
    torch.testing.assert_close(got, torch.tensor(expected, dtype=torch.float64), atol=1e-12, rtol=0)
    assert (got.amin(dim=1) < 0).all()
    assert (got.amax(dim=1) > 1).all()
    images = [[released_value(b, x) for x in r] for b, r in zip(q.tolist(), expected, strict=True)]
    expected = torch.tensor(images, dtype=torch.float64)
    torch.testing.assert_close(data.icdf(got), expected, atol=1e-12, rtol=0)
    torch.testing.assert_close(estimator.transport(p, data), expected[:, :M], atol=1e-12, rtol=0)


@pytest.mark.parametrize("n", [1, 16, 17, 100, 256, 272, 273, 1000])
def test_running_sums_are_added_up_in_blocks_of_16(n):
    terms = rows(2, n).abs()
    sums = running_sums(terms)
    torch.testing.assert_close(sums, terms.cumsum(dim=1), atol=0, rtol=1e-13)
    expected = [block_sums(row) for row in terms[:, :256].tolist()]
    assert torch.equal(sums[:, :256], torch.tensor(expected, dtype=torch.float64))


def test_sums_of_more_than_16_blocks_add_up_the_blocks_in_blocks_of_16_too():
    terms = rows(1, 1000).abs()
    totals = [block_sums(terms[0, start : start + 16].tolist())[-1] for start in range(0, 992, 16)]
    expected = block_sums(totals)[-1] + block_sums(terms[0, 992:].tolist())[-1]
    assert float(running_sums(terms)[0, -1]) == expected


@pytest.mark.parametrize("pieces", [1, 2, 30])
def test_by_the_released_rule_a_constant_row_is_a_point_mass(pieces):
    estimator = Spline(knots=pieces + 1, rule="released")
    for fitted in (estimator.fit(torch.ones(2, 10)), estimator.fit(torch.ones(2, 1))):
        assert fitted.cdf(torch.tensor([[-1.0, 1.0, 3.0]] * 2)).tolist() == [[0, 0, 1]] * 2
    data = estimator.fit(rows(2, 30).float())
    assert torch.equal(estimator.transport(torch.ones(2, 10), data), data.ordered[:, :1].expand(2, 10))
    assert torch.equal(
        estimator.transport(rows(2, 9).float(), estimator.fit(torch.ones(2, 7))), torch.ones(2, 9)
    )


@pytest.mark.parametrize("pieces", [1, 3, 30])
def test_by_the_released_rule_repeated_and_very_close_values_have_finite_rising_levels(pieces):
    """Rows with all but one value at an end, and values whose distance is the least that float32 has."""
    estimator = Spline(knots=pieces + 1, rule="released")
    ends = torch.tensor(
        [[0.0] * 9 + [1.0], [0.0] + [1.0] * 9, [0.0] * 5 + [1.0] * 5, [0.0, 1e-45] * 4 + [1e-39, 1.0]]
    )
    z = torch.cat(
        [ends, torch.linspace(0, 1, 50).expand(4, -1), torch.tensor([[1e-45, 1e-42, 1e-30]] * 4)], dim=1
    )
    level = estimator.fit(ends).cdf(z.sort(dim=1).values)
    assert level.dtype == torch.float32
    assert torch.isfinite(level).all()
    assert (level.diff(dim=1) >= -1e-6).all()
    assert (level[:, 0] == 0).all()
    assert (level[:, -1] == 1).all()
