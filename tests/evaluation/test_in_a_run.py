"""The evaluation at the end of `cswf run`: what it is against, and what stays if it fails."""

from __future__ import annotations

import json

import numpy as np
import pytest

SMALL = ("particles.count=20", "schedule.steps=3", "schedule.directions=10", "outputs.snapshots=[0, 3]")


@pytest.mark.parametrize(
    ("returned", "complaint"),
    [
        (
            "Result({'score': float('nan')})",
            "metric 'mine' (mine.py): compute must return finite numbers, got nan for 'score'",
        ),
        ("3", "metric 'mine' (mine.py): compute must return a Result, got 3"),
        (
            "Result(3)",
            "metric 'mine' (mine.py): compute must return scores as a mapping from names to numbers, got 3",
        ),
        (
            "Result({}, figures={'../x': None})",
            "metric 'mine' (mine.py): compute must return figures with rows of n×C×H×W bytes, named like-this",
        ),
        ("1 / 0", "metric 'mine' (mine.py): compute raised ZeroDivisionError: division by zero"),
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
    metrics = "evaluate.metrics=[sliced-wasserstein, mine]"
    arguments = (metrics, "--plugins-dir", tmp_path, "--out", tmp_path / "out", "--quiet")
    done = cswf("run", "digits", *SMALL, *arguments)
    assert done.status == 2
    assert done.err.startswith(complaint)
    assert len(np.load(tmp_path / "out/samples.npz")["images"]) == 20
    record = json.loads((tmp_path / "out/run.json").read_text())
    assert record["status"] == "failed"
    assert record["error"].startswith(complaint)
    assert record["samples_sha256"]
    kept = json.loads((tmp_path / "out/metrics.json").read_text())["scores"]
    assert [score["name"] for score in kept] == ["sliced_wasserstein"]  # what was found before stays


def test_two_metrics_of_one_name_are_both_kept(cswf, tmp_path):
    twice = "evaluate.metrics=[sliced-wasserstein, {use: sliced-wasserstein, directions: 5}]"
    assert cswf("run", "digits", *SMALL, twice, "--out", tmp_path / "a", "--quiet").status == 0
    scores = json.loads((tmp_path / "a/run.json").read_text())["metrics"]
    assert list(scores) == ["sliced_wasserstein", "sliced_wasserstein_2", "copied_l2"]
    assert len(set(scores.values())) == 3


def test_scores_are_taken_against_the_data_that_particles_flow_to(cswf, tmp_path):
    prior = "condition.prior=[1,0,0,0,0,0,0,0,0,0]"
    small = ("schedule.steps=40", "schedule.directions=200", "particles.count=200")
    assert cswf("run", "digits", prior, *small, "--out", tmp_path / "a", "--quiet").status == 0
    assert json.loads((tmp_path / "a/run.json").read_text())["metrics"]["sliced_wasserstein"] < 0.1


def test_held_out_data_are_asked_for_before_the_flow_runs(cswf, tmp_path):
    done = cswf("run", "digits", "evaluate.against=[test]", "--out", tmp_path / "a", "--quiet")
    assert done.status == 2
    assert done.err == "scores against 'test' are asked for, and dataset 'digits' holds nothing out\n"
