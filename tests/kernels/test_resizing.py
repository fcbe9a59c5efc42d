"""Enlarging agrees with Pillow and keeps what is constant."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from cswf_core.kernels.resizing import KERNELS, pinned_bilinear, resizing


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(("coarse", "fine"), [(1, 28), (2, 3), (7, 28), (11, 28), (24, 32), (9, 9)])
def test_what_is_constant_stays_so_and_everything_at_the_same_size(kernel, coarse, fine):
    A = resizing(coarse, fine, kernel)
    assert A.shape == (fine, coarse)
    np.testing.assert_allclose(A.sum(axis=1), 1)
    if coarse == fine:
        np.testing.assert_allclose(A, np.eye(fine), atol=1e-12)


LANCZOS = [
    ("lanczos3", Image.Resampling.LANCZOS, before, after) for before, after in [(4, 28), (11, 28), (24, 32)]
]
BOTH_WAYS = [(4, 28), (28, 299), (32, 299), (299, 299), (640, 299), (5, 3)]
BICUBIC = [("bicubic", Image.Resampling.BICUBIC, before, after) for before, after in BOTH_WAYS]


@pytest.mark.parametrize(("kernel", "pillow", "before", "after"), LANCZOS + BICUBIC)
def test_it_enlarges_as_pillow_does_and_bicubic_makes_smaller_too(kernel, pillow, before, after):
    picture = np.random.default_rng(0).normal(size=(before, before)).astype(np.float32)
    A = resizing(before, after, kernel)
    expected = np.asarray(Image.fromarray(picture).resize((after, after), pillow))
    np.testing.assert_allclose(A @ picture @ A.T, expected, atol=1e-4)


@pytest.mark.parametrize(("coarse", "fine"), [(4, 28), (11, 28), (24, 32), (3, 7)])
def test_nearest_is_pytorch_s(coarse, fine):
    line = torch.arange(coarse, dtype=torch.float64)
    expected = torch.nn.functional.interpolate(line[None, None], size=fine, mode="nearest-exact")[0, 0]
    np.testing.assert_array_equal(resizing(coarse, fine, "nearest") @ line.numpy(), expected.numpy())


@pytest.mark.parametrize(("before", "after"), [(28, 299), (32, 299), (299, 299), (640, 299)])
def test_the_pinned_rule_begins_at_the_first_pixel_and_stays_on_the_last(before, after):
    A = pinned_bilinear(before, after)
    np.testing.assert_allclose(A.sum(axis=1), 1)
    place = np.minimum(np.arange(after) * before / after, before - 1)
    np.testing.assert_allclose(A @ np.arange(before), place, atol=1e-9)
    assert (A >= 0).all()
