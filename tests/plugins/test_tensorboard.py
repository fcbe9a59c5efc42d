"""The observer `tensorboard` writes what TensorBoard itself reads back."""

from __future__ import annotations

import io
import math
import sys
from pathlib import Path
from types import SimpleNamespace

import attrs
import numpy as np
import pytest
import torch
from PIL import Image

from cswf_core.errors import RunError
from cswf_core.interfaces import Conditions, Dataset, Key
from cswf_plugins.datasets.digits import Digits
from cswf_plugins.observers.tensorboard import TensorBoard
from cswf_plugins.schedules.constant import Constant
from tests.conftest import small_flow

accumulator = pytest.importorskip(
    "tensorboard.backend.event_processing.event_accumulator", reason="the package tensorboard is not installed"
)

SCALARS = {"sliced_distance", "displacement", "step_size", "seconds_per_step", "stage"}


def events(folder: Path):
    """Everything that TensorBoard finds in a folder."""
    found = accumulator.EventAccumulator(str(folder), size_guidance={"images": 0, "scalars": 0})
    return found.Reload()


def some_digits(count: int = 60) -> Dataset:
    return Digits().load(Key(0, "data").open(dtype=torch.float64)).take(torch.arange(count))


def watched(run: Path, data: Dataset | None = None, steps: int = 25, **options: object):
    """Run a small flow under a watcher's eyes, to the end, and return what TensorBoard finds then."""
    watcher = TensorBoard(**options).watch(run)
    small_flow(data, schedule=Constant(steps=steps, directions=20), observers=(watcher,)).run()
    watcher.close()
    return events(run / "tensorboard")


def test_a_run_leaves_a_point_every_so_many_steps_and_at_the_first_and_last(tmp_path):
    watcher = TensorBoard(every=10).watch(tmp_path)
    states = []
    flow = small_flow(schedule=Constant(steps=25, directions=20), observers=(watcher,))
    for state in flow:
        states.append((state.total_step, state.distance, state.displacement, state.eta))
    watcher.close()
    found = events(tmp_path / "tensorboard")
    assert set(found.Tags()["scalars"]) == {f"flow/{name}" for name in SCALARS}
    points = found.Scalars("flow/sliced_distance")
    assert [point.step for point in points] == [1, 10, 20, 25]
    for index, tag in ((1, "sliced_distance"), (2, "displacement"), (3, "step_size")):
        expected = [states[step - 1][index] for step in (1, 10, 20, 25)]
        assert [point.value for point in found.Scalars(f"flow/{tag}")] == pytest.approx(expected, rel=1e-6)
    assert all(0 < point.value < 60 for point in found.Scalars("flow/seconds_per_step"))
    assert found.Tags()["images"] == []  # these data are points


def test_images_get_a_grid_after_the_stage(tmp_path):
    (shown,) = watched(tmp_path, some_digits(), steps=3).Images("samples")
    assert shown.step == 3
    with Image.open(io.BytesIO(shown.encoded_image_string)) as picture:
        pixels = np.asarray(picture)
    assert pixels.shape[0] > 10 * 40  # a row for each of ten classes
    assert len(np.unique(pixels)) > 50


def test_images_without_classes_get_a_square_and_none_where_they_are_not_wanted(tmp_path):
    data = attrs.evolve(some_digits(), conditions=Conditions(), classes=())
    (shown,) = watched(tmp_path / "a", data, steps=2).Images("samples")
    assert (shown.width > 8 * 40, shown.height > 3 * 40) == (True, True)  # 30 particles, eight in a row
    assert watched(tmp_path / "b", data, steps=2, images=False).Tags()["images"] == []


def test_scores_are_there_and_what_is_not_a_number_is_left_out(tmp_path):
    watcher = TensorBoard().watch(tmp_path)
    small_flow(schedule=Constant(steps=4, directions=20), observers=(watcher,)).run()
    watcher.after_evaluation(scores={"fid": 12.5, "psnr_test": math.inf, "kid": math.nan})
    watcher.close()
    watcher.close()
    found = events(tmp_path / "tensorboard")
    assert [tag for tag in found.Tags()["scalars"] if tag.startswith("scores/")] == ["scores/fid"]
    assert [(point.step, point.value) for point in found.Scalars("scores/fid")] == [(4, 12.5)]


def test_a_run_that_has_run_away_leaves_only_its_finite_numbers(tmp_path):
    watcher = TensorBoard().watch(tmp_path)
    facts = {"distance": math.nan, "displacement": math.inf, "eta": 0.5, "seconds": 1.0, "stage_index": 0}
    watcher.after_step(state=SimpleNamespace(total_step=1, **facts))
    watcher.close()
    tags = set(events(tmp_path / "tensorboard").Tags()["scalars"])
    assert tags == {"flow/step_size", "flow/seconds_per_step", "flow/stage"}


def test_what_was_written_before_an_interruption_is_kept(tmp_path):
    watcher = TensorBoard(every=2).watch(tmp_path)
    flow = small_flow(schedule=Constant(steps=9, directions=20), observers=(watcher,))
    for state in flow:
        if state.total_step == 5:
            break
    watcher.close()
    points = events(tmp_path / "tensorboard").Scalars("flow/displacement")
    assert [point.step for point in points] == [1, 2, 4]
    with pytest.raises(ValueError, match="every must be at least 1, got 0"):
        TensorBoard(every=0)


def test_a_device_is_not_waited_for_between_two_points(tmp_path):
    watcher = TensorBoard(every=10).watch(tmp_path)
    watcher.after_step(state=SimpleNamespace(total_step=9))  # has no numbers to be read
    assert list(tmp_path.iterdir()) == []


def test_a_second_run_in_the_same_folder_hides_the_first(tmp_path):
    points = [watched(tmp_path, steps=steps, every=1).Scalars("flow/stage") for steps in (7, 3)][1]
    assert [point.step for point in points] == [1, 2, 3]


def test_nothing_is_written_behind_a_link(tmp_path):
    (tmp_path / "outside").mkdir()
    run = tmp_path / "run"
    run.mkdir()
    (run / "tensorboard").symlink_to(tmp_path / "outside")
    with pytest.raises(RunError, match="tensorboard is a link, and a run writes to its own folder only"):
        watched(run)
    assert list((tmp_path / "outside").iterdir()) == []


def test_nothing_is_written_before_a_point_is(tmp_path):
    watcher = TensorBoard().watch(tmp_path / "run")
    small_flow(observers=(watcher,))
    watcher.after_run()
    watcher.close()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_to_is_one_sentence(tmp_path):
    (tmp_path / "tensorboard").write_text("a file")
    with pytest.raises(RunError, match="tensorboard cannot be written to: "):
        watched(tmp_path)


@pytest.mark.parametrize("missing", ["tensorboard", "torch.utils.tensorboard"])
def test_a_missing_package_is_one_sentence_and_said_before_the_run(tmp_path, monkeypatch, missing):
    for name in [name for name in sys.modules if name.startswith("torch.utils.tensorboard")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(RunError, match=r"needs the package tensorboard.*pip install tensorboard, or cswf\["):
        TensorBoard().watch(tmp_path)
    assert list(tmp_path.iterdir()) == []
