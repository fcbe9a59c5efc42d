"""Conditions that are computed from samples: `encode`, for data of every kind and wherever they come from."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest
import torch

from cswf_core import checks
from cswf_core.checks import condition as condition_checks
from cswf_core.errors import DataError, PluginError
from cswf_core.interfaces import ConditionEncoder, Conditions, Dataset, Owner, Space
from cswf_core.model import load_model
from cswf_core.model.writer import ModelWriter
from cswf_core.packed import LoadedImages
from cswf_core.recipe import build_flow, load_recipe
from cswf_core.runs.folder import RunFolder
from cswf_core.session.run import launch
from cswf_plugins.cdfs.histogram import Histogram
from cswf_plugins.schedules.constant import Constant
from tests.cli.conftest import Stop, facts
from tests.conftest import random_data, small_flow
from tests.flow.kinds import images

EXAMPLES = Path(__file__).parents[2] / "examples/plugins"
OWNERS = {"condition": Owner("condition", "mine", "acme-plugins", "1.2")}


@attrs.frozen
class Brightness(ConditionEncoder):
    """The mean of a sample's coordinates, and how many samples came at a time."""

    amplifier: float = 3.0
    sizes: list[int] = attrs.field(factory=list, eq=False)

    def encode(self, data):
        self.sizes.append(len(data))
        return Conditions(vectors=data.x.mean(dim=0, keepdim=True))


def means(data: Dataset) -> torch.Tensor:
    return data.x.mean(dim=0, keepdim=True)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model of digits by brightness, with the samples of its run."""
    changes = ["condition={use: brightness, amplifier: 30}", "schedule.steps=30", "schedule.directions=100"]
    changes += ["particles.count=500", "projection=uniform", "model.save=true", "model.knots=17"]
    recipe = load_recipe("digits", changes, plugins_dir=EXAMPLES)
    folder = tmp_path_factory.mktemp("brightness")
    samples = build_flow(recipe, device="cpu", observers=[ModelWriter(folder, recipe)]).run()
    return load_model(folder, plugins_dir=EXAMPLES), samples


def test_digits_of_a_brightness_that_is_asked_for_have_it(model):
    for wanted in (-0.55, -0.35):
        brightness = model[0].sample(60, vectors=[wanted], device="cpu").x.mean(dim=0)
        assert float(brightness.mean()) == pytest.approx(wanted, abs=0.03)
    dark, bright = -0.55, -0.35
    mixed = model[0].sample(60, vectors=[[dark]] * 30 + [[bright]] * 30, device="cpu").x.mean(dim=0)
    assert float(mixed[:30].max()) < float(mixed[30:].mean())


def test_a_model_by_brightness_retraces_its_run(model):
    torch.testing.assert_close(model[0].retrace(device="cpu").x, model[1].x, atol=5e-3, rtol=0)


def test_the_flow_s_data_have_the_encoded_conditions_and_held_out_ones_too():
    data = images()
    flow = small_flow(data, condition=Brightness())
    assert flow.setup.condition_length == 1
    assert torch.equal(flow.data.conditions.vectors, means(data))
    assert torch.equal(flow.data.held_out.conditions.vectors, means(data.held_out))
    assert flow.data.conditions.labels is None
    assert set(flow.conditions.vectors[0].tolist()) <= set(means(data).double()[0].tolist())


def test_stored_data_are_encoded_some_at_a_time_with_the_same_result(monkeypatch):
    monkeypatch.setattr(condition_checks, "READ", 20)
    data, plugin = images(50), Brightness()
    stored = attrs.evolve(Dataset.of_stored(LoadedImages.of(data), torch.float32), held_out=data.held_out)
    encoded = checks.checked(plugin).encoded(stored)
    assert plugin.sizes == [20, 20, 10, 5]
    assert encoded.stored is not None
    assert torch.equal(encoded.conditions.vectors, means(data))
    schedule, cdf = Constant(steps=2, directions=20), Histogram(bins=32)
    whole, streamed = (
        small_flow(each, condition=Brightness(), schedule=schedule, cdf=cdf, dtype=torch.float32)
        for each in (data, stored)
    )
    assert torch.equal(streamed.run().x, whole.run().x)


def test_data_that_arrive_later_are_encoded_too():
    first, later = (images(50).take(slice(*ends)) for ends in ((0, 40), (40, 50)))
    flow = small_flow(first, condition=Brightness(), cdf=Histogram(bins=32), sets=2)
    flow.run()
    flow.insert(later)
    assert torch.equal(flow.data.conditions.vectors, means(images(50)))
    flow.again(1)
    assert flow.run().conditions.vectors.shape[0] == 1


def test_a_run_by_an_encoded_condition_goes_on_to_the_same_bits(cswf, tmp_path):
    changes = ["condition=brightness", "schedule.steps=4", "schedule.directions=40", "particles.count=30"]
    changes += ["outputs.checkpoint_every=2", "evaluate.metrics=[]", "outputs.frames=0"]
    recipe = load_recipe("digits", changes, plugins_dir=EXAMPLES)
    launch(recipe, RunFolder(tmp_path / "whole"), device="cpu")
    with pytest.raises(KeyboardInterrupt):
        launch(recipe, RunFolder(tmp_path / "halted"), device="cpu", observers=[Stop(3)])
    cswf.output("resume", tmp_path / "halted", "--device", "cpu", "--quiet", "--plugins-dir", EXAMPLES)
    assert facts(tmp_path / "halted")["samples_sha256"] == facts(tmp_path / "whole")["samples_sha256"]


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (lambda x: Conditions(vectors=x.mean(dim=0)), r"condition vectors of shape l×40, got 40"),
        (lambda x: Conditions(vectors=x[:1, 1:]), r"condition vectors of shape l×40, got 1×39"),
        (lambda x: Conditions(vectors=x[:1] / 0), r"finite numbers, got \d+ of 40"),
        (lambda x: Conditions(labels=x[0] > 0), r"40 labels of int64, got 40 of bool"),
        (lambda x: Conditions(labels=torch.full((40,), 7)), r"labels from 0 to 2, one per class, got 7"),
        (lambda x: x[:1], r"Conditions, got Tensor"),
        (lambda x: x.nonsense, r"encode raised AttributeError"),
    ],
    ids=["flat", "short", "infinite", "booleans", "classes", "tensor", "error"],
)
def test_a_faulty_encoding_is_refused_by_name(answer, complaint):
    class Faulty(Brightness):
        def encode(self, data):
            return answer(data.x)

    with pytest.raises(PluginError, match=complaint) as error:
        small_flow(random_data(), condition=attrs.frozen(Faulty)(), owners=OWNERS)
    assert str(error.value).startswith("condition 'mine' (acme-plugins 1.2): ")


def test_an_encoder_of_vectors_in_the_data_needs_no_method_at_all():
    @attrs.frozen
    class Vectors(ConditionEncoder):
        """The vector that each sample has."""

    data = random_data()
    vectors = data.x[:2] / 10
    flow = small_flow(attrs.evolve(data, conditions=Conditions(vectors=vectors)), condition=Vectors())
    assert flow.setup.condition_length == 2
    samples = flow.run()
    assert torch.isfinite(samples.x).all()
    drawn = set(map(tuple, samples.conditions.vectors.T.tolist()))
    assert drawn <= set(map(tuple, vectors.T.tolist()))
    with pytest.raises(DataError, match="Vectors needs a vector per sample, and this data set has none"):
        small_flow(Dataset(data.x, Space((5,))), condition=Vectors())
