"""The errors of scores are right: beside the deviation of scores over many independent draws of both sets.

`pytest -s -m slow tests/evaluation/test_calibration.py` prints the table of docs/evaluation.md.
"""

from __future__ import annotations

import attrs
import pytest
import torch

from cswf_core.interfaces import Metric
from cswf_plugins.metrics.density_coverage import DensityCoverage
from cswf_plugins.metrics.fid import Fid
from cswf_plugins.metrics.fid_infinity import FidInfinity
from cswf_plugins.metrics.kid import Kid
from cswf_plugins.metrics.precision_recall import PrecisionRecall
from tests.evaluation.clouds import Cloud, compared

DRAWS = 100
REAL = 1000
KID = Kid(subsets=40, subset_size=250)

CASES: list[tuple[Metric, Cloud, int]] = [
    *((Fid(), Cloud(256, unlike=0.3), count) for count in (100, 300, 1000, 5000)),
    (Fid(), Cloud(256), 1000),
    (Fid(), Cloud(256, fall=0.0), 1000),
    *((KID, Cloud(64, unlike=0.3), count) for count in (250, 1000, 5000)),
    (KID, Cloud(64), 1000),
    (FidInfinity(points=10), Cloud(64, unlike=0.3), 1000),
    (FidInfinity(points=10), Cloud(64), 1000),
    (PrecisionRecall(), Cloud(64, unlike=0.3), 1000),
    (DensityCoverage(), Cloud(64, unlike=0.3), 1000),
]
"""Metric, the distribution of generated images, and their number."""


@pytest.mark.slow
@pytest.mark.parametrize(("metric", "cloud", "count"), CASES)
def test_the_error_of_a_score_is_its_deviation_over_draws(metric, cloud, count):
    scores: dict[str, list[float]] = {}
    errors: dict[str, list[float]] = {}
    for seed in range(DRAWS):
        p, q = cloud.draw(count, seed), attrs.evolve(cloud, unlike=0.0).draw(REAL, DRAWS + seed)
        result = metric.compute(compared(p, q))
        for name, spread in result.spreads.items():
            scores.setdefault(name, []).append(result.scores[name])
            errors.setdefault(name, []).append(spread.error)
    assert errors
    for name in errors:
        true, predicted = float(torch.tensor(scores[name]).std()), sum(errors[name]) / DRAWS
        ratio, mean = predicted / true, sum(scores[name]) / DRAWS
        alike = "different" if cloud.unlike else "same" if cloud.fall else "same, of equal variances"
        figures = f"{mean:.3g} | {predicted:.2g} | {true:.2g} | {ratio:.2f}"
        print(f"\n| `{name}` | {cloud.width} | {count:,} | {alike} | {figures} |")
        assert 0.5 < ratio < 1.7
