"""Scores of the same features are those of other people's programs: torch-fidelity, prdc and POT."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from cswf_core.kernels.frechet import frechet_distance, moments
from cswf_core.kernels.sorting import squared_w2
from cswf_plugins.metrics.density_coverage import DensityCoverage
from cswf_plugins.metrics.kid import Kernels
from cswf_plugins.metrics.precision_recall import PrecisionRecall
from tests.evaluation.conftest import compare
from tests.evaluation.test_metrics import images, with_features

POT = "POT is not installed; it is one of the packages for tests (`pip install cswf[dev]`)"
FIDELITY = POT.replace("POT", "torch-fidelity")
PRDC = POT.replace("POT", "prdc")


def features(n: int, width: int, seed: int) -> torch.Tensor:
    """Clouds whose axes and places differ with the seed, in float64: n×width."""
    generator = torch.Generator().manual_seed(seed)
    mixing = torch.randn(width, width, generator=generator, dtype=torch.float64) / width**0.5
    place = torch.randn(width, generator=generator, dtype=torch.float64) / 4
    return torch.randn(n, width, generator=generator, dtype=torch.float64) @ mixing + place


@pytest.mark.parametrize(("n", "m"), [(700, 500), (3000, 400)])
def test_fid_is_that_of_torch_fidelity(n, m):
    fidelity = pytest.importorskip("torch_fidelity.metric_fid", reason=FIDELITY)
    p, q = features(n, 48, 0), features(m, 48, 1)
    statistics = [fidelity.fid_features_to_statistics(rows) for rows in (p, q)]
    theirs = fidelity.fid_statistics_to_metric(*statistics, False)["frechet_inception_distance"]
    assert frechet_distance(moments(p), moments(q)) == pytest.approx(theirs, rel=1e-9)


def test_the_kernel_distance_is_that_of_torch_fidelity():
    fidelity = pytest.importorskip("torch_fidelity.metric_kid", reason=FIDELITY)
    p, q = features(300, 48, 0), features(300, 48, 1)
    kernels = [
        fidelity.kernel_poly(
            a.numpy(),
            b.numpy(),
            kid_kernel_poly_degree=3,
            kid_kernel_poly_gamma=None,
            kid_kernel_poly_coef0=1,
        )
        for a, b in ((p, p), (p, q), (q, q))
    ]
    assert Kernels.of(p, q).distance == pytest.approx(fidelity.mmd2(*kernels), rel=1e-9)


@pytest.mark.parametrize("k", [1, 3, 5])
def test_precision_recall_density_and_coverage_are_those_of_prdc(k):
    prdc = pytest.importorskip("prdc", reason=PRDC)
    p, q = features(400, 12, 0), features(400, 12, 0).roll(1, dims=1) * 1.1
    theirs = prdc.compute_prdc(q.numpy(), p.numpy(), k)
    generated, real = images(400, 0), images(400, 1)
    comparison = compare(generated, real, bench=with_features({generated: p, real: q}))
    for metric in (PrecisionRecall(k=k), DensityCoverage(k=k)):
        for name, score in metric.compute(comparison).scores.items():
            assert 0 < score == pytest.approx(theirs[name], rel=1e-12), name


@pytest.mark.parametrize(("n", "m"), [(60, 60), (60, 90), (97, 30), (1, 8), (128, 127), (1000, 64)])
def test_w2_of_any_two_sizes_is_that_of_pot(n, m):
    ot = pytest.importorskip("ot", reason=POT)
    p, q = features(n, 6, 0).T.contiguous(), features(m, 6, 1).T.contiguous() ** 3
    theirs = [ot.emd2_1d(a, b, metric="sqeuclidean") for a, b in zip(p.numpy(), q.numpy(), strict=True)]
    np.testing.assert_allclose(squared_w2(p, q).numpy(), theirs, rtol=1e-9)
    others = ot.wasserstein_1d(p.T.numpy(), q.T.numpy(), p=2)
    np.testing.assert_allclose(squared_w2(p, q).numpy(), others, rtol=1e-6)


def test_the_sliced_distance_of_unequal_sizes_is_that_of_pot_along_the_same_directions():
    ot = pytest.importorskip("ot", reason=POT)
    p, q = features(150, 6, 0), features(430, 6, 1)
    theta = torch.nn.functional.normalize(features(40, 6, 2), dim=1)
    theirs = ot.sliced_wasserstein_distance(p.numpy(), q.numpy(), projections=theta.T.numpy())
    for dtype, limit in ((torch.float64, 1e-9), (torch.float32, 1e-6)):
        ours = squared_w2((theta @ p.T).to(dtype), (theta @ q.T).to(dtype)).mean().sqrt()
        assert float(ours) == pytest.approx(theirs, rel=limit)
