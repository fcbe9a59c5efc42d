"""The evaluation at the end of `cswf run`: what it is against, what stays if it fails, and FID as published."""

from __future__ import annotations

import numpy as np
import pytest

from cswf_core.interfaces import Space
from cswf_core.recipe import load_recipe
from cswf_core.runs.folder import FILES, FOLDERS
from cswf_core.scores.layout import measured
from tests.conftest import read_json, skip_without

SMALL = ("particles.count=20", "schedule.steps=3", "schedule.directions=10", "outputs.snapshots=[0, 3]")
SMALL += ("outputs.frames=0", "data.classes=[1, 2]")
SLICED = "{use: sliced-wasserstein, directions: 50}"


@pytest.mark.parametrize(
    ("returned", "complaint"),
    [
        ("Result({'score': float('nan')})", "must return finite numbers, got nan for 'score'"),
        ("3", "must return a Result, got 3"),
        ("Result(3)", "must return scores as a mapping from names to numbers, got 3"),
        (
            "Result({}, figures={'../x': None})",
            "must return figures with rows of n×C×H×W bytes, named like-this",
        ),
        ("1 / 0", "raised ZeroDivisionError: division by zero"),
    ],
)
def test_a_metric_that_fails_leaves_the_samples_and_the_scores_before_it(cswf, tmp_path, returned, complaint):
    (tmp_path / "mine.py").write_text(
        "import attrs\n"
        "from cswf_core import hookimpl\n"
        "from cswf_core.interfaces import Metric, Result\n"
        "@attrs.frozen\n"
        "class Mine(Metric):\n"
        f"    def compute(self, comparison): return {returned}\n"
        "@hookimpl\n"
        "def register_metrics(register): register('mine', Mine)\n"
    )
    metrics = f"evaluate.metrics=[{SLICED}, mine]"
    arguments = (metrics, "--plugins-dir", tmp_path, "--out", tmp_path / "out", "--quiet")
    said = f"metric 'mine' (mine.py): compute {complaint}"
    assert cswf.refusal("run", "digits", *SMALL, *arguments).startswith(said)
    assert len(np.load(tmp_path / "out/samples.npz")["images"]) == 20
    record = read_json(tmp_path / "out/run.json")
    assert record["status"] == "failed"
    assert record["error"].startswith(said)
    assert record["samples_sha256"]
    kept = read_json(tmp_path / "out/metrics.json")["scores"]
    assert [score["name"] for score in kept] == ["sliced_wasserstein"]  # what was found before stays


def test_particles_that_were_carried_along_can_be_scored(cswf, tmp_path):
    run = tmp_path / "a"
    cswf.output("run", "digits", *SMALL, "particles.offline=15", f"evaluate.metrics=[{SLICED}]", "--out", run)
    with np.load(run / "samples.npz") as batched, np.load(run / "samples-offline.npz") as offline:
        assert (len(batched["images"]), len(offline["images"]), len(offline["labels"])) == (20, 15, 15)
    assert (run / "samples-offline.png").stat().st_size > 1000
    assert read_json(run / "run.json")["particles"] == 20
    assert "sliced_wasserstein_8bit_offline" in cswf.output("eval", run, "--samples", "offline")
    scores = read_json(run / "metrics.json")["scores"]
    counts = {score["name"]: score["samples"] for score in scores}
    assert (counts["sliced_wasserstein"], counts["sliced_wasserstein_8bit_offline"]) == (20, 15)
    page, facts = (run / "report.html").read_text(), read_json(run / "run.json")
    assert "Offline samples" in page
    assert f"particles that spread {facts['offline_spread'] / facts['spread']:.2f} times as wide" in page


def test_two_metrics_of_one_name_are_both_kept(cswf, tmp_path):
    twice = f"evaluate.metrics=[{SLICED}, {{use: sliced-wasserstein, directions: 5}}]"
    assert cswf("run", "digits", *SMALL, twice, "--out", tmp_path / "a", "--quiet").status == 0
    scores = read_json(tmp_path / "a/run.json")["metrics"]
    assert list(scores) == ["sliced_wasserstein", "sliced_wasserstein_2", "copies_l2"]
    assert len(set(scores.values())) == 3


def test_held_out_data_are_asked_for_before_the_flow_runs(cswf, tmp_path):
    said = "scores against 'test' are asked for, and dataset 'digits' holds nothing out\n"
    assert cswf.refusal("run", "digits", "evaluate.against=[test]", "--out", tmp_path / "a") == said


def test_scores_are_taken_against_the_data_that_particles_flow_to(cswf, tmp_path):
    prior = "condition.prior=[1,0,0,0,0,0,0,0,0,0]"
    small = (
        "schedule.steps=20",
        "schedule.directions=128",
        "particles.count=100",
        "outputs.frames=0",
        "--quiet",
    )
    cswf.output("run", "digits", prior, *small, "--out", tmp_path / "a")
    assert read_json(tmp_path / "a/run.json")["metrics"]["sliced_wasserstein"] < 0.1


PUBLISHED = {
    "fid-cifar10": (146_040, 70_000, True),
    "fid-cifar10-class": (22_510, 50_000, False),
    "fid-celeba": (40_020, 50_000, False),
    "fid-mnist": (21_020, 50_000, False),
    "fid-mnist-class": (21_020, 50_000, False),
    "fid-fashion-mnist": (84_080, 50_000, False),
    "cifar10-model": (22_510, 100_000, False),
}
"""Steps, particles and whether images are mirrored."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_recipes_are_what_the_docs_say_of_them_and_follow_the_protocol(name, registry):
    """Scores and times in docs/ are of these: a recipe that extends another must not change with it."""
    recipe = load_recipe(name, registry=registry)
    space = Space((3, 64, 64) if name == "fid-celeba" else (3, 32, 32) if "cifar10" in name else (1, 28, 28))
    stages = recipe.schedule.part.stages(space, recipe.projection.part)
    steps = sum(stage.steps for stage in stages)
    assert (steps, recipe.particles.count, recipe.data.part.flips) == PUBLISHED[name]
    assert recipe.cdf.part.tail == (0.003 if name == "cifar10-model" else 0.01)
    if name.startswith("fid-"):
        metrics = [choice.name for choice in recipe.metrics]
        assert {"fid", "nearest-neighbours", "precision-recall"} <= set(metrics)
        assert recipe.metrics[metrics.index("fid")].part.mode == "legacy_tensorflow"
        assert recipe.evaluation.against == ("train", "test")
        assert recipe.evaluation.samples == 50_000


def test_a_fid_recipe_runs_and_leaves_scores_figures_and_a_report(network, cswf, tmp_path):
    """All of `fid-mnist`, with so few images that a CPU can see them."""
    skip_without("mnist")
    small = ("data.count=5", "particles.count=4", "schedule.scale=0.001", "schedule.directions=20")
    fewer = ("evaluate.against=[train]", "evaluate.metrics.4.samples=2", "evaluate.metrics.3.k=2")
    printed = cswf.output("run", "fid-mnist", *small, *fewer, "--out", tmp_path / "run", "--device", "cpu")
    document = read_json(tmp_path / "run/metrics.json")
    found = {score["name"]: score for score in document["scores"]}
    assert {"fid", "kid", "precision", "recall", "density", "coverage"} <= set(found)
    assert {"copies_l2", "copies_features", "sliced_wasserstein"} <= set(found)
    assert found["fid"]["value"] > 1
    expected = {"data": "mnist", "split": "train", "count": 5}
    assert found["fid"]["against"] == {**found["fid"]["against"], **expected}
    assert "legacy_tensorflow" in found["fid"]["protocol"]
    assert any("of 4 samples, and published numbers are of 50,000" in note for note in document["notes"])
    assert document["weights"]["sha256"] == network.sha256
    assert read_json(tmp_path / "run/run.json")["metrics"]["fid"] == found["fid"]["value"]
    left = {path.name for path in (tmp_path / "run").iterdir()}
    assert {"report.html", "frames.npz", "flow.gif", *document["figures"]} <= left
    assert left - set(document["figures"]) <= {*FILES, *FOLDERS}  # --force will know them all
    assert measured(found["fid"]["value"], found["fid"]["error"]) in printed
    assert "note: " in printed
