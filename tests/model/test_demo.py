"""The demo's model: as good as the run, and small.

A run's particles are matched to the data as a set; new samples are independent of each other. Even 1,000 real
digits, drawn with each class's exact share, are farther from all of them than 1,000 particles are. So the maps
are judged by the run's own particles, taken through them once more, and new samples by the way that they have
gone from noise to the data.
"""

from __future__ import annotations

from pathlib import Path

import attrs
import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.neighbors import KNeighborsClassifier

from cswf_core.interfaces import Comparison, Dataset, Key
from cswf_core.model import Model, load_model
from cswf_core.model.writer import ModelWriter
from cswf_core.recipe import build_flow, load_recipe
from cswf_plugins.metrics.sliced_wasserstein import SlicedWasserstein

SHARE = 5
"""Of the demo's 300 steps, a fifth are run: particles are among the digits by then."""


@attrs.frozen(eq=False)
class Demo:
    """The demo, run with `model.save=true`, and what was drawn from its model."""

    noise: Dataset
    batched: Dataset
    model: Model
    drawn: Dataset
    distance: float
    """How far the run's own samples are from the data."""
    size: int
    """Bytes of the model's folder."""


@pytest.fixture(scope="module")
def demo(made_once) -> Demo:
    recipe = load_recipe("digits", ["model.save=true", f"schedule.steps={300 // SHARE}"])

    def fill(folder: Path) -> None:
        writer = ModelWriter(folder / "model", recipe)
        torch.save(build_flow(recipe, device="cpu", observers=[writer]).run().x, folder / "batched.pt")

    folder = made_once("demo-with-model", fill)
    noise, model = build_flow(recipe, device="cpu").samples(), load_model(folder)
    batched = attrs.evolve(noise, x=torch.load(folder / "batched.pt"))
    size = sum(path.stat().st_size for path in (folder / "model").iterdir())
    apart = distance(batched, model.data())
    return Demo(noise, batched, model, model.sample(1000, device="cpu"), apart, size)


def accuracy(samples: Dataset) -> float:
    """The share of samples that 5 nearest neighbours find to be of the class that was asked for."""
    real = load_digits()
    neighbours = KNeighborsClassifier(5).fit((real.data + 0.5) * (2 / 17) - 1, real.target)
    return float(np.mean(neighbours.predict(samples.x.T.numpy()) == samples.conditions.labels.numpy()))


def distance(samples: Dataset, data: Dataset) -> float:
    """The recipe's own metric, SW₂, along 200 directions that are always the same."""
    compared = Comparison(generated=samples, real=data, draw=Key(5, "test").open())
    (found,) = SlicedWasserstein(directions=200).compute(compared).scores.values()
    return found


def test_new_samples_of_all_classes_are_recognised_as_well_as_the_run_s_within_3_points(demo):
    assert accuracy(demo.drawn) > accuracy(demo.batched) - 0.03
    assert torch.bincount(demo.drawn.conditions.labels, minlength=10).min() > 90
    assert torch.isfinite(demo.drawn.x).all()


def test_the_run_s_particles_taken_through_the_model_are_as_far_from_the_data_within_5_percent(demo):
    again = demo.model.retrace(device="cpu")
    assert distance(again, demo.model.data()) == pytest.approx(demo.distance, rel=0.05)
    assert (again.images() == demo.batched.images()).float().mean() > 0.9


def test_new_samples_go_the_same_way_within_5_percent_of_it(demo):
    noise, drawn = (distance(samples, demo.model.data()) for samples in (demo.noise, demo.drawn))
    assert noise - drawn == pytest.approx(noise - demo.distance, rel=0.05)


def test_the_model_is_smaller_than_20_MB(demo):
    assert SHARE * demo.size < 20e6
    assert demo.size == pytest.approx(demo.model.header.cost.bytes, rel=0.01)
