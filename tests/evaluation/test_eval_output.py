"""What `cswf eval` leaves behind and prints: folders, figures, features, formats, notes, silence."""

from __future__ import annotations

import csv
import io
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cswf_core.recipe import load_recipe
from cswf_core.runs.folder import RunFolder
from cswf_core.session.run import launch
from tests.conftest import read_json

SLICED = ("--against", "digits", "--metric", "{use: sliced-wasserstein, directions: 50}", "--device", "cpu")


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """A small run of the demo."""
    folder = tmp_path_factory.mktemp("output") / "run"
    small = ("particles.count=20", "schedule.steps=3", "schedule.directions=10", "outputs.snapshots=[]")
    launch(load_recipe("digits", small), RunFolder(folder), device="cpu")
    return folder


@pytest.fixture
def pictures(finished, tmp_path) -> Path:
    """The run's images as pictures in a folder."""
    path = tmp_path / "pictures"
    path.mkdir()
    for i, image in enumerate(np.load(finished / "samples.npz")["images"]):
        Image.fromarray(image[0]).save(path / f"{i:03}.png")
    return path


def test_images_of_any_program_get_a_folder_with_scores_figures_and_a_page(cswf, pictures, tmp_path):
    printed = cswf.output("eval", pictures, *SLICED)
    out = tmp_path / "runs/pictures-eval"
    assert "see runs/pictures-eval/report.html" in printed
    names = {path.name for path in out.iterdir()}
    figures = {"nearest-neighbours.png", "nearest-of-all.png"}
    assert names == {"metrics.json", "report.html", "samples.png", "real.npz"} | figures
    cswf.output("eval", pictures, *SLICED)  # again into the same folder, as these are the same samples
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["pictures-eval"]


def test_samples_of_another_place_get_another_folder(cswf, pictures, tmp_path):
    cswf.output("eval", pictures, *SLICED)
    moved = tmp_path / "elsewhere/pictures"
    shutil.copytree(pictures, moved)
    assert "see runs/pictures-eval-2/report.html" in cswf.output("eval", moved, *SLICED)


def test_with_out_a_run_s_own_scores_stay_as_they_are(cswf, finished, tmp_path):
    before = (finished / "metrics.json").read_bytes()
    cswf.output("eval", finished, *SLICED, "--out", tmp_path / "apart")
    assert (finished / "metrics.json").read_bytes() == before
    assert (tmp_path / "apart/report.html").is_file()


def test_a_folder_with_other_files_is_not_written_to(cswf, pictures, tmp_path):
    taken = tmp_path / "taken"
    taken.mkdir()
    (taken / "notes.txt").write_text("mine")
    refusal = cswf.refusal("eval", pictures, *SLICED, "--out", taken)
    assert "has other files in it, or scores of other samples; give another --out" in refusal


def test_a_refused_evaluation_leaves_no_folder(cswf, pictures, tmp_path):
    cswf.refusal("eval", pictures, "--metric", "sliced-wasserstein")
    assert not (tmp_path / "runs").exists()
    cswf.refusal("eval", pictures, "--against", "digits", "--metric", "slicd", "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_table_in_latex_has_every_sign_that_methods_are_described_with(cswf, pictures):
    printed = cswf.output("eval", pictures, *SLICED, "--format", "latex")
    assert "U+" not in printed


def test_quiet_prints_nothing_but_errors(cswf, pictures):
    done = cswf("eval", pictures, *SLICED, "--quiet")
    assert (done.status, done.out, done.err) == (0, "", "")


def test_scores_are_printed_in_the_form_that_is_asked_for(cswf, pictures):
    rows = list(csv.DictReader(io.StringIO(cswf.output("eval", pictures, *SLICED, "--format", "csv"))))
    assert "sliced_wasserstein_8bit" in {row["score"] for row in rows}
    assert r"| sliced\_wasserstein\_8bit" in cswf.output("eval", pictures, *SLICED, "--format", "markdown")
    assert r"\toprule" in cswf.output("eval", pictures, *SLICED, "--format", "latex")
    assert json.loads(cswf.output("eval", pictures, *SLICED, "--format", "json"))["format"] == 2


def test_every_score_says_what_it_depends_on(cswf, pictures, tmp_path):
    cswf.output("eval", pictures, *SLICED, "--seed", "5")
    document = read_json(tmp_path / "runs/pictures-eval/metrics.json")
    for score in document["scores"]:
        assert score["settings"] == {"seed": 5, "precision": "float32", "samples": 50_000}
        assert score["command"].startswith("cswf eval ")
        assert score["command"].endswith("--seed 5")
        assert score["device"]["type"] == "cpu"
        assert score["versions"]["torch"]
        assert score["finished"]
        assert len(score["samples_sha256"]) == 64
        assert isinstance(score["commit"], str)


def test_the_seed_is_the_evaluation_s_own_and_not_the_run_s(cswf, finished, tmp_path):
    (tmp_path / "other").mkdir()
    for name in ("recipe.yaml", "run.json", "samples.npz"):
        shutil.copy(finished / name, tmp_path / "other" / name)
    recipe = tmp_path / "other/recipe.yaml"
    recipe.write_text(recipe.read_text().replace("seed: 0\n", "seed: 7\n", 1))
    values = []
    for run, seed in ((finished, None), (tmp_path / "other", None), (finished, "1")):
        more = () if seed is None else ("--seed", seed)
        printed = cswf.output("eval", run, *SLICED, *more, "--out", tmp_path / f"to{len(values)}", "--json")
        values.append(json.loads(printed)["scores"][0]["value"])
    assert values[0] == values[1] != values[2]


def test_the_copy_check_can_be_switched_off(cswf, pictures):
    checked, unchecked = (
        json.loads(cswf.output("eval", pictures, *SLICED, *more, "--json"))
        for more in ((), ("--no-copy-check",))
    )
    metrics = [{score["metric"] for score in document["scores"]} for document in (checked, unchecked)]
    assert metrics == [{"sliced-wasserstein", "nearest-neighbours"}, {"sliced-wasserstein"}]


def test_references_of_one_folder_name_keep_apart(cswf, pictures, tmp_path):
    for parent in ("a", "b"):
        shutil.copytree(pictures, tmp_path / parent / "real")
    (tmp_path / "b/real/000.png").unlink()
    references = ("--against", "a/real", "--against", "b/real")
    only = ("--metric", "sliced-wasserstein", "--no-copy-check", "--device", "cpu")
    printed = cswf.output("eval", pictures, *references, *only)
    assert "against a/real" in printed
    assert "against b/real" in printed


def test_what_a_score_may_depend_on_is_a_note(cswf, pictures, tmp_path):
    Image.new("L", (8, 8)).save(pictures / "strange.tif")
    Image.new("RGBA", (8, 8), (9, 9, 9, 0)).convert("LA").save(pictures / "000.png")
    Image.open(pictures / "001.png").convert("LA").save(pictures / "001.png")  # opaque
    printed = cswf.output("eval", pictures, *SLICED)
    assert "skipped 1 picture (strange.tif); tif is not supported, only png" in printed
    assert "1 of 20 pictures, such as 000.png, are transparent in part; the alpha channel is ignored" in printed


def test_grey_repeated_to_colour_and_unknown_classes_are_notes(cswf, pictures, tmp_path):
    colours = tmp_path / "colours/cats"
    colours.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for i in range(6):
        Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(colours / f"{i}.png")
    (pictures / "dogs").mkdir()
    for file in list(pictures.glob("*.png")):
        file.rename(pictures / "dogs" / file.name)
    only = ("--metric", "sliced-wasserstein", "--device", "cpu")
    printed = cswf.output("eval", pictures, "--against", tmp_path / "colours", *only)
    assert "are grey images, and are converted to RGB" in printed
    assert "have no classes: the folder 'dogs' is none of those of the real samples (cats)" in printed


@pytest.mark.slow
def test_features_are_kept_if_somebody_asks(cswf, network, pictures, tmp_path):
    few = ("--count", "4", "--device", "cpu", "--no-copy-check", "--save-features")
    shutil.copytree(pictures, tmp_path / "real")
    for file in sorted((tmp_path / "real").iterdir())[4:]:
        file.unlink()
    cswf.output("eval", pictures, "--against", tmp_path / "real", "--metric", "fid", *few)
    kept = sorted((tmp_path / "runs/pictures-eval").glob("features-*.npy"))
    assert [np.load(file).shape for file in kept] == [(4, 2048), (4, 2048)]
    assert ["generated" in file.name for file in kept].count(True) == 1
