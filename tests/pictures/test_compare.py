"""Pictures of several runs show each run under its own label."""

from __future__ import annotations

import attrs
import numpy as np
import pytest
import torch
from PIL import Image

from cswf_core.errors import RunError
from cswf_core.interfaces import Conditions, Dataset, Space
from cswf_core.pictures import grid as pictures
from cswf_core.pictures.frames import Frames
from cswf_core.runs.folder import RunFolder
from cswf_core.runs.samples import archive, samples_picture
from cswf_core.session import sweep_pictures as comparison


@pytest.fixture
def make(tmp_path):
    """Make the folder of a run whose images are all of one grey, with frames of some steps."""

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
        (folder / "samples.npz").write_bytes(archive(data, None))
        images = np.full((len(steps) + 1, 5, 1, 10, 10), grey, np.uint8)
        frames = Frames((*steps, 9), images=images, labels=np.arange(5) if labelled else None)
        (folder / "frames.npz").write_bytes(frames.archive())
        return with_steps(RunFolder(folder, name), steps)

    return make


def with_steps(run: RunFolder, steps: tuple[int, ...]) -> RunFolder:
    """The run with the steps of its flow.png."""
    run.steps = steps
    return run


def renamed(run: RunFolder, label: str) -> RunFolder:
    return with_steps(RunFolder(run.path, label), run.steps)


def flows(*runs: RunFolder) -> Image.Image | None:
    return comparison.flows(runs, [run.steps for run in runs])


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
    run = make("a", 101, steps=(0,))
    label = "a label of many words and aVeryLongWordThatHasNoPlaceToBreakItInTwo, no more"
    drawn = comparison.samples([renamed(run, label), run], columns=2)
    images, letters = Box.of(101, drawn), ink(drawn)
    assert comparison.SPACE <= letters.top < letters.bottom < images.top
    assert letters.left >= comparison.SPACE
    assert images.top > comparison.SPACE + 3 * comparison.LINE
    drawn = flows(renamed(run, label))
    below = drawn.crop((0, comparison.SPACE + comparison.HEADER, *drawn.size))
    assert comparison.SPACE <= ink(below).left < ink(below).right < Box.of(101, drawn).left


def test_flows_are_stacked_with_the_steps_once_above(make):
    drawn = flows(make("a", 101), make("b", 151), make("shorter", 201, steps=(0,)))
    a, b, c = (Box.of(grey, drawn) for grey in (101, 151, 201))
    assert a.top == comparison.SPACE + comparison.HEADER + pictures.GAP
    assert a.bottom < b.top < b.bottom < c.top
    assert b.top - a.bottom < comparison.HEADER
    assert a.left == b.left == c.left
    rows = comparison.FLOW_ROWS * 42 - 2
    assert [box.size for box in (a, b, c)] == [(2 * 42 - 2, rows), (2 * 42 - 2, rows), (40, rows)]


def test_flows_of_other_steps_have_their_own_above_and_no_flow_is_no_picture(make):
    drawn = flows(make("a", 101), make("b", 151, steps=(1, 5)))
    assert Box.of(151, drawn).top - Box.of(101, drawn).bottom > comparison.HEADER
    assert flows(make("c", 101, steps=())) is None


def test_points_are_drawn_as_the_run_drew_them(tmp_path):
    data = Dataset(x=torch.randn(2, 40), space=Space((2,)))
    points = data.points().numpy()
    (tmp_path / "samples.npz").write_bytes(archive(data, None))
    frames = Frames((0, 5), points=np.stack([points / 2, points]), target=points)
    (tmp_path / "frames.npz").write_bytes(frames.archive())
    own = samples_picture(data, data, columns=10)
    drawn = comparison.samples([RunFolder(tmp_path, "a"), RunFolder(tmp_path, "b")], columns=10)
    left, top = comparison.SPACE, drawn.height - own.height - comparison.SPACE
    assert drawn.crop((left, top, left + own.width, top + own.height)) == own
    assert comparison.flows([RunFolder(tmp_path, "a")], [(0, 5, 20)]).height >= frames.strip().height


def test_a_run_without_frames_is_shown_as_it_drew_itself(make):
    """As one with `outputs.frames: 0`."""
    run = make("a", 101, steps=(0, 5))
    (run.path / "frames.npz").unlink()
    assert flows(run) is None
    Image.new("L", (80, 60), 151).save(run.path / "flow.png")
    assert Box.of(151, flows(run)).size == (80, 60)
    np.savez(run.path / "samples.npz", points=np.zeros((40, 2)))
    Image.new("L", (70, 50), 151).save(run.path / "samples.png")
    assert Box.of(151, comparison.samples([run], columns=10)).size == (70, 50)


@pytest.mark.parametrize("name", ["samples.npz", "frames.npz"])
def test_a_damaged_file_is_a_sentence(make, name):
    run = make("a", 101)
    (run.path / name).write_bytes(b"nonsense")
    with pytest.raises(RunError, match=f"{name} cannot be read .*; remove the run's folder to run it again"):
        comparison.samples([run], 10), flows(run)


def test_labels_keep_their_greek_letters(make):
    """A letter that a font lacks is drawn as a box; those of one font differ."""
    drawn = [comparison.samples([make(c, 101)], columns=2) for c in "ξΓ×"]
    assert len({picture.tobytes() for picture in drawn}) == 3
