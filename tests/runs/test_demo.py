"""The demo, whole: what it leaves, and that its digits are digits."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.neighbors import KNeighborsClassifier, NearestNeighbors

from cswf_core import build_flow
from cswf_core.runs.folder import FILES
from tests.conftest import read_json


def test_the_demo_leaves_all_its_files(digits_run):
    figures = {"nearest-neighbours.png", "nearest-of-all.png"}
    others = {"completions.png", "samples-offline.npz", "samples-offline.png", "counts.safetensors"}
    assert {path.name for path in digits_run.iterdir()} == figures | set(FILES) - others | {"checkpoints"}
    for name, columns in (("samples.png", 10), ("flow.png", 7)):
        with Image.open(digits_run / name) as picture:
            assert picture.width >= columns * 40
            assert picture.height >= 10 * 40


REAL = load_digits()
PIXELS = (REAL.data + 0.5) * 256 / 17


def recognised(images: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Whether five nearest neighbours find each image to be of the class that was asked for."""
    return KNeighborsClassifier(5).fit(PIXELS, REAL.target).predict(images.reshape(-1, 64)) == labels


def test_a_nearest_neighbour_classifier_finds_the_class_that_was_asked_for(digits_run):
    arrays = np.load(digits_run / "samples.npz")
    found = recognised(arrays["images"], arrays["labels"])
    assert all(found[arrays["labels"] == c].mean() >= 0.9 for c in range(10))


def test_the_record_says_what_ran(digits_run):
    record = read_json(digits_run / "run.json")
    assert record["status"] == "done"
    assert record["seed"] == 0
    assert record["steps_done"] == record["steps_planned"] == 300
    assert record["particles"] == 1000
    assert len(record["samples_sha256"]) == 64
    assert {"python", "cswf", "torch", "numpy", "pluggy"} <= set(record["versions"])
    assert record["plugins"]["projection"]["distribution"] == "cswf"
    assert record["metrics"]["sliced_wasserstein"] < 0.05


def test_the_sliced_distance_falls(digits_run):
    rows = [json.loads(line) for line in (digits_run / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, *range(10, 301, 10)]
    assert rows[-1]["sliced_distance"] < rows[0]["sliced_distance"] / 10
    assert all(set(row) == {"step", "stage", "sliced_distance", "displacement", "seconds"} for row in rows)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_other_seeds_are_as_good(seed):
    samples = build_flow("digits", [f"seed={seed}"], device="cpu").run()
    assert recognised(samples.images().numpy(), samples.conditions.labels.numpy()).mean() >= 0.97


def test_the_samples_are_no_copies(digits_run):
    """Generated digits lie about as far from the nearest real one as real ones from each other."""
    document = read_json(digits_run / "metrics.json")
    assert not document["notes"]
    scores = {score["name"]: score["value"] for score in document["scores"]}
    assert scores["near_copies_l2"] < 0.02  # real digits have 0.01
    tree = NearestNeighbors(n_neighbors=2).fit(PIXELS)
    typical = np.median(tree.kneighbors(PIXELS)[0][:, 1])
    images = np.load(digits_run / "samples.npz")["images"].reshape(1000, 64)
    distances = tree.kneighbors(images)[0][:, 0]
    assert np.median(distances) > 0.9 * typical
    assert distances.min() > typical / 4
