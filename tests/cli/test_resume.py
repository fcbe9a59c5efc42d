"""`cswf resume`: whatever stops a run, and whenever, it ends with the bits that it would have had."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from cswf_core import load_recipe
from cswf_core.hookspecs import hookimpl
from cswf_core.runs.durable import read_tensors
from cswf_core.runs.folder import RunFolder
from cswf_core.session.run import launch
from tests.cli.conftest import Stop, facts, write_plugin
from tests.conftest import Outcome, read_json
from tests.runs.unfinished import leave_unfinished

TINY = ("particles.count=40", "schedule.directions=32", "schedule.step_size=8", "data.classes=[0, 1]")
SMALL = ("schedule.steps=12", "outputs.checkpoint_every=2", "outputs.log_every=2", "evaluate.metrics=[]", *TINY)


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def rows(folder: Path) -> list[dict]:
    found = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in row.items() if key != "seconds"} for row in found]


def run(folder: Path, *overrides: str, stop: Stop | None = None) -> str:
    """Run the small recipe; return its SHA-256, or nothing if it did not come to its end."""
    recipe = load_recipe("digits", [*SMALL, *overrides])
    try:
        launch(recipe, RunFolder(folder), device="cpu", observers=[] if stop is None else [stop])
    except KeyboardInterrupt:
        return ""
    return str(facts(folder)["samples_sha256"])


@pytest.fixture(scope="module")
def expected(tmp_path_factory) -> str:
    """The SHA-256 of the small run, if nothing stops it."""
    return run(tmp_path_factory.mktemp("whole") / "run")


@pytest.fixture(scope="module")
def original(tmp_path_factory) -> Path:
    """The small run, stopped after 7 of its 12 steps, with checkpoints of steps 4 and 6."""
    folder = tmp_path_factory.mktemp("stopped") / "run"
    run(folder, stop=Stop(7))
    return folder


@pytest.fixture
def halted(original, tmp_path) -> Path:
    """A copy of the run that was stopped."""
    return shutil.copytree(original, tmp_path / "run")


def newest(folder: Path) -> Path:
    return max((folder / "checkpoints").glob("step-*.safetensors"))


def test_a_run_goes_on_from_its_newest_checkpoint(cswf, halted, expected):
    assert newest(halted).name == "step-00000006-stage-0000.safetensors"
    cswf.output("resume", halted, "--device", "cpu")
    assert facts(halted)["samples_sha256"] == expected
    assert facts(halted)["status"] == "done"
    assert [stop["step"] for stop in facts(halted)["resumed"]] == [6]
    assert [row["step"] for row in rows(halted)] == [1, 2, 4, 6, 8, 10, 12]
    leave_unfinished(halted / "report.html")
    assert "is done: there is nothing left to do" in cswf.output("resume", halted, "--device", "cpu")
    assert not list(halted.glob(".*"))


def test_run_with_resume_does_the_same_and_without_a_checkpoint_it_begins_again(cswf, halted, expected):
    for path in (halted / "checkpoints").iterdir():
        path.unlink()
    arguments = ("run", "digits", *SMALL, "--out", halted, "--resume", "--device", "cpu", "--quiet")
    assert cswf(*arguments) == Outcome(0, "", "")
    assert facts(halted)["resumed"][0]["step"] == 0
    assert facts(halted)["samples_sha256"] == expected
    assert [row["step"] for row in rows(halted)] == [1, 2, 4, 6, 8, 10, 12]


def test_run_with_resume_begins_where_nothing_has_begun(cswf, tmp_path, expected):
    new = tmp_path / "new"
    new.mkdir()
    (new / "run.json").touch()  # killed before anything was known
    cswf.output("run", "digits", *SMALL, "--out", new, "--resume", "--device", "cpu", "--quiet")
    assert facts(new)["samples_sha256"] == expected
    (tmp_path / "other").mkdir()
    (tmp_path / "other/notes.txt").touch()
    assert "is not empty" in cswf.refusal("run", "digits", *SMALL, "--out", tmp_path / "other", "--resume")


def test_a_run_that_lacks_only_its_scores_gets_them(cswf, tmp_path, expected):
    run(tmp_path / "run", "evaluate.metrics=[sliced-wasserstein]", stop=Stop())
    cswf.output("resume", tmp_path / "run", "--device", "cpu", "--quiet")
    assert facts(tmp_path / "run")["samples_sha256"] == expected
    assert "sliced_wasserstein" in facts(tmp_path / "run")["metrics"]


def test_another_recipe_is_refused_with_what_changed(cswf, halted):
    before = files(halted)
    changed = ("schedule.steps=14", "condition.amplifier=5")
    outcome = cswf("run", "digits", *SMALL, *changed, "--out", halted, "--resume")
    assert outcome.status == 2
    said = (
        "was begun with another recipe",
        "; schedule.steps: 14, was 12",
        "condition.amplifier: 5.0, was 10.0",
    )
    assert all(part in outcome.err for part in said)
    assert files(halted) == before
    written = halted / "recipe.yaml"
    written.write_text(written.read_text().replace("directions: 32", "directions: 99"))
    edited = cswf("resume", halted)
    assert edited.status == 2
    assert "schedule.directions: 99, was 32" in edited.err


@pytest.mark.parametrize("every", [2, "never"], ids=["with a checkpoint", "without"])
def test_other_data_are_refused(cswf, tmp_path, every):
    def save(value: int) -> None:
        np.savez(tmp_path / "data.npz", images=np.full((20, 1, 8, 8), value, np.uint8))

    save(3)
    data = (f"data={{use: npz, path: {tmp_path / 'data.npz'}}}", "condition=none")
    run(tmp_path / "run", *data, f"outputs.checkpoint_every={every}", stop=Stop(7))
    save(4)
    refusal = cswf.refusal("resume", tmp_path / "run")
    assert "the data are not those that" in refusal
    assert "their SHA-256 is" in refusal


def test_checkpoints_of_another_version_are_refused_and_stay(cswf, halted, monkeypatch):
    before = {path: path.read_bytes() for path in (halted / "checkpoints").iterdir()}
    monkeypatch.setattr("cswf_core.runs.checkpoints.FORMAT", 3)
    assert "has format 2, and this version of cswf reads format 3" in cswf.refusal("resume", halted)
    assert {path: path.read_bytes() for path in (halted / "checkpoints").iterdir()} == before


def test_of_a_damaged_checkpoint_the_one_before_is_used_and_the_loss_is_said(cswf, halted, expected):
    newest(halted).write_bytes(b"not what it was")
    outcome = cswf("resume", halted, "--device", "cpu")
    assert outcome.status == 0
    assert "lost: " in outcome.err
    assert "step-00000006-stage-0000.safetensors has 15 bytes and should have" in outcome.err
    assert facts(halted)["resumed"][0]["step"] == 4
    assert "step-00000006" in facts(halted)["resumed"][0]["lost"][0]
    assert facts(halted)["samples_sha256"] == expected


def test_what_is_no_run_cannot_go_on_and_a_folder_in_use_is_left_alone(cswf, halted, tmp_path):
    for folder in (tmp_path, tmp_path / "nowhere"):
        assert "has no run that was begun" in cswf.refusal("resume", folder)
    assert "give its --out" in cswf("run", "digits", "--resume").err
    with RunFolder(halted).held():
        outcome = cswf("resume", halted)
    assert outcome.status == 2
    assert "is in use: another process is running there" in outcome.err


def test_a_disk_that_is_full_ends_in_a_sentence_and_the_run_goes_on_later(cswf, apart, tmp_path, expected):
    """No file may have more than 10,000 bytes: the checkpoints, which have frames in them, do not fit."""
    command = ("run", "digits", *SMALL, "--out", tmp_path / "run", "--device", "cpu")
    ended = apart.completed(*command, largest_file=10_000)
    assert ended.returncode == 2
    assert "Traceback" not in ended.stderr
    assert "no checkpoint at step 12: " in ended.stderr
    assert "cannot be written" in ended.stderr
    assert facts(tmp_path / "run")["status"] == "failed"
    assert not [name for name in files(tmp_path / "run") if name.endswith(".part")]
    assert cswf("resume", tmp_path / "run", "--device", "cpu", "--quiet").status == 0
    assert facts(tmp_path / "run")["samples_sha256"] == expected


def test_a_sweep_goes_on_inside_a_run(cswf, tmp_path, expected):
    bare = ("outputs.frames=0", "outputs.snapshots=[]")
    sweep = ("sweep", "digits", *SMALL, *bare, "seed=0,1", "--out", tmp_path / "s", "--device", "cpu")
    assert cswf(*sweep, "--quiet").status == 0
    first = tmp_path / "s/seed=0"
    shutil.rmtree(first)
    run(first, *bare, "seed=0", stop=Stop(7))
    printed = cswf.output(*sweep)
    assert facts(first)["resumed"][0]["step"] == 6
    assert facts(first)["samples_sha256"] == expected
    assert "[2/2] seed=1: done before" in printed


BREAKS = """
from cswf_plugins.projections.uniform import Uniform

class Breaks(DenseProjection):
    def project(self, x):
        return super().project(x) * float("nan")
"""
BROKEN = """
def sample(self, space, count, draw):
    late = draw.key.role == "directions" and draw.key.step == 5
    return (Breaks if late else DenseProjection)(Uniform().sample(space, count, draw))
"""


def test_a_run_whose_particles_are_no_numbers_fails_and_its_last_good_checkpoint_stays(cswf, tmp_path):
    write_plugin(tmp_path / "broken.py", "projection", BROKEN, BREAKS)
    plugins, run = ("--plugins-dir", tmp_path, "--device", "cpu", "--quiet"), tmp_path / "run"
    said = cswf.refusal("run", "digits", *SMALL, "projection=broken", *plugins, "--out", run)
    assert said.startswith("particles are not finite after step 6 of stage 1 'constant': projection 'broken'")
    assert "(broken.py) projected particles to numbers that are not finite" in said
    assert facts(run)["steps_done"] == 5
    for _ in range(2):
        assert (facts(run)["status"], facts(run)["error"]) == ("failed", said.strip())
        assert newest(run).name == "step-00000004-stage-0000.safetensors"
        tensors, _ = read_tensors(newest(run))
        assert torch.isfinite(tensors["flow/x"]).all()
        assert cswf.refusal("resume", run, *plugins) == said


def test_a_run_whose_recipe_is_removed_meanwhile_keeps_its_results(tmp_path):
    class Removing:
        @hookimpl
        def after_step(self, state):
            if state.total_step == 6:
                (tmp_path / "run/recipe.yaml").unlink()

    recipe = load_recipe("digits", (*SMALL, "outputs.frames=0"))
    launch(recipe, RunFolder(tmp_path / "run"), device="cpu", observers=[Removing()])
    assert (tmp_path / "run/samples.npz").is_file()
    assert read_json(tmp_path / "run/run.json")["status"] == "done"
