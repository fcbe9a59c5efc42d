"""What is compared with what: splits, mirror images, classes, and the same numbers again."""

from __future__ import annotations

import attrs
import pytest
import torch
from rich.console import Console

from cswf_core.cli.terminal import show_scores
from cswf_core.evaluation.evaluate import evaluate
from cswf_core.evaluation.samples import Generated, conform
from cswf_core.evaluation.task import SPLITS, Task, read_real, references
from cswf_core.interfaces import Conditions
from cswf_core.recipe import choose, load_recipe
from cswf_core.recipe.build import load_data
from tests.conftest import skip_without

CPU = torch.device("cpu")
SLICED = ("--metric", "{use: sliced-wasserstein, directions: 50}", "--device", "cpu")
FEW = ("data.count=40", "data.download=false")


def task(name: str, *overrides: str) -> Task:
    recipe = load_recipe(name, overrides)
    return Task.of_recipe(recipe, load_data(recipe))


def test_a_test_split_is_called_one():
    skip_without("mnist")
    assert [r.name for r in task("mnist-unconditional", *FEW).references] == ["mnist:train", "mnist:test"]
    seen = task("mnist-unconditional", *FEW, "data.split=test", "evaluate.against=[train]")
    assert [r.name for r in seen.references] == ["mnist:test"]
    assert seen.references[0].suffix == "_test"


def test_mirror_images_are_not_compared_with_also_where_classes_are_balanced():
    skip_without("mnist")
    flips = "data.flips=true"
    assert len(task("mnist-unconditional", *FEW, flips).references[0].samples) == 40
    prior = "condition.prior=[1,1,1,1,1,1,1,1,1,1]"
    balanced = task("mnist-class", *FEW, flips, prior).references[0].samples
    real = task("mnist-class", *FEW).training
    originals = {bytes(image) for image in real.images().numpy()}
    assert all(bytes(image) in originals for image in balanced.images().numpy())


@pytest.mark.slow
def test_mirror_images_are_beside_the_training_images_whose_features_are_those_of_other_metrics(registry):
    skip_without("mnist")
    overrides = (*FEW, "data.flips=true")
    recipe = load_recipe("mnist-unconditional", overrides)
    for some in (task("mnist-unconditional", *overrides), Task.of_run(recipe, [], []).with_copying(registry)):
        assert some.training is some.references[0].samples  # the same set: what is kept of it is kept once
        assert torch.equal(some.mirrored.images(), some.training.images().flip(-1))
        assert some.bench().names[some.mirrored] == "mnist:mirrored"
    real = read_real("{use: mnist, flips: true, count: 40, download: false}", registry)
    assert real.training is real.references[0].samples
    assert torch.equal(real.mirrored.images(), real.training.images().flip(-1))
    sliced = choose(registry, "metric", "sliced-wasserstein")
    against = Task.of_images([real], [sliced], registry).with_copying(registry)
    for each in (some, against):
        scores = evaluate(Generated(each.mirrored), each, device=CPU).document["scores"]
        values = {score["name"]: score["value"] for score in scores}
        assert values["copies_mirrored_l2"] > 0.8  # some digits are as near to another, as it is
        assert values["copies_l2"] + values["copies_mirrored_l2"] == 1
    plain = task("mnist-unconditional", *FEW)
    assert plain.training is plain.references[0].samples
    assert plain.mirrored is None


def test_a_metric_s_numbers_do_not_depend_on_the_others(registry):
    recipe = load_recipe("digits", registry=registry)
    data = load_data(recipe)
    plain = Task.of_recipe(recipe, data)
    sliced = choose(registry, "metric", "{use: sliced-wasserstein, directions: 5}")
    other = choose(registry, "metric", "{use: nearest-neighbours, spaces: [pixels], samples: 7}")
    alone, beside = (
        evaluate(Generated(data.take(slice(50))), attrs.evolve(plain, metrics=metrics), device=CPU).scores
        for metrics in ((sliced,), (other, sliced))
    )
    assert {name: beside[name] for name in alone} == alone


def test_completions_of_held_out_images_are_all_scored(registry):
    data = load_data(load_recipe("digits", registry=registry)).take(torch.arange(30))
    origin = torch.arange(30)
    origin[::3] = -1 - origin[::3]
    samples = attrs.evolve(data, conditions=Conditions(origin=origin), held_out=data)
    whole = Task(metrics=(), references=(), samples=12)
    chosen = whole.subset(samples)
    assert len(chosen) == 12
    assert set(range(0, 30, 3)) <= set(chosen.tolist())
    few = attrs.evolve(whole, samples=5).subset(samples)
    assert (origin[few] < 0).all()


@pytest.mark.parametrize("asked", [False, True])
def test_completions_of_unknown_images_are_not_called_copies(registry, asked):
    data = load_data(load_recipe("digits", registry=registry)).take(torch.arange(200))
    given = attrs.evolve(data, conditions=Conditions(origin=torch.arange(200)))
    task = Task(metrics=(), references=(), training=data).with_copying(registry)
    task = attrs.evolve(task, products=None if asked else task.products)
    document = evaluate(Generated(given), task, device=CPU).document
    assert document["scores"] == []
    (note,) = document["notes"]
    assert note.startswith("not checked for copies: the samples complete images")


def test_copying_is_looked_for_beside_any_metric_or_none_and_never_twice(registry):
    data = load_data(load_recipe("digits", registry=registry))
    names = ["sliced-wasserstein", "nearest-neighbours"]
    both = tuple(choose(registry, "metric", name) for name in names)
    task = Task(metrics=both, references=(), training=data)
    assert task.with_copying(registry) is task
    only = attrs.evolve(task, metrics=both[:1]).with_copying(registry)
    assert [metric.name for metric in only.metrics] == names
    recipe = load_recipe("digits", ["evaluate.metrics=[]"], registry=registry)
    document = evaluate(Generated(data), Task.of_recipe(recipe, data), device=CPU).document
    assert [score["name"] for score in document["scores"] if not score["detail"]] == ["copies_l2"]
    assert document["notes"][0].startswith("copying: 1,797 of 1,797 samples are among the training images")
    off = load_recipe("digits", ["evaluate.metrics=[]", "evaluate.copying=false"], registry=registry)
    assert not Task.of_recipe(off, data).metrics


def test_labels_of_a_run_of_some_classes_mean_those_classes(registry):
    every = read_real("digits", registry).references[0].samples
    some = attrs.evolve(
        every.take(slice(6)), classes=("3", "8"), conditions=Conditions(labels=torch.arange(6) % 2)
    )
    assert set(conform(some, every, "the run", []).conditions.labels.tolist()) == {3, 8}


def test_a_split_is_a_column_and_no_row(registry, capsys):
    points = read_real("{use: synthetic, shape: [4], count: 40}", registry).training
    data = attrs.evolve(points, held_out=points.take(torch.arange(20)))
    metric = choose(registry, "metric", "{use: sliced-wasserstein, directions: 5}")
    task = Task(metrics=(metric,), references=references("random", data, SPLITS))
    document = evaluate(Generated(points), task, device=CPU).document
    assert [score["name"] for score in document["scores"]] == ["sliced_wasserstein", "sliced_wasserstein_test"]
    show_scores(document, Console(width=200))
    header, row = capsys.readouterr().out.splitlines()
    assert header.split() == ["score", "against", "random:train", "against", "random:test", "samples"]
    assert row.split()[0] == "sliced_wasserstein"
    assert len(row.split()) == 4


def test_more_samples_than_asked_for_are_chosen_at_random_and_the_same_again(registry):
    recipe = load_recipe(
        "digits", ["evaluate.samples=20", "evaluate.metrics.0.directions=50"], registry=registry
    )
    data = load_data(recipe)
    first, second = (
        evaluate(Generated(data), Task.of_recipe(recipe, data), device=CPU).document["generated"]
        for _ in range(2)
    )
    assert (first["count"], first["available"]) == (20, 1797)
    assert first["sha256"] == second["sha256"] != data.take(torch.arange(20)).shown_digest()
