"""The Fréchet distance: what its formula says, what clean-fid says, and where sets are small."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cswf_core.kernels.frechet import Frechet, Moments, distance_of_few, frechet_distance, moments, root_of


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


@pytest.mark.slow
def test_it_is_clean_fid_s_where_that_works():
    """Importing clean-fid takes ten seconds."""
    fid = pytest.importorskip("cleanfid.fid")
    p, q = rows(600, 40, 2), rows(500, 40, 3)
    try:
        theirs = float(fid.fid_from_feats(p.double().numpy(), q.double().numpy()))
    except TypeError as error:
        pytest.skip(f"clean-fid's own function does not run with this SciPy: {error}")
    assert frechet_distance(moments(p), moments(q)) == pytest.approx(theirs, rel=1e-9)


def test_the_distance_with_its_maps_is_the_distance():
    for n, m in ((300, 200), (15, 200), (300, 15), (2, 2)):
        p, q = moments(rows(n, 20, 0)), moments(rows(m, 20, 1))
        assert Frechet.between(p, q).distance == pytest.approx(frechet_distance(p, q), rel=1e-7)
        assert frechet_distance(q, p, root_of(q)) == pytest.approx(frechet_distance(p, q), rel=1e-7)


@pytest.mark.parametrize("n", [12, 60])
def test_influences_are_what_a_little_more_weight_does(n):
    """Also of 12 vectors of 20 numbers, whose covariance is singular."""
    p, q = rows(n, 20, 0).double(), rows(50, 20, 1).double()

    def weighted(features: torch.Tensor, index: int, more: float) -> Moments:
        weights = torch.full((len(features),), (1 - more) / len(features), dtype=torch.float64)
        weights[index] += more
        mean = weights @ features
        centred = features - mean
        return Moments(mean, centred.T @ (weights[:, None] * centred), len(features))

    def plain(features: torch.Tensor) -> Moments:
        return weighted(features, 0, 0.0)

    frechet, little = Frechet.between(plain(p), plain(q)), 1e-6
    for index in (0, 7):
        ours, theirs = weighted(p, index, little), weighted(q, index, little)
        changes = (
            frechet_distance(ours, plain(q)) - frechet.distance,
            frechet_distance(plain(p), theirs) - frechet.distance,
        )
        influences = (frechet.influences_of_p(p)[index], frechet.influences_of_q(q)[index])
        for change, influence in zip(changes, influences, strict=True):
            assert change / little == pytest.approx(float(influence), rel=1e-3)


def test_their_deviation_is_the_spread_of_a_bootstrap():
    p, q = rows(400, 16, 0), rows(600, 16, 1)
    frechet = Frechet.between(moments(p), moments(q))
    generator = torch.Generator().manual_seed(2)

    def again(features: torch.Tensor) -> Moments:
        return moments(features[torch.randint(len(features), (len(features),), generator=generator)])

    for features, influences, of_p in (
        (p, frechet.influences_of_p(p), True),
        (q, frechet.influences_of_q(q), False),
    ):
        distances = [
            frechet_distance(again(p), frechet.q) if of_p else frechet_distance(frechet.p, again(q))
            for _ in range(200)
        ]
        predicted = float(influences.std()) / len(features) ** 0.5
        assert predicted == pytest.approx(float(np.std(distances)), rel=0.2)


def test_vectors_that_are_all_the_same_have_no_influence():
    p, q = torch.ones(5, 3), rows(50, 3, 0)
    frechet = Frechet.between(moments(p), moments(q))
    assert frechet.influences_of_p(p).abs().max() < 1e-12
    assert torch.isfinite(frechet.influences_of_q(q)).all()


def test_the_distance_of_few_vectors_is_that_of_their_moments():
    draw = torch.Generator().manual_seed(3)
    few, many = torch.randn(7, 20, generator=draw), torch.randn(90, 20, generator=draw) * 2
    assert distance_of_few(few, moments(many)) == pytest.approx(frechet_distance(moments(few), moments(many)))
