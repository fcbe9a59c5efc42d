"""Images come out of published files as they went in, and choices are as one wishes; errors are a sentence."""

from __future__ import annotations

import gzip
import logging
import os
import pickle
import re
import socket
import urllib.error

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
from cswf_plugins.datasets.images import Pictures, data_root, loaded, selected
from cswf_plugins.datasets.mnist import Mnist
from cswf_plugins.datasets.npz import Npz
from tests.conftest import skip_without
from tests.plugins.image_files import (
    TEST,
    TRAIN,
    complaint_of,
    draw,
    idx,
    pixels_and_labels,
    write_cifar,
    write_idx,
)

pytestmark = pytest.mark.usefixtures("elsewhere")


LAYOUTS = {Mnist: ("mnist", "MNIST/raw", "."), FashionMnist: ("fashion-mnist", "FashionMNIST/raw", ".")}


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize(("cls", "place"), [(cls, place) for cls in LAYOUTS for place in LAYOUTS[cls]])
def test_idx_files_come_back_from_every_layout(tmp_path, cls, place, zipped):
    content = write_idx(tmp_path / place, zipped)
    data = cls(root=tmp_path, download=False).load(draw())
    assert (data.space.shape, data.bin_width, data.x.dtype) == ((1, 28, 28), 1 / 128, torch.float32)
    assert data.classes == cls.CLASSES
    for part, name in ((data, "train"), (data.held_out, "t10k")):
        assert np.array_equal(part.images().numpy()[:, 0], content[name][0])
        assert part.conditions.labels.tolist() == content[name][1].tolist()
    test = cls(root=tmp_path, split="test").load(draw())
    assert test.held_out is None
    assert torch.equal(test.x, data.held_out.x)


@pytest.mark.parametrize(
    ("version", "place"),
    [
        ("binary", "cifar-10-batches-bin"),
        ("python 2", "cifar-10-batches-py"),
        ("python 3", "cifar-10-batches-py"),
        ("binary", "."),
        ("python 2", "."),
    ],
)
@pytest.mark.filterwarnings("error")
def test_cifar_comes_back_from_both_versions(tmp_path, version, place):
    batches = write_cifar(tmp_path / "here" / place, version)
    data = Cifar10(root=tmp_path / "here", download=False).load(draw())
    assert data.space.shape == (3, 32, 32)
    assert np.array_equal(data.images()[20:40].numpy(), batches["data_batch_2"][0])
    assert np.array_equal(data.held_out.images().numpy(), batches["test_batch"][0])
    assert data.conditions.labels.tolist() == list(range(10)) * 10
    assert data.classes[6] == "frog"


SHORT = idx(np.zeros((TRAIN, 28, 28), np.uint8))[:-5]


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("train-images-idx3-ubyte", b"", r"is damaged: it should begin with 00 00 08 03 .* got nothing"),
        ("train-images-idx3-ubyte", b"\0\0\x08\x03\0", "should begin with 00 00 08 03"),
        ("train-images-idx3-ubyte", idx(np.zeros(3, np.uint8)), "got 00 00 08 01; replace or remove it"),
        ("train-images-idx3-ubyte", SHORT, "should have 47,056 bytes and has 47,051"),
        ("train-images-idx3-ubyte", SHORT + bytes(6), "should have 47,056 bytes and has 47,057"),
        ("train-images-idx3-ubyte", idx(np.zeros((TRAIN, 8, 8), np.uint8)), "images of 8×8 pixels, not 28×28"),
        ("t10k-labels-idx1-ubyte", idx(np.zeros(19, np.uint8)), "has 20 images but .* has 19 labels"),
        ("t10k-labels-idx1-ubyte", idx(np.full(20, 10, np.uint8)), "it has the label 10, and 9 is the last"),
        ("train-images-idx3-ubyte.gz", b"hello", "cannot be unzipped"),
        ("train-images-idx3-ubyte.gz", gzip.compress(SHORT, mtime=0)[:-20], "cannot be unzipped"),
        ("train-images-idx3-ubyte.gz", gzip.compress(SHORT, mtime=0)[:20] + b"\xff" * 99, "cannot be unzipped"),
    ],
)
def test_a_damaged_idx_file_is_one_sentence_that_names_it(tmp_path, name, content, complaint):
    write_idx(tmp_path, zipped=name.endswith(".gz"))
    (tmp_path / name).write_bytes(content)
    said = complaint_of(Mnist(root=tmp_path))
    assert re.search(complaint, said)
    assert str(tmp_path / name) in said


class Harm:
    def __reduce__(self):
        return os.system, ("echo harm",)


ROWS = np.zeros((2, 3072), np.uint8)


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("test_batch.bin", b"", "a multiple of 3,073 bytes and has 0"),
        ("test_batch.bin", bytes(3074), "a multiple of 3,073 bytes and has 3,074"),
        ("test_batch.bin", b"\x0a" + bytes(3072), "it has the label 10, and 9 is the last"),
        ("test_batch", b"hello", "cannot be unpickled"),
        ("test_batch", pickle.dumps({b"data": ROWS, b"labels": [1, 2]})[:-50], "cannot be unpickled"),
        ("test_batch", pickle.dumps({b"data": Harm()}), "names posix.system, which has no place"),
        ("test_batch", pickle.dumps([1, 2]), "should have 'data' of n×3,072 bytes"),
        ("test_batch", pickle.dumps({b"data": ROWS[:, 1:], b"labels": [1, 2]}), "'data' of n×3,072 bytes"),
        ("test_batch", pickle.dumps({b"data": ROWS.astype(int), b"labels": [1, 2]}), "'data' of n×3,072"),
        ("test_batch", pickle.dumps({b"data": ROWS, b"labels": [1]}), "a list of 2 whole numbers"),
        ("test_batch", pickle.dumps({b"data": ROWS, b"labels": "ab"}), "a list of 2 whole numbers"),
        ("test_batch", pickle.dumps({b"data": ROWS, b"labels": [1, -2]}), "it has the label -2"),
    ],
)
def test_a_damaged_cifar_file_is_one_sentence_that_names_it(tmp_path, name, content, complaint):
    write_cifar(tmp_path / "c", "binary" if name.endswith(".bin") else "python 2")
    (tmp_path / "c" / name).write_bytes(content)
    said = complaint_of(Cifar10(root=tmp_path / "c"))
    assert complaint in said
    assert str(tmp_path / "c" / name) in said


def test_without_files_and_without_download_the_sentence_says_what_to_put_where(tmp_path):
    said = complaint_of(Mnist(root=tmp_path, download=False))
    assert f"the files are not in {tmp_path} and download is false; put train-images-idx3-ubyte, " in said
    assert f"(or the same with '.gz') into {tmp_path / 'mnist'}" in said
    assert "train-images" not in complaint_of(Mnist(root=tmp_path, split="test", download=False))
    said = complaint_of(Cifar10(root=tmp_path, download=False))
    assert f"data_batch_5.bin, test_batch.bin into {tmp_path / 'cifar-10-batches-bin'}" in said
    write_idx(tmp_path / "mnist")
    (tmp_path / "mnist" / "t10k-labels-idx1-ubyte").unlink()
    assert "download is false" in complaint_of(Mnist(root=tmp_path, download=False))


def no_network(*arguments, **options):
    raise urllib.error.URLError(f"no network\nhere, after {socket.getdefaulttimeout()} s")


@pytest.mark.parametrize("cls", [Mnist, FashionMnist, Cifar10])
def test_a_download_that_fails_is_one_sentence_and_leaves_nothing(tmp_path, monkeypatch, caplog, cls):
    monkeypatch.setattr("torchvision.datasets.utils._urlretrieve", no_network)
    monkeypatch.setattr("urllib.request.urlopen", no_network)
    before = socket.getdefaulttimeout()
    with caplog.at_level(logging.WARNING, "cswf"):
        said = complaint_of(cls(root=tmp_path))
    assert f"downloading {cls.TORCHVISION[0]} into {tmp_path}" in caplog.text
    assert "could not be downloaded (" in said
    assert "no network here, after 30.0 s" in said
    assert f"into {tmp_path / cls.FOLDERS[0]}" in said
    assert socket.getdefaulttimeout() == before
    assert list(tmp_path.iterdir()) == []


def test_a_download_is_read_from_its_files_and_not_repeated(tmp_path, monkeypatch, capsys):
    import torchvision

    calls = []

    def download(self):
        calls.append(self.root)
        print("Downloading …")
        write_idx(tmp_path / self.raw_folder)

    monkeypatch.setattr(torchvision.datasets.MNIST, "download", download)
    root = tmp_path / "new"
    assert len(Mnist(root=root).load(draw())) == TRAIN
    assert len(Mnist(root=root, download=False).load(draw())) == TRAIN
    assert len(calls) == 1
    assert capsys.readouterr().out == ""
    assert [path.name for path in root.iterdir()] == ["MNIST"]
    monkeypatch.setattr(torchvision.datasets.MNIST, "__init__", lambda *_, **__: None)
    assert "could not be downloaded (" in complaint_of(Mnist(root=tmp_path / "other"))
    (tmp_path / "file").write_text("")
    assert "could not be downloaded (" in complaint_of(Mnist(root=tmp_path / "file"))


def real(source, monkeypatch, root):
    """Open a published data set, or skip."""
    if root is None:
        monkeypatch.delenv("CSWF_DATA")
    else:
        monkeypatch.setenv("CSWF_DATA", root)
    skip_without(source.NAME)
    return source.open(draw())


REAL_ROOT = os.environ.get("CSWF_DATA")


@pytest.mark.parametrize(
    ("source", "seen", "first", "mean"),
    [
        (Mnist(download=False), 60_000, [5, 0, 4, 1, 9], 0.1307),
        (FashionMnist(download=False), 60_000, [9, 0, 0, 3, 0], 0.2860),
        (Cifar10(download=False), 50_000, [6, 9, 9, 4, 1], 0.4734),
    ],
    ids=lambda value: getattr(value, "NAME", None),
)
def test_the_published_files_have_what_is_known_of_them(monkeypatch, source, seen, first, mean):
    data = real(source, monkeypatch, REAL_ROOT)
    assert (len(data), len(data.held_out)) == (seen, 10_000)
    assert data.labels[:5].tolist() == first
    levels = torch.bincount(data.block(0, seen).flatten(), minlength=256)
    assert float(levels.double() @ torch.arange(256.0).double() / levels.sum()) / 255 == pytest.approx(
        mean, abs=5e-4
    )
    assert len(data.classes) == len(torch.bincount(data.held_out.labels)) == 10


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
    images = attrs.evolve(selected(Pictures.of(pixels), rows), flips=True)
    whole = loaded(images, draw(dtype=torch.float64)).x
    monkeypatch.setattr("cswf_plugins.datasets.images.BLOCK", 4)
    assert torch.equal(loaded(images, draw(dtype=torch.float64)).x, whole)
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


@pytest.mark.parametrize("cls", [Mnist, FashionMnist, Cifar10, CelebA, ImageFolder, Npz])
def test_every_parameter_says_what_it_means(cls):
    assert all(option.help for option in options(cls).values())
    assert {"count", "flips", "dequantise"} <= set(options(cls))
