"""Random data are what their parameters say, and the same for the same seed."""

from __future__ import annotations

import pytest
import torch

from cswf_core.interfaces import Dataset, Key
from cswf_core.recipe import RecipeError, load_recipe
from cswf_plugins.datasets import synthetic
from cswf_plugins.datasets.synthetic import Synthetic


def loaded(seed: int = 0, dtype: torch.dtype = torch.float32, **parameters: object) -> Dataset:
    return Synthetic(**parameters).load(Key(seed, "data").open(dtype=dtype))


def correlation(a: torch.Tensor, b: torch.Tensor) -> float:
    return float(torch.corrcoef(torch.stack([a.flatten(), b.flatten()]))[0, 1])


@pytest.mark.parametrize("shape", [(3, 6, 5), (1, 8, 8), (1, 1, 1), (7,), (1,)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_there_are_as_many_samples_of_that_shape_as_asked_for_all_within_bounds(shape, dtype):
    data = loaded(count=33, shape=shape, dtype=dtype)
    assert data.space.shape == shape
    assert data.x.shape == (data.space.dimension, 33)
    assert data.x.dtype == dtype
    assert float(data.x.abs().max()) < 1
    assert data.conditions.labels is None
    assert data.bin_width == 0


def test_more_samples_than_one_block_are_all_different(monkeypatch):
    monkeypatch.setattr(synthetic, "BLOCK", 10)
    x = loaded(count=35, shape=(1, 4, 4)).x
    assert len(torch.unique(x, dim=1).T) == 35


@pytest.mark.parametrize("rho", [0.0, 0.5, 0.95])
def test_pixels_are_correlated_with_their_neighbours_as_asked_for(rho):
    # tanh, undone here, bends the scale a little; the correlation is that of what it was given.
    pixels = torch.atanh(loaded(count=4000, shape=(2, 6, 6), correlation=rho, dtype=torch.float64).x)
    images = pixels.T.reshape(-1, 2, 6, 6)
    for a, b in (
        (images[:, :, :, 1:], images[:, :, :, :-1]),
        (images[:, :, 1:], images[:, :, :-1]),
        (images[:, 0], images[:, 1]),
    ):
        assert correlation(a, b) == pytest.approx(rho, abs=0.03)
    assert correlation(images[:, :, 2:], images[:, :, :-2]) == pytest.approx(rho**2, abs=0.03)
    torch.testing.assert_close(pixels.std(dim=1), torch.full((72,), 0.5).double(), atol=0.03, rtol=0)


def test_classes_are_alike_in_size_and_share_a_pattern():
    data = loaded(count=3001, shape=(1, 6, 6), classes=3)
    labels = data.conditions.labels
    assert labels is not None
    assert torch.bincount(labels).tolist() == [1001, 1000, 1000]
    assert data.classes == ("0", "1", "2")
    means = torch.stack([data.x[:, labels == c].mean(dim=1) for c in range(3)])
    assert float(torch.cdist(means, means)[0, 1:].min()) > 0.3


def test_grey_levels_are_whole_and_come_with_their_width():
    data = loaded(count=200, shape=(1, 4, 4), dequantise="step")
    assert data.bin_width == 1 / 128
    levels = (data.x + 1) * 128
    assert torch.equal(levels, levels.round())
    assert float(levels.min()) >= 0
    assert float(levels.max()) <= 255


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ("data.shape=[3, 32]", "shape must be [C, H, W] or [d]"),
        ("data.shape=[3, 0, 32]", "shape must be [C, H, W] or [d]"),
        ("data.count=0", "must be at least 1"),
        ("data.correlation=1", "correlation must be at least 0 and at most 0.999"),
        ("data.classes=-1", "must be at least 0"),
    ],
)
def test_impossible_parameters_are_refused_in_a_recipe(change, complaint, registry):
    with pytest.raises(RecipeError) as error:
        load_recipe("digits-unconditional", ["data=synthetic", change], registry=registry)
    assert complaint in str(error.value)
