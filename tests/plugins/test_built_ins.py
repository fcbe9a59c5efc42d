"""The built-in plugins keep what they promise."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from cswf_core import build_flow
from cswf_core.errors import DataError
from cswf_core.interfaces import Comparison, Conditions, Dataset, Key, Space
from cswf_plugins.conditions.one_hot import OneHot
from cswf_plugins.datasets.digits import Digits
from cswf_plugins.datasets.npz import Npz
from cswf_plugins.datasets.toy_2d import Component, Toy2D
from cswf_plugins.metrics.sliced_wasserstein import SlicedWasserstein
from cswf_plugins.projections.uniform import Uniform
from tests.conftest import random_data


def draw(role: str = "test", seed: int = 0):
    return Key(seed, role).open(dtype=torch.float64)


@pytest.mark.parametrize("joint", ["uniform", "equal", "dimension"])
def test_joint_directions_have_the_lengths_that_their_rule_says(joint):
    d, length, count = 7, 3, 20_000
    encoder, stream = OneHot(joint=joint), draw()
    theta_y = encoder.directions(length, count, stream)
    a = encoder.weights(d, length, count, stream)
    share = 0.5 if joint == "equal" else d / (d + length)
    assert float(a.square().mean()) == pytest.approx(share, abs=0.005)
    if joint == "uniform":
        theta_x = Uniform().sample(Space((d,)), count, draw("x"))
        joint_theta = torch.cat([theta_x * a[:, None], theta_y * (1 - a.square()).sqrt()[:, None]], dim=1)
        moment = joint_theta.T @ joint_theta / count
        torch.testing.assert_close(moment, torch.eye(10).double() / 10, atol=0.006, rtol=0)
        # On the sphere of ℝⁿ a squared coordinate is Beta(½, (n−1)/2), with variance 2(n−1)/(n²(n+2)).
        expected = 2 * 9 / (100 * 12)
        assert float(joint_theta.square().var(dim=0).mean()) == pytest.approx(expected, rel=0.05)


def test_one_hot_projects_as_a_product_with_unit_vectors():
    labels = torch.tensor([2, 0, 1, 2])
    theta_y = draw().normal(5, 3)
    expected = theta_y @ torch.nn.functional.one_hot(labels, 3).double().T
    assert torch.equal(OneHot().project(theta_y, Conditions(labels)), expected)


def test_digits_are_all_there():
    data = Digits().load(draw())
    assert (len(data), data.space.shape, len(data.classes)) == (1797, (1, 8, 8), 10)
    assert data.x.min() == -1
    assert float(data.x.max()) + data.bin_width == pytest.approx(1)
    some = Digits(classes=(7, 3)).load(draw())
    assert some.classes == ("3", "7")
    assert set(some.conditions.labels.tolist()) == {0, 1}
    with pytest.raises(ValueError, match="classes must be digits from 0 to 9, got 12"):
        Digits(classes=(12,))


def test_toy_mixtures_have_the_moments_that_were_asked_for():
    mixture = (Component(mean=(1, 5), std=(0.1, 0.2), weight=3), Component(mean=(-1, -5)))
    data = Toy2D(count=4000, target=mixture).load(draw())
    first = data.x[:, data.conditions.labels == 0]
    assert first.shape[1] == 3000
    torch.testing.assert_close(first.mean(dim=1), torch.tensor([1.0, 5.0]).double(), atol=0.02, rtol=0)
    torch.testing.assert_close(first.std(dim=1), torch.tensor([0.1, 0.2]).double(), atol=0.02, rtol=0)


def test_where_y_is_the_condition_particles_begin_with_the_data_s_own_y():
    mixture = (Component(mean=(1, 5)), Component(mean=(-1, -5)))
    source = Toy2D(count=50, target=mixture, initial=mixture[::-1], variables="x")
    data = source.load(draw())
    start = source.start(data, 50, draw("start"))
    assert torch.equal(start.conditions.vectors, data.conditions.vectors)
    assert float(start.x[0, data.conditions.labels == 0].mean()) == pytest.approx(-1, abs=0.3)
    assert data.points().shape == (50, 2)
    for count in (10, 90):
        labels = source.start(data, count, draw("start")).conditions.labels
        assert torch.bincount(labels).tolist() == [count // 2, count // 2]


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_npz_images_come_back(tmp_path, dtype):
    pixels = np.arange(2 * 3 * 4 * 5).reshape(2, 3, 4, 5).astype(np.uint8)
    images = pixels if dtype == np.uint8 else (pixels / 128 - 1).astype(np.float32)
    np.savez(tmp_path / "a.npz", images=images, labels=np.array([1, 0]))
    data = Npz(path=tmp_path / "a.npz").load(draw())
    assert data.space.shape == (3, 4, 5)
    assert np.array_equal(data.images().numpy(), pixels)
    assert data.conditions.labels.tolist() == [1, 0]
    assert (data.bin_width == 0) == (dtype == np.float32)


def test_npz_points_and_vectors_come_back(tmp_path):
    np.savez(tmp_path / "a.npz", points=np.eye(4)[:, :2], vectors=np.arange(12.0).reshape(4, 3))
    data = Npz(path=tmp_path / "a.npz").load(draw())
    assert data.x.shape == (2, 4)
    assert data.conditions.vectors.shape == (3, 4)
    np.savez(tmp_path / "b.npz", images=np.zeros((4, 5, 6), np.uint8))
    assert Npz(path=tmp_path / "b.npz").load(draw()).space.shape == (1, 5, 6)


@pytest.mark.parametrize(
    ("arrays", "complaint"),
    [
        ({}, "must have either an array 'images' or an array 'points'"),
        ({"images": np.zeros((2, 2, 2, 2)), "points": np.zeros((2, 2))}, "must have either"),
        ({"images": np.zeros((4,))}, "'images' must be n×C×H×W or n×H×W .* got 4 of float64"),
        ({"images": np.full((1, 1, 2, 2), 7.0)}, r"must lie in \[−1, 1\], got 7 … 7"),
        ({"images": np.zeros((1, 1, 2, 2), np.uint16)}, "8 bits per value, got uint16"),
        ({"images": np.zeros((2, 8, 8, 3), np.uint8)}, "channels before rows and columns.* got 2×8×8×3"),
        ({"points": np.array([[1.0], [np.nan]])}, "has NaN or infinite values in 1 of 2 'points'"),
        ({"points": np.zeros((1, 1)), "vectors": np.array([[np.inf]])}, "infinite values in 1 of 1 'vectors'"),
        ({"points": np.zeros((3, 2)), "vectors": np.zeros((3, 0))}, "'vectors' must be 3×l numbers, got 3×0"),
        ({"points": np.array([[1e300]])}, "beyond torch.float32; write particles.precision: float64"),
        ({"points": np.zeros((1, 1)), "labels": np.array([2**63], np.uint64)}, "got 9223372036854775808"),
        ({"points": np.array([["a"]])}, "'points' must be n×d numbers"),
        ({"points": np.zeros((3, 2)), "labels": np.zeros(2, int)}, "'labels' must be 3 whole numbers, got 2"),
        ({"points": np.zeros((3, 2)), "labels": np.array([0, -1, 0])}, "0 or more, got -1"),
        ({"points": np.zeros((3, 2)), "labels": np.array([0, 10**9, 0])}, "without large gaps"),
        ({"points": np.zeros((3, 2)), "vectors": np.zeros((2, 2))}, "'vectors' must be 3×l numbers"),
        ({"points": np.array([[object()]], dtype=object)}, "cannot be read"),
    ],
)
def test_a_faulty_npz_is_one_sentence(tmp_path, arrays, complaint):
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(DataError, match=complaint) as error:
        Npz(path=tmp_path / "a.npz").load(Key(0, "test").open())
    assert "\n" not in str(error.value)


def test_in_float64_nothing_is_rounded_to_float32(tmp_path):
    points = np.array([[1 + 1e-9], [1 - 1e-9]])
    np.savez(tmp_path / "a.npz", points=points)
    data, precision = f"data={{use: npz, path: {tmp_path / 'a.npz'}}}", "particles.precision=float64"
    flow = build_flow("digits", [data, "condition=none", precision], device="cpu")
    assert flow.data.x.tolist() == points.T.tolist()
    start = build_flow("toy-joint", [precision], device="cpu").particles.x
    assert not torch.equal(start, start.float().double())


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("text.npz", "cannot be read"),
        ("array.npy", "single array, not an .npz"),
        ("cut.npz", "cannot be read"),
        ("nowhere.npz", "does not exist"),
        (".", "is a folder, not a file"),
    ],
)
def test_a_file_that_is_no_npz_is_one_sentence(tmp_path, name, complaint):
    (tmp_path / "text.npz").write_text("hello")
    np.save(tmp_path / "array.npy", np.zeros(3))
    (tmp_path / "cut.npz").write_bytes(b"PK\x03\x04" + b"\0" * 50)
    with pytest.raises(DataError, match=complaint):
        Npz(path=tmp_path / name).load(draw())


def test_sliced_wasserstein_is_the_known_distance_between_shifted_clouds():
    """Moving a cloud by v moves each projection by θ·v, so SW₂² = |v|²/d."""
    data = random_data(d=4, n=100)
    shifted = Dataset(x=data.x + torch.tensor([[2.0], [0], [0], [0]]), space=data.space)
    found = SlicedWasserstein(directions=2000).compute(Comparison(shifted, data, draw()))
    assert found.scores["sliced_wasserstein"] == pytest.approx(1.0, rel=0.05)
    assert (
        SlicedWasserstein(directions=100).compute(Comparison(data, data, draw())).scores["sliced_wasserstein"]
        < 1e-12
    )


def conditional_means(recipe: str, *overrides: str) -> torch.Tensor:
    sizes = ["data.count=800", "particles.count=800", "schedule.steps=100"]
    samples = build_flow(recipe, [*sizes, *overrides], device="cpu").run()
    labels = samples.conditions.labels
    return torch.stack([samples.x[0, labels == c].mean() for c in (0, 1)])


@pytest.mark.slow
def test_with_a_large_amplifier_the_joint_flow_has_the_ideal_conditional_means_and_with_0_it_has_not():
    ideal = conditional_means("toy-conditional-ideal")
    torch.testing.assert_close(ideal, torch.tensor([1.0, -1.0]), atol=0.05, rtol=0)
    for amplified in ((), ("condition.amplifier=50",)):
        torch.testing.assert_close(conditional_means("toy-cswf", *amplified), ideal, atol=0.05, rtol=0)
    without = conditional_means("toy-cswf", "condition.amplifier=0")
    assert (without - ideal).abs().min() > 0.5
    assert (conditional_means("toy-cswf-no-amplifier") - ideal).abs().min() > 0.05
