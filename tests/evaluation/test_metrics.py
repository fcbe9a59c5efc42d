"""Metrics say of real images what must be so, and agree with clean-fid, torch-fidelity, prdc and POT."""

from __future__ import annotations

import attrs
import numpy as np
import pytest
import torch

from cswf_core.errors import DataError
from cswf_core.interfaces import Dataset, Space, Workbench
from cswf_core.kernels.frechet import frechet_distance, moments
from cswf_core.kernels.sorting import squared_w2
from cswf_plugins.metrics.class_fid import ClassFid
from cswf_plugins.metrics.density_coverage import DensityCoverage
from cswf_plugins.metrics.fid import Fid
from cswf_plugins.metrics.kid import Kernels, Kid
from cswf_plugins.metrics.nearest_neighbours import NearestNeighbours
from cswf_plugins.metrics.precision_recall import PrecisionRecall
from tests.evaluation.conftest import cloud, compare, images, with_features


def test_kid_is_clean_fid_s_and_unbiased():
    fid = pytest.importorskip("cleanfid.fid")
    p, q = cloud(80, 0).double(), cloud(80, 1, 0.3).double()
    theirs = fid.kernel_distance(p.numpy(), q.numpy(), num_subsets=1, max_subset_size=80)
    assert Kernels.of(p, q).distance == pytest.approx(theirs, rel=1e-9)
    many = [Kernels.of(cloud(30, 2 * s).double(), cloud(30, 2 * s + 1).double()).distance for s in range(200)]
    assert abs(np.mean(many)) < 3 * np.std(many) / np.sqrt(200)


def test_precision_recall_density_and_coverage_of_known_clouds():
    """Those of all other clouds are prdc's."""
    real, half, away, few = (images(n, seed) for seed, n in enumerate((300, 300, 300, 3)))
    near, far = cloud(300, 0), cloud(300, 1, 50.0)
    mixed = torch.cat([near[:150], far[:150]])
    bench = with_features({real: near, half: mixed, away: far, few: cloud(3, 0)})
    for metric in (PrecisionRecall(), DensityCoverage()):
        assert set(metric.compute(compare(away, real, bench=bench)).scores.values()) == {0.0}
    found = PrecisionRecall().compute(compare(half, real, bench=bench)).scores
    assert found["precision"] == pytest.approx(0.5, abs=0.01)
    with pytest.raises(DataError, match="needs more images than that, got 3"):
        PrecisionRecall().compute(compare(few, real, bench=bench))


def test_class_fid_sees_classes_that_were_swapped():
    labels = torch.arange(200) % 2
    real = images(200, 0, labels, ("cat", "dog"))
    right, swapped = images(200, 1, labels, ("cat", "dog")), images(200, 2, 1 - labels, ("cat", "dog"))
    place = labels[:, None] * 10.0
    features = {real: cloud(200, 0), right: cloud(200, 1), swapped: cloud(200, 1)}
    bench = with_features({dataset: rows + place for dataset, rows in features.items()})
    good, bad = (ClassFid().compute(compare(g, real, bench=bench)) for g in (right, swapped))
    assert set(good.details) == {"class_fid.cat", "class_fid.dog"}
    assert good.scores["class_fid"] == pytest.approx(sum(good.details.values()) / 2)
    assert bad.scores["class_fid"] > 100 * good.scores["class_fid"]
    whole = [Fid().compute(compare(g, real, bench=bench)).scores["fid"] for g in (right, swapped)]
    assert whole[0] == pytest.approx(whole[1])


def test_class_fid_goes_by_the_names_of_classes():
    labels = torch.arange(90) % 3
    real = images(90, 0, labels, ("bird", "cat", "dog"))
    some = images(60, 1, torch.arange(60) % 2, ("cat", "dog"))
    places = (1 + torch.arange(60)[:, None] % 2) * 10.0
    bench = with_features({real: cloud(90, 0) + labels[:, None] * 10.0, some: cloud(60, 1) + places})
    assert ClassFid().compute(compare(some, real, bench=bench)).scores["class_fid"] < 3
    other = attrs.evolve(some, classes=("cat", "fish"))
    bench = with_features({real: cloud(90, 0), other: cloud(60, 1)})
    with pytest.raises(DataError, match="have no class 'fish'"):
        ClassFid().compute(compare(other, real, bench=bench))


@pytest.mark.parametrize("metric", [Fid(), Kid()])
def test_one_image_is_too_few(metric):
    with pytest.raises(DataError, match="needs at least two generated images, and there is 1"):
        metric.compute(compare(images(1, 0), images(5, 1)))


@pytest.mark.parametrize("metric", [Fid(), Kid(), PrecisionRecall(), DensityCoverage(), NearestNeighbours()])
def test_points_are_refused_before_the_flow(metric):
    points = Dataset(torch.zeros(2, 9), Space((2,)))
    with pytest.raises(DataError, match="images"):
        metric.check(points, Workbench())


MISSING = "POT, torch-fidelity and prdc are among the packages for tests (`pip install cswf[dev]`)"


def features(n: int, width: int, seed: int) -> torch.Tensor:
    """Clouds whose axes and places differ with the seed, in float64: n×width."""
    generator = torch.Generator().manual_seed(seed)
    mixing = torch.randn(width, width, generator=generator, dtype=torch.float64) / width**0.5
    place = torch.randn(width, generator=generator, dtype=torch.float64) / 4
    return torch.randn(n, width, generator=generator, dtype=torch.float64) @ mixing + place


@pytest.mark.parametrize(("n", "m"), [(700, 500), (3000, 400)])
def test_fid_is_that_of_torch_fidelity(n, m):
    fidelity = pytest.importorskip("torch_fidelity.metric_fid", reason=MISSING)
    p, q = features(n, 48, 0), features(m, 48, 1)
    statistics = [fidelity.fid_features_to_statistics(rows) for rows in (p, q)]
    theirs = fidelity.fid_statistics_to_metric(*statistics, False)["frechet_inception_distance"]
    assert frechet_distance(moments(p), moments(q)) == pytest.approx(theirs, rel=1e-9)


@pytest.mark.parametrize("k", [1, 3, 5])
def test_precision_recall_density_and_coverage_are_those_of_prdc(k):
    prdc = pytest.importorskip("prdc", reason=MISSING)
    p, q = features(400, 12, 0), features(400, 12, 0).roll(1, dims=1) * 1.1
    theirs = prdc.compute_prdc(q.numpy(), p.numpy(), k)
    generated, real, larger = images(400, 0), images(400, 1), images(500, 2)
    bench = with_features({generated: p, real: q, larger: torch.cat([p, p[:100]])})
    comparison = compare(generated, real, bench=bench)
    for metric in (PrecisionRecall(k=k), DensityCoverage(k=k)):
        for name, score in metric.compute(comparison).scores.items():
            assert 0 < score == pytest.approx(theirs[name], rel=1e-12), name
    assert PrecisionRecall(k=k).compute(compare(larger, real, bench=bench)).samples == 400


@pytest.mark.parametrize(("n", "m"), [(60, 60), (60, 90), (97, 30), (1, 8), (128, 127), (1000, 64)])
def test_w2_of_any_two_sizes_is_that_of_pot(n, m):
    ot = pytest.importorskip("ot", reason=MISSING)
    p, q = features(n, 6, 0).T.contiguous(), features(m, 6, 1).T.contiguous() ** 3
    theirs = [ot.emd2_1d(a, b, metric="sqeuclidean") for a, b in zip(p.numpy(), q.numpy(), strict=True)]
    np.testing.assert_allclose(squared_w2(p, q).numpy(), theirs, rtol=1e-9)
    others = ot.wasserstein_1d(p.T.numpy(), q.T.numpy(), p=2)
    np.testing.assert_allclose(squared_w2(p, q).numpy(), others, rtol=1e-6)


def test_the_sliced_distance_of_unequal_sizes_is_that_of_pot_along_the_same_directions():
    ot = pytest.importorskip("ot", reason=MISSING)
    p, q = features(150, 6, 0), features(430, 6, 1)
    theta = torch.nn.functional.normalize(features(40, 6, 2), dim=1)
    theirs = ot.sliced_wasserstein_distance(p.numpy(), q.numpy(), projections=theta.T.numpy())
    for dtype, limit in ((torch.float64, 1e-9), (torch.float32, 1e-6)):
        ours = squared_w2((theta @ p.T).to(dtype), (theta @ q.T).to(dtype)).mean().sqrt()
        assert float(ours) == pytest.approx(theirs, rel=limit)
