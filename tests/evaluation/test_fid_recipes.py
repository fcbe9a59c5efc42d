"""The built-in FID recipes do in one command what an evaluator publishes."""

from __future__ import annotations

import json

import pytest

from cswf_core.recipe import load_recipe
from cswf_core.runs.folder import FILES, FOLDERS
from tests.conftest import skip_without


@pytest.mark.parametrize(
    "name", ["fid-mnist", "fid-fashion-mnist", "fid-cifar10", "fid-cifar10-class", "fid-celeba"]
)
def test_fid_recipes_follow_the_protocol(name, registry):
    recipe = load_recipe(name, registry=registry)
    metrics = [choice.name for choice in recipe.metrics]
    assert {"fid", "nearest-neighbours", "precision-recall"} <= set(metrics)
    assert recipe.metrics[metrics.index("fid")].part.mode == "legacy_tensorflow"
    assert recipe.evaluation.against == ("train", "test")
    assert recipe.evaluation.samples == 50_000
    assert recipe.particles.count >= 50_000


def test_a_fid_recipe_runs_and_leaves_scores_figures_and_a_report(network, cswf, tmp_path):
    """All of `fid-mnist`, with so few images that a CPU can see them."""
    skip_without("mnist")
    small = ("data.count=12", "particles.count=10", "schedule.scale=0.001", "schedule.directions=20")
    fewer = ("evaluate.against=[train]", "evaluate.metrics.4.samples=6", "evaluate.metrics.3.k=2")
    done = cswf("run", "fid-mnist", *small, *fewer, "--out", tmp_path / "run", "--device", "cpu")
    assert done.status == 0, done.err
    document = json.loads((tmp_path / "run/metrics.json").read_text())
    found = {score["name"]: score for score in document["scores"]}
    assert {"fid", "kid", "precision", "recall", "density", "coverage"} <= set(found)
    assert {"copied_l2", "copied_features", "sliced_wasserstein"} <= set(found)
    assert found["fid"]["against"] == {
        **found["fid"]["against"],
        "data": "mnist",
        "split": "train",
        "count": 12,
    }
    assert "legacy_tensorflow" in found["fid"]["protocol"]
    assert any("of 10 samples, and published numbers are of 50,000" in note for note in document["notes"])
    assert document["weights"]["sha256"] == network.kind.sha256
    assert json.loads((tmp_path / "run/run.json").read_text())["metrics"]["fid"] == found["fid"]["value"]
    left = {path.name for path in (tmp_path / "run").iterdir()}
    assert {"report.html", "frames.npz", "flow.gif", *document["figures"]} <= left
    assert left - set(document["figures"]) <= {*FILES, *FOLDERS}  # --force will know them all
    assert f"{found['fid']['value']:.4g}" in done.out
    assert "note: " in done.out
