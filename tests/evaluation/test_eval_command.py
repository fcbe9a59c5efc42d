"""`cswf eval`, as a person uses and misuses it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import attrs
import numpy as np
import pytest
from PIL import Image

from cswf_core.evaluation.samples import Reading, conform, read
from cswf_core.recipe import load_recipe
from cswf_core.runs.folder import RunFolder
from cswf_core.session.run import launch
from tests.conftest import read_json

SMALL = ("particles.count=20", "schedule.steps=3", "schedule.directions=10", "outputs.snapshots=[0, 3]")
SLICED = ("--metric", "{use: sliced-wasserstein, directions: 50}", "--device", "cpu")


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """A small run of the demo."""
    folder = tmp_path_factory.mktemp("eval") / "run"
    launch(load_recipe("digits", SMALL), RunFolder(folder), device="cpu")
    return folder


@pytest.fixture
def run(finished, tmp_path) -> Path:
    """A copy of the run, to be written to."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


@pytest.fixture
def folder(run, tmp_path) -> Path:
    """The run's images as pictures."""
    path = tmp_path / "pictures"
    path.mkdir()
    for i, image in enumerate(np.load(run / "samples.npz")["images"]):
        Image.fromarray(image[0]).save(path / f"{i:03}.png")
    return path


def test_a_run_a_folder_and_a_file_of_the_same_images_have_the_same_scores(cswf, run, folder):
    """And copying is reported with every score."""
    found = []
    for path in (run, folder, run / "samples.npz"):
        printed = cswf.output("eval", path, "--against", "digits", *SLICED, "--json")
        document = json.loads(printed)
        found.append({score["name"]: score["value"] for score in document["scores"]})
        assert document["generated"]["count"] == 20
    assert set(found[0]) >= {"sliced_wasserstein_8bit", "copies_l2", "smallest_l2"}
    assert found[0] == found[1] == found[2]


def test_scores_of_a_run_go_to_its_metrics_json_with_what_decides_them(cswf, run):
    before = read_json(run / "metrics.json")
    cswf.output("eval", run, "--metric", "{use: sliced-wasserstein, called: again}", "--device", "cpu")
    document = read_json(run / "metrics.json")
    names = [score["name"] for score in document["scores"]]
    assert {"again_8bit", "sliced_wasserstein", "copies_l2"} <= set(names)  # earlier ones stay
    score = document["scores"][names.index("again_8bit")]
    assert score["against"]["data"] == "digits"
    assert score["against"]["count"] == 1797
    assert len(score["against"]["sha256"]) == 64
    assert score["samples"] == 20
    assert score["protocol"]
    assert score["parameters"]["directions"] == 1000
    assert document["versions"]["torch"]
    assert document["generated"]["sha256"] == before["generated"]["sha256"]
    assert "again" in (run / "report.html").read_text()


def test_fewer_samples_are_said_and_do_not_replace_scores_of_more(cswf, run):
    before = [each for each in read_json(run / "metrics.json")["scores"] if each["meaning"]["of_samples"]]
    printed = cswf.output("eval", run, *SLICED, "--count", "5")
    assert " 5\n" in printed
    assert "metrics.json keeps its scores of more samples: copies_l2, near_copies_l2" in printed
    after = {score["name"]: score for score in read_json(run / "metrics.json")["scores"]}
    assert all(after[score["name"]]["samples"] == score["samples"] for score in before)


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (lambda path: (path / "003.png").write_bytes(b"junk"), "003.png cannot be read as an image"),
        (
            lambda path: Image.new("L", (9, 8)).save(path / "004.png"),
            "must be of one size and kind, and 000.png has 8×8 pixels in grey and 004.png 9×8 pixels in grey; "
            "--resize N resizes all of them to N×N pixels",
        ),
        (
            lambda path: Image.new("RGB", (8, 8)).save(path / "004.png"),
            "004.png 8×8 pixels in colour; --rgb converts all of them to RGB",
        ),
        (lambda path: Image.new("I;16", (8, 8)).save(path / "004.png"), "more than 8 bits"),
        (lambda path: [file.unlink() for file in path.iterdir()], "has no pictures (png, jpg"),
    ],
)
def test_a_bad_folder_is_one_sentence_and_status_2(cswf, folder, spoil, complaint):
    spoil(folder)
    assert complaint in cswf.refusal("eval", folder, "--against", "digits", *SLICED)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ((), "is not a run's folder; name what to compare with"),
        (("--against", "digit"), "unknown dataset 'digit'; did you mean 'digits'?"),
        (("--against", "digits:val"), "there is no split 'val'; write digits:train or digits:test"),
        (("--against", "digits:test"), "dataset 'digits' holds nothing out"),
        (("--against", "./nowhere"), "nowhere does not exist"),
        (
            ("--against", "{use: synthetic, shape: [4], count: 9}"),
            "are images, and what they are compared with are points",
        ),
        (("--against", "digits", "--metric", "fdi"), "unknown metric 'fdi'; did you mean 'fid'?"),
        (("--against", "digits", "--metric", "{use: fid, mod: clean}"), "did you mean 'mode'?"),
        (("--against", "digits", "--metric", "psnr"), "these samples complete no images"),
        (("--against", "digits", "--metric", "class-fid"), "needs labels"),
        (("--against", "digits", "--weights", "nowhere.pt"), "nowhere.pt is not a file"),
        (("--against", "digits", "--device", "tpu"), "there is no device 'tpu'"),
    ],
)
def test_a_mistake_is_one_sentence_and_status_2(cswf, folder, arguments, complaint):
    assert complaint in cswf.refusal("eval", folder, *arguments)


def test_other_mistakes(cswf, run, tmp_path):
    assert "does not exist" in cswf("eval", tmp_path / "nowhere").err
    refused = cswf("eval", run, "--precision", "tf32")
    assert refused.status == 2
    assert "'--precision': 'tf32' is not one of 'float32', 'fast'" in refused.err
    assert "has no offline samples" in cswf.refusal("eval", run, "--samples", "offline")
    (run / "samples.npz").unlink()
    assert "has no samples: its status is 'done'" in cswf("eval", run).err


def test_images_of_another_program_are_read_whichever_way_round_they_are(tmp_path):
    grey = np.random.default_rng(0).integers(0, 256, (6, 8, 8), np.uint8)
    np.savez(tmp_path / "a.npz", images=grey[:, None], labels=np.arange(6))
    np.savez(tmp_path / "b.npz", arr_0=grey[..., None], arr_1=np.arange(6))
    np.savez(tmp_path / "c.npz", arr_0=np.repeat(grey[..., None], 3, axis=3))
    a, b, c = (read(tmp_path / f"{name}.npz").samples for name in "abc")
    assert (a.images() == b.images()).all()
    assert (a.images() == grey[:, None]).all()
    assert a.conditions.labels.tolist() == b.conditions.labels.tolist() == [0, 1, 2, 3, 4, 5]
    assert (conform(c, a, "c", []).images() == a.images()).all()  # grey in three channels
    assert (conform(a, c, "a", []).images() == c.images()).all()


@pytest.mark.parametrize(
    ("arrays", "complaint"),
    [
        ({"images": np.zeros((4, 1, 8, 8), np.float32)}, "must be n×C×H×W bytes"),
        ({"images": np.zeros((0, 1, 8, 8), np.uint8)}, "must be n×C×H×W bytes"),
        ({"pictures": np.zeros((4, 1, 8, 8), np.uint8)}, "has no 'images'"),
        ({"images": np.zeros((4, 1, 8, 8), np.uint8), "labels": np.zeros(3, np.int64)}, "4 whole numbers"),
        (
            {"images": np.zeros((4, 3, 9, 8), np.uint8)},
            "are images of 1×9×8, and what they are compared with are of 1×8×8; --resize 8 resizes images",
        ),
        ({"images": np.zeros((4, 1, 8, 8), np.uint8), "labels": np.full(4, 10)}, "label 10, and there are 10"),
    ],
)
def test_a_bad_file_is_one_sentence_and_status_2(cswf, tmp_path, arrays, complaint):
    np.savez(tmp_path / "samples.npz", **arrays)
    assert complaint in cswf.refusal("eval", tmp_path / "samples.npz", "--against", "digits", *SLICED)


def test_pictures_of_any_size_and_colour_are_scored_with_options_and_notes(cswf, folder):
    """In a folder as in a file."""
    grey = Image.open(folder / "000.png")
    grey.resize((16, 12)).convert("RGB").save(folder / "000.png")
    options = ("--resize", "8", "--rgb")
    printed = cswf.output("eval", folder, "--against", "digits", *SLICED, *options, "--real-count", "30")
    assert "1 of 20 images are resized to 8×8 pixels (--resize) by Pillow's bicubic filter" in printed
    assert "19 of 20 images are grey, and are converted to RGB (--rgb)" in printed
    assert "sliced_wasserstein_8bit: against 30 of 1,797 real samples, evenly spread over them" in printed
    assert "copies are looked for among 30 of 1,797 real samples" in printed
    assert "nearest of 30 training images to 20 samples" in printed
    assert "folders and files have no splits" in cswf.refusal(
        "eval", folder, *options, "--against", f"{folder}:test"
    )
    images = np.random.default_rng(0).integers(0, 256, (3, 12, 16, 1), np.uint8)
    np.savez(folder / "a.npz", images=images)
    found = read(folder / "a.npz", reading=Reading(resize=8, rgb=True))
    expected = Image.fromarray(images[1, ..., 0]).resize((8, 8), Image.Resampling.BICUBIC)
    assert (found.samples.images()[1].numpy() == np.asarray(expected)).all()
    assert [note.split(": ")[1].split(" are ")[0] for note in found.notes] == ["3 of 3 images"] * 2


@pytest.mark.parametrize(
    ("images", "words"),
    [
        (np.random.default_rng(0).integers(0, 2, (99, 1, 8, 8), np.uint8), ["all values are 0 or 1"]),
        (
            np.arange(3, dtype=np.uint8).reshape(3, 1, 1, 1).repeat(8, 2).repeat(8, 3),
            ["3 of 3 images are constant"],
        ),
        (
            np.random.default_rng(0).integers(0, 9, (2, 1, 8, 8), np.uint8)[[0, 1, 1]],
            ["only 2 of 3 images are distinct"],
        ),
        (np.random.default_rng(0).integers(0, 9, (200, 1, 8, 8), np.uint8)[[0, *range(199)]], []),
    ],
)
def test_images_that_are_probably_a_mistake_have_notes(tmp_path, images, words):
    np.savez(tmp_path / "a.npz", images=images)
    notes = read(tmp_path / "a.npz").notes
    assert len(notes) == len(words)
    assert all(word in note for word, note in zip(words, notes, strict=True))


def test_folders_in_a_folder_are_classes(cswf, run, tmp_path):
    with np.load(run / "samples.npz") as arrays:
        for i, (image, label) in enumerate(zip(arrays["images"], arrays["labels"], strict=True)):
            (tmp_path / f"sorted/{label}").mkdir(parents=True, exist_ok=True)
            Image.fromarray(image[0]).save(tmp_path / f"sorted/{label}/{i}.png")
    (tmp_path / "sorted/8/deep/.hidden").mkdir(parents=True)
    for file in (tmp_path / "sorted/8").glob("*.png"):
        shutil.copy(file, tmp_path / "sorted/8/deep/.hidden")
        file.rename(tmp_path / "sorted/8/deep" / file.name)
    (tmp_path / "sorted/8/deep/circle").symlink_to(tmp_path / "sorted")
    (tmp_path / "sorted/8/circle").symlink_to(tmp_path / "sorted/8/deep")
    found = read(tmp_path / "sorted").samples
    assert len(found) == 20
    assert found.classes == tuple(map(str, range(10)))
    (tmp_path / "sorted/8").rename(tmp_path / "sorted/eight")
    real = attrs.evolve(read(run / "samples.npz").samples, classes=found.classes)
    unknown = conform(read(tmp_path / "sorted").samples, real, "these", [])
    assert unknown.conditions.labels is None


def test_scores_against_other_data_have_names_of_their_own(cswf, run, folder):
    before = read_json(run / "metrics.json")
    cswf.output("eval", run, "--against", folder, *SLICED)
    after = {score["name"]: score for score in read_json(run / "metrics.json")["scores"]}
    assert after["sliced_wasserstein_8bit_pictures"]["against"]["data"] == "pictures"
    for score in before["scores"]:
        if score["metric"] == "sliced-wasserstein":
            assert after[score["name"]] == score


def test_a_data_set_comes_before_a_folder_of_its_name(cswf, folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder.rename("digits")
    for against, count in (("digits", 1797), ("./digits", 20)):
        done = cswf("eval", "digits", "--against", against, *SLICED, "--json")
        assert json.loads(done.out)["scores"][0]["against"]["count"] == count


def test_several_references_are_brought_into_one_form(cswf, run, folder, tmp_path):
    colours = tmp_path / "colours"
    colours.mkdir()
    for i, file in enumerate(sorted(folder.iterdir())):
        Image.open(file).convert("RGB").save(colours / f"{i}.png")
    for path in (run, folder, colours):
        printed = cswf.output("eval", path, "--against", "digits", "--against", colours, *SLICED, "--json")
        against = [score["against"] for score in json.loads(printed)["scores"] if score["against"]]
        assert {each["data"] for each in against} == {"digits", "colours"}
    Image.new("RGB", (8, 8), (255, 0, 0)).save(colours / "red.png")
    refusal = cswf.refusal("eval", run, "--against", colours, *SLICED)
    assert "are images of 3×8×8, and what they are compared with are of 1×8×8" in refusal


def test_scores_come_before_a_folder_that_cannot_be_written(cswf, run):
    (run / "metrics.json").unlink()
    (run / "metrics.json").mkdir()
    done = cswf("eval", run, *SLICED)
    assert done.status != 0
    assert "sliced_wasserstein_8bit" in done.out


def test_a_sweep_s_folder_is_told_apart(cswf, tmp_path):
    assert cswf("sweep", "digits", *SMALL, "seed=1,2", "--out", tmp_path / "sweep", "--quiet").status == 0
    assert "is the folder of a sweep; give one of its runs, such as" in cswf.refusal("eval", tmp_path / "sweep")
    cswf.output("report", tmp_path / "sweep", "--out", tmp_path / "page.html")
    assert "2 runs compared" in (tmp_path / "page.html").read_text()


def test_points_are_scored_by_sliced_wasserstein_where_nothing_is_asked_for(cswf, tmp_path):
    short = ("schedule.steps=2", "particles.count=50", "--device", "cpu", "--quiet")
    assert cswf("run", "toy-cswf", *short, "--out", tmp_path / "toy").status == 0
    scores = json.loads(cswf.output("eval", tmp_path / "toy", "--json"))["scores"]
    assert "sliced_wasserstein" in {score["name"] for score in scores}


def test_a_metric_that_cannot_work_is_refused_before_the_flow(cswf, tmp_path):
    for metric, complaint in (("psnr", "complete no images"), ("class-fid", "needs labels")):
        recipe = "digits" if metric == "psnr" else "digits-unconditional"
        out = tmp_path / metric
        refusal = cswf.refusal("run", recipe, f"evaluate.metrics=[{metric}]", "--out", out, "--device", "cpu")
        assert complaint in refusal
        assert not out.exists()
