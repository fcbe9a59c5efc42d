"""`cswf update`: new data for a run that is done, as if they had been planned from the start."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import attrs
import numpy as np
import pytest
import yaml
from PIL import Image
from sklearn.datasets import load_digits

from cswf_core import load_recipe
from cswf_core.recipe import Recipe
from cswf_core.runs.durable import fingerprint
from cswf_core.runs.folder import RunFolder
from cswf_core.session.run import choose_data, launch, read_predecessor, with_arrival
from tests.cli.conftest import Stop, facts

SIZES = (
    "particles.count=40",
    "schedule.steps=6",
    "schedule.directions=40",
    "evaluate.metrics=[]",
)
SMALL = (*SIZES, "outputs.frames=4", "online.sets=3")
NEW = "{use: digits, classes: [5, 6, 7, 8, 9]}"


def contents(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): fingerprint(path) for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def first(tmp_path_factory) -> Path:
    """A run of digits 0 to 4 that has kept counts."""
    folder = tmp_path_factory.mktemp("runs") / "first"
    launch(load_recipe("online-digits", (*SMALL, "online.arrivals=[]")), RunFolder(folder), device="cpu")
    return folder


@pytest.fixture(scope="module")
def stoppable() -> Recipe:
    """A recipe with an arrival after six steps, and six steps after it."""
    return load_recipe("online-digits", (*SMALL, "online.steps=6", "outputs.checkpoint_every=2"))


@pytest.fixture(scope="module")
def whole(stoppable, tmp_path_factory) -> Path:
    """Its run without a stop."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    launch(stoppable, RunFolder(folder), device="cpu")
    return folder


@pytest.fixture
def stopped_update(first, tmp_path) -> Path:
    """An update of the run that was stopped after two of its steps."""
    recipe = load_recipe(first / "recipe.yaml")
    recipe = with_arrival(recipe, choose_data(NEW, recipe.registry, (1, 8, 8)), 4)
    folder, before = RunFolder(tmp_path / "stopped"), read_predecessor(RunFolder(first))
    with pytest.raises(KeyboardInterrupt):
        before.launch_next(recipe, folder, device="cpu", observers=[Stop(8)])
    return folder.path


@pytest.fixture
def update(cswf, first, tmp_path):
    """Update the run into a folder of its own."""

    def call(*arguments: str, run: Path = first):
        return cswf("update", run, "--device", "cpu", "--out", tmp_path / "out", *arguments)

    return call


def test_an_updated_run_is_the_one_with_the_arrival_in_its_recipe(update, cswf, first, tmp_path):
    before = contents(first)
    ended = update("--data", NEW, "--steps", "5")
    assert ended.status == 0, ended.err
    assert "going on from step 6; 901 samples have been counted before" in ended.out
    assert contents(first) == before
    planned = tmp_path / "planned"
    cswf.output("run", "online-digits", *SMALL, "online.steps=5", "--out", planned, "--device", "cpu")
    one, other = facts(tmp_path / "out"), facts(planned)
    assert one["samples_sha256"] == other["samples_sha256"]
    assert one["data"] == other["data"]
    assert one["particles"] == other["particles"] == round(40 * 1797 / 901)
    assert one["updates"]["run"] == "first"
    assert one["updates"]["samples_sha256"] == facts(first)["samples_sha256"]
    assert (one["steps_done"], one["steps_planned"]) == (11, 11)
    for name in ("counts.safetensors", "samples.npz"):
        assert fingerprint(tmp_path / "out" / name) == fingerprint(planned / name)


def test_an_update_in_other_coordinates_has_those_of_the_first_data(cswf, tmp_path):
    chosen = (
        *SIZES,
        "online.sets=3",
        "coordinates=whitened",
        "particles.start=gaussian",
    )
    common = ("--device", "cpu", "--quiet")
    few, planned, updated = (tmp_path / name for name in ("few", "planned", "updated"))
    cswf.output("run", "online-digits", *chosen, "online.arrivals=[]", "--out", few, *common)
    said = cswf.output("update", few, "--data", NEW, "--steps", "5", "--out", updated, "--device", "cpu")
    assert "901 samples have been counted before" in said
    cswf.output("run", "online-digits", *chosen, "online.steps=5", "--out", planned, *common)
    assert facts(updated)["samples_sha256"] == facts(planned)["samples_sha256"]
    assert fingerprint(updated / "counts.safetensors") == fingerprint(planned / "counts.safetensors")


def test_an_update_can_be_updated_also_with_arrays_and_goes_beside_the_run(cswf, first, tmp_path):
    bunch = load_digits()
    arrays = tmp_path / "new.npz"
    np.savez(arrays, images=(bunch.images[:5, None] * 15).astype(np.uint8), labels=bunch.target[:5])
    news = ("{use: digits, classes: [5]}", "{use: digits, classes: [7]}", str(arrays))
    names = []
    run = first
    for data, steps in zip(news, (("--steps", "2"), ("--schedule", "3"), ()), strict=True):
        assert not cswf.output("update", run, "--data", data, *steps, "--device", "cpu", "--quiet")
        run = max(first.parent.glob("first-updated*"), key=lambda path: path.stat().st_ctime_ns)
        names.append(run.name)
    assert names == ["first-updated", "first-updated-2", "first-updated-3"]
    recipe = yaml.safe_load((run / "recipe.yaml").read_text())
    assert recipe["online"]["steps"] == [2, [3]]
    arrivals = [(each["use"], each["classes"]) for each in recipe["online"]["arrivals"]]
    assert arrivals == [("digits", [5]), ("digits", [7]), ("npz", [])]
    assert facts(run)["data"]["samples"] == 901 + sum(bunch.target == 5) + sum(bunch.target == 7) + 5
    assert facts(run)["steps_done"] == 6 + 2 + 3 + 3  # the last number holds for all that follow


@pytest.mark.parametrize(
    ("room", "steps", "sets"),
    [((), (), 64), (("condition.room=2",), ("--steps", "1"), 1)],
    ids=["no room given", "too little given"],
)
def test_a_run_without_counts_is_counted_once_and_gets_room_for_new_classes(
    update, cswf, tmp_path, room, steps, sets
):
    plain = tmp_path / "plain"
    small = (*SIZES, "schedule.steps=3", "outputs.frames=0", "data.classes=[3, 4]")
    assert cswf("run", "digits", *small, *room, "--out", plain, "--device", "cpu", "--quiet").status == 0
    ended = update("--data", "{use: digits, classes: [4, 5]}", *steps, run=plain)
    assert ended.status == 0, ended.err
    assert f"has kept no counts of its data: these are counted once, along {sets} sets" in ended.out
    assert "condition.room becomes 3, and all data are counted" in ended.out
    written = yaml.safe_load((tmp_path / "out" / "recipe.yaml").read_text())
    assert written["condition"]["room"] == 3
    samples = np.load(tmp_path / "out" / "samples.npz")
    assert set(samples["labels"]) == {0, 1, 2}


def test_pictures_scored_against_held_out_ones_are_updated_along_as_many_sets_as_steps(
    cswf, tmp_path, monkeypatch
):
    monkeypatch.setenv("CSWF_DATA", str(tmp_path / "cache"))
    bunch = load_digits()
    for number in range(60):
        folder = tmp_path / ("old" if number < 40 else "new") / f"class {number // 55}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray((bunch.images[number] * 15).astype(np.uint8)).save(folder / f"{number}.png")
    data = f"data={{use: image-folder, path: {tmp_path / 'old'}, size: 8, channels: 1, held_out: 0.2}}"
    scored = "evaluate={metrics: [sliced-wasserstein], against: [test]}"
    run, out, common = tmp_path / "run", tmp_path / "out", ("--device", "cpu", "--quiet")
    cswf.output("run", "digits", *SIZES, data, scored, "condition.room=2", "--out", run, *common)
    said = cswf.output("update", run, "--data", tmp_path / "new", "--steps", "2", "--out", out)
    assert "counted once, along 2 sets" in said
    assert "note: scores against test are against held-out samples of the first data" in said
    (score,) = (each for each in json.loads((out / "metrics.json").read_text())["scores"] if each["against"])
    assert (score["name"], score["against"]["count"]) == ("sliced_wasserstein_test", 8)
    recipe = load_recipe(run / "recipe.yaml")
    recipe = with_arrival(recipe, choose_data(str(tmp_path / "new"), recipe.registry, (1, 8, 8)), 2)
    many = attrs.evolve(recipe, online=attrs.evolve(recipe.online, sets=8))
    read_predecessor(RunFolder(run)).launch_next(many, RunFolder(tmp_path / "many"), device="cpu")
    assert facts(tmp_path / "many")["samples_sha256"] == facts(out)["samples_sha256"]
    again = cswf.output("update", out, "--data", tmp_path / "new", "--steps", "3", "--out", tmp_path / "again")
    assert "counts along 2 sets of directions, used in turn; for more sets, update the run" in again


def test_counts_that_are_damaged_are_said_to_be_and_counted_again(update, first, tmp_path):
    run = Path(shutil.copytree(first, tmp_path / "run"))
    counts = run / "counts.safetensors"
    counts.write_bytes(counts.read_bytes()[:1000])
    ended = update("--data", NEW, "--steps", "1", run=run)
    assert ended.status == 0
    assert "lost: " in ended.err
    assert "counts.safetensors cannot be read" in ended.err
    assert "these are counted once" in ended.out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--data", NEW, "--steps", "3", "--schedule", "3"), "two ways to say the same"),
        (("--data", NEW, "--schedule", "3,x"), "--schedule takes numbers of steps"),
        (("--data", NEW, "--schedule", "3,4"), "a round has 1 stages, and the steps given are [3, 4]"),
        (("--data", "digit"), "did you mean 'digits'?"),
        (
            ("--data", "{use: toy-2d, target: [{mean: [0, 0], std: [1, 1]}]}"),
            "new data are 2, and the flow's are 1×8×8",
        ),
        (("--data", "{use: digits, classes: [12]}"), "must be digits from 0 to 9"),
    ],
)
def test_mistakes_are_one_sentence_and_leave_no_folder(update, arguments, sentence, tmp_path):
    ended = update(*arguments)
    assert ended.status == 2
    assert sentence in ended.err
    assert not (tmp_path / "out").exists()


def test_only_runs_that_are_done_can_be_updated(update, first, tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "has no run" in update("--data", NEW, run=empty).err
    half = tmp_path / "half"
    half.mkdir()
    (half / "recipe.yaml").write_text((first / "recipe.yaml").read_text())
    (half / "run.json").write_text(json.dumps({**facts(first), "status": "interrupted"}))
    assert f"`cswf resume {half}` brings it to its end" in update("--data", NEW, run=half).err
    (half / "run.json").write_text(json.dumps(facts(first)))
    (half / "samples.npz").write_bytes((first / "samples.npz").read_bytes())
    assert "has no checkpoint of its end" in update("--data", NEW, run=half).err


@pytest.mark.parametrize("at", [5, 7, None])
def test_a_run_that_stops_before_or_after_an_arrival_goes_on_as_if_it_had_not(
    cswf, stoppable, whole, tmp_path, at
):
    with pytest.raises(KeyboardInterrupt):
        launch(stoppable, RunFolder(tmp_path), device="cpu", observers=[Stop(at)])
    cswf.output("resume", tmp_path, "--device", "cpu", "--quiet")
    assert facts(tmp_path)["samples_sha256"] == facts(whole)["samples_sha256"]
    for name in ("counts.safetensors", "samples.npz", "frames.npz", "flow.gif"):
        assert fingerprint(tmp_path / name) == fingerprint(whole / name), name


def test_an_update_that_stops_goes_on_as_if_it_had_not(cswf, update, stopped_update, tmp_path):
    assert update("--data", NEW, "--steps", "4").status == 0
    assert cswf("resume", stopped_update, "--device", "cpu", "--quiet").status == 0
    assert facts(stopped_update)["samples_sha256"] == facts(tmp_path / "out")["samples_sha256"]
    assert facts(stopped_update)["updates"]["run"] == "first"


def test_an_update_without_a_good_checkpoint_is_not_begun_anew_from_nothing(cswf, stopped_update):
    for path in (stopped_update / "checkpoints").iterdir():
        path.unlink()
    refusal = cswf.refusal("resume", stopped_update, "--device", "cpu")
    assert "has gone on from another run, and none of its checkpoints is good (there are none)" in refusal


def test_an_update_that_cannot_save_where_it_begins_is_refused_and_leaves_no_folder(first, apart, tmp_path):
    command = ("update", first, "--data", NEW, "--device", "cpu", "--quiet", "--out", tmp_path / "out")
    ended = apart.completed(*command, largest_file=2_000)
    assert ended.returncode == 2
    assert "cannot be resumed without a first checkpoint" in ended.stderr
    assert not (tmp_path / "out").exists()
