"""The pictures of several runs are put together, each under its run's own label."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from cswf_core.errors import RunError
from cswf_core.runs.folder import RunFolder
from cswf_core.session import sweep
from cswf_core.session.sweep import SPACE, collage


def place(grey: int, picture: Image.Image) -> tuple[int, int, int, int]:
    """Left, top, right, bottom of a grey, without the few pixels that the edges of letters have of it."""
    here = np.asarray(picture.convert("L")) == grey
    rows, columns = (np.flatnonzero(here.sum(axis=axis) >= 30) for axis in (1, 0))
    return columns[0], rows[0], columns[-1] + 1, rows[-1] + 1


def grey(level: int, width: int = 80, height: int = 60) -> Image.Image:
    return Image.new("RGB", (width, height), (level,) * 3)


def ink(picture: Image.Image) -> tuple[int, int]:
    """The first and the last row with letters; the pictures of these tests are lighter."""
    rows = np.flatnonzero((np.asarray(picture.convert("L")) < 90).any(axis=1))
    return rows[0], rows[-1]


def test_pictures_stand_side_by_side_in_order_or_one_below_the_other():
    given = [("a", grey(101)), ("b", grey(151, height=90)), ("c", grey(201))]
    a, b, c = (place(level, collage(given, sweep.WIDEST)) for level in (101, 151, 201))
    assert a[2] < b[0] < b[2] < c[0]
    assert a[1] == b[1] == c[1]
    a, b, c = (place(level, collage(given, 0)) for level in (101, 151, 201))
    assert a[3] < b[1] < b[3] < c[1]
    assert (b[2] - b[0], b[3] - b[1]) == (80, 90)


def test_many_pictures_go_into_several_rows():
    drawn = collage([(f"run {i}", grey(101, 84, 420)) for i in range(30)], sweep.WIDEST)
    assert drawn.width <= sweep.WIDEST
    assert drawn.height > 2 * 420


def test_long_labels_are_broken_and_stay_clear_of_the_pictures():
    label = "a label of many words and aVeryLongWordThatHasNoPlaceToBreakItInTwo, no more"
    drawn = collage([(label, grey(101))], sweep.WIDEST)
    top, bottom = ink(drawn)
    assert SPACE <= top < bottom < place(101, drawn)[1]
    assert bottom - top > 3 * sweep.LINE


def test_labels_keep_their_greek_letters():
    """A letter that a font lacks is drawn as a box; those of one font differ."""
    drawn = [collage([(c, grey(101))], sweep.WIDEST) for c in "ξΓ×"]
    assert len({picture.tobytes() for picture in drawn}) == 3


@pytest.mark.parametrize("content", [None, b"nonsense"])
def test_a_missing_or_damaged_picture_is_a_sentence(tmp_path, content):
    if content is not None:
        (tmp_path / "samples.png").write_bytes(content)
    with pytest.raises(RunError, match=r"samples.png .*; remove the run's folder to run it again"):
        sweep._own_pictures([RunFolder(tmp_path, "a")], "samples.png")


def test_of_a_tall_picture_the_upper_part_is_shown(tmp_path):
    grey(101, 80, 3000).save(tmp_path / "samples.png")
    ((label, shown),) = sweep._own_pictures([RunFolder(tmp_path, "a")], "samples.png")
    assert (label, shown.size) == ("a", (80, sweep.TALLEST))
