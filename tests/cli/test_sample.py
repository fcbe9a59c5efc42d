"""`cswf sample`, `cswf inpaint` and `cswf inspect`: from a run's folder to pictures, or to a sentence."""

from __future__ import annotations

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
    "model.knots=12",
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
    assert (done.status, done.err) == (0, "")
    assert done.out.startswith("200 samples: see ")
    with np.load(run / "samples-offline.npz") as found:
        assert found["images"].shape == (200, 1, 8, 8)
        assert found["labels"].shape == (200,)
    assert Image.open(run / "samples-offline.png").width > 100
    printed = cswf.output("eval", run, "--samples", "offline", "--metric", "sliced-wasserstein")
    assert "sliced_wasserstein_8bit_offline" in printed
    assert list(Path().iterdir()) == []


def drift(caplog) -> list[str]:
    """What was said of offline samples' spread since the last call."""
    said = [message for message in caplog.messages if "times as wide as the run's particles" in message]
    caplog.clear()
    return said


def test_samples_that_spread_unlike_the_run_s_particles_are_told_unless_classes_may_differ(
    cswf, run, tmp_path, caplog
):
    points = made(tmp_path / "points", "condition=none")
    by_class = Path(shutil.copytree(run, tmp_path / "classes"))
    cases = ((points, 1), (points, 1.3), (points, 0.7), (points, None), (by_class, 1.3))
    for folder, wider, count in (*((*case, 300) for case in cases), (points, 1.3, 199)):
        facts = read_json(folder / "run.json")
        spread = {} if wider is None else {"spread": facts.pop("spread") / wider}
        (folder / "run.json").write_text(json.dumps({**facts, **spread}))
        assert cswf("sample", folder, "--count", str(count), "--device", "cpu").status == 0
        said = drift(caplog)
        assert len(said) == (folder is points and wider in (1.3, 0.7) and count >= 200)
        assert [wider > 1 for _ in said] == ["fewer steps" in each for each in said]
        if wider is not None:
            (folder / "run.json").write_text(json.dumps({**facts, "spread": spread["spread"] * wider}))


@pytest.mark.parametrize(("count", "cdf", "wider"), [(15, "histogram", False), (1, "sorted", None)])
def test_particles_that_spread_unlike_those_they_are_carried_beside_are_told(
    count, cdf, wider, tmp_path, caplog
):
    changes = (
        f"particles.count={count}",
        f"cdf={cdf}",
        f"schedule.steps={3 if wider is None else 20}",
        "schedule.directions=128",
        "particles.offline=200",
    )
    small = [*SMALL[-3:], *changes, "condition=none", "particles.precision=float32"]
    facts = launch(load_recipe("digits", small), RunFolder(tmp_path / "run"), device="cpu")
    said = drift(caplog)
    assert len(said) == (wider is not None)
    if wider is not None:
        ratio = facts["offline_spread"] / facts["spread"]
        assert f"spread {ratio:.2f} times" in said[0]
        assert (ratio > 1) == wider


def test_samples_of_a_model_are_left_here_and_replaced_only_by_force(run, cswf):
    command = ("sample", run / "model", "--count", "3", "--device", "cpu", "--quiet")
    assert cswf(*command).status == 0
    assert sorted(path.name for path in Path().iterdir()) == ["samples.npz", "samples.png"]
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
    assert (done.status, done.out) == (0, "20 samples: see shards/manifest.json\n")
    assert sorted(path.name for path in Path("shards").iterdir()) == [
        "manifest.json", "request.json", "samples-00000.npz",
    ]  # fmt: skip
    assert cswf(*command, "--out", "one.npz", "--quiet").status == 0
    with np.load("shards/samples-00000.npz") as shard, np.load("one.npz") as one:
        assert sorted(shard.files) == sorted(one.files) == ["images", "labels"]
        assert all((shard[name] == one[name]).all() for name in shard.files)
    assert cswf(*command, "--out", "shards").status == 0  # there is nothing left to do
    refused = cswf.refusal(*command, "--seed", "1", "--out", "shards")
    assert "shards has shards of another request: its seed is 0, and 1 is asked for" in refused


def test_processes_of_torchrun_share_a_folder_of_shards(run, cswf, monkeypatch):
    monkeypatch.setattr("cswf_core.model.shards.SAMPLES_PER_SHARD", 256)
    command = ("sample", run, "--count", "600", "--device", "cpu")
    for rank, printed in ((1, ""), (0, "600 samples: see shards/manifest.json\n")):
        for name, value in (("RANK", rank), ("LOCAL_RANK", rank), ("WORLD_SIZE", 2)):
            monkeypatch.setenv(name, str(value))
        done = cswf(*command, "--out", "shards/")
        assert (done.status, done.out) == (0, printed)
    assert len(read_json(Path("shards/manifest.json"))["shards"]) == 3
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
        "of 10 steps, 12 knots in float16",
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
