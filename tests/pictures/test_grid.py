"""Pictures show what they claim to show."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch

from cswf_core.interfaces import Conditions, Dataset, Masked, Space
from cswf_core.pictures import grid as pictures
from cswf_core.pictures import scatter
from cswf_core.runs.samples import archive, completions_picture, samples_picture


def test_small_images_are_enlarged_by_a_whole_factor_whatever_their_channels():
    image = torch.tensor([[[0, 255], [255, 0]]], dtype=torch.uint8)
    drawn = np.asarray(pictures.tile(image))
    assert drawn.shape == (40, 40, 3)
    assert (drawn[:20, :20] == 0).all()
    assert (drawn[:20, 20:] == 255).all()
    for channels in (1, 3, 4):
        images = torch.zeros(5, channels, 9, 11, dtype=torch.uint8)
        assert pictures.grid(images, None, (), columns=2).size == (2 * 46 + 2, 2 * 38 + 2)


def test_a_grid_has_a_row_for_each_class():
    """Class c is drawn in grey level 50c: row c must hold that grey and no other class's."""
    labels = torch.tensor([2, 0, 1, 0, 2, 1])
    images = (labels * 50 + 20).to(torch.uint8)[:, None, None, None].expand(6, 1, 40, 40)
    grid = np.asarray(pictures.grid(images, labels, ("a", "b", "c"), columns=2))
    for c in range(3):
        row = grid[2 + c * 42 + 20, -80:]
        assert set(np.unique(row)) <= {c * 50 + 20, 255}
        assert (row == c * 50 + 20).any()


def test_a_table_has_texts_before_rows_and_under_pictures():
    tiles = [[pictures.tile(torch.full((1, 40, 40), 255, dtype=torch.uint8))] * 2] * 2
    plain, told = (
        np.asarray(pictures.table(tiles, captions=captions).convert("L"))
        for captions in ((), [["", "0.5"], ["", ""]])
    )
    assert told.shape[0] == plain.shape[0] + 2 * pictures.CAPTION
    under_first, under_second = told[42 : 42 + pictures.CAPTION, :42], told[42 : 42 + pictures.CAPTION, 42:]
    assert (under_first == 255).all()
    assert (under_second < 100).any()
    assert (told[42 + pictures.CAPTION :] == 255).all()  # an empty text draws nothing
    named = np.asarray(pictures.table(tiles, left=["", "cat"], captions=[["1"], ["2"]]).convert("L"))
    margin = named.shape[1] - plain.shape[1]
    second_row = pictures.GAP + 42 + pictures.CAPTION
    assert (named[:second_row, :margin] == 255).all()
    assert (named[second_row : second_row + 40, :margin] < 100).any()


def test_a_grid_of_many_classes_stays_small_and_skips_empty_ones():
    labels = torch.arange(0, 20_000, 10)
    images = torch.zeros(2000, 1, 40, 40, dtype=torch.uint8)
    grid = pictures.grid(images, labels, tuple(map(str, range(20_000))), columns=3)
    assert grid.size[1] == pictures.MOST_ROWS * 42 + 2


def test_levels_enclose_their_share_of_the_mass():
    density = np.random.default_rng(0).random((50, 50))
    density /= density.sum()
    levels = scatter.levels(density)
    assert levels == sorted(levels)
    for share, level in zip(scatter.SHARES, levels, strict=True):
        assert density[density >= level].sum() == pytest.approx(share, abs=0.01)


def test_particles_are_drawn_where_they_are():
    rng = np.random.default_rng(0)
    target = rng.normal(size=(500, 2))
    drawn = np.asarray(scatter.panels([("$", np.full((50, 2), 1.5))], None, target, 2)).astype(int)
    dark = np.argwhere(drawn[22:-10, 10:-10].sum(axis=2) < 200)
    assert len(dark)
    assert (dark[:, 0] < scatter.SIDE / 2).all()
    assert (dark[:, 1] > scatter.SIDE / 2).all()


@pytest.mark.parametrize("d", [1, 2, 5])
def test_points_of_any_dimension_can_be_drawn(d):
    data = Dataset(x=torch.randn(d, 40), space=Space((d,)))
    drawn = samples_picture(data, data, columns=10)
    assert drawn.size == (scatter.SIDE + 2 * scatter.GAP, scatter.SIDE + scatter.GAP + scatter.HEADER)
    assert drawn == samples_picture(data, data, columns=10)  # to the pixel


def test_an_archive_has_the_observed_part_and_its_mask():
    data = Dataset(x=torch.zeros(4, 3), space=Space((1, 2, 2)), conditions=Conditions(torch.tensor([0, 1, 0])))
    mask = torch.tensor([True, False, False, True])
    arrays = np.load(io.BytesIO(archive(data, Masked(mask))))
    assert arrays["images"].shape == (3, 1, 2, 2)
    assert arrays["mask"].tolist() == [[[[True, False], [False, True]]]]
    assert arrays["observed"][0].tolist() == [[[128, 0], [0, 128]]]
    assert arrays["labels"].tolist() == [0, 1, 0]


def test_completions_show_what_was_seen_several_completions_and_the_original():
    space = Space((1, 2, 2))
    data = Dataset(x=torch.zeros(4, 5), space=space, held_out=Dataset(x=torch.full((4, 2), 0.5), space=space))
    origin = torch.tensor([-1, -1, -1, -2, -2, -2, 4])
    generated = Dataset(x=torch.full((4, 7), -0.5), space=space, conditions=Conditions(origin=origin))
    seen = Masked(torch.tensor([True, False, False, False]))
    drawn = np.asarray(completions_picture(generated, data, seen, rows=10).convert("L"))
    tile = 40
    left, top = pictures.GAP, 16 + pictures.GAP
    assert drawn.shape == (top + 2 * (tile + pictures.GAP), left + 5 * (tile + pictures.GAP))

    def pixel(row: int, column: int, x: int, y: int) -> int:
        return int(drawn[top + row * (tile + pictures.GAP) + y, left + column * (tile + pictures.GAP) + x])

    for row in (0, 1):
        assert pixel(row, 0, 5, 5) == 64  # seen
        assert pixel(row, 0, 35, 35) == 0  # hidden
        assert {pixel(row, c, 35, 35) for c in (1, 2, 3)} == {64}
        assert pixel(row, 4, 35, 35) == 192  # the original
