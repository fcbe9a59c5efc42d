"""Filters of each family have the structure that they claim, and no direction is left out."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from cswf_core.errors import DataError
from cswf_core.interfaces import Draw, Key, Space
from cswf_plugins.projections.low_rank import FAMILIES, LowRank, profiles
from cswf_plugins.projections.patches import counts, window
from cswf_plugins.schedules.constant import Constant
from tests.conftest import small_flow
from tests.plugins.test_projections import noise_images

GRID = Space((3, 9, 7))
GRIDS = [Space((1, 1, 1)), Space((3, 1, 1)), Space((1, 2, 2)), Space((2, 1, 6)), Space((1, 5, 3)), GRID]


def draw(index: int = 0, dtype: torch.dtype = torch.float64) -> Draw:
    return Key(6, "test", index=index).open(dtype=dtype)


def only(family: str, **parameters) -> LowRank:
    """Filters of one family."""
    return LowRank(**{each: float(each == family) for each in FAMILIES}, **parameters)


def ranks(matrices: Tensor) -> set[int]:
    values = torch.linalg.svdvals(matrices)
    return set((values > 1e-9 * values[..., :1]).sum(dim=-1).flatten().tolist())


def moments(sampler: LowRank, space: Space, count: int) -> Tensor:
    theta = sampler.sample(space, count, draw())
    return theta.T @ theta / count


@pytest.mark.parametrize("patch", [5, 9])
@pytest.mark.parametrize("family", ["plane", "separable", "oriented"])
def test_filters_have_one_colour_each(family, patch):
    theta = only(family, patch=patch).sample(GRID, 50, draw()).reshape(50, 3, -1)
    assert ranks(theta) == {1}
    colours = torch.linalg.svd(theta)[0][:, :, 0]
    assert ranks(colours) == {3}  # and not all the same one


def test_dense_filters_have_all_colours_and_are_those_of_conv_stack_s_window():
    theta = only("dense", patch=5).sample(GRID, 50, draw())
    assert ranks(theta.reshape(50, 3, -1)) == {3}
    whole = only("dense", patch=9).sample(GRID, 50, draw())
    torch.testing.assert_close(whole, draw().sphere(50, GRID.dimension))


@pytest.mark.parametrize("patch", [5, 9])
def test_separable_filters_are_rows_times_columns(patch):
    theta = only("separable", patch=patch).sample(GRID, 50, draw()).reshape(150, 9, 7)
    assert ranks(theta) == {1}


@pytest.mark.parametrize("patch", [5, 9])
@pytest.mark.parametrize(("family", "parameters"), [("plane", {}), ("oriented", {"flat": 0.0}), ("dense", {})])
def test_others_are_not(family, parameters, patch):
    theta = only(family, patch=patch, **parameters).sample(GRID, 50, draw()).reshape(150, 9, 7)
    assert min(ranks(theta)) >= 2


@pytest.mark.parametrize("shape", [(9, 7), (8, 8), (1, 5), (1, 1)])
def test_flat_profiles_are_constant_across_their_angle_and_others_are_products(shape):
    height, width = shape
    planes = profiles(60, 40, height, width, draw())
    again = draw()
    angles = again.uniform(60, 1, 1) * math.pi
    reach = math.ceil(math.hypot(height - 1, width - 1) / 2)
    along, across = again.normal(60, 2 * reach + 2), again.normal(20, 2 * reach + 2)
    rows, columns = np.mgrid[:height, :width] - (np.array(shape)[:, None, None] - 1) / 2
    knots = np.arange(2 * reach + 2) - reach
    for number, (plane, angle) in enumerate(zip(planes, angles.flatten().tolist(), strict=True)):
        expected = np.interp(math.cos(angle) * rows + math.sin(angle) * columns, knots, along[number])
        if number >= 40:
            other = np.interp(math.cos(angle) * columns - math.sin(angle) * rows, knots, across[number - 40])
            expected = expected * other
        np.testing.assert_allclose(plane, expected, atol=1e-12)


@pytest.mark.parametrize("flat", [0.0, 0.25, 1.0])
def test_a_share_of_the_oriented_filters_is_flat(flat):
    """On a grid, those that depend on the distance along the angle alone: pixels at right angles are alike."""
    theta = only("oriented", patch=9, flat=flat).sample(Space((1, 9, 9)), 40, draw()).reshape(40, 9, 9)
    again = draw()
    angles = (again.uniform(40, 1, 1) * math.pi).flatten()
    rows, columns = (each - 4 for each in torch.meshgrid(torch.arange(9), torch.arange(9), indexing="ij"))
    found = 0
    for plane, angle in zip(theta, angles, strict=True):
        order = (angle.cos() * rows + angle.sin() * columns).flatten().argsort()
        found += bool(plane.flatten()[order].diff().abs().mean() < 0.5 * plane.std())  # a line without jumps
    assert found == flat * 40


def test_patches_fade_out_through_the_window_and_lie_anywhere():
    space = Space((1, 15, 15))
    theta = only("plane", patch=5, power=1.0).sample(space, 40_000, draw()).reshape(-1, 15, 15)
    seen = theta != 0
    rows, columns = seen.any(dim=2).sum(dim=1), seen.any(dim=1).sum(dim=1)
    assert set(rows.tolist()) == set(columns.tolist()) == {3, 4, 5}
    assert float((rows == 5).double().mean()) == pytest.approx(11 / 15, abs=0.02)
    inside = theta[(rows == 5) & (columns == 5)]
    sizes = inside[inside != 0].reshape(-1, 5, 5).abs().log().mean(dim=0)  # all shifted alike by unit length
    line = torch.from_numpy(window(2, 1.0))
    torch.testing.assert_close((sizes - sizes[2, 2]).exp(), line[:, None] * line, atol=0.02, rtol=0)


@pytest.mark.parametrize("total", [0, 1, 7, 1000])
@pytest.mark.parametrize(
    "shares", [(0.3, 0.25, 0.2, 0.25), (1.0, 0.0, 0.0, 0.0), (0.0, 0.0, 5.0), (1, 1, 1), (0.0, 0.0), (0.1,) * 9]
)
def test_counts_add_up_and_are_in_proportion(shares, total):
    parts = counts(shares, total)
    whole = sum(shares)
    if not whole:
        assert parts == [0] * len(shares)
        return
    assert sum(parts) == total
    for share, part in zip(shares, parts, strict=True):
        assert abs(part - total * share / whole) <= 1
        assert part >= 0
        assert share or not part


def test_shares_are_of_their_sum_and_families_come_one_after_the_other():
    mixed = LowRank(patch=9, plane=2.0, separable=4.0, oriented=0.0, dense=2.0)
    theta = mixed.sample(GRID, 80, draw()).reshape(80, 3, 63)
    assert ranks(theta[:60]) == {1}
    assert ranks(theta[60:]) == {3}
    assert ranks(theta[20:60].reshape(-1, 9, 7)) == {1}
    assert min(ranks(theta[:20].reshape(-1, 9, 7))) > 1
    with pytest.raises(ValueError, match="one of plane, separable, oriented, dense must be above 0"):
        LowRank(plane=0.0, separable=0.0, oriented=0.0, dense=0.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("absent", [None, *FAMILIES])
@pytest.mark.parametrize("space", GRIDS, ids=str)
def test_directions_have_unit_length_on_any_grid_with_any_share_left_out(space, absent, dtype):
    for patch in (1, 3, 9):
        sampler = LowRank(patch=patch) if absent is None else LowRank(patch=patch, **{absent: 0.0})
        for count in (1, 2, 50):
            theta = sampler.sample(space, count, draw(dtype=dtype))
            assert theta.shape == (count, space.dimension)
            assert theta.dtype == dtype
            torch.testing.assert_close(theta.norm(dim=1), torch.ones(count, dtype=dtype))
            assert torch.equal(theta, sampler.sample(space, count, draw(dtype=dtype)))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("space", [Space((1, 1, 1)), Space((1, 4, 4))], ids=str)
def test_a_single_pixel_has_a_direction_even_if_a_random_number_is_0(space, family, monkeypatch):
    """In float32 one of 2²⁴ is."""
    real = Draw.normal

    def with_zeros(self: Draw, *shape: int) -> Tensor:
        numbers = real(self, *shape)
        numbers.view(-1)[: numbers.numel() // 2] = 0
        return numbers

    monkeypatch.setattr(Draw, "normal", with_zeros)
    theta = only(family, patch=1).sample(space, 40, draw())
    torch.testing.assert_close(theta.norm(dim=1), torch.ones(40).double())


@pytest.mark.parametrize("patch", [2, 4, 6, 8])
def test_even_patches_that_do_not_cover_are_refused(patch):
    complaint = f"'low-rank' has patches of odd size on a grid of 9×7, or one as large as the grid; got {patch}"
    with pytest.raises(DataError, match=complaint):
        LowRank(patch=patch).sample(GRID, 5, draw())
    LowRank(patch=10).sample(GRID, 5, draw())


@pytest.mark.parametrize(
    ("space", "patch"), [(Space((3, 7, 7)), 7), (Space((1, 8, 8)), 5), (Space((1, 6, 9)), 3)]
)
def test_no_direction_is_drawn_more_than_twice_as_often_as_others(space, patch):
    d = space.dimension
    second = moments(LowRank(patch=patch), space, 400 * d)
    assert float(second.trace()) == pytest.approx(1)
    values = torch.linalg.eigvalsh(second) * d
    assert float(values[-1]) < 2.1
    assert float(values[0]) > 0.3


@pytest.mark.parametrize("family", FAMILIES)
def test_colours_and_signs_have_no_preference(family):
    space = Space((3, 3, 3))
    theta = only(family, patch=3).sample(space, 20_000, draw())
    second = (theta.T @ theta / 20_000).reshape(3, 9, 3, 9)
    colours = second.diagonal(dim1=1, dim2=3).sum(dim=2)
    torch.testing.assert_close(colours, torch.eye(3).double() / 3, atol=0.01, rtol=0)
    assert float(theta.mean(dim=0).abs().max()) < 0.01


def test_dilated_patches_leave_every_second_pixel_out():
    theta = LowRank(patch=3, dilation=2).sample(Space((1, 20, 20)), 200, draw()).reshape(200, 20, 20)
    for seen in (theta != 0).any(dim=2):
        assert set(seen.nonzero()[:, 0].diff().tolist()) == {2}


def test_a_flow_without_a_pyramid_has_the_sampler_s_own_patches():
    schedule = Constant(steps=10, directions=200)
    states = list(small_flow(noise_images(GRID), projection=LowRank(patch=3), schedule=schedule))
    assert states[-1].distance < 0.7 * states[0].distance
