"""`cswf table`: from folders to a table, and a sentence for everything that could mislead."""

from __future__ import annotations

import json
import os
import shutil
from functools import partial
from pathlib import Path

import pytest

from cswf_core.runs.folder import RunFolder
from cswf_core.session.run import launch
from cswf_core.session.sweep import Sweep, plan_seeds
from tests.cli.conftest import TINY
from tests.scores.runs import score, write_run, write_samples


@pytest.fixture(scope="module")
def seeds(tmp_path_factory) -> Path:
    """Two seeds of the demo, each of two steps."""
    folder = tmp_path_factory.mktemp("seeds") / "runs"
    sweep = Sweep(plan_seeds("digits", TINY, 2), RunFolder(folder))
    with sweep.claimed(force=False):
        sweep.run(partial(launch, device="cpu"), lambda _: None)
    return folder


def test_a_sweep_over_seeds_is_one_row_without_a_warning(cswf, seeds):
    done = cswf("table", seeds)
    assert (done.status, done.err) == (0, "")
    head, row, *caption = done.out.splitlines()
    assert head.split() == ["sliced", "Wasserstein", "↓", "copies", "L2", "(%)"]
    assert row.split()[::2][:2] == ["digits", "±"]
    assert "± is the standard deviation over 2 seeds." in caption
    assert "Seeds 0, 1." in caption
    assert cswf.output("table", *sorted(seeds.glob("seed=*"))) == done.out


def test_latex_brings_the_works_behind_the_runs_as_comments_and_bibtex_alone(cswf, seeds):
    printed = cswf.output("table", seeds, "--format", "latex")
    behind = printed.partition("\\end{table}\n")[2]
    assert behind
    assert all(line.startswith("%") for line in behind.splitlines())
    works = cswf.output("table", seeds, "--bibtex")
    assert "@inproceedings{du2023nonparametric," in works
    assert "% metric sliced-wasserstein" in works
    assert "parmar2022aliased" not in works  # copies are looked for in pixels, without the network of clean-fid
    assert "% metric" not in cswf.output("table", seeds, "--bibtex", "--score", "copies_l2")
    assert "begin{table}" not in works
    assert {line.removeprefix("% ") for line in behind.splitlines()} >= {
        line for line in works.splitlines() if line.startswith("@")
    }
    document = json.loads(cswf.output("table", seeds, "--format", "json"))
    assert "du2023nonparametric" in [work["key"] for work in document["citations"]]


def test_a_file_is_written_and_not_replaced(cswf, tmp_path):
    run, out = write_run(tmp_path / "a", score()), tmp_path / "table.md"
    command = ("table", run, "--format", "markdown", "--out", out)
    assert cswf.output(*command) == f"see {out}\n"
    first = out.read_text()
    assert first.startswith("|  | FID ↓ |\n")
    assert first.endswith(".\n")
    assert "table.md is there already; give another --out, or --force to replace it" in cswf.refusal(*command)
    assert cswf(*command, "--score", "fid", "--force").status == 0
    assert "names a file" in cswf.refusal("table", run, "--out", tmp_path)
    assert "is no folder" in cswf.refusal("table", run, "--out", tmp_path / "x/y.md")


def test_a_folder_with_only_scores_is_enough_and_has_no_works(cswf, tmp_path):
    run = write_run(tmp_path / "run", score())
    for name in ("run.json", "recipe.yaml"):
        (run / name).unlink()
    assert cswf("table", run).err == ""
    os.mkfifo(run / "recipe.yaml")  # opening it waits for a writer
    done = cswf("table", run, "--format", "latex")
    assert "    run & $1.000$ \\\\" in done.out.splitlines()
    assert (
        "run: the works behind it are not cited, as its recipe cannot be read: it has no recipe.yaml"
        in done.err
    )


def test_a_recipe_whose_plugins_are_not_here_is_told(cswf, seeds, tmp_path):
    run = shutil.copytree(seeds / "seed=0", tmp_path / "run")
    recipe = run / "recipe.yaml"
    recipe.write_text(recipe.read_text().replace("use: conv-stack", "use: never-seen"))
    done = cswf("table", run, "--bibtex")
    assert done.status == 0
    assert "run: the works behind it are not cited" in done.err
    assert "never-seen" in done.err


def test_samples_that_are_not_those_that_were_scored_are_told(cswf, tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    digest = write_samples(folder)
    shutil.rmtree(folder)
    run = write_run(folder, score(source="samples.npz", all_samples_sha256=digest))
    write_samples(run)
    assert cswf("table", run).err == ""
    write_samples(run, seed=1)
    assert cswf("table", run).err == f"{run}/samples.npz has other samples than those that were scored: fid\n"
    (run / "samples.npz").write_text("bad")
    assert "nobody can say whether its samples are those that were scored" in cswf("table", run).err


def test_scores_of_points_know_their_samples(cswf, tmp_path):
    toy = "data={use: toy-2d, target: [{mean: [0, 0]}]}"
    recipe = (toy, "condition=none", "projection=uniform", "evaluate.metrics=[sliced-wasserstein]")
    run = tmp_path / "run"
    assert cswf("run", "digits", *recipe, *TINY, "--device", "cpu", "--quiet", "--out", run).status == 0
    assert cswf("table", run).err == ""
    assert cswf("eval", run, "--device", "cpu", "--quiet").status == 0
    assert cswf("table", run).err == ""


def test_a_run_of_a_sweep_that_is_not_done_is_told_and_left_out(cswf, seeds, tmp_path):
    folder = shutil.copytree(seeds, tmp_path / "sweep")
    (folder / "seed=1/run.json").write_text(json.dumps({"status": "interrupted"}))
    done = cswf("table", folder)
    assert done.status == 0
    assert done.err == f"{folder}/seed=1 is not done: its status is 'interrupted'; left out\n"
    shutil.rmtree(folder / "seed=0")
    assert "none of its runs is done and has scores" in cswf("table", folder).err


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda run: (run / "metrics.json").unlink(), "has no scores (metrics.json): `cswf eval "),
        (lambda run: (run / "metrics.json").write_text("{"), "metrics.json cannot be read: "),
        (
            lambda run: (run / "metrics.json").write_text('{"format": 2, "scores": []}'),
            "metrics.json has no scores",
        ),
        (
            lambda run: (run / "metrics.json").write_text('{"format": 1, "scores": []}'),
            "it has format 1, and this version of cswf reads format 2; remove it, and score again with",
        ),
        (
            lambda run: (run / "run.json").write_text('{"status": "failed"}'),
            "is not done: its status is 'failed'",
        ),
        (lambda run: (run / "sweep.json").write_text("[3]"), "sweep.json is damaged: it is not a list of runs"),
        (shutil.rmtree, "does not exist; RUN is a folder"),
    ],
)
def test_what_is_no_scored_run_is_one_sentence_with_its_name(cswf, tmp_path, change, complaint):
    run = write_run(tmp_path / "run", score())
    change(run)
    refusal = cswf.refusal("table", run)
    assert complaint in refusal
    assert str(run) in refusal


def test_an_unknown_score_is_one_sentence_with_the_nearest_name(cswf, tmp_path):
    run = write_run(tmp_path / "run", score("recall"))
    refusal = cswf.refusal("table", run, "--score", "recal")
    assert "no run has a score 'recal'; did you mean 'recall'?" in refusal
