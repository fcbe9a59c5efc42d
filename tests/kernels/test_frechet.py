"""The Fréchet distance: what its formula says, what clean-fid says, and where sets are small."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cswf_core.kernels.frechet import Moments, frechet_distance, moments


def rows(n: int, width: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    mixing = torch.randn(width, width, generator=generator)
    return torch.randn(n, width, generator=generator) @ mixing + torch.randn(width, generator=generator)


def test_moments_are_numpy_s_in_float64():
    features = rows(20_000, 7, 0)
    found = moments(features)
    np.testing.assert_allclose(found.mean.numpy(), features.double().numpy().mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(
        found.covariance.numpy(), np.cov(features.double().numpy(), rowvar=False), rtol=1e-10
    )
    assert found.count == 20_000


@given(st.integers(1, 12), st.integers(0, 1000))
def test_of_gaussians_with_common_axes_it_is_the_known_sum(width, seed):
    generator = torch.Generator().manual_seed(seed)
    axes = torch.linalg.qr(torch.randn(width, width, generator=generator, dtype=torch.float64)).Q
    means = torch.randn(2, width, generator=generator, dtype=torch.float64)
    spreads = torch.rand(2, width, generator=generator, dtype=torch.float64) * 3
    p, q = (Moments(m, axes @ torch.diag(s**2) @ axes.T, 9) for m, s in zip(means, spreads, strict=True))
    expected = float((means[0] - means[1]).square().sum() + (spreads[0] - spreads[1]).square().sum())
    assert frechet_distance(p, q) == pytest.approx(expected, rel=1e-6, abs=1e-6)
    assert frechet_distance(q, p) == pytest.approx(frechet_distance(p, q), rel=1e-6, abs=1e-6)


def test_a_set_has_distance_0_to_itself_also_where_its_covariance_is_singular():
    for n, width in ((500, 20), (10, 200)):
        p = moments(rows(n, width, 1))
        assert frechet_distance(p, p) == pytest.approx(0, abs=1e-5 * float(p.covariance.trace()))


def test_it_is_clean_fid_s_where_that_works():
    fid = pytest.importorskip("cleanfid.fid")
    p, q = rows(600, 40, 2), rows(500, 40, 3)
    try:
        theirs = float(fid.fid_from_feats(p.double().numpy(), q.double().numpy()))
    except TypeError as error:
        pytest.skip(f"clean-fid's own function does not run with this SciPy: {error}")
    assert frechet_distance(moments(p), moments(q)) == pytest.approx(theirs, rel=1e-9)
