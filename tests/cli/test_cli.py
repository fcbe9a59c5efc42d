"""The command line, as a person uses and misuses it."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import signal
import time

import numpy as np
import pytest
import yaml

from cswf_core.runs.folder import RunFolder
from cswf_plugins.datasets.digits import Digits
from tests.apart import prepared
from tests.cli.conftest import TINY
from tests.conftest import Outcome, read_json
from tests.processes import CSWF, completed, wait_until

SMALL = (*TINY[1:], "schedule.steps=3", "outputs.snapshots=[0, 3]")


def test_run_is_repeatable_and_its_recipe_can_be_run_again(cswf, tmp_path):
    recipes = {"a": ("digits", *SMALL), "b": (tmp_path / "a/recipe.yaml",), "c": ("digits", *SMALL, "seed=1")}
    for out, recipe in recipes.items():
        assert cswf("run", *recipe, "--out", tmp_path / out, "--device", "cpu", "--quiet") == Outcome(0, "", "")
    hashes = [read_json(tmp_path / run / "run.json")["samples_sha256"] for run in "abc"]
    assert hashes[0] == hashes[1] != hashes[2]


def test_progress_is_plain_lines_when_not_a_terminal_and_the_pictures_are_named(cswf, tmp_path):
    printed = cswf.output("run", "digits", *SMALL, "condition=mask", "--out", tmp_path, "--device", "cpu")
    (step,) = re.findall(r"^stage 1/1 constant  step 3/3  moved .*$", printed, re.MULTILINE)
    assert "left 0:00" in step
    assert "\x1b" not in printed
    made = ", ".join(str(tmp_path / name) for name in ("report.html", "samples.png", "completions.png"))
    assert printed.endswith(f"see {made}\n")


def test_without_out_runs_are_numbered_and_a_used_folder_is_refused_unless_forced(cswf, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = ("run", "digits", *SMALL, "--device", "cpu")
    assert cswf.output(*run).endswith("see runs/digits/report.html, runs/digits/samples.png\n")
    (tmp_path / "runs/digits/notes.txt").write_text("keep me")
    before = (tmp_path / "runs/digits/run.json").read_text()
    assert "is not empty" in cswf.refusal(*run, "--out", "runs/digits")
    assert (tmp_path / "runs/digits/run.json").read_text() == before
    for force in ((), ("--force",)):
        assert cswf(*run, "--quiet", *force).status == 0
        assert {path.name for path in (tmp_path / "runs").iterdir()} == {"digits", "digits-2"}
    assert (tmp_path / "runs/digits/notes.txt").read_text() == "keep me"


def test_a_run_does_not_overwrite_the_recipe_it_reads(cswf, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipe.yaml").write_text("extends: digits  # mine\n")
    assert "is the recipe itself" in cswf.refusal("run", "./recipe.yaml", *SMALL, "--out", ".", "--force")
    assert (tmp_path / "recipe.yaml").read_text() == "extends: digits  # mine\n"


@pytest.mark.parametrize("device", ["tpu", "cuda:x", "cpu:", "cuda:" + "9" * 5_000])
def test_an_unknown_device_is_one_sentence(cswf, tmp_path, device):
    refusal = cswf.refusal("run", "digits", "--out", tmp_path / "a", "--device", device)
    assert f"there is no device '{device[:9]}" in refusal
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (None, "does not exist"),
        (b"junk", "cannot be read as .npz"),
        ({"points": np.zeros((0, 2))}, "the data set is empty"),
    ],
)
def test_bad_data_are_one_sentence_and_leave_no_folder(cswf, tmp_path, content, complaint):
    path = tmp_path / "data.npz"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        np.savez(path, **content)
    data = f"data={{use: npz, path: {path}}}"
    assert complaint in cswf.refusal("run", "digits-unconditional", data, "--out", tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_points_and_images_of_one_s_own_can_be_run_but_not_by_classes_that_they_lack(cswf, tmp_path):
    np.savez(tmp_path / "images.npz", images=np.zeros((9, 3, 6, 5), np.uint8))
    np.savez(tmp_path / "points.npz", points=np.random.default_rng(0).normal(size=(9, 4)))
    for name in ("images", "points"):
        data, out = f"data={{use: npz, path: {tmp_path / name}.npz}}", tmp_path / name
        assert "condition 'one-hot' needs labelled data" in cswf.refusal("run", "digits", data, "--out", out)
        assert cswf("run", "digits-unconditional", data, *SMALL, "--out", out).status == 0
        assert name in np.load(out / "samples.npz")
        assert (out / "flow.png").exists()


def test_check_reports_mistakes_with_status_2(cswf, tmp_path):
    (tmp_path / "r.yaml").write_text("data: digits\nschedule: {use: constant, steps: 0}\n")
    done = cswf("check", tmp_path / "r.yaml")
    assert done.status == 2
    assert [line.split(": ", 1)[0] for line in done.err.splitlines()] == [
        f"{tmp_path / 'r.yaml'}:2:{at}" for at in (34, 11)
    ]
    assert cswf("check", "digits").out == "digits: fine\n"
    assert "did you mean 'digits'" in cswf("check", "digit").err
    assert cswf("check", tmp_path).status == 2


def test_show_prints_values_and_origins(cswf):
    printed = cswf.output("show", "digits", "seed=3", "outputs.snapshots.1=77")
    assert yaml.safe_load(printed)["schedule"]["use"] == "constant"
    assert "seed: 3" in printed
    assert "# command line:1:6" in printed
    assert "[1] command line:2:21" in printed
    whole = json.loads(cswf("show", "digits", "--json").out)
    assert whole["recipe"]["condition"]["amplifier"] == 10
    assert whole["origins"]["condition.amplifier"].endswith("digits.yaml:13:14")
    assert whole["origins"]["particles.scale"] == "default"


def test_every_built_in_recipe_is_listed_with_what_it_is_for(cswf):
    rows = json.loads(cswf("recipes", "--json").out)
    assert {"digits", "swf-baseline", "toy-cswf"} <= {row["name"] for row in rows}
    assert all(row["description"] for row in rows)
    assert json.loads(cswf.output("schema"))["title"] == "cswf recipe"


@pytest.mark.processes
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_end_with_their_status_and_the_record_says_interrupted(apart, tmp_path, number, status):
    run = ("run", "digits", "schedule.steps=100000", "--out", tmp_path / "a", "--device", "cpu")
    with apart(*run) as child:
        wait_until((tmp_path / "a/metrics.jsonl").exists)
        child.send_signal(number)
        _, err = child.communicate()
    assert child.returncode == status
    assert err.strip().endswith("interrupted")
    assert f"`cswf resume {tmp_path / 'a'}` goes on from step " in err
    assert "Traceback" not in err
    record = read_json(tmp_path / "a/run.json")
    assert record["status"] == "interrupted"
    assert 0 < record["steps_done"] < record["steps_planned"]


@pytest.mark.processes
def test_a_closed_terminal_leaves_a_run_that_goes_on(apart, tmp_path):
    """The system and a shell both send SIGHUP, and what is printed then meets an error."""
    ours, theirs = pty.openpty()
    run = ("run", "digits", "schedule.steps=100000", "--out", tmp_path / "a", "--device", "cpu")
    with apart(*run, stdout=theirs, stderr=theirs) as child:
        os.close(theirs)
        wait_until((tmp_path / "a/metrics.jsonl").exists)
        os.close(ours)
        for _ in range(2):
            child.send_signal(signal.SIGHUP)
        assert child.wait() == 129
    record = read_json(tmp_path / "a/run.json")
    assert record["status"] == "interrupted"
    saved = read_json(tmp_path / "a/checkpoints/manifest.json")["checkpoints"]
    assert saved[0]["step"] == record["steps_done"] > 0


@pytest.mark.processes
def test_a_signal_at_any_early_moment_leaves_nothing_or_a_run_that_goes_on(apart, tmp_path):
    statuses = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}
    for number, (sent, status) in enumerate(statuses.items()):
        out = tmp_path / f"made/{number}"
        with apart("run", "digits", *SMALL, "--out", out, "--device", "cpu") as child:
            time.sleep(0.15 * number)
            child.send_signal(sent)
            _, err = child.communicate()
        assert "Traceback" not in err
        if child.returncode in (-sent, status):  # below 0: before the command itself has begun
            assert RunFolder(out).begun if out.exists() else not list(tmp_path.iterdir())
        else:
            assert child.returncode == 0
        shutil.rmtree(out.parent, ignore_errors=True)


@pytest.mark.processes
def test_a_run_goes_on_when_nobody_reads_its_progress(apart, tmp_path):
    with apart("run", "digits", *SMALL, "--out", tmp_path / "a", "--device", "cpu") as child:
        child.stdout.close()
        assert child.wait() == 0
        assert child.stderr.read() == ""
    assert read_json(tmp_path / "a/run.json")["status"] == "done"


def test_too_much_data_for_the_machine_is_one_sentence(cswf, tmp_path, monkeypatch):
    def full(self, draw):
        raise MemoryError("Unable to allocate 7.28 TiB")

    monkeypatch.setattr(Digits, "load", full)
    done = cswf("run", "digits", "--out", tmp_path / "a", "--quiet")
    assert done.status == 1
    remedy = "take fewer (data.count) or smaller images (data.size)"
    assert done.err == f"the data do not fit into this machine's memory; {remedy}\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--seed", "3"), "No such option '--seed'. Values of the recipe are written without dashes: seed=3"),
        (("--schedule.steps=50",), "are written without dashes: schedule.steps=50"),
        (("--seed",), "are written without dashes: seed=…"),
        (("--forse",), "No such option '--forse'. Did you mean '--force'?"),
        (("--seeds", "10k"), "'10k' is not a whole number (write 10000)"),
        (("--memory-limit", "500"), "it is in bytes: did you mean 500MB?"),
        (("--memory-limit", "2"), "it is in bytes: did you mean 2GB?"),
        (
            ("--devices", "0"),
            "1 or more, or all; got '0'. To choose one GPU by its number, write --device cuda:0",
        ),
    ],
)
def test_a_wrong_option_gets_a_guess_at_the_right_one(words, said, cswf):
    done = cswf("run", "digits", *words)
    assert (done.status, said in done.err) == (2, True), done.err


@pytest.mark.processes
def test_output_that_cannot_show_greek_still_comes_and_a_closed_pipe_is_no_traceback(apart):
    done = completed(*CSWF, "plugins", env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert (done.returncode, done.stderr) == (0, "")
    assert "sliced-wasserstein" in done.stdout
    with apart("schema") as child:
        child.stdout.close()
        assert "Traceback" not in child.stderr.read()
        child.wait()


@pytest.mark.processes
def test_hashes_do_not_depend_on_what_else_runs(tmp_path):
    """Two runs at once on two cores, and one alone: the same bits."""
    small = ("particles.count=300", "schedule.steps=6", "evaluate.metrics=[]", "outputs.frames=0")
    run = ("run", "digits", *small, "--device", "cpu", "--out")
    with prepared({"OMP_NUM_THREADS": "2"}) as commands:
        with commands(*run, tmp_path / "0") as one, commands(*run, tmp_path / "1") as other:
            assert (one.wait(), other.wait()) == (0, 0)
        assert commands.completed(*run, tmp_path / "2").returncode == 0
    assert len({read_json(tmp_path / str(i) / "run.json")["samples_sha256"] for i in range(3)}) == 1
