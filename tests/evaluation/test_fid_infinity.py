"""FID followed to infinitely many samples, where the truth is known."""

from __future__ import annotations

import pytest
import torch

from cswf_core.errors import DataError
from cswf_core.kernels.frechet import frechet_distance
from cswf_plugins.metrics.fid import Fid
from cswf_plugins.metrics.fid_infinity import FidInfinity, line_through
from tests.evaluation.clouds import Cloud, blank, compared
from tests.evaluation.conftest import compare
from tests.evaluation.test_metrics import with_features

REAL = Cloud(16)


def against_the_truth(cloud: Cloud, count: int, seed: int = 0):
    """A comparison of samples of a cloud with the true moments of the real one."""
    generated, real = blank(count), blank(2)
    bench = with_features({generated: cloud.draw(count, seed)})
    bench.keep(("moments", real, "legacy_tensorflow"), lambda: REAL.moments)
    return compare(generated, real, bench=bench)


@pytest.mark.parametrize("unlike", [0.0, 0.3])
def test_it_is_the_distance_of_the_distributions_within_its_error_and_fid_is_not(unlike):
    cloud = Cloud(16, unlike)
    truth = frechet_distance(cloud.moments, REAL.moments)
    beyond, above = [], []
    for seed in range(12):
        comparison = against_the_truth(cloud, 500, seed)
        result = FidInfinity().compute(comparison)
        error = result.spreads["fid_infinity"].error
        beyond.append((result.scores["fid_infinity"] - truth) / error)
        above.append(Fid().compute(comparison).scores["fid"] - truth)
    assert abs(sum(beyond) / 12) < 1.5  # on average, within some errors: near the truth FID is no line
    assert max(map(abs, beyond)) < 4
    if not unlike:
        assert min(above) > 0


def test_the_points_are_details_from_a_tenth_to_all():
    comparison = against_the_truth(REAL, 1000)
    result = FidInfinity(points=5).compute(comparison)
    assert list(result.details) == [f"fid_at.{count}" for count in (100, 325, 550, 775, 1000)]
    assert result.details["fid_at.1000"] == pytest.approx(Fid().compute(comparison).scores["fid"], rel=1e-9)
    assert result.details["fid_at.100"] > result.details["fid_at.1000"] > result.scores["fid_infinity"]
    assert not result.notes
    assert set(result.meanings) == {*result.scores, *result.details}


def test_few_samples_are_told_and_too_few_refused():
    told = FidInfinity().compute(against_the_truth(REAL, 40)).notes
    assert "the smallest part has 20 images, and below 32" in told[0]
    with pytest.raises(DataError, match="at least two generated images for each of its points, "):
        FidInfinity().compute(against_the_truth(REAL, 15))


def test_points_off_the_line_are_told():
    """Of far distributions, chance moves FID more than the number of samples does."""
    far = compared(Cloud(16, 3.0).draw(2000, 0), REAL.draw(2000, 1))
    assert "explains only" in FidInfinity().compute(far).notes[-1]


def test_a_line_is_that_of_least_squares():
    x = torch.tensor([1.0, 2.0, 3.0, 4.0]).double()
    assert line_through(x, 2 + 3 * x) == pytest.approx((2, 0, 1), abs=1e-9)
    generator = torch.Generator().manual_seed(0)
    noisy = [
        line_through(x, 2 + 3 * x + torch.randn(4, generator=generator, dtype=torch.float64))
        for _ in range(2000)
    ]
    intercepts, errors, _ = torch.tensor(noisy).T
    squares = errors**2
    assert float(squares.mean()) == pytest.approx(float(intercepts.var()), rel=0.15)
