"""`cswf sweep`: several runs of a recipe, one after the other, compared at the end."""

from __future__ import annotations

import json
import shutil
import signal
import statistics
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image

from cswf_core.runs.folder import RunFolder
from cswf_core.session.run import launch
from cswf_core.session.sweep import Sweep, plan, split
from tests.cli.conftest import TINY
from tests.conftest import read_json
from tests.processes import wait_until
from tests.runs.unfinished import leave_unfinished

TINY = (*TINY, "outputs.snapshots=[0, 2]")
UNSCORED = (*(change for change in TINY if not change.startswith("evaluate.")), "evaluate.metrics=[]")
VARIANTS = """
extends: digits
schedule: {steps: 2, directions: 16}
particles: {count: 20}
outputs: {frames: 0}
evaluate: {metrics: [{use: sliced-wasserstein, directions: 50}]}
variants:
  "ξ = 0": {condition: {amplifier: 0}}
  as it is:
"""


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(VARIANTS)
    return path


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """A sweep over two seeds that is done."""
    folder = tmp_path_factory.mktemp("sweeps") / "finished"
    sweep = Sweep(plan("digits", ["seed=1,2", *TINY]), RunFolder(folder))
    with sweep.claimed(force=False):
        sweep.run(partial(launch, device="cpu"), lambda _: None)
        sweep.draw()
    return folder


@pytest.fixture
def out(finished, tmp_path) -> Path:
    """A copy of the finished sweep."""
    return Path(shutil.copytree(finished, tmp_path / "out"))


def rows(folder: Path) -> list[dict[str, object]]:
    return read_json(folder / "sweep.json")


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("1,2,3", ["1", "2", "3"]),
        ("1, 2", ["1", "2"]),
        ("[1,2]", ["[1,2]"]),
        ("[1,2],[3]", ["[1,2]", "[3]"]),
        ("{use: a, b: [1, 2]},c", ["{use: a, b: [1, 2]}", "c"]),
        ('"a,b",c', ['"a,b"', "c"]),
        ("'it''s, so',b", ["'it''s, so'", "b"]),
        ("it's,that's", ["it's", "that's"]),
        ("[a,b", ["[a,b"]),
        ("", [""]),
    ],
)
def test_values_are_split_at_commas_outside_of_brackets_and_quotes(text, parts):
    assert split(text) == parts


def test_every_combination_is_planned_in_order_with_short_labels():
    trials = plan("digits", ["condition.amplifier=0,2", *TINY, "schedule.steps=2,3"])
    pairs = [(0, 2), (0, 3), (2, 2), (2, 3)]
    assert [trial.label for trial in trials] == [f"amplifier={a}, steps={steps}" for a, steps in pairs]
    assert [trial.recipe.condition.part.amplifier for trial in trials] == [a for a, _ in pairs]
    assert len({trial.folder for trial in trials}) == 4
    assert trials[0].recipe.outputs.snapshots == (0, 2)
    keys = ["projection.use=uniform,orthogonal", "condition.labels=balanced,drawn", "outputs.snapshots.0=0,1"]
    assert plan("digits", keys)[0].label == "projection.use=uniform, labels=balanced, snapshots.0=0"


def test_folders_are_safe_and_unique(tmp_path):
    path = tmp_path / "r.yaml"
    path.write_text(
        "extends: digits\nvariants: {a/b: , a b: , A?B: , ..: , sweep.json: , ξ = 1: , 3×2 Γέ é 字: }\n"
    )
    folders = [trial.folder for trial in plan(str(path), [])]
    assert folders == ["a-b", "a-b-2", "A-B-3", "run", "sweep.json-2", "xi=1", "3x2-Gammaepsilon-e"]


def test_a_swept_key_gives_the_run_that_cswf_run_makes_for_each_value(cswf, tmp_path):
    out, swept = tmp_path / "out", (0, 10)
    done = cswf("sweep", "digits", "condition.amplifier=0,10", *TINY, "--out", out, "--device", "cpu")
    assert (done.status, done.err) == (0, "")
    lines = done.out.splitlines()
    for number, amplifier in enumerate(swept, start=1):
        assert f"[{number}/2] amplifier={amplifier}" in lines
        resolved = yaml.safe_load((out / f"amplifier={amplifier}/recipe.yaml").read_text())
        assert resolved["condition"]["amplifier"] == amplifier
        assert (out / f"amplifier={amplifier}/samples.npz").exists()
    assert any(line.startswith("stage 1/1 constant  step 2/2") for line in lines)
    assert ["run", "seconds", "sliced_wasserstein", "copies_l2"] in [line.split() for line in lines]
    assert lines[-1] == f"see {out / 'sweep.png'}"
    assert "\x1b" not in done.out
    assert Image.open(out / "sweep.png").width > len(swept) * 2 * 40
    assert Image.open(out / "flow.png").height > len(swept) * 3 * 40
    for row in rows(out):
        record = read_json(out / row["folder"] / "run.json")
        keys = ("status", "seconds", "metrics", "samples_sha256")
        assert {key: row[key] for key in keys} == {key: record[key] for key in keys}
        assert row["status"] == "done"
    cswf.output("run", "digits", "condition.amplifier=0", *TINY, "--out", tmp_path / "one", "--device", "cpu")
    assert rows(out)[0]["samples_sha256"] == read_json(tmp_path / "one/run.json")["samples_sha256"]


def test_without_a_swept_key_the_recipe_s_variants_are_run(cswf, tmp_path, recipe):
    cswf.output("sweep", recipe, "outputs.snapshots=[]", "--out", tmp_path / "out", "--device", "cpu")
    made = [(row["label"], row["folder"]) for row in rows(tmp_path / "out")]
    assert made == [("ξ = 0", "xi=0"), ("as it is", "as-it-is")]
    assert (tmp_path / "out/sweep.png").exists()
    assert not (tmp_path / "out/flow.png").exists()


@pytest.mark.parametrize(
    ("overrides", "complaint"),
    [
        (("outputs.snapshots=[1,2]",), "'digits' has no variants to run; give key=a,b,c, or use a recipe with"),
        (("seed=1,,2",), "command line:1:6: 'seed=1,,2': a value is missing between commas"),
        (("seed=1, 1",), "command line:1:6: 'seed=1, 1': a value is there twice"),
        (("seed=1,2", "seed=3,4"), "'seed' has several values in two places"),
        (("seed=" + ",".join(map(str, range(300))),), "more than 256 combinations"),
        (("seed=1,2", "schedule.steps=2,0"), "command line:2:16: schedule.steps must be at least 1"),
    ],
)
def test_mistakes_are_one_sentence_before_anything_runs(cswf, tmp_path, monkeypatch, overrides, complaint):
    monkeypatch.chdir(tmp_path)
    assert complaint in cswf.refusal("sweep", "digits", *overrides)
    assert not list(tmp_path.iterdir())


def test_a_swept_key_and_variants_are_too_much(cswf, tmp_path, recipe):
    assert "has variants of its own" in cswf.refusal("sweep", recipe, "seed=1,2", "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_quiet_prints_nothing_and_folders_are_numbered(cswf, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        done = cswf("sweep", "digits", "seed=1,2", *UNSCORED, "--quiet")
        assert (done.status, done.out, done.err) == (0, "", "")
    assert cswf("sweep", "digits", "seed=1,3", *UNSCORED, "--quiet", "--force").status == 0
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {"digits-sweep", "digits-sweep-2"}
    files = {path.name for path in (tmp_path / "runs/digits-sweep").iterdir()}
    assert files == {"sweep.json", "summary.json", "sweep.png", "flow.png", "seed=1", "seed=3"}


def test_an_interrupted_sweep_goes_on_with_more_values_and_keeps_what_was_done(cswf, out):
    before = rows(out)
    record = out / "seed=2/run.json"
    record.write_text(json.dumps({**json.loads(record.read_text()), "status": "running"}))
    kept = (out / "seed=1/run.json").stat().st_mtime_ns
    (out / "sweep.png").unlink()
    for labels in (["[1/2] seed=1: done before", "[2/2] seed=2"],
                   ["[1/3] seed=1: done before", "[2/3] seed=2", "[3/3] seed=3"]):  # fmt: skip
        seeds = ",".join(map(str, range(1, len(labels) + 1)))
        printed = cswf.output("sweep", "digits", f"seed={seeds}", *TINY, "--out", out, "--device", "cpu")
        assert [line for line in printed.splitlines() if line.startswith("[")] == labels
        assert (out / "seed=1/run.json").stat().st_mtime_ns == kept
        assert (out / "sweep.png").exists()
        assert [row["samples_sha256"] for row in rows(out)][:2] == [row["samples_sha256"] for row in before]
        assert [row["status"] for row in rows(out)] == ["done"] * len(labels)
        record.unlink()


def test_a_folder_with_something_else_is_refused(cswf, tmp_path):
    arguments = ("sweep", "digits", "seed=1,2", *UNSCORED, "--out", tmp_path, "--quiet", "--device", "cpu")
    (tmp_path / "notes.txt").write_text("mine")
    assert "is not empty and has no sweep with these values to go on with" in cswf.refusal(*arguments)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
    assert cswf(*arguments, "--force").status == 0
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_sweep_with_other_values_is_refused(cswf, out):
    before = (out / "seed=1/run.json").read_text()
    for other in (("seed=1,2", "particles.count=21"), ("seed=1,4", *TINY[2:]), ("seed=1,2,4",)):
        changed = ("sweep", "digits", *other, *TINY[:2], "--out", out, "--quiet", "--device", "cpu")
        assert "has no sweep with these values" in cswf(*changed).err
    assert (out / "seed=1/run.json").read_text() == before


def test_a_run_that_is_in_the_way_is_refused_before_anything_runs(cswf, out):
    shutil.copytree(out / "seed=1", out / "seed=4")
    refusal = cswf.refusal("sweep", "digits", "seed=1,2,3,4", *TINY, "--out", out, "--quiet")
    assert "seed=4 is not empty" in refusal
    assert not (out / "seed=3").exists()


def test_an_error_in_a_run_names_it_and_what_was_done_stays(cswf, tmp_path):
    paths = [tmp_path / "good.npz", tmp_path / "none.npz"]
    np.savez(paths[0], points=np.random.default_rng(0).normal(size=(9, 2)))
    data = "data=" + ",".join(f"{{use: npz, path: {path}}}" for path in paths)
    refusal = cswf.refusal(
        "sweep", "digits-unconditional", data, *UNSCORED, "--out", tmp_path / "out", "--quiet"
    )
    assert refusal.startswith(f"data={{use: npz, path: {paths[1]}}}: ")
    assert "does not exist" in refusal
    assert [row["status"] for row in rows(tmp_path / "out")] == ["done", "planned"]
    data = "data=" + ",".join(f"{{use: npz, path: {path}}}" for path in reversed(paths))
    cswf.refusal("sweep", "digits-unconditional", data, *UNSCORED, "--out", tmp_path / "new", "--quiet")
    assert not (tmp_path / "new").exists()


def test_a_sweep_does_not_overwrite_the_recipe_it_reads(cswf, out):
    path = out / "seed=1/recipe.yaml"
    before = path.read_text()
    assert "is the recipe itself" in cswf.refusal("sweep", path, "seed=1,2", "--out", out, "--quiet", "--force")
    assert path.read_text() == before


@pytest.mark.slow
def test_a_sweep_that_is_interrupted_says_so_and_goes_on(cswf, apart, tmp_path):
    """A sweep that is killed goes on too: the soak has it."""
    small = ("schedule.step_size=1", "particles.count=20", "schedule.directions=16", "outputs.log_every=1")
    arguments = ("sweep", "digits", *small, "schedule.steps=1,400", "--out", tmp_path, "--device", "cpu")
    with apart(*arguments) as child:
        wait_until((tmp_path / "steps=400/metrics.jsonl").exists)
        child.send_signal(signal.SIGINT)
        _, err = child.communicate()
    assert child.returncode == 130
    assert f"--out {tmp_path} goes on" in err
    assert err.strip().endswith("interrupted")
    assert [row["status"] for row in rows(tmp_path)] == ["done", "interrupted"]
    assert "[1/2] steps=1: done before" in cswf.output(*arguments)
    assert [row["status"] for row in rows(tmp_path)] == ["done", "done"]


def test_a_sweep_that_is_refused_leaves_an_earlier_one_as_it_was(cswf, out, monkeypatch):
    (out.parent / "runs").mkdir()
    earlier = out.rename(out.parent / "runs/digits-sweep")
    (earlier / "seed=5").touch()
    before = rows(earlier)
    monkeypatch.chdir(out.parent)
    assert "seed=5 is a file" in cswf.refusal("sweep", "digits", "seed=5,6", *TINY, "--quiet", "--force")
    assert rows(earlier) == before


@pytest.mark.parametrize("busy", [".", "seed=2"])
@pytest.mark.parametrize("options", [(), ("--force",)])
def test_a_sweep_or_a_run_of_it_that_is_going_on_is_left_alone(cswf, out, busy, options):
    shutil.rmtree(out / "seed=2/checkpoints")
    (out / "seed=2/samples.npz").unlink()  # it is not done
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    with RunFolder(out / busy).held():
        refusal = cswf.refusal("sweep", "digits", "seed=1,2", *TINY, "--out", out, "--quiet", *options)
    assert "is in use: another process is running there" in refusal
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


def test_force_removes_nothing_outside_of_its_folder_or_behind_a_link(tmp_path, cswf):
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    for folder in (inside, outside):
        folder.mkdir()
    mine = (tmp_path / "recipe.yaml", tmp_path / "samples.npz", outside / "recipe.yaml")
    for path in mine:
        path.write_text("mine")
    for name in ("seed=1", "seed=9"):
        (inside / name).symlink_to(outside)
    listed = [{"label": "x", "folder": folder, "recipe_sha256": "1"} for folder in ("..", "", ".", "seed=9")]
    (inside / "sweep.json").write_text(json.dumps(listed))
    assert cswf("sweep", "digits", "seed=1,2", *UNSCORED, "--out", inside, "--quiet", "--force").status == 0
    assert [path.read_text() for path in mine] == ["mine"] * 3
    assert list(outside.iterdir()) == [mine[2]]


def test_a_damaged_run_is_one_sentence(cswf, out):
    (out / "seed=1/samples.png").write_text("bad")
    refusal = cswf.refusal("sweep", "digits", "seed=1,2", *TINY, "--out", out, "--quiet")
    assert "seed=1/samples.png" in refusal
    assert "; remove the run's folder to run it again" in refusal


def test_run_and_show_say_that_there_are_variants(tmp_path, cswf, recipe):
    assert f"`cswf sweep {recipe}` runs its 2 variants" in cswf.output("run", recipe, "--out", tmp_path / "a")
    assert cswf("show", recipe).out.endswith(f"# variants, run by `cswf sweep {recipe}`: ξ = 0; as it is\n")


def test_a_run_that_was_killed_right_after_its_end_gets_its_page_from_the_next_sweep(cswf, out):
    (out / "seed=1/report.html").unlink()
    leave_unfinished(out / "seed=1/report.html")
    cswf.output("sweep", "digits", "seed=1,2", *TINY, "--out", out, "--device", "cpu", "--quiet")
    assert (out / "seed=1/report.html").exists()
    assert not list(out.rglob("*.part"))


def test_runs_that_differ_in_seed_only_are_shown_and_written_as_mean_and_deviation(cswf, tmp_path):
    swept = ("sweep", "digits", "condition.amplifier=0,10", "seed=1,2", *TINY, "--out", tmp_path / "out")
    lines = cswf.output(*swept, "--device", "cpu").splitlines()
    scores = [
        read_json(tmp_path / "out" / row["folder"] / "metrics.json")["scores"] for row in rows(tmp_path / "out")
    ]
    values = [each[0]["value"] for each in scores]
    groups = read_json(tmp_path / "out/summary.json")
    assert [group["label"] for group in groups] == ["amplifier=0.0", "amplifier=10.0"]
    assert groups[1]["folders"] == ["amplifier=10-seed=1", "amplifier=10-seed=2"]
    for group, own in zip(groups, (values[:2], values[2:]), strict=True):
        summary = group["scores"]["sliced_wasserstein"]
        assert summary["mean"] == statistics.fmean(own)
        assert summary["deviation"] == statistics.stdev(own)
        assert (summary["n"], summary["seeds"]) == (2, [1, 2])
        assert summary["method"] == "standard deviation over 2 seeds"
        shown = f"{group['label']}: mean ± deviation of 2 seeds"
        assert sum(line.startswith(shown) and " ± " in line.removeprefix(shown) for line in lines) == 1


def test_several_seeds_of_a_run_are_a_sweep_over_seeds_that_goes_on(cswf, finished, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command = ("run", "digits", "seed=1", *TINY, "--device", "cpu", "--seeds")
    assert "[1/1] seed=1" in cswf.output(*command, "1").splitlines()
    out = tmp_path / "runs/digits-seeds"
    assert read_json(out / "summary.json")[0]["scores"]["sliced_wasserstein"]["deviation"] is None
    printed = cswf.output(*command, "2", "--out", out).splitlines()
    assert [line for line in printed if line.startswith("[")] == ["[1/2] seed=1: done before", "[2/2] seed=2"]
    keys = ("label", "folder", "samples_sha256", "recipe_sha256")
    assert [[row[key] for key in keys] for row in rows(out)] == [
        [row[key] for key in keys] for row in rows(finished)
    ]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--resume", "--out", "x"), "--seeds goes on by itself with what --out lacks: leave out --resume"),
        (("--devices", "2"), "--seeds runs on one device, one seed after the other: leave out --devices"),
        (("schedule.steps=0",), "command line:1:16: schedule.steps must be at least 1"),
    ],
)
def test_what_does_not_go_with_several_seeds_is_one_sentence(cswf, tmp_path, monkeypatch, options, complaint):
    monkeypatch.chdir(tmp_path)
    assert complaint in cswf.refusal("run", "digits", "--seeds", "2", *options)
    assert not list(tmp_path.iterdir())


def test_more_seeds_than_a_sweep_may_have_runs_and_a_recipe_with_variants_are_refused(cswf, recipe):
    assert "257 seeds are more than 256" in cswf.refusal("run", "digits", "--seeds", "257")
    assert "has variants of its own" in cswf.refusal("run", recipe, "--seeds", "2")
