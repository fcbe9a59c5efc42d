"""The two-sample test of new samples against a run's particles: what it finds, and what it lets pass."""

from __future__ import annotations

import numpy as np
import pytest

from cswf_core.errors import DataError
from cswf_core.runs.two_samples import compare


def normal(count: int, seed: int, dimension: int = 8) -> np.ndarray:
    """Points of a normal distribution, some coordinates of which are wider."""
    numbers = np.random.default_rng(seed).normal(size=(count, dimension))
    return (numbers * np.linspace(0.5, 2, dimension)).astype(np.float32)


def test_samples_of_the_particles_own_distribution_pass():
    results = [
        compare({"points": normal(300, seed)}, {"points": normal(400, 100 + seed)}, 8) for seed in range(6)
    ]
    assert all(result.passed for result in results)
    assert all(0.9 < result.spread_ratio < 1.1 and result.excess < 0.1 for result in results)
    assert {result.compared for result in results} == {300}
    assert len({result.p for result in results}) > 3  # they vary as p-values do


@pytest.mark.parametrize("factor", [0.8, 1.25])
def test_another_spread_fails(factor):
    result = compare({"points": factor * normal(300, 0)}, {"points": normal(300, 1)}, 8)
    assert not result.passed
    assert result.spread_p <= 0.01
    assert result.spread_ratio == pytest.approx(factor, abs=0.05)


def test_the_excess_is_the_distance_beyond_chance_however_many_samples_there_are():
    for count in (400, 3000):
        moved = normal(count, 0) + 0.3
        result = compare({"points": moved}, {"points": normal(count, 1)}, 8)
        assert not result.passed
        spread = float(np.sqrt(normal(count, 1).var(axis=0).mean()))
        assert result.excess == pytest.approx(0.3 / spread, rel=0.25)


def test_a_difference_that_is_sure_but_tiny_passes():
    samples = normal(2000, 0)
    result = compare({"points": samples + 0.05}, {"points": samples}, 8)
    assert (result.p, result.passed) == (0.005, True)


def of_classes(counts: tuple[int, ...], seed: int) -> dict[str, np.ndarray]:
    """Points of classes that lie far apart."""
    labels = np.repeat(np.arange(len(counts)), counts)
    return {"points": normal(sum(counts), seed) + 10 * labels[:, None].astype(np.float32), "labels": labels}


@pytest.mark.parametrize(("asked", "compared"), [((180, 20), 120), ((0, 300), 100), ((100, 100, 90), 200)])
def test_classes_are_compared_in_equal_numbers_and_those_without_particles_not_at_all(asked, compared):
    result = compare(of_classes(asked, 2), of_classes((100, 100), 3), 8)
    assert (result.passed, result.compared) == (True, compared)


def test_conditions_behind_points_do_not_count():
    samples, particles = (np.hstack([normal(300, seed), np.full((300, 1), seed)]) for seed in (0, 1))
    assert compare({"points": samples}, {"points": particles}, 8).passed


@pytest.mark.parametrize(
    ("samples", "particles", "reason"),
    [
        (of_classes((199,), 0), of_classes((300,), 1), "200 samples or more"),
        (of_classes((300, 20), 0), of_classes((29, 300), 1), "there are 49"),
        ({"points": normal(300, 0)}, {"points": np.ones((300, 8), np.float32)}, "all the same"),
    ],
)
def test_too_little_to_compare_is_refused_with_the_reason(samples, particles, reason):
    with pytest.raises(DataError, match=reason):
        compare(samples, particles, 8)
