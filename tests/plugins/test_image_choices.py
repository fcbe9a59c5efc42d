"""Which images are taken, and what is done with them, is as one wishes."""

from __future__ import annotations

import attrs
import numpy as np
import pytest
import torch

from cswf_core.errors import DataError
from cswf_core.fields import options
from cswf_plugins.datasets.celeba import CelebA
from cswf_plugins.datasets.cifar10 import Cifar10
from cswf_plugins.datasets.fashion_mnist import FashionMnist
from cswf_plugins.datasets.image_folder import ImageFolder
from cswf_plugins.datasets.images import Pictures, columns, data_root
from cswf_plugins.datasets.mnist import Mnist
from cswf_plugins.datasets.npz import Npz
from tests.plugins.image_files import TEST, TRAIN, complaint_of, draw, pixels_and_labels, write_cifar, write_idx

pytestmark = pytest.mark.usefixtures("elsewhere")


def test_the_root_is_the_one_given_else_the_environment_s_else_the_cache_in_the_home(tmp_path, monkeypatch):
    assert data_root(tmp_path) == tmp_path
    assert data_root() == tmp_path / "data"
    write_idx(tmp_path / "data" / "mnist")
    assert len(Mnist().load(draw())) == TRAIN
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("CSWF_DATA")
    assert data_root() == tmp_path / ".cache" / "cswf"


def test_a_subset_is_random_in_file_order_and_the_same_for_a_seed(tmp_path):
    content = write_idx(tmp_path)
    images = content["train"][0].reshape(TRAIN, -1).tolist()

    def taken(count: int, seed: int = 0) -> list[int]:
        data = Mnist(root=tmp_path, count=count).load(draw(seed))
        assert (len(data), len(data.held_out)) == (count, TEST)
        return [images.index(image) for image in data.images().reshape(count, -1).tolist()]

    assert taken(12) == taken(12) == sorted(taken(12))
    assert taken(12) != taken(12, seed=1)
    assert set(taken(5)) < set(taken(12))
    assert taken(TRAIN) == list(range(TRAIN))
    too_many = Mnist(root=tmp_path, count=61)
    assert "count is 61, but there are 60 samples; ask for that many" in complaint_of(too_many)


@pytest.mark.parametrize("wanted", [("dog", "cat"), ("3", "5"), ("CAT", "5", "cat")])
def test_classes_are_taken_by_name_or_number_and_renumbered(tmp_path, wanted):
    batches = write_cifar(tmp_path / "c", "binary")
    data = Cifar10(root=tmp_path / "c", classes=wanted).load(draw())
    assert data.classes == data.held_out.classes == ("cat", "dog")
    assert data.conditions.labels.tolist() == [0, 1] * 10
    assert data.held_out.conditions.labels.tolist() == [0, 1, 0, 1]
    assert np.array_equal(data.images()[:2].numpy(), batches["data_batch_1"][0][[3, 5]])
    assert len(Cifar10(root=tmp_path / "c", classes=wanted, count=7).load(draw())) == 7


def test_an_unknown_class_is_a_sentence_with_the_nearest_names(tmp_path):
    write_cifar(tmp_path / "c", "binary")
    for name, complaint in (("trok", "'trok'; did you mean 'truck'?"), ("10", "'10'; known: airplane, ")):
        assert f"no class {complaint}" in complaint_of(Cifar10(root=tmp_path / "c", classes=(name,)))
    write_idx(tmp_path / "m")
    assert "no class '12'" in complaint_of(Mnist(root=tmp_path / "m", classes=("12",)))
    assert Mnist(root=tmp_path / "m", classes=("8", "3")).load(draw()).classes == ("3", "8")


def test_flips_append_mirror_images_of_what_is_seen_only(tmp_path):
    write_cifar(tmp_path / "c", "binary")
    data = Cifar10(root=tmp_path / "c", count=30, flips=True).load(draw())
    plain = Cifar10(root=tmp_path / "c", count=30).load(draw())
    assert (len(data), len(data.held_out)) == (60, 20)
    assert torch.equal(data.x[:, :30], plain.x)
    assert torch.equal(data.images()[30:], plain.images().flip(3))
    assert data.conditions.labels.tolist() == plain.conditions.labels.tolist() * 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_noise_comes_each_step_or_once_or_never(tmp_path, dtype):
    write_idx(tmp_path)
    step, once, none = (
        Mnist(root=tmp_path, dequantise=how).load(draw(dtype=dtype)) for how in ("step", "once", "none")
    )
    again = Mnist(root=tmp_path, dequantise="once").load(draw(dtype=dtype))
    assert [d.bin_width for d in (step, once, none)] == [1 / 128, 0, 0]
    assert [d.held_out.bin_width for d in (step, once, none)] == [1 / 128, 0, 0]
    assert torch.equal(step.x, none.x)
    assert torch.equal(once.x, again.x)
    assert once.x.dtype == dtype
    for noisy, plain in ((once, none), (once.held_out, none.held_out)):
        noise = (noisy.x - plain.x) * 128
        assert noise.min() >= 0
        assert noise.max() < 1
        assert float(noise.mean()) == pytest.approx(0.5, abs=0.01)
        assert float(noise.var()) == pytest.approx(1 / 12, abs=0.005)
        assert torch.equal(noisy.images(), plain.images())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_pixels_in_the_middle_of_their_levels_stay_there_if_moved_by_less_than_half_of_one(tmp_path, dtype):
    write_idx(tmp_path)
    middle, none = (Mnist(root=tmp_path, dequantise=how).load(draw(dtype=dtype)) for how in ("middle", "none"))
    assert middle.bin_width == middle.held_out.bin_width == 0
    assert torch.equal(middle.x, none.x + 1 / 256)
    for moved in (-0.49, 0, 0.49):
        assert torch.equal(attrs.evolve(middle, x=middle.x + moved / 128).images(), none.images())


def test_numbers_do_not_depend_on_the_blocks_they_are_made_in(monkeypatch):
    pixels, _ = pixels_and_labels(23, (3, 5, 7), 0)
    rows = np.arange(1, 23, 2)
    whole = columns(Pictures(pixels, rows), True, torch.float64)
    monkeypatch.setattr("cswf_plugins.datasets.images.BLOCK", 4)
    assert torch.equal(columns(Pictures(pixels, rows), True, torch.float64), whole)
    assert np.array_equal(whole[:, :11].T.reshape(11, 3, 5, 7).numpy(), pixels[rows] / 128 - 1)


def test_wishes_that_make_no_sense_are_refused():
    for options_, complaint in (
        ({"held_out": 1.0}, "held_out must be at least 0 and below 1, got 1.0"),
        ({"held_out": -0.1}, "held_out must be at least 0"),
        ({"size": 0}, "size must be at least 1 and at most 8,192, got 0"),
        ({"crop": 0}, "crop must be at least 1, got 0"),
        ({"count": 0}, "count must be at least 1, got 0"),
    ):
        with pytest.raises(ValueError, match=complaint):
            ImageFolder(**{"path": ".", "size": 8, **options_})


@pytest.mark.parametrize("cls", [Mnist, FashionMnist, Cifar10, CelebA, ImageFolder, Npz])
def test_every_parameter_says_what_it_means(cls):
    assert all(option.help for option in options(cls).values())
    assert {"count", "flips", "dequantise"} <= set(options(cls))


def test_npz_has_the_same_wishes(tmp_path):
    pixels, labels = pixels_and_labels(30, (3, 4, 5), 0)
    vectors = np.arange(30.0)[:, None]
    path = tmp_path / "a.npz"
    np.savez(path, images=pixels, labels=labels, vectors=vectors)
    data = Npz(path=path, classes=("7", "2"), count=4, flips=True).load(draw())
    rows = data.conditions.vectors[0, :4].long().numpy()
    assert (len(data), data.classes, data.bin_width) == (8, ("2", "7"), 1 / 128)
    assert rows.tolist() == sorted(rows)
    assert [("2", "7")[c] for c in data.conditions.labels] == [str(c) for c in labels[rows]] * 2
    assert np.array_equal(data.images().numpy(), np.concatenate([pixels[rows], pixels[rows][..., ::-1]]))
    once, middle, none = (Npz(path=path, dequantise=how).load(draw()) for how in ("once", "middle", "none"))
    assert once.bin_width == middle.bin_width == none.bin_width == 0
    assert torch.equal(middle.x, none.x + 1 / 256)
    assert torch.equal(once.images(), none.images())
    assert bool((once.x > none.x).any())
    np.savez(tmp_path / "b.npz", points=np.eye(3))
    for source, complaint in (
        (Npz(path=path, classes=("x",)), "a.npz: there is no class 'x'; known: 0, "),
        (Npz(path=path, count=31), "a.npz: count is 31, but there are 30 samples"),
        (Npz(path=tmp_path / "b.npz", classes=("0",)), "there are no 'labels' to choose class '0' from"),
        (Npz(path=tmp_path / "b.npz", flips=True), "flips needs 'images'"),
    ):
        with pytest.raises(DataError, match=complaint):
            source.load(draw())
