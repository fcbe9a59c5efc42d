"""Scores say how sure they are, and what is the same for two of them makes their difference surer."""

from __future__ import annotations

import math

import attrs
import pytest
import torch

from cswf_core.interfaces import Comparison, Conditions, Dataset, Key, Space, Workbench
from cswf_core.kernels.frechet import moments
from cswf_plugins.metrics.class_fid import ClassFid
from cswf_plugins.metrics.completion_fid import CompletionFid
from cswf_plugins.metrics.density_coverage import DensityCoverage
from cswf_plugins.metrics.fid import Fid
from cswf_plugins.metrics.inception import share_spread
from cswf_plugins.metrics.kid import Kid
from cswf_plugins.metrics.precision_recall import PrecisionRecall
from cswf_plugins.metrics.psnr import Psnr, scored_completions
from cswf_plugins.metrics.sliced_wasserstein import SlicedWasserstein
from tests.evaluation.clouds import Cloud, blank, compared
from tests.evaluation.conftest import compare
from tests.evaluation.test_metrics import images, with_features

REAL = Cloud(16)
MADE = Cloud(16, unlike=0.3)
METRICS = [Fid(), Kid(subsets=40, subset_size=300), PrecisionRecall(), DensityCoverage()]


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.NAME)
def test_every_score_of_features_has_an_error_and_a_meaning(metric):
    result = metric.compute(compared(MADE.draw(600, 0), REAL.draw(800, 1)))
    assert set(result.spreads) == set(result.meanings) == set(result.scores)
    for name, score in result.scores.items():
        assert 0 < result.spreads[name].error < score
        assert result.meanings[name].sentence.endswith(".")
    clean = attrs.evolve(metric, mode="clean")
    assert [clean.named(name) for name in result.scores] == [f"{name}_clean" for name in result.scores]


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.NAME)
def test_two_scores_against_one_reference_are_paired_and_with_many_samples_surely_compared(metric):
    """Two sets of samples of one distribution, against a few real images, which decide most of the error."""
    real = REAL.draw(600, 1)
    scores = [metric.compute(compared(MADE.draw(4000, seed), real)) for seed in (2, 3)]
    for name in scores[0].spreads:
        one, other = (result.spreads[name] for result in scores)
        assert one.paired(other)
        if metric.NAME in ("fid", "kid"):  # ten parts say too little to expect it of the others
            assert one.error_of_difference(other) < 0.8 * math.hypot(one.error, other.error)


def test_too_few_images_have_no_error():
    for metric, n, m in ((Kid(subsets=1), 50, 50), (Kid(), 3, 50), (PrecisionRecall(), 120, 120)):
        assert not metric.compute(compared(MADE.draw(n, 0), REAL.draw(m, 1))).spreads
    some = compared(MADE.draw(200, 0), REAL.draw(200, 1))
    assert "over 6 disjoint parts" in PrecisionRecall().compute(some).spreads["recall"].method
    few = Dataset(torch.randn(2, 49), Space((2,)))
    assert not SlicedWasserstein().compute(compare(few, few)).spreads
    generated = Dataset(torch.zeros(4, 1), Space((1, 2, 2)), Conditions(origin=torch.tensor([0])))
    assert not Psnr().compute(compare(generated, generated, originals=torch.zeros(4, 1))).spreads


def test_the_subsets_of_real_images_do_not_depend_on_the_number_of_samples():
    real = REAL.draw(700, 1)
    metric = Kid(subsets=8, subset_size=250)
    few, many = (metric.compute(compared(MADE.draw(n, 0), real)).spreads["kid"] for n in (300, 900))
    assert few.paired(many)
    together = torch.stack([few.replicates, many.replicates])
    assert float(torch.corrcoef(together)[0, 1]) > 0.8


def test_real_features_are_not_computed_only_for_the_error():
    """As where a machine has the real images' moments in its cache, and nothing else of them."""
    generated, real = blank(300), blank(400)
    p, q = MADE.draw(300, 0), REAL.draw(400, 1)
    bench = with_features({generated: p})
    bench.keep(("moments", real, "legacy_tensorflow"), lambda: moments(q))
    own = Fid().compute(compare(generated, real, bench=bench)).spreads["fid"]
    both = Fid().compute(compared(p, q)).spreads["fid"]
    assert "over generated images only" in own.method
    assert own.replicates is None
    assert both.method == "infinitesimal jackknife over generated and real images"
    assert own.own == pytest.approx(both.own, rel=1e-9)
    assert own.error < both.error


def test_the_mean_of_classes_is_surer_than_the_classes():
    labels = torch.arange(900) % 3
    sets = {images(900, seed, labels, ("a", "b", "c")): REAL.draw(900, seed) for seed in (0, 1)}
    generated, real = sets
    spreads = ClassFid().compute(compare(generated, real, bench=with_features(sets))).spreads
    each = [spreads[f"class_fid.{name}"].error for name in "abc"]
    assert spreads["class_fid"].error == pytest.approx(math.hypot(*each) / 3, rel=0.01)


def completed(copies: int, seed: int = 0) -> Comparison:
    """Completions of 60 images, each there `copies` times: images of 1×2×2, with noise."""
    draw = Key(seed, "images").open()
    originals = draw.uniform(4, 60) - 0.5
    x = (originals + 0.1 * draw.uniform(4, 60)).repeat(1, copies)
    origin = -1 - torch.arange(60).repeat(copies)
    generated = Dataset(x, Space((1, 2, 2)), Conditions(origin=origin))
    return Comparison(generated, generated, Key(0, "metric").open(), originals=originals.repeat(1, copies))


def test_completions_of_one_image_do_not_count_as_independent():
    once, thrice = (Psnr().compute(completed(copies)) for copies in (1, 3))
    assert once.scores["psnr"] == pytest.approx(thrice.scores["psnr"])
    assert once.spreads["psnr"].error == pytest.approx(thrice.spreads["psnr"].error)
    assert thrice.spreads["psnr"].error_of_difference(once.spreads["psnr"]) == pytest.approx(0, abs=1e-9)


def test_completion_fid_knows_that_completions_are_near_their_originals():
    """Taken as independent, they would seem much less sure: what an image does, its completion undoes."""
    comparison = attrs.evolve(completed(2), bench=Workbench())
    scored = scored_completions(comparison, "completion-fid")
    originals = REAL.draw(60, 0)
    near = originals[scored.which] + 0.1 * REAL.draw(120, 1)
    bench = comparison.bench
    for samples, rows in ((scored.completed, near), (scored.images, originals)):
        bench.keep(("features", samples, "legacy_tensorflow"), lambda rows=rows: rows)
    together = CompletionFid().compute(comparison).spreads["completion_fid"]
    apart = Fid().compute(compared(near, originals)).spreads["fid"]
    assert 0 < together.error < apart.error


def test_a_share_of_all_images_is_not_certain():
    assert share_spread(0.5, 400).error == pytest.approx(0.5 / 20, rel=1e-3)
    assert 0 < share_spread(1.0, 400).error < 0.005


@pytest.mark.parametrize("shift", [0.0, 0.5])
def test_the_error_of_a_sliced_distance_is_about_its_deviation_over_draws(shift):
    """Also where both sets are of one distribution, and the distance is noise itself."""
    values, errors = [], []
    for seed in range(40):
        draw = torch.Generator().manual_seed(seed)
        moved = Dataset(torch.randn(8, 200, generator=draw) + shift, Space((8,)))
        real = Dataset(torch.randn(8, 400, generator=draw), Space((8,)))
        scored = SlicedWasserstein(directions=50).compute(Comparison(moved, real, Key(seed, "m").open()))
        values.append(scored.scores["sliced_wasserstein"])
        errors.append(scored.spreads["sliced_wasserstein"].error)
    assert 0.6 < sum(errors) / len(errors) / torch.tensor(values).std() < 1.5
