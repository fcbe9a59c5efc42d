"""What a model is asked for is what it gives: classes, vectors, seeds and counts."""

from __future__ import annotations

import attrs
import numpy as np
import pytest
import torch

import cswf_core.model.sampling
from cswf_core.errors import PluginError, RunError
from cswf_core.interfaces import Coordinates
from cswf_core.model import load_model
from cswf_core.model.requests import class_number, labels_by_number
from cswf_core.recipe import build_flow
from tests.model.conftest import saving
from tests.model.test_demo import accuracy, distance


@pytest.fixture(scope="module")
def model(digits_model):
    return load_model(digits_model)


def test_the_same_seed_gives_the_same_bits_and_another_one_others_as_the_run_s_are(model):
    one, same, other = (model.sample(5, seed=seed, device="cpu") for seed in (3, 3, 4))
    assert one.digest() == same.digest()
    assert not torch.equal(one.x, other.x)
    own, drawn = model.retrace(device="cpu"), model.sample(50, device="cpu", seed=model.recipe.seed)
    assert (own.x[:, :50] - drawn.x).abs().max() > 0.1


def test_the_first_samples_of_many_are_those_of_few_and_batches_have_the_same_bits(model, monkeypatch):
    many = model.sample(600, device="cpu")
    for count in (1, 256, 300):
        few = model.sample(count, device="cpu")
        assert torch.equal(few.x, many.x[:, :count])
        assert torch.equal(few.conditions.labels, many.conditions.labels[:count])
    monkeypatch.setitem(cswf_core.model.sampling.BYTES_AT_ONCE, "cpu", 1)
    heard = []
    parts = model.sample(600, device="cpu", tell=lambda *said: heard.append(said))
    assert torch.equal(parts.x, many.x)
    assert heard[0] == ("sampling", 1, 3 * 6)
    assert heard[-1] == ("sampling", 3 * 6, 3 * 6)


@pytest.mark.parametrize("count", [10, 100, 997])
def test_without_labels_classes_come_in_the_data_s_proportions(count, model):
    labels = labels_by_number(model.header, count, None, seed=1)(torch.arange(count))
    shares = torch.tensor(model.header.data.counts) / 1797
    assert ((torch.bincount(labels, minlength=10) - shares * count).abs() < 3).all()


def test_labels_may_be_one_for_all_one_for_each_or_so_many_of_each(model):
    expected = torch.tensor([7, 7, 3])
    listed = (
        [7, 7, 3],
        ["7", 7, "3"],
        expected,
        expected.numpy(),
        [np.int64(7), torch.tensor(7), np.str_("3")],
    )
    for asked in (*listed, {"7": 2, 3: 1}, {np.int64(7): np.int64(2), "3": torch.tensor(1)}):
        assert torch.equal(labels_by_number(model.header, 3, asked, 0)(torch.arange(3)), expected)
    for one in ("7", 7, np.int64(7), torch.tensor(7), np.array(7)):
        assert labels_by_number(model.header, 2, one, 0)(torch.arange(2)).tolist() == [7, 7]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("ten", "there is no class 'ten'; the classes are 0, 1, 2"),
        ("12", "there is no class '12'; the classes are 0, 1, 2"),
        (10, "there is no class 10; the classes are 0, 1, 2"),
        (-1, "there is no class -1; the classes are 0, 1, 2"),
        ([1, 2], "2 labels are given, and 3 samples are asked for"),
        ({"1": 5}, "labels for 5 samples are given, and 3"),
        ({}, "labels for 0 samples are given, and 3"),
        ({"3": -1, "4": 4}, "how many of each class, 1 or more; got -1 of '3'"),
        ({"3": 0, "4": 3}, "got 0 of '3'"),
        ({"3": 1.5, "4": 1.5}, r"got 1\.5 of '3'"),
        ({"3": "many"}, "got 'many' of '3'"),
        (3.0, r"there is no class 3\.0"),
        (True, "there is no class True"),
        ([1, True, 1], "there is no class True"),
        ([[1], [2], [3]], r"there is no class \[1\]"),
        (np.zeros((3, 2)), r"there is no class \[0\.0, 0\.0\]"),
        ([None, 1, 2], "there is no class None"),
    ],
)
def test_labels_that_make_no_sense_are_refused_with_a_sentence(asked, said, model):
    with pytest.raises(RunError, match=said):
        model.sample(3, labels=asked, device="cpu")


@pytest.mark.parametrize("count", [0, -3])
def test_no_samples_cannot_be_drawn(count, model):
    with pytest.raises(RunError, match="ask for one or more"):
        model.sample(count)


def test_a_class_is_meant_by_its_name_before_its_number(model):
    data = attrs.evolve(model.header.data, classes=("2", "cat", "a cat"))
    condition = attrs.evolve(model.header.condition, tables=(0, 1, 2))
    header = attrs.evolve(model.header, data=data, condition=condition)
    assert [class_number(header, label) for label in ("2", "cat", 1, "1", "a cat")] == [0, 1, 1, 1, 2]
    with pytest.raises(RunError, match="there is no class 'dog'; the classes are 2, cat, a cat"):
        class_number(header, "dog")
    with pytest.raises(RunError, match="there is no class 'Cta'; did you mean 'cat'"):
        class_number(header, "Cta")


def test_a_class_that_was_never_in_the_data_is_refused_though_there_is_room(tmp_path):
    saving(tmp_path, "digits", "data={use: digits, classes: [0, 1, 2]}", "condition.room=5").run()
    with pytest.raises(RunError, match="no class 4; the classes are 0, 1, 2"):
        load_model(tmp_path).sample(4, labels=4, device="cpu")


def test_a_class_without_a_flow_of_its_own_is_refused(tmp_path):
    saving(tmp_path, "digits", "condition=separate", "particles.count=3", "schedule.steps=2").run()
    model = load_model(tmp_path)
    there = model.header.condition.tables
    lacking = next(c for c in range(10) if c not in there)
    with pytest.raises(RunError, match=f"no class {lacking}; the classes are "):
        model.sample(1, labels=lacking, device="cpu")
    assert set(model.sample(40, device="cpu").conditions.labels.tolist()) <= set(there)


def test_an_unconditional_model_takes_neither_labels_nor_vectors(tmp_path):
    saving(tmp_path, "digits", "condition=none").run()
    model = load_model(tmp_path)
    assert model.sample(3, device="cpu").conditions.labels is None
    with pytest.raises(RunError, match="not conditioned on classes: it takes no labels"):
        model.sample(3, labels=1, device="cpu")
    with pytest.raises(RunError, match="not conditioned on vectors: it takes none"):
        model.sample(3, vectors=[1.0], device="cpu")


def test_a_model_of_vectors_answers_between_those_it_has_seen(tmp_path):
    saving(tmp_path, "toy-cswf", "schedule.steps=15", "particles.count=300").run()
    model = load_model(tmp_path)
    y = model.data().conditions.vectors[0]
    low, high = (float(y.quantile(level)) for level in (0.2, 0.8))
    means = [model.sample(200, vectors=[v], device="cpu").x.mean() for v in (low, (low + high) / 2, high)]
    assert min(means[0], means[2]) - 0.5 < means[1] < max(means[0], means[2]) + 0.5
    drawn = model.sample(7, vectors=[[v] for v in range(7)], device="cpu")
    assert drawn.conditions.vectors.tolist() == [[0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0]]
    refused = {
        "vectors have 1 numbers each, for 3 samples; got 3×2": [0.0, 1.0],
        "for 3 samples; got 2×1": np.zeros((2, 1)),
        "for 3 samples; got one number": 0.5,
        "vectors must be numbers": "hello",
        r"vectors must be numbers \(": [[0.0], [1.0, 2.0], [3.0]],
        "vectors must be finite": [float("nan")],
    }
    for said, vectors in refused.items():
        with pytest.raises(RunError, match=said):
            model.sample(3, vectors=vectors, device="cpu")


def test_data_that_are_needed_and_are_others_are_refused(tmp_path, monkeypatch):
    saving(tmp_path, "toy-cswf", "schedule.steps=2").run()
    model = load_model(tmp_path)
    header = attrs.evolve(model.header, data=attrs.evolve(model.header.data, sha256="0" * 64))
    with pytest.raises(
        RunError, match="says where particles begin, so that sampling needs the data: the data of"
    ):
        attrs.evolve(model, header=header).sample(2, device="cpu")


def test_a_model_has_in_it_what_was_fitted_to_the_data(whitened_model, monkeypatch):
    from cswf_plugins.datasets.digits import Digits

    model = load_model(whitened_model)
    run, own = build_flow(model.recipe, device="cpu"), torch.load(whitened_model.parent / "samples.pt")
    data = run.data
    monkeypatch.setattr(Digits, "load", lambda *_: pytest.fail("the data were loaded"))
    many, few = (model.sample(count, device="cpu") for count in (600, 3))
    assert torch.equal(few.x, many.x[:, :3])
    batched = attrs.evolve(run.samples(), x=own)
    assert accuracy(many) > accuracy(batched) - 0.06  # 0.94 and 0.95
    assert distance(many, data) < distance(batched, data) + 0.03


def test_coordinates_that_cannot_be_made_again_are_refused_before_the_first_step(tmp_path, monkeypatch):
    from cswf_plugins.coordinates.whitened import Whitened

    of_tensors = Whitened.of_tensors
    flow = saving(tmp_path / "a", "digits", "coordinates=whitened")
    monkeypatch.setattr(Whitened, "of_tensors", Coordinates.of_tensors)
    with pytest.raises(PluginError, match=r"^coordinates 'whitened' .* has no of_tensors, which saved models"):
        flow.run()
    monkeypatch.setattr(
        Whitened, "of_tensors", lambda self, *of: of_tensors(attrs.evolve(self, exponent=0.1), *of)
    )
    with pytest.raises(PluginError, match="of_tensors must return the map whose tensors these are"):
        saving(tmp_path / "b", "digits", "coordinates=whitened").run()


def test_a_float64_model_gives_float64_samples(tmp_path):
    saving(tmp_path, "digits", "particles.precision=float64", "schedule.steps=2").run()
    assert load_model(tmp_path).sample(2, device="cpu").x.dtype == torch.float64


def test_noise_on_the_way_is_each_particle_s_own(tmp_path):
    saving(tmp_path, "digits", "schedule.entropy=0.01").run()
    model = load_model(tmp_path)
    few, many, other = (model.sample(n, seed=s, device="cpu").x for n, s in ((3, 0), (300, 0), (3, 1)))
    assert torch.equal(few, many[:, :3])
    assert not torch.equal(few, other)


def test_classes_that_the_data_s_source_gives_are_refused_where_the_model_has_no_maps_for_them(tmp_path):
    both = "[{mean: [0, 0], weight: 0.995}, {mean: [1, 1], weight: 0.005}]"
    rare = f"data={{use: toy-2d, initial: {both}, target: {both}}}"
    saving(tmp_path, "toy-joint", rare, "condition=one-hot", "particles.count=50", "schedule.steps=2").run()
    model = load_model(tmp_path)
    assert model.header.condition.tables == (0,)
    with pytest.raises(RunError, match="there is no class 1; the classes are 0"):
        model.sample(1000, device="cpu")
