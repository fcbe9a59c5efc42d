"""Two sets under one protocol: `cswf compare`, its intervals and its verdicts."""

from __future__ import annotations

import json
import math
from typing import Any

import attrs
import numpy as np
import pytest
import torch

from cswf_core.evaluation.evaluate import compare
from cswf_core.evaluation.samples import Generated
from cswf_core.evaluation.task import Reference, Task
from cswf_core.interfaces import Dataset, Space, Spread
from cswf_core.plugins import Registry
from cswf_core.recipe import choose
from cswf_core.scores.replicas import Estimate

SLICED = ("--metric", "{use: sliced-wasserstein, directions: 50}")
SMALL = ("particles.count=60", "schedule.steps=2", "schedule.directions=50", "outputs.snapshots=[]", "--quiet")
SMALL += ("outputs.frames=0", "evaluate.metrics=[]", "data.classes=[1, 2]")


def points(count: int, shift: float, seed: int) -> Dataset:
    draw = torch.Generator().manual_seed(seed)
    return Dataset(torch.randn(2, count, generator=draw) + shift, Space((2,)))


@pytest.fixture(scope="module")
def task(registry: Registry) -> Task:
    metric = choose(registry, "metric", "{use: sliced-wasserstein, directions: 200}")
    return Task(metrics=(metric,), references=(Reference("normal", "", points(400, 0.0, 0)),))


def compared(task: Task, first: Dataset, second: Dataset):
    return compare(Generated(first), Generated(second), task, device=torch.device("cpu")).scores


def test_of_the_larger_set_as_many_are_scored_as_the_smaller_has(task):
    near = points(200, 0.5, 2)
    (score,) = compared(task, points(300, 2.0, 1), near)
    assert (score.first.samples, score.second.samples) == (200, 200)
    assert score.difference.value < 0
    (score,) = compared(task, near, near)
    assert score.difference.value == 0
    assert score.difference.is_noise


def test_what_real_samples_add_to_both_scores_cancels_out():
    shared, draw = torch.randn(5000), torch.Generator().manual_seed(1)
    own = torch.randn(5000, generator=draw) * 0.1
    spreads = [Spread("m", 0.3, replicates, 1 / math.sqrt(5000)) for replicates in (shared, shared + own)]
    alone = Spread("m", 0.3, None)
    assert spreads[0].paired(spreads[1])
    assert spreads[0].error_of_difference(spreads[1]) == pytest.approx(
        math.hypot(0.3, 0.3, 0.1 / math.sqrt(5000)), rel=0.01
    )
    assert not spreads[0].paired(alone)
    assert spreads[0].error_of_difference(alone) == pytest.approx(math.hypot(spreads[0].error, 0.3))


@pytest.mark.parametrize(
    ("apart", "error", "better", "words"),
    [
        (-1.3, 0.1, "lower", "B is better by 1.30 ± 0.20 fid"),
        (1.3, 0.1, "lower", "A is better by 1.30 ± 0.20 fid"),
        (1.3, 0.1, "higher", "B is better by 1.30 ± 0.20 fid"),
        (0.1, 0.1, "lower", "fid: no difference beyond noise (+0.10 ± 0.20)"),
        (1.3, 0.1, "", "B has 1.30 ± 0.20 fid more"),
        (1.3, None, "lower", "fid: B has 1.300 more, of unknown uncertainty"),
    ],
)
def test_verdicts(task, apart, error, better, words):
    (score,) = compared(task, points(20, 0.0, 1), points(20, 0.0, 2))
    first = attrs.evolve(score.first, name="fid", better=better)
    assert attrs.evolve(score, first=first, difference=Estimate(apart, error)).verdict(("A", "B")) == words


def test_a_set_that_copies_is_not_called_better(cswf, two_sets, tmp_path):
    with np.load(two_sets[0]) as real:
        np.savez(tmp_path / "copied.npz", images=real["images"][:55])
    printed = cswf.output("compare", tmp_path / "copied.npz", two_sets[1], "--against", two_sets[0], *SLICED)
    assert "sliced_wasserstein_8bit: copied.npz has 0." in printed.replace("\n", " ")
    assert "less, but copies: it is not better" in printed
    assert "note: copied.npz: copying: 55 of 55 samples are among the images of near.npz" in printed


@pytest.fixture
def two_sets(tmp_path):
    rng = np.random.default_rng(0)
    for name, scale in (("near", 40), ("far", 120)):
        images = (128 + scale * rng.standard_normal((60, 1, 8, 8))).clip(0, 255).astype(np.uint8)
        np.savez(tmp_path / f"{name}.npz", images=images)
    return tmp_path / "near.npz", tmp_path / "far.npz"


def test_the_command_prints_both_scores_and_a_verdict(cswf, two_sets):
    against = ("--against", "{use: digits, classes: [1]}", *SLICED)
    printed = cswf.output("compare", *two_sets, *against)
    assert "near.npz" in printed
    assert "difference" in printed
    assert "± is the 95% interval of the difference" in printed
    row, sentence = (line for line in printed.splitlines() if "sliced_wasserstein_8bit" in line)
    assert row.split()[3].lstrip("+-") + " ± " + row.split()[5] in sentence  # the same digits in both
    document = json.loads(cswf.output("compare", *two_sets, *against, "--json"))
    score, copies = document["scores"]
    assert copies["name"] == "copies_l2"
    assert score["values"][1] - score["values"][0] == pytest.approx(score["difference"])
    assert [each["generated"]["source"] for each in document["evaluations"]] == [str(path) for path in two_sets]
    assert cswf.output("compare", *two_sets, *against, "--quiet") == ""
    refusal = cswf.refusal("compare", *two_sets)
    assert "is not a run; name what to compare both with, such as --against" in refusal


def test_completions_are_compared_by_the_parts_that_each_run_has_generated(cswf, tmp_path):
    mask = ("condition={use: mask, hidden: boxes, share: 0.3}",)
    runs = [tmp_path / f"run{seed}" for seed in (0, 1)]
    for seed, run in enumerate(runs):
        cswf.output("run", "digits", *mask, f"seed={seed}", *SMALL, "--out", run)
    copies, _ = copies_and_names(cswf.output("compare", *runs, *SLICED, "--json"))
    alone = [copies_and_names(cswf.output("eval", run, *SLICED, "--json"))[0]["value"] for run in runs]
    assert copies["values"] == alone
    without = cswf.output("compare", *runs, *SLICED, "--json", "--no-copy-check")
    assert copies_and_names(without) == (None, ["sliced_wasserstein_8bit"])


def copies_and_names(document: str) -> tuple[dict[str, Any] | None, list[str]]:
    """The score of copies, if there is one, and the names of all scores."""
    scores = {score["name"]: score for score in json.loads(document)["scores"]}
    return scores.get("copies_l2"), list(scores)


def test_runs_of_other_data_are_not_compared_without_a_reference_and_seeds_are_told(cswf, tmp_path):
    differing = {"one": "seed=0", "other": "condition=none", "again": "seed=1"}
    one, other, again = (tmp_path / name for name in differing)
    for name, change in differing.items():
        cswf.output("run", "digits", change, *SMALL, "--out", tmp_path / name)
    assert "the two runs have other data or conditions" in cswf.refusal("compare", one, other, *SLICED)
    printed = cswf.output("compare", one, again, *SLICED)
    assert "note: both runs are of one recipe and differ in their seed only" in printed
    printed = cswf.output("compare", one, one, *SLICED)
    assert "no difference beyond noise" in printed or "unknown uncertainty" in printed
