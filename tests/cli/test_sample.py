"""`cswf sample`, `cswf inpaint` and `cswf inspect`: from a run's folder to pictures, or to a sentence."""

from __future__ import annotations

import html
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cswf_core.model import Model
from cswf_core.recipe import load_recipe
from cswf_core.runs.folder import RunFolder
from cswf_core.session.run import launch
from tests.conftest import read_json, skip_without

pytestmark = pytest.mark.usefixtures("elsewhere")

SMALL = (
    "model.save=true",
    "model.knots=13",
    "schedule.steps=10",
    "schedule.directions=64",
    "particles.count=400",
    "evaluate.metrics=[]",
    "outputs.frames=0",
    "outputs.snapshots=[]",
)


def made(folder: Path, *overrides: str) -> Path:
    launch(load_recipe("digits", [*SMALL, *overrides]), RunFolder(folder), device="cpu")
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A run that has saved a model, by class."""
    return made(tmp_path_factory.mktemp("sample") / "run")


@pytest.fixture(scope="module")
def filling(tmp_path_factory) -> Path:
    """A run whose model fills in lower halves."""
    return made(tmp_path_factory.mktemp("inpaint") / "run", "condition=mask")


def test_samples_of_a_run_are_left_in_it_and_can_be_scored(run, cswf):
    done = cswf("sample", run, "--count", "200", "--device", "cpu")
    assert done.status == 0
    assert done.out.startswith("200 samples: see ")
    with np.load(run / "samples-offline.npz") as found:
        assert found["images"].shape == (200, 1, 8, 8)
        assert found["labels"].shape == (200,)
    assert Image.open(run / "samples-offline.png").width > 100
    printed = cswf.output("eval", run, "--samples", "offline", "--metric", "sliced-wasserstein")
    assert "sliced_wasserstein_8bit_offline" in printed
    assert list(Path().iterdir()) == []


def test_samples_that_differ_from_the_run_s_particles_are_told_and_the_files_and_the_report_say_so(
    run, cswf, tmp_path, caplog
):
    folder = Path(shutil.copytree(run, tmp_path / "run"))
    assert cswf("sample", folder, "--count", "300", "--seed", "1", "--device", "cpu").status == 0
    with np.load(folder / "samples-offline.npz") as arrays:
        images = arrays["images"]
        labels = arrays["labels"]
    for particles, passed in ((images, True), (255 - images, False)):
        np.savez(folder / "samples.npz", images=particles, labels=labels)
        caplog.clear()
        done = cswf("sample", folder, "--count", "300", "--device", "cpu")
        line = done.out.splitlines()[1]
        assert line.startswith("compared with the run's 300 particles: spread ")
        assert [line.endswith(": they differ"), told(caplog)] == [not passed] * 2
        with np.load(folder / "samples-offline.npz") as arrays:
            result = json.loads(str(arrays["two_sample_test"]))
        assert (result["passed"], result["particles"]) == (passed, 300)
        with Image.open(folder / "samples-offline.png") as picture:
            assert json.loads(picture.text["two_sample_test"]) == result
        page = html.unescape((folder / "report.html").read_text())
        assert f"C{line[1:]}." in page


def told(caplog) -> bool:
    """Return whether there was a warning that samples differ from the run's particles."""
    return any("new samples differ from the run's particles" in message for message in caplog.messages)


@pytest.mark.parametrize(
    ("options", "damage", "reason"),
    [
        (("--count", "199"), None, "that takes 200 samples or more"),
        (("--label", "3", "--count", "200"), None, "50 particles of the samples' classes; there are 4"),
        (("--count", "200"), b"no archive", "samples.npz cannot be read as .npz"),
    ],
)
def test_samples_that_cannot_be_compared_are_written_without_a_warning(
    options, damage, reason, run, cswf, tmp_path, caplog
):
    folder = Path(shutil.copytree(run, tmp_path / "run"))
    if damage is not None:
        (folder / "samples.npz").write_bytes(damage)
    done = cswf("sample", folder, *options, "--out", "a.npz", "--device", "cpu")
    assert done.out.splitlines()[1].startswith("not compared with the run's particles: ")
    assert reason in done.out
    assert not told(caplog)
    with np.load("a.npz") as arrays:
        assert str(arrays["two_sample_test"]) == "null"


def test_samples_of_vectors_are_compared_only_as_the_data_have_them(cswf):
    toy = (*SMALL, "particles.count=200", "schedule.steps=1")
    launch(load_recipe("toy-cswf", toy), RunFolder(Path("toy")), device="cpu")
    command = ("sample", "toy", "--count", "200", "--device", "cpu", "--out")
    assert "\ncompared with the run's 200 particles: " in cswf(*command, "a.npz").out
    assert ": their vector was chosen\n" in cswf(*command, "b.npz", "--vector", "0.3").out


@pytest.mark.parametrize(("count", "result"), [(60, False), (15, None)])
def test_particles_that_are_carried_beside_others_are_compared_with_them(count, result, tmp_path, caplog):
    changes = (f"particles.count={count}", "schedule.steps=30", "schedule.directions=128")
    small = [*SMALL[-3:], *changes, "particles.offline=200", "condition=none", "cdf=sorted"]
    launch(load_recipe("digits", small), RunFolder(tmp_path / "run"), device="cpu")
    with np.load(tmp_path / "run/samples-offline.npz") as arrays:
        found = json.loads(str(arrays["two_sample_test"]))
    assert (None if found is None else found["passed"]) is result
    assert told(caplog) == (result is False)


def test_samples_of_a_model_are_left_here_and_replaced_only_by_force(run, cswf):
    command = ("sample", run / "model", "--count", "3", "--device", "cpu", "--quiet")
    assert cswf(*command).status == 0
    assert sorted(path.name for path in Path().iterdir()) == ["samples.npz", "samples.png"]
    with np.load("samples.npz") as arrays:
        assert str(arrays["two_sample_test"]) == "null"  # there are no particles to compare with
    before = Path("samples.npz").read_bytes()
    assert cswf.refusal(*command, "--seed", "1") == "samples.npz is there; give another --out, or --force\n"
    assert Path("samples.npz").read_bytes() == before
    assert cswf(*command, "--seed", "1", "--force").status == 0
    assert Path("samples.npz").read_bytes() != before


def test_a_picture_is_not_written_through_a_link(run, cswf, tmp_path):
    Path("mine.txt").write_text("mine")
    Path("folder").mkdir()
    Path("folder/3-00000.png").symlink_to(tmp_path / "mine.txt")
    command = ("sample", run, "--label", "3", "--count", "1", "--out", "folder", "--force", "--quiet")
    assert cswf.refusal(*command) == "folder/3-00000.png cannot be written: it is a link\n"
    assert Path("mine.txt").read_text() == "mine"


def test_classes_are_asked_for_one_or_so_many_of_each_and_go_to_a_file_a_folder_or_a_picture(run, cswf):
    assert cswf("sample", run, "--label", "3", "--count", "4", "--out", "a.npz", "--quiet").status == 0
    with np.load("a.npz") as found:
        assert found["labels"].tolist() == [3] * 4
    assert cswf("sample", run, "--labels", "0:2,7:1", "--out", "folder", "--quiet").status == 0
    pictures = sorted(path.name for path in Path("folder").iterdir())
    assert pictures == ["0-00000.png", "0-00001.png", "7-00002.png"]
    with Image.open("folder/7-00002.png") as picture:
        assert (picture.size, picture.mode) == ((8, 8), "L")
    assert cswf("sample", run, "--out", "new/some.png", "--count", "5", "--quiet").status == 0
    assert [path.name for path in Path("new").iterdir()] == ["some.png"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--label", "ten"), "there is no class 'ten'; the classes are 0, 1, 2, 3, 4, 5, 6, 7, 8, 9"),
        (("--labels", "1"), "--labels takes CLASS:N, separated by commas, such as 0:100,7:50; got '1'"),
        (("--labels", "1:0"), "got '1:0'"),
        (("--labels", "1:2", "--count", "3"), "leave out --label and --count"),
        (("--labels", "1:2", "--label", "3"), "leave out --label and --count"),
        (("--vector", "a"), "--vector takes numbers, separated by commas, such as 0.3,0.7; got 'a'"),
        (("--vector", "1,2"), "the model is not conditioned on vectors, but on labels: it takes none"),
        (("--out", "a.jpg"), "--out takes a file that ends in .png or .npz, or a folder; got a.jpg"),
        (("--device", "abacus"), "there is no device 'abacus'"),
    ],
)
def test_mistakes_are_sentences_and_leave_nothing(options, said, run, cswf):
    assert said in cswf.refusal("sample", run, *options)
    assert list(Path().iterdir()) == []


def test_points_go_to_a_file_and_never_to_a_folder(cswf, monkeypatch):
    toy = (*SMALL, "particles.count=50", "schedule.steps=2")
    launch(load_recipe("toy-cswf", toy), RunFolder(Path("toy")), device="cpu")
    assert cswf("sample", "toy", "--out", "a.npz", "--count", "3", "--quiet", "--device", "cpu").status == 0
    monkeypatch.setattr(Model, "sample", lambda *_, **__: pytest.fail("sampled"))
    refusal = cswf.refusal("sample", "toy", "--out", "points", "--quiet")
    assert "ends in .png or .npz for points, and a folder for images only; got points" in refusal
    assert sorted(path.name for path in Path().iterdir()) == ["a.npz", "toy"]


def test_a_path_that_ends_in_a_slash_is_a_folder_of_shards_and_stays_one(run, cswf):
    command = ("sample", run, "--count", "20", "--device", "cpu")
    done = cswf(*command, "--out", "shards/")
    assert (done.status, done.out.splitlines()[0]) == (0, "20 samples: see shards/manifest.json")
    assert read_json(Path("shards/manifest.json"))["two_sample_test"] is None
    assert sorted(path.name for path in Path("shards").iterdir()) == [
        "manifest.json", "request.json", "samples-00000.npz",
    ]  # fmt: skip
    assert cswf(*command, "--out", "one.npz", "--quiet").status == 0
    with np.load("shards/samples-00000.npz") as shard, np.load("one.npz") as one:
        assert sorted(one.files) == sorted([*shard.files, "two_sample_test"])
        assert all((shard[name] == one[name]).all() for name in shard.files)
    assert cswf(*command, "--out", "shards").status == 0  # there is nothing left to do
    refused = cswf.refusal(*command, "--seed", "1", "--out", "shards")
    assert "shards has shards of another request: its seed is 0, and 1 is asked for" in refused


def test_processes_of_torchrun_share_a_folder_of_shards(run, cswf, monkeypatch):
    monkeypatch.setattr("cswf_core.model.shards.SAMPLES_PER_SHARD", 256)
    command = ("sample", run, "--count", "600", "--device", "cpu")
    for rank, printed in ((1, []), (0, ["600 samples: see shards/manifest.json"])):
        for name, value in (("RANK", rank), ("LOCAL_RANK", rank), ("WORLD_SIZE", 2)):
            monkeypatch.setenv(name, str(value))
        done = cswf(*command, "--out", "shards/")
        assert (done.status, done.out.splitlines()[:1]) == (0, printed)
    manifest = read_json(Path("shards/manifest.json"))
    assert len(manifest["shards"]) == 3
    assert manifest["two_sample_test"]["compared"] > 200  # of the first shard
    assert "give --out FOLDER/, with the slash" in cswf.refusal(*command, "--out", "a.npz")
    monkeypatch.setenv("RANK", "first")
    assert "RANK must be a whole number, got 'first'" in cswf.refusal(*command, "--out", "shards/")


def test_a_run_without_a_model_is_told_apart_from_no_run(cswf):
    without = made(Path("without"), "model.save=false", "schedule.steps=1")
    assert "a run saves one with model.save=true" in cswf("sample", without).err
    assert "does not exist" in cswf("sample", "nowhere").err
    assert "has no model: there is no model.json in it" in cswf("inspect", ".").err


def digit(path: Path, side: int = 8) -> Path:
    from sklearn.datasets import load_digits

    pixels = (load_digits().images[0] * 15).astype(np.uint8)
    Image.fromarray(pixels).resize((side, side), Image.Resampling.NEAREST).save(path)
    return path


def test_images_are_completed_and_shown_between_what_is_seen_and_the_original(filling, cswf, tmp_path):
    image = digit(tmp_path / "zero.png")
    printed = cswf.output("inpaint", filling, image, image, "--count", "3", "--device", "cpu")
    assert "6 completions: see completions.npz, completions.png" in printed
    with np.load("completions.npz") as found:
        assert found["images"].shape == (6, 1, 8, 8)
        assert found["origin"].tolist() == [0, 0, 0, 1, 1, 1]
        given = np.asarray(Image.open(image))
        assert (found["images"][:, 0, :4] == given[:4]).all()
        assert found["mask"].shape == (1, 1, 8, 8)
    with Image.open("completions.png") as shown:
        assert shown.width > 5 * 40


def test_held_out_images_are_completed(cswf):
    skip_without("mnist")
    sizes = ["data.count=100", "particles.count=60", "projection=uniform"]
    sizes.append("schedule={use: constant, steps: 3, directions: 20, step_size: 10}")
    few = ["condition.held_out=0", "outputs.frames=0", "model.save=true", "evaluate.metrics=[]"]
    cswf.output("run", "mnist-inpainting", *sizes, *few, "--out", "halves", "--quiet", "--device", "cpu")
    printed = cswf.output("inpaint", "halves", "--held-out", "3", "--count", "2", "--device", "cpu")
    assert "6 completions" in printed
    with np.load("completions.npz") as completed:
        assert completed["images"].shape == (6, 1, 28, 28)
        assert completed["origin"].tolist() == [0, 0, 1, 1, 2, 2]
    assert "10,000" in cswf.refusal("inpaint", "halves", "--held-out", "10001")


def test_a_mask_from_a_disk_says_what_to_fill_in_and_images_are_resized_if_asked(filling, cswf, tmp_path):
    image, large = digit(tmp_path / "zero.png"), digit(tmp_path / "large.png", 16)
    black = np.full((8, 8), 255, np.uint8)
    black[:, :3] = 0
    Image.fromarray(black).save("mask.png")
    said = "large.png has 16×16 pixels, and the model's images have 8×8; --resize brings it to that size"
    assert said in cswf.refusal("inpaint", filling, large)
    options = ("--mask", "mask.png", "--count", "5", "--quiet", "--device", "cpu")
    cswf.output("inpaint", filling, image, *options, "--out", "filled")
    cswf.output("inpaint", filling, large, *options, "--out", "resized.png", "--resize")
    assert len(list(Path("filled").iterdir())) == 5
    with Image.open("filled/zero-00004.png") as found:
        assert (np.asarray(found)[:, 3:] == np.asarray(Image.open(image))[:, 3:]).all()


def test_mistakes_with_completions_are_sentences(run, filling, cswf, tmp_path):
    image = digit(tmp_path / "a.png")
    assert "one of the two" in cswf.refusal("inpaint", filling)
    assert "one of the two" in cswf.refusal("inpaint", filling, image, "--held-out", "2")
    assert "hold out 0" in cswf.refusal("inpaint", filling, "--held-out", "2")
    assert "completes no images: use `cswf sample`" in cswf("inpaint", run, image).err
    assert "completes images: use `cswf inpaint`" in cswf("sample", filling).err


def test_a_model_is_described(run, filling, cswf):
    said = cswf("inspect", run, "--check").out
    for part in (
        "model of   digits (cswf ",
        "complete   yes",
        "digits, 1,797 samples of 1×8×8",
        "one-hot: classes 0, 1, 2, 3, 4, 5, 6, 7, 8, 9",
        "400 particles, 10 steps in 1 stages, 64 directions",
        "of 10 steps, 13 knots of 4 bits for each class",
        "MB in 1 shards",
        "of the time of all steps",
        "checked: all 1 shards are as they were written",
        f"cswf sample {run} --count 100 --label 9",
    ):
        assert part in said
    assert "an image of which a part is seen" in cswf("inspect", filling / "model").out
    assert json.loads(cswf("inspect", run, "--json").out) == read_json(run / "model" / "model.json")


def test_a_model_with_more_than_maps_is_described_sampled_and_checked(cswf, tmp_path):
    fitted = ("coordinates=whitened", "particles.start=gaussian", "projection=data-covariance")
    recipe = (*SMALL, "schedule.steps=3", *fitted)
    cswf.output("run", "digits", *recipe, "--out", tmp_path, "--device", "cpu", "--quiet")
    said = cswf.output("inspect", tmp_path, "--check")
    assert "format 5)" in said
    assert "MB in 1 shards, 1 files of filters and fitted.safetensors" in said
    assert "checked: all 1 shards, 1 files of filters and fitted.safetensors are as they were written" in said
    assert "checked: plugins draw the directions of the run" in said
    cswf.output("sample", tmp_path, "--count", "3", "--device", "cpu", "--quiet")
    (tmp_path / "model" / "fitted.safetensors").unlink()
    assert "fitted.safetensors is missing" in cswf.refusal("sample", tmp_path, "--force")


def test_a_damaged_model_is_found_out(run, cswf, tmp_path):
    shutil.copytree(run / "model", tmp_path / "copy")
    shard = tmp_path / "copy" / "tables-00000.safetensors"
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)
    assert "its checksum differs" in cswf.refusal("inspect", tmp_path / "copy", "--check")
