"""Pictures of several runs show each run under its own label."""

from __future__ import annotations

import attrs
import numpy as np
import pytest
import torch
from PIL import Image

from cswf_core.interfaces import Conditions, Dataset, Space
from cswf_core.pictures import compare as comparison
from cswf_core.pictures import grid as pictures
from cswf_core.pictures.flow_figure import FlowFigure
from cswf_core.runs import samples


@pytest.fixture
def make(tmp_path):
    """Make the folder of a run whose images are all of one grey, with a flow.png for some steps."""

    def make(name: str, grey: int, steps: tuple[int, ...] = (0, 5), labelled: bool = True):
        folder = tmp_path / name
        folder.mkdir()
        n, level = 24, (grey + 0.5) * 2 / 256 - 1
        labels = torch.arange(n) % 12 if labelled else None
        data = Dataset(
            x=torch.full((100, n), level),
            space=Space((1, 10, 10)),
            conditions=Conditions(labels=labels),
            classes=tuple(map(str, range(12))) if labelled else (),
        )
        assert (data.images() == grey).all()
        (folder / "samples.npz").write_bytes(samples.archive(data, None))
        figure = FlowFigure(steps)
        figure.moments = [(step, data.take(torch.arange(5)).images()) for step in steps]
        drawn = figure.draw(data)
        if drawn is not None:
            drawn.save(folder / "flow.png")
        return name, folder

    return make


@attrs.frozen
class Box:
    """Where a grey is, without the few pixels that the edges of letters have of it."""

    top: int
    bottom: int
    left: int
    right: int

    @classmethod
    def of(cls, grey: int, picture: Image.Image) -> Box:
        here = np.asarray(picture.convert("L")) == grey
        rows, columns = (np.flatnonzero(here.sum(axis=axis) >= 30) for axis in (1, 0))
        return cls(rows[0], rows[-1] + 1, columns[0], columns[-1] + 1)

    @property
    def size(self) -> tuple[int, int]:
        return self.right - self.left, self.bottom - self.top


def ink(picture: Image.Image) -> Box:
    """Where letters are; the images of these tests are lighter."""
    rows, columns = np.nonzero(np.asarray(picture.convert("L")) < 90)
    return Box(rows.min(), rows.max() + 1, columns.min(), columns.max() + 1)


def test_runs_stand_side_by_side_in_order_and_show_no_more_than_fits(make):
    drawn = comparison.samples([make("a", 101), make("b", 151), make("c", 201)], columns=100)
    a, b, c = (Box.of(grey, drawn) for grey in (101, 151, 201))
    assert a.right < b.left < b.right < c.left
    assert a.size == b.size == c.size == (2 * 42 - 2, comparison.ROWS * 42 - 2)


def test_images_without_classes_are_a_square(make):
    drawn = comparison.samples([make("a", 101, labelled=False)], columns=4)
    assert Box.of(101, drawn).size == (4 * 42 - 2, 6 * 42 - 2)


def test_many_runs_go_into_several_rows(make):
    drawn = comparison.samples([make(f"run {i}", 101) for i in range(30)], columns=2)
    assert drawn.width <= comparison.WIDEST
    assert drawn.height > 2 * comparison.ROWS * 42


def test_long_labels_are_broken_and_stay_clear_of_the_pictures(make):
    _, folder = make("a", 101, steps=(0,))
    label = "a label of many words and aVeryLongWordThatHasNoPlaceToBreakItInTwo, no more"
    drawn = comparison.samples([(label, folder), ("b", folder)], columns=2)
    images, letters = Box.of(101, drawn), ink(drawn)
    assert comparison.SPACE <= letters.top < letters.bottom < images.top
    assert letters.left >= comparison.SPACE
    assert images.top > comparison.SPACE + 3 * comparison.LINE
    drawn = comparison.flows([(label, folder)])
    below = drawn.crop((0, comparison.SPACE + comparison.HEADER, *drawn.size))
    assert comparison.SPACE <= ink(below).left < ink(below).right < Box.of(101, drawn).left


def test_flows_are_stacked_with_the_steps_once_above(make):
    drawn = comparison.flows([make("a", 101), make("b", 151), make("shorter", 201, steps=(0,))])
    a, b, c = (Box.of(grey, drawn) for grey in (101, 151, 201))
    assert a.top == comparison.SPACE + comparison.HEADER + pictures.GAP
    assert a.bottom < b.top < b.bottom < c.top
    assert b.top - a.bottom < comparison.HEADER
    assert a.left == b.left == c.left
    rows = comparison.FLOW_ROWS * 42 - 2
    assert [box.size for box in (a, b, c)] == [(2 * 42 - 2, rows), (2 * 42 - 2, rows), (40, rows)]


def test_flows_of_other_steps_have_their_own_above(make):
    drawn = comparison.flows([make("a", 101), make("b", 151, steps=(1, 5))])
    assert Box.of(151, drawn).top - Box.of(101, drawn).bottom > comparison.HEADER


def test_no_flow_is_no_picture(make):
    assert comparison.flows([make("a", 101, steps=())]) is None


def test_points_are_shown_as_the_run_drew_them(tmp_path):
    data = Dataset(x=torch.randn(2, 40), space=Space((2,)))
    (tmp_path / "samples.npz").write_bytes(samples.archive(data, None))
    own = samples.picture(data, data, columns=10)
    own.save(tmp_path / "samples.png")
    own.save(tmp_path / "flow.png")
    drawn = comparison.samples([("a", tmp_path), ("b", tmp_path)], columns=10)
    assert drawn.width >= 2 * own.width
    assert comparison.flows([("a", tmp_path)]).height >= own.height


@pytest.mark.parametrize(
    ("text", "plain"),
    [("ξ = 10", "xi = 10"), ("Γ", "Gamma"), ("é", "e"), ("3×2", "3x2"), ("έ", "epsilon"), ("字", "?")],
)
def test_letters_that_the_font_lacks_are_spelled_out(text, plain):
    assert comparison.spelled(text) == plain
