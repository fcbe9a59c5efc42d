"""Enlarging agrees with Pillow and keeps what is constant."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from cswf_core.kernels.resizing import KERNELS, pinned_bilinear, resizing


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(("coarse", "fine"), [(1, 28), (2, 3), (7, 28), (11, 28), (24, 32), (8, 8)])
def test_what_is_constant_stays_so(kernel, coarse, fine):
    A = resizing(coarse, fine, kernel)
    assert A.shape == (fine, coarse)
    np.testing.assert_allclose(A.sum(axis=1), 1)


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_same_size_changes_nothing(kernel):
    np.testing.assert_allclose(resizing(9, 9, kernel), np.eye(9), atol=1e-12)


@pytest.mark.parametrize(
    ("kernel", "pillow"), [("lanczos3", Image.Resampling.LANCZOS), ("bicubic", Image.Resampling.BICUBIC)]
)
@pytest.mark.parametrize(("coarse", "fine"), [(4, 28), (11, 28), (24, 32)])
def test_it_enlarges_as_pillow_does(kernel, pillow, coarse, fine):
    picture = np.random.default_rng(0).normal(size=(coarse, coarse)).astype(np.float32)
    A = resizing(coarse, fine, kernel)
    expected = np.asarray(Image.fromarray(picture).resize((fine, fine), pillow))
    np.testing.assert_allclose(A @ picture @ A.T, expected, atol=1e-4)


@pytest.mark.parametrize(("coarse", "fine"), [(4, 28), (11, 28), (24, 32), (3, 7)])
def test_nearest_is_pytorch_s(coarse, fine):
    line = torch.arange(coarse, dtype=torch.float64)
    expected = torch.nn.functional.interpolate(line[None, None], size=fine, mode="nearest-exact")[0, 0]
    np.testing.assert_array_equal(resizing(coarse, fine, "nearest") @ line.numpy(), expected.numpy())


@pytest.mark.parametrize(("before", "after"), [(28, 299), (32, 299), (299, 299), (640, 299), (5, 3)])
def test_bicubic_resizing_is_pillow_s_in_both_directions(before, after):
    line = np.random.default_rng(0).uniform(0, 255, (1, before)).astype(np.float32)
    pillow = np.asarray(Image.fromarray(line, mode="F").resize((after, 1), Image.Resampling.BICUBIC))
    np.testing.assert_allclose(resizing(before, after, "bicubic") @ line[0], pillow[0], atol=1e-3)


@pytest.mark.parametrize(("before", "after"), [(28, 299), (32, 299), (299, 299), (640, 299)])
def test_the_pinned_rule_begins_at_the_first_pixel_and_stays_on_the_last(before, after):
    A = pinned_bilinear(before, after)
    np.testing.assert_allclose(A.sum(axis=1), 1)
    place = np.minimum(np.arange(after) * before / after, before - 1)
    np.testing.assert_allclose(A @ np.arange(before), place, atol=1e-9)
    assert (A >= 0).all()
