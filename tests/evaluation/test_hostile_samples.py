"""Samples of strangers are scored, or refused in one sentence, as the data of a run are."""

from __future__ import annotations

import json
import os
from pathlib import Path

import attrs
import numpy as np
import pytest
import torch
from PIL import Image

from cswf_core.errors import DataError
from cswf_core.evaluation.samples import Reading, conform, read
from cswf_core.evaluation.task import Task, read_real
from cswf_core.interfaces import Conditions, Dataset, Space
from cswf_core.pictures.frames import Frames
from cswf_core.runs.folder import RunFolder

IMAGES = np.random.default_rng(0).integers(0, 256, (6, 1, 8, 8), np.uint8)


def with_pictures(folder: Path, count: int) -> Path:
    """A folder of pictures of 8×8."""
    folder.mkdir(parents=True)
    for i in range(count):
        Image.fromarray(IMAGES[i, 0]).save(folder / f"{i}.png")
    return folder


def saved(path, **arrays):
    np.savez_compressed(path, **arrays)
    return path


@pytest.mark.parametrize(
    ("arrays", "complaint"),
    [
        ({"points": np.full((5, 2), 1e300)}, "'points' must be n×d finite numbers"),
        ({"points": np.zeros((5, 0))}, "'points' must be n×d finite numbers"),
        ({"images": np.zeros((5, 1, 0, 8), np.uint8)}, "must be n×C×H×W bytes"),
        ({"images": IMAGES, "labels": np.array([0, 1, 2, 3, 4, -5])}, "must count from 0 .* got -5"),
        ({"images": IMAGES, "labels": np.array([0, 1, 2, 3, 4, 10**15])}, "must count from 0 .* got 10000"),
        ({"images": IMAGES, "arr_1": np.zeros((6, 10**6), np.uint8)}, "must be 6 whole numbers"),
    ],
)
def test_against_a_file_that_a_run_would_refuse_is_one_sentence(tmp_path, registry, arrays, complaint):
    with pytest.raises(DataError, match=complaint):
        read_real(str(saved(tmp_path / "a.npz", **arrays)), registry)


def test_classes_of_a_file_have_names_as_those_of_a_data_set(tmp_path, registry):
    path = saved(tmp_path / "a.npz", images=IMAGES, labels=np.arange(6) % 3)
    (by_path,) = read_real(str(path), registry).references
    (by_name,) = read_real(f"{{use: npz, path: {path}}}", registry).references
    assert by_path.samples.classes == by_name.samples.classes == ("0", "1", "2")
    assert by_path.samples.digest() == by_name.samples.digest()


def test_labels_are_left_out_where_the_real_samples_have_no_classes(tmp_path, registry):
    labelled = read(saved(tmp_path / "a.npz", images=IMAGES, labels=np.full(6, 10**15))).samples
    (real,) = read_real(str(saved(tmp_path / "b.npz", images=IMAGES)), registry).references
    assert conform(labelled, real.samples, "these", []).conditions.labels is None


def test_a_bomb_needs_a_limit_that_is_raised(cswf, tmp_path):
    path = saved(tmp_path / "a.npz", images=np.zeros((2000, 1, 8, 8), np.uint8))
    score = ("eval", path, "--against", "digits", "--metric", "sliced-wasserstein", "--count", "50")
    said = "a.npz needs 128 kB of memory, and the limit is 100 kB; --limit 1MB allows it"
    assert said in cswf.refusal(*score, "--limit", "100kB")
    assert "'much' is no size; write 500MB" in cswf(*score, "--limit", "much").err
    assert "sliced_wasserstein" in cswf.output(*score, "--limit", "1MB")
    folder = with_pictures(tmp_path / "f", 4)
    assert read(folder, reading=Reading(limit=256)).samples.x.shape == (64, 4)
    with pytest.raises(DataError, match="f needs 256 bytes of memory, and the limit is 255 bytes; --limit 1MB"):
        read(folder, reading=Reading(limit=255))


def test_a_pipe_is_not_waited_for(cswf, tmp_path):
    folder, pipe = with_pictures(tmp_path / "f", 1), tmp_path / "c.npz"
    os.mkfifo(folder / "b.png")
    os.mkfifo(pipe)
    score = ("--metric", "sliced-wasserstein", "--against")
    for against in ("digits", folder):
        assert "b.png is a named pipe, not a file" in cswf.refusal("eval", folder, *score, against)
    assert "is neither a folder nor an .npz file" in cswf.refusal("eval", pipe, *score, "digits")
    data = f"data={{use: npz, path: {pipe}}}"
    assert "c.npz is a named pipe, not a file" in cswf.refusal("run", "digits", data, "--out", tmp_path / "o")


def test_names_that_are_no_text_are_written_down_and_read_again(cswf, tmp_path):
    def named(name: bytes) -> Path:
        return tmp_path / os.fsdecode(name)

    for name in (b"f/a", b"f/b\xff"):
        folder = with_pictures(named(name), 4)
        (folder / "0.png").rename(folder / os.fsdecode(b"\xfe.png"))
    (tmp_path / "r.yaml").write_text(
        "data: {use: image-folder, path: f, size: 8, channels: 1, held_out: 0}\ncondition: one-hot\n"
        "particles: {count: 8}\nmodel: {save: true}\nschedule: {use: constant, steps: 2, directions: 100}\n"
    )
    out = tmp_path / "o"
    cswf.output("run", tmp_path / "r.yaml", "--out", out)
    assert r"b\\xff" in (out / "model" / "model.json").read_text(encoding="utf-8")
    assert RunFolder(out).classes == ("a", r"b\xff")
    chosen = ("--count", "3", "--label", r"b\xff", "--out", tmp_path / "s")
    assert "3 samples" in cswf.output("sample", out, *chosen)
    strange = (tmp_path / "f").rename(named(b"g\xff"))
    found = cswf.output("eval", strange, "--against", strange, "--metric", "sliced-wasserstein", "--json")
    document = json.loads(found)
    assert document["generated"]["source"].endswith(r"g\xff")
    assert {score["against"]["data"] for score in document["scores"] if score["against"]} == {r"g\xff"}
    refused = cswf.refusal("run", tmp_path / "r.yaml", "--out", named(b"o\xff"))
    assert "is no text (UTF-8), and models cannot lie there" in refused


@pytest.mark.parametrize("origin", [[0, 5], [-1, 0], [-(10**15), 0]])
def test_samples_that_complete_an_image_beyond_the_data_are_one_sentence(origin):
    data = Dataset(torch.zeros(2, 5), Space((2,)))
    samples = attrs.evolve(data.take(slice(2)), conditions=Conditions(origin=torch.tensor(origin)))
    with pytest.raises(DataError, match="and there are 5 and 0 held out; were they made with other data"):
        Task(metrics=(), references=(), data=data).originals(samples)


FRAMES = {"steps": np.arange(2), "images": np.zeros((2, 4, 1, 3, 3), np.uint8)}


@pytest.mark.parametrize(
    "arrays",
    [
        {"steps": np.arange(2)},
        {"images": FRAMES["images"]},
        {**FRAMES, "steps": np.arange(3)},
        {**FRAMES, "images": np.zeros((2, 4, 1, 3, 3))},
        {**FRAMES, "steps": np.array([[0, 1]])},
        {**FRAMES, "steps": np.array([1, 0])},
        {**FRAMES, "classes": np.arange(3)},
        {**FRAMES, "dimension": np.zeros(3)},
        {**FRAMES, "labels": np.zeros((4, 2), np.int64)},
        {**FRAMES, "since": np.zeros(4)},
        {"steps": np.arange(2), "points": np.zeros((2, 4, 3), np.float32)},
        {"steps": np.arange(2), "points": np.full((2, 4, 2), np.nan, np.float32)},
        {"steps": np.arange(20_000), "points": np.zeros((20_000, 1, 2), np.float32)},
    ],
)
def test_frames_of_another_make_are_a_problem_of_the_report_and_nothing_worse(tmp_path, arrays):
    (tmp_path / "run.json").write_text("{}")
    saved(tmp_path / "frames.npz", **arrays)
    saved(tmp_path / "samples.npz", pictures=IMAGES)
    run = RunFolder(tmp_path)
    assert (run.frames, run.images("samples.npz")) == (None, None)
    assert {"frames.npz", "samples.npz"} <= set(run.problems)
    with pytest.raises((ValueError, KeyError)):
        Frames.read(tmp_path / "frames.npz")
