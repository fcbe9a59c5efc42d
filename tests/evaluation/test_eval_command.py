"""`cswf eval`, as a person uses and misuses it: what it prints, refuses and leaves behind."""

from __future__ import annotations

import csv
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

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
SMALL += ("outputs.frames=0", "evaluate.metrics.0.directions=50")
SLICED = ("--metric", "{use: sliced-wasserstein, directions: 50}", "--device", "cpu")
AGAINST = ("--against", "digits", "--real-count", "200", *SLICED)
BYTES = np.random.default_rng(0)
FOUR = np.zeros((4, 1, 8, 8), np.uint8)


def scored(cswf, *arguments: str | Path) -> dict[str, Any]:
    """The document that `cswf eval` prints."""
    return json.loads(cswf.output("eval", *arguments, "--json"))


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
def folder(finished, tmp_path) -> Path:
    """The run's images as pictures."""
    path = tmp_path / "pictures"
    path.mkdir()
    for i, image in enumerate(np.load(finished / "samples.npz")["images"]):
        Image.fromarray(image[0]).save(path / f"{i:03}.png")
    return path


def test_a_run_a_folder_and_a_file_of_the_same_images_have_the_same_scores(cswf, run, folder):
    """And copying is reported with every score."""
    documents = [scored(cswf, path, *AGAINST) for path in (run, folder, run / "samples.npz")]
    found = [{score["name"]: score["value"] for score in each["scores"]} for each in documents]
    assert [each["generated"]["count"] for each in documents] == [20] * 3
    assert set(found[0]) >= {"sliced_wasserstein_8bit", "copies_l2", "smallest_l2"}
    assert found[0] == found[1] == found[2]


def test_scores_of_a_run_go_to_its_metrics_json_with_what_decides_them(cswf, run):
    before = read_json(run / "metrics.json")
    again = "{use: sliced-wasserstein, called: again, directions: 60}"
    cswf.output("eval", run, "--metric", again, "--device", "cpu", "--seed", "5")
    document = read_json(run / "metrics.json")
    scores = {score["name"]: score for score in document["scores"]}
    assert {"again_8bit", "sliced_wasserstein", "copies_l2"} <= set(scores)  # earlier ones stay
    score = scores["again_8bit"]
    assert (score["against"]["data"], score["against"]["count"]) == ("digits", 1797)
    assert score["samples"] == 20
    assert score["protocol"]
    assert score["finished"]
    assert score["parameters"]["directions"] == 60
    assert score["settings"] == {"seed": 5, "precision": "float32", "samples": 50_000}
    assert score["command"].startswith("cswf eval ")
    assert score["command"].endswith("--seed 5")
    assert score["device"]["type"] == "cpu"
    assert isinstance(score["commit"], str)
    assert len(score["samples_sha256"]) == len(score["against"]["sha256"]) == 64
    assert score["versions"]["torch"] == document["versions"]["torch"]
    assert document["generated"]["sha256"] == before["generated"]["sha256"]
    assert "again" in (run / "report.html").read_text()


def test_fewer_samples_are_said_and_do_not_replace_scores_of_more(cswf, run):
    before = [each for each in read_json(run / "metrics.json")["scores"] if each["meaning"]["of_samples"]]
    printed = cswf.output("eval", run, *SLICED, "--count", "5")
    assert " 5\n" in printed
    assert "metrics.json keeps its scores of more samples: copies_l2, near_copies_l2" in printed
    after = {score["name"]: score for score in read_json(run / "metrics.json")["scores"]}
    assert all(after[score["name"]]["samples"] == score["samples"] for score in before)


def with_picture(mode: str, *size: int) -> Callable[[Path], None]:
    return lambda path: Image.new(mode, size).save(path / "004.png")


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (lambda path: (path / "003.png").write_bytes(b"junk"), "003.png cannot be read as an image"),
        (
            with_picture("L", 9, 8),
            "must be of one size and kind, and 000.png has 8×8 pixels in grey and 004.png 9×8 pixels in grey; "
            "--resize N resizes all of them to N×N pixels",
        ),
        (with_picture("RGB", 8, 8), "004.png 8×8 pixels in colour; --rgb converts all of them to RGB"),
        (with_picture("I;16", 8, 8), "more than 8 bits"),
        (lambda path: [file.unlink() for file in path.iterdir()], "has no pictures (png, jpg"),
    ],
)
def test_a_bad_folder_is_one_sentence_and_status_2(cswf, folder, spoil, complaint):
    spoil(folder)
    assert complaint in cswf.refusal("eval", folder, *AGAINST)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ((), "is not a run's folder; name what to compare with"),
        (("--against", "digit"), "unknown dataset 'digit'; did you mean 'digits'?"),
        (("--against", "digits:val"), "there is no split 'val'; write digits:train or digits:test"),
        (("--against", "digits:test"), "dataset 'digits' holds nothing out"),
        (("--against", "./nowhere"), "nowhere does not exist"),
        (("--against", "pictures:test"), "folders and files have no splits"),
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
        ((*AGAINST, "--out", "taken"), "has other files in it, or scores of other samples; give another --out"),
    ],
)
def test_a_mistake_is_one_sentence_and_status_2_and_leaves_no_folder(
    cswf, folder, tmp_path, arguments, complaint
):
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken/notes.txt").write_text("mine")
    before = set(tmp_path.rglob("*"))
    assert complaint in cswf.refusal("eval", folder, *arguments)
    assert set(tmp_path.rglob("*")) == before


def test_other_mistakes(cswf, run, tmp_path):
    assert "does not exist" in cswf("eval", tmp_path / "nowhere").err
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
        ({"pictures": FOUR}, "has no 'images'"),
        ({"images": FOUR, "labels": np.zeros(3, np.int64)}, "4 whole numbers"),
        (
            {"images": np.zeros((4, 3, 9, 8), np.uint8)},
            "are images of 1×9×8, and what they are compared with are of 1×8×8; --resize 8 resizes images",
        ),
        ({"images": FOUR, "labels": np.full(4, 10)}, "label 10, and there are 10"),
    ],
)
def test_a_bad_file_is_one_sentence_and_status_2(cswf, tmp_path, arrays, complaint):
    np.savez(tmp_path / "samples.npz", **arrays)
    assert complaint in cswf.refusal("eval", tmp_path / "samples.npz", *AGAINST)


def test_pictures_of_any_size_and_colour_are_scored_with_options_and_notes(cswf, folder):
    """In a folder as in a file."""
    grey = Image.open(folder / "000.png")
    grey.resize((16, 12)).convert("RGB").save(folder / "000.png")
    printed = cswf.output(
        "eval", folder, "--against", "digits", *SLICED, "--resize", "8", "--rgb", "--real-count", "30"
    )
    assert "1 of 20 images are resized to 8×8 pixels (--resize) by Pillow's bicubic filter" in printed
    assert "19 of 20 images are grey, and are converted to RGB (--rgb)" in printed
    assert "sliced_wasserstein_8bit: against 30 of 1,797 real samples, evenly spread over them" in printed
    assert "copies are looked for among 30 of 1,797 real samples" in printed
    assert "nearest of 30 training images to 20 samples" in printed
    images = BYTES.integers(0, 256, (3, 12, 16, 1), np.uint8)
    np.savez(folder / "a.npz", images=images)
    found = read(folder / "a.npz", reading=Reading(resize=8, rgb=True))
    expected = Image.fromarray(images[1, ..., 0]).resize((8, 8), Image.Resampling.BICUBIC)
    assert (found.samples.images()[1].numpy() == np.asarray(expected)).all()
    assert [note.split(": ")[1].split(" are ")[0] for note in found.notes] == ["3 of 3 images"] * 2


@pytest.mark.parametrize(
    ("images", "words"),
    [
        (BYTES.integers(0, 2, (99, 1, 8, 8), np.uint8), ["all values are 0 or 1"]),
        (
            np.ones((3, 1, 8, 8), np.uint8) * np.arange(3, dtype=np.uint8)[:, None, None, None],
            ["3 of 3 images are constant"],
        ),
        (BYTES.integers(0, 9, (2, 1, 8, 8), np.uint8)[[0, 1, 1]], ["only 2 of 3 images are distinct"]),
        (BYTES.integers(0, 9, (200, 1, 8, 8), np.uint8)[[0, *range(199)]], []),
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
    before = read_json(run / "metrics.json")["scores"]
    cswf.output("eval", run, "--against", folder, *SLICED)
    after = {score["name"]: score for score in read_json(run / "metrics.json")["scores"]}
    assert after["sliced_wasserstein_8bit_pictures"]["against"]["data"] == "pictures"
    assert all(after[each["name"]] == each for each in before if each["metric"] == "sliced-wasserstein")


def test_a_data_set_comes_before_a_folder_of_its_name(cswf, folder):
    folder.rename("digits")
    for against, count in (("digits", 1797), ("./digits", 20)):
        document = scored(cswf, "digits", "--against", against, *SLICED)
        assert document["scores"][0]["against"]["count"] == count


def test_several_references_are_brought_into_one_form(cswf, run, folder, tmp_path):
    colours = tmp_path / "colours"
    colours.mkdir()
    for file in folder.iterdir():
        Image.open(file).convert("RGB").save(colours / file.name)
    for path in (run, colours):
        scores = scored(cswf, path, *AGAINST, "--against", colours)["scores"]
        against = {score["against"]["data"] for score in scores if score["against"]}
        assert against == {"digits", "colours"}
    Image.new("RGB", (8, 8), (255, 0, 0)).save(colours / "red.png")
    refusal = cswf.refusal("eval", run, "--against", colours, *SLICED)
    assert "are images of 3×8×8, and what they are compared with are of 1×8×8" in refusal


def test_scores_come_before_a_folder_that_cannot_be_written(cswf, run):
    (run / "metrics.json").unlink()
    (run / "metrics.json").mkdir()
    done = cswf("eval", run, *SLICED)
    assert done.status != 0
    assert "sliced_wasserstein_8bit" in done.out


def test_a_sweep_s_folder_is_told_apart(cswf, finished, tmp_path):
    listed = [{"label": name, "folder": name} for name in ("one", "other")]
    for row in listed:
        shutil.copytree(finished, tmp_path / "sweep" / row["folder"])
    (tmp_path / "sweep/sweep.json").write_text(json.dumps(listed))
    assert "is the folder of a sweep; give one of its runs, such as" in cswf.refusal("eval", tmp_path / "sweep")
    cswf.output("report", tmp_path / "sweep", "--out", tmp_path / "page.html")
    assert "2 runs compared" in (tmp_path / "page.html").read_text()


def test_points_are_scored_by_sliced_wasserstein_where_nothing_is_asked_for(cswf, tmp_path):
    short = ("schedule.steps=2", "particles.count=50", "outputs.frames=0", "--device", "cpu", "--quiet")
    cswf.output("run", "toy-cswf", *short, "--out", tmp_path / "toy")
    assert "sliced_wasserstein" in {score["name"] for score in scored(cswf, tmp_path / "toy")["scores"]}


@pytest.mark.parametrize(
    ("recipe", "metric", "complaint"),
    [("digits", "psnr", "complete no images"), ("digits-unconditional", "class-fid", "needs labels")],
)
def test_a_metric_that_cannot_work_is_refused_before_the_flow(cswf, tmp_path, recipe, metric, complaint):
    out = tmp_path / "out"
    refusal = cswf.refusal("run", recipe, f"evaluate.metrics=[{metric}]", "--out", out, "--device", "cpu")
    assert complaint in refusal
    assert not out.exists()


def test_images_of_any_program_get_a_folder_with_scores_figures_and_a_page(cswf, folder, tmp_path):
    out = tmp_path / "runs/pictures-eval"
    assert "see runs/pictures-eval/report.html" in cswf.output("eval", folder, *AGAINST)
    figures = {"nearest-neighbours.png", "nearest-of-all.png"}
    left = {path.name for path in out.iterdir()}
    assert left == {"metrics.json", "report.html", "samples.png", "real.npz"} | figures
    done = cswf(
        "eval", folder, *AGAINST, "--quiet"
    )  # again into the same folder, as these are the same samples
    assert (done.status, done.out, done.err) == (0, "", "")
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["pictures-eval"]
    moved = shutil.copytree(folder, tmp_path / "elsewhere/pictures")
    assert "see runs/pictures-eval-2/report.html" in cswf.output("eval", moved, *AGAINST)


def test_with_out_a_run_s_own_scores_stay_as_they_are(cswf, finished, tmp_path):
    before = (finished / "metrics.json").read_bytes()
    cswf.output("eval", finished, *AGAINST, "--out", tmp_path / "apart")
    assert (finished / "metrics.json").read_bytes() == before
    assert (tmp_path / "apart/report.html").is_file()


def test_scores_are_printed_in_the_form_that_is_asked_for(cswf, folder):
    def printed(form: str) -> str:
        return cswf.output("eval", folder, *AGAINST, "--format", form)

    rows = list(csv.DictReader(io.StringIO(printed("csv"))))
    assert "sliced_wasserstein_8bit" in {row["score"] for row in rows}
    assert r"| sliced\_wasserstein\_8bit" in printed("markdown")
    latex = printed("latex")
    assert r"\toprule" in latex
    assert "U+" not in latex  # every sign that methods are described with is known
    assert json.loads(cswf.output("eval", folder, *AGAINST, "--json"))["format"] == 2


def test_the_seed_is_the_evaluation_s_own_and_not_the_run_s(cswf, finished, run, tmp_path):
    recipe = run / "recipe.yaml"
    recipe.write_text(recipe.read_text().replace("seed: 0\n", "seed: 7\n", 1))
    first, other, third = (
        scored(cswf, folder, *AGAINST, *seed, "--out", tmp_path / f"to{number}")["scores"][0]["value"]
        for number, (folder, seed) in enumerate(((finished, ()), (run, ()), (finished, ("--seed", "1"))))
    )
    assert first == other != third


def test_the_copy_check_can_be_switched_off(cswf, folder):
    documents = [scored(cswf, folder, *AGAINST, *more) for more in ((), ("--no-copy-check",))]
    metrics = [{score["metric"] for score in document["scores"]} for document in documents]
    assert metrics == [{"sliced-wasserstein", "nearest-neighbours"}, {"sliced-wasserstein"}]


def test_references_of_one_folder_name_keep_apart(cswf, folder, tmp_path):
    for parent in ("a", "b"):
        shutil.copytree(folder, tmp_path / parent / "real")
    (tmp_path / "b/real/000.png").unlink()
    references = ("--against", "a/real", "--against", "b/real")
    printed = cswf.output("eval", folder, *references, *SLICED, "--no-copy-check")
    assert "against a/real" in printed
    assert "against b/real" in printed


def test_what_a_score_may_depend_on_is_a_note(cswf, folder):
    Image.new("L", (8, 8)).save(folder / "strange.tif")
    Image.new("RGBA", (8, 8), (9, 9, 9, 0)).convert("LA").save(folder / "000.png")
    Image.open(folder / "001.png").convert("LA").save(folder / "001.png")  # opaque
    printed = cswf.output("eval", folder, *AGAINST)
    assert "skipped 1 picture (strange.tif); tif is not supported, only png" in printed
    assert "1 of 20 pictures, such as 000.png, are transparent in part; the alpha channel is ignored" in printed


def test_grey_repeated_to_colour_and_unknown_classes_are_notes(cswf, folder, tmp_path):
    colours = tmp_path / "colours/cats"
    colours.mkdir(parents=True)
    for i, image in enumerate(BYTES.integers(0, 256, (6, 8, 8, 3), np.uint8)):
        Image.fromarray(image).save(colours / f"{i}.png")
    folder.rename(tmp_path / "dogs")
    folder.mkdir()
    (tmp_path / "dogs").rename(folder / "dogs")
    printed = cswf.output("eval", folder, "--against", tmp_path / "colours", *SLICED)
    assert "are grey images, and are converted to RGB" in printed
    assert "have no classes: the folder 'dogs' is none of those of the real samples (cats)" in printed


def test_features_are_kept_if_somebody_asks(cswf, network, folder, tmp_path):
    few = ("--count", "4", "--device", "cpu", "--no-copy-check", "--save-features")
    shutil.copytree(folder, tmp_path / "real")
    for file in sorted((tmp_path / "real").iterdir())[4:]:
        file.unlink()
    cswf.output("eval", folder, "--against", tmp_path / "real", "--metric", "fid", *few)
    kept = sorted((tmp_path / "runs/pictures-eval").glob("features-*.npy"))
    assert [np.load(file).shape for file in kept] == [(4, 2048), (4, 2048)]
    assert ["generated" in file.name for file in kept].count(True) == 1
