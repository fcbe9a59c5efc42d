"""Images come out of their files as they went in; what is wrong with a file or a wish is one sentence."""

from __future__ import annotations

import gzip
import io
import logging
import os
import pickle
import socket
import struct
import urllib.error

import numpy as np
import pytest
import torch
from PIL import Image

from cswf_core.errors import DataError
from cswf_core.interfaces import Key
from cswf_core.recipe.types import options
from cswf_plugins.datasets import folders
from cswf_plugins.datasets.celeba import CelebA
from cswf_plugins.datasets.cifar10 import Cifar10
from cswf_plugins.datasets.fashion_mnist import FashionMnist
from cswf_plugins.datasets.image_folder import ImageFolder
from cswf_plugins.datasets.images import Pictures, columns, data_root
from cswf_plugins.datasets.mnist import Mnist
from cswf_plugins.datasets.npz import Npz
from tests.conftest import skip_without

TRAIN, TEST = 60, 20


def draw(seed: int = 0, dtype: torch.dtype = torch.float32):
    return Key(seed, "data").open(dtype=dtype)


def complaint_of(source) -> str:
    with pytest.raises(DataError) as error:
        source.load(draw())
    assert "\n" not in str(error.value)
    assert str(error.value).startswith(f"dataset '{source.NAME}': ")
    return str(error.value)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """No test but those of the real files looks at the real folder, or writes into it."""
    monkeypatch.setenv("CSWF_DATA", str(tmp_path / "data"))


def pixels_and_labels(count: int, shape: tuple[int, ...], seed: int):
    generator = np.random.default_rng(seed)
    labels = (np.arange(count) % 10).astype(np.uint8)
    return generator.integers(0, 256, (count, *shape), np.uint8), labels


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def write_idx(folder, zipped: bool = False):
    """Lay out a small MNIST; return what is in it."""
    folder.mkdir(parents=True, exist_ok=True)
    content = {}
    for name, count in (("train", TRAIN), ("t10k", TEST)):
        content[name] = images, labels = pixels_and_labels(count, (28, 28), count)
        for stem, array in ((f"{name}-images-idx3-ubyte", images), (f"{name}-labels-idx1-ubyte", labels)):
            data = idx(array)
            (folder / (stem + ".gz" * zipped)).write_bytes(gzip.compress(data) if zipped else data)
    return content


def cifar_batches():
    names = [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]
    return {name: pixels_and_labels(20, (3, 32, 32), i) for i, name in enumerate(names)}


def write_cifar(folder, version: str):
    folder.mkdir(parents=True)
    batches = cifar_batches()
    for name, (images, labels) in batches.items():
        rows = images.reshape(20, -1)
        if version == "binary":
            (folder / f"{name}.bin").write_bytes(np.hstack([labels[:, None], rows]).tobytes())
        else:
            mapping = {b"batch_label": b"x", b"data": rows, b"labels": [int(c) for c in labels]}
            packed = as_python_2(mapping) if version == "python 2" else pickle.dumps(mapping, protocol=2)
            (folder / name).write_bytes(packed)
    return batches


def as_python_2(value: object) -> bytes:
    """Pickle as in the published files, by Python 2: texts are bytes, and NumPy has its old names."""

    class Old(pickle._Pickler):
        dispatch = pickle._Pickler.dispatch.copy()

        def save_text(self, text):
            raw = text if isinstance(text, bytes) else text.encode("latin1")
            self.write(pickle.BINSTRING + struct.pack("<i", len(raw)) + raw)
            self.memoize(text)

        dispatch[bytes] = dispatch[str] = save_text

    stream = io.BytesIO()
    Old(stream, protocol=2).dump(value)
    return stream.getvalue().replace(b"cnumpy._core.multiarray\n", b"cnumpy.core.multiarray\n")


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize(
    ("cls", "place"),
    [
        (Mnist, "mnist"),
        (Mnist, "MNIST/raw"),
        (Mnist, "."),
        (FashionMnist, "fashion-mnist"),
        (FashionMnist, "FashionMNIST/raw"),
        (FashionMnist, "."),
    ],
)
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
    assert "count is 61, but there are 60 samples; ask for that many" in complaint_of(
        Mnist(root=tmp_path, count=61)
    )


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
    assert "no class 'trok'; did you mean 'truck'?" in complaint_of(
        Cifar10(root=tmp_path / "c", classes=("trok",))
    )
    assert "no class '10'; known: airplane, " in complaint_of(Cifar10(root=tmp_path / "c", classes=("10",)))
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


def test_numbers_do_not_depend_on_the_blocks_they_are_made_in(monkeypatch):
    pixels, _ = pixels_and_labels(23, (3, 5, 7), 0)
    rows = np.arange(1, 23, 2)
    whole = columns(Pictures(pixels, rows), True, torch.float64)
    monkeypatch.setattr("cswf_plugins.datasets.images.BLOCK", 4)
    assert torch.equal(columns(Pictures(pixels, rows), True, torch.float64), whole)
    assert np.array_equal(whole[:, :11].T.reshape(11, 3, 5, 7).numpy(), pixels[rows] / 128 - 1)


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
        ("train-images-idx3-ubyte.gz", gzip.compress(SHORT)[:-20], "cannot be unzipped"),
        ("train-images-idx3-ubyte.gz", gzip.compress(SHORT)[:20] + b"\xff" * 99, "cannot be unzipped"),
    ],
)
def test_a_damaged_idx_file_is_one_sentence_that_names_it(tmp_path, name, content, complaint):
    write_idx(tmp_path, zipped=name.endswith(".gz"))
    (tmp_path / name).write_bytes(content)
    source = Mnist(root=tmp_path)
    with pytest.raises(DataError, match=complaint):
        source.load(draw())
    assert str(tmp_path / name) in complaint_of(source)


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
    source = Cifar10(root=tmp_path / "c")
    assert complaint in complaint_of(source)
    assert str(tmp_path / "c" / name) in complaint_of(source)


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


def picture(path, size=(178, 218), mode="RGB", seed=0, **options):
    """A smooth picture, so that JPEG keeps it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    small = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), np.uint8)
    image = Image.fromarray(small).resize(size, Image.Resampling.BICUBIC).convert(mode)
    image.save(path, **options)
    return image


def faces(folder, numbers):
    return {n: picture(folder / f"{n:06}.jpg", seed=n, quality=95) for n in numbers}


@pytest.mark.parametrize("place", ["celeba/img_align_celeba", "img_align_celeba", "."])
def test_faces_are_cropped_resized_and_split_by_number(tmp_path, place):
    faces(tmp_path / "r" / place, [1, 162_770, 162_771, 182_637, 182_638, 202_599])
    data = CelebA(root=tmp_path / "r").load(draw())
    assert (len(data), len(data.held_out), data.space.shape) == (2, 2, (3, 64, 64))
    assert (data.classes, data.conditions.labels, data.bin_width) == ((), None, 1 / 128)
    with Image.open(tmp_path / "r" / place / "000001.jpg") as image:
        expected = image.crop((19, 39, 159, 179)).resize((64, 64), Image.Resampling.BICUBIC)
    assert np.array_equal(data.images()[0].permute(1, 2, 0).numpy(), np.asarray(expected))
    test = CelebA(root=tmp_path / "r", split="test", size=8, crop=100).load(draw())
    assert (len(test), test.held_out, test.space.shape) == (2, None, (3, 8, 8))


@pytest.mark.parametrize("place", [".", "celeba", "celeba/img_align_celeba"])
def test_the_partition_file_decides_the_splits_where_it_lies(tmp_path, place):
    root = tmp_path / "r"
    faces(root / "celeba" / "img_align_celeba", range(1, 7))
    partition = root / place / "list_eval_partition.txt"
    partition.write_text("".join(f"{n:06}.jpg {n % 3}\n" for n in range(1, 10)) + "\n")
    everything = folders.decoded(
        root / "celeba" / "img_align_celeba",
        folders.files_in(root / "celeba" / "img_align_celeba", (".jpg",)),
        folders.Cut(8, 3, 140),
    )
    data = CelebA(root=root, size=8).load(draw())
    assert np.array_equal(data.images().numpy(), everything[[2, 5]])
    assert np.array_equal(data.held_out.images().numpy(), everything[[1, 4]])
    for text, complaint in (
        ("000001.jpg 0\n000002.jpg 3\n", "line 2, should be a file name and 0, 1 or 2, got '000002.jpg 3'"),
        ("202599\n000001.jpg 0", "line 1, should be"),
        ("000001.jpg 0\n", "does not say which split 000002.jpg belongs to"),
    ):
        partition.write_text(text)
        assert complaint in complaint_of(CelebA(root=root, size=8))


def test_of_a_small_folder_the_last_tenth_is_held_out(tmp_path):
    faces(tmp_path / "r", range(1, 21))
    data = CelebA(root=tmp_path / "r", size=4).load(draw())
    assert (len(data), len(data.held_out)) == (18, 2)
    assert len(CelebA(root=tmp_path / "r", size=4, count=5, flips=True).load(draw())) == 10
    faces(tmp_path / "one", [7])
    assert CelebA(root=tmp_path / "one", size=4).load(draw()).held_out is None
    assert "there are no images" in complaint_of(CelebA(root=tmp_path / "one", size=4, split="test"))


def test_faces_that_are_not_there_are_one_sentence(tmp_path):
    said = complaint_of(CelebA(root=tmp_path / "r"))
    assert f"there are no images in {tmp_path / 'r'}; CelebA cannot be downloaded automatically: put" in said
    assert f"into {tmp_path / 'r' / 'celeba' / 'img_align_celeba'}" in said
    faces(tmp_path / "r", [1, 2])
    picture(tmp_path / "r" / "holiday.jpg")
    assert "holiday.jpg has no number such as 000001.jpg" in complaint_of(CelebA(root=tmp_path / "r"))


def test_decoding_happens_once_says_so_and_is_repeated_when_a_file_or_the_cache_changes(
    tmp_path, caplog, monkeypatch
):
    caplog.set_level(logging.WARNING, "cswf")
    monkeypatch.setattr(folders, "REPORT", 10)
    monkeypatch.setattr(folders, "CHUNK", 5)
    folder, cache = tmp_path / "r", tmp_path / "r" / "decoded"
    faces(folder, range(1, 24))

    def load(**options):
        caplog.clear()
        data = CelebA(root=folder, **{"size": 8, **options}).load(draw())
        return data, [record.getMessage() for record in caplog.records]

    first, said = load()
    (file,) = cache.iterdir()
    assert said[0] == f"decoding 23 images of {folder} once; the result is cached in {file}"
    assert said[1:] == ["10 of 23 images decoded", "20 of 23 images decoded"]
    second, said = load()
    assert said == []
    assert torch.equal(first.x, second.x)
    whole = file.read_bytes()
    for damage in (whole[:-1], whole[:50], b"", b"PK\x03\x04", whole.replace(b"|u1", b"|i1")):
        file.write_bytes(damage)
        again, said = load()
        assert said[0].startswith("decoding 23 images")
        assert torch.equal(first.x, again.x)
        assert file.read_bytes() == whole
    assert load(crop=100)[1]
    assert load(size=9)[1]
    assert len(list(cache.iterdir())) == 3
    faces(folder, [24])
    assert load()[1]
    os.utime(folder / "000001.jpg", (1, 1))
    assert load()[1]


def test_a_cache_that_cannot_be_written_is_a_warning(tmp_path, caplog, monkeypatch):
    def full(file, array, **options):
        file.write(b"some of it")
        raise OSError(28, "No space left on device")

    caplog.set_level(logging.WARNING, "cswf")
    faces(tmp_path / "r", range(1, 4))
    with monkeypatch.context() as patch:
        patch.setattr(np, "save", full)
        assert len(CelebA(root=tmp_path / "r", size=8).load(draw())) == 2
    assert "(No space left on device)" in caplog.text
    assert list((tmp_path / "r" / "decoded").iterdir()) == []
    (tmp_path / "r" / "decoded").rmdir()
    caplog.clear()
    (tmp_path / "r" / "decoded").write_text("a file where the folder should be")
    assert len(CelebA(root=tmp_path / "r", size=8).load(draw())) == 2
    assert "the decoded images cannot be cached in" in caplog.text


def folder_of_pictures(folder):
    for name, count in (("cat", 10), ("dog", 20), ("empty", 0), (".hidden", 1)):
        (folder / name).mkdir(parents=True)
        for i in range(count):
            ending = ("png", "JPG", "jpeg", "bmp", "WebP")[i % 5]
            picture(folder / name / f"{i}.{ending}", (20 + i, 30), seed=i)
        (folder / name / "notes.txt").write_text("not a picture")
    return folder


def test_each_subfolder_is_a_class_and_a_share_of_each_is_held_out(tmp_path):
    source = ImageFolder(path=folder_of_pictures(tmp_path / "f"), size=8)
    data = source.load(draw())
    assert (data.classes, data.space.shape) == (("cat", "dog"), (3, 8, 8))
    assert torch.bincount(data.conditions.labels).tolist() == [9, 18]
    assert torch.bincount(data.held_out.conditions.labels).tolist() == [1, 2]
    assert torch.equal(source.load(draw()).x, data.x)
    assert not torch.equal(source.load(draw(seed=1)).x, data.x)
    dogs = ImageFolder(path=tmp_path / "f", size=8, classes=("dog",)).load(draw())
    assert torch.equal(dogs.held_out.x, data.held_out.x[:, 1:])
    assert (dogs.classes, len(dogs)) == (("dog",), 18)
    assert torch.equal(ImageFolder(path=tmp_path / "f", size=8, classes=("1",)).load(draw()).x, dogs.x)
    everything = ImageFolder(path=tmp_path / "f", size=8, held_out=0.0).load(draw())
    assert (len(everything), everything.held_out) == (30, None)
    almost = ImageFolder(path=tmp_path / "f", size=8, held_out=0.99, flips=True).load(draw())
    assert (len(almost), len(almost.held_out)) == (4, 28)
    assert len(ImageFolder(path=tmp_path / "f", size=8, count=5).load(draw())) == 5
    assert ImageFolder(path=tmp_path / "f", size=8, dequantise="once").load(draw()).bin_width == 0


def test_pictures_become_squares_of_the_channels_wanted(tmp_path):
    image = picture(tmp_path / "f" / "a.png", (30, 20))
    data = ImageFolder(path=tmp_path / "f", size=10, held_out=0.0).load(draw())
    expected = image.crop((5, 0, 25, 20)).resize((10, 10), Image.Resampling.BICUBIC)
    assert np.array_equal(data.images()[0].permute(1, 2, 0).numpy(), np.asarray(expected))
    assert (data.classes, data.conditions.labels) == ((), None)
    grey = ImageFolder(path=tmp_path / "f", size=6, crop=6, channels=1, held_out=0.0).load(draw())
    expected = image.convert("L").crop((12, 7, 18, 13))
    assert np.array_equal(grey.images()[0, 0].numpy(), np.asarray(expected))
    for mode in ("RGBA", "P", "L", "1", "LA"):
        picture(tmp_path / mode / "a.png", (8, 8), mode=mode)
        assert ImageFolder(path=tmp_path / mode, size=8).load(draw()).space.shape == (3, 8, 8)


def test_photographs_are_turned_upright(tmp_path):
    turned = Image.Exif()
    turned[0x0112] = 6  # the camera's left side is up
    image = picture(tmp_path / "f" / "a.png", (8, 8), exif=turned)
    data = ImageFolder(path=tmp_path / "f", size=8, held_out=0.0).load(draw())
    upright = np.asarray(image.transpose(Image.Transpose.ROTATE_270))
    assert np.array_equal(data.images()[0].permute(1, 2, 0).numpy(), upright)


def test_folders_that_cannot_be_used_are_one_sentence(tmp_path):
    def said(**options) -> str:
        return complaint_of(ImageFolder(**{"path": tmp_path / "f", "size": 8, **options}))

    assert "f does not exist; path must name a folder of pictures (png, jpg, jpeg, bmp, webp)" in said()
    (tmp_path / "file").write_text("")
    assert "file is not a folder" in said(path=tmp_path / "file")
    (tmp_path / "f" / "a").mkdir(parents=True)
    assert "f has no pictures (png" in said()
    picture(tmp_path / "f" / "a.png", (8, 8))
    assert "there are no classes to choose 'cat' from" in said(classes=("cat",))
    assert "count is 5, but there are 1 samples" in said(count=5)
    assert "a.png has 8×8 pixels, fewer than crop: 9" in said(crop=9)
    picture(tmp_path / "f" / "a" / "b.png", (8, 8))
    assert "pictures of its own, such as a.png, beside folders of them, such as a;" in said()
    (tmp_path / "f" / "a.png").unlink()
    before = len(list((tmp_path / "data").rglob("*.npy")))
    assert "no class 'b'; known: a" in said(classes=("b",))
    assert len(list((tmp_path / "data").rglob("*.npy"))) == before
    Image.fromarray(np.zeros((8, 8), np.uint16)).save(tmp_path / "f" / "a" / "c.png")
    assert "c.png has more than 8 bits per value" in said()
    (tmp_path / "f" / "a" / "c.png").write_bytes((tmp_path / "f" / "a" / "b.png").read_bytes()[:60])
    assert "c.png cannot be read as an image (" in said()
    (tmp_path / "f" / "a" / "c.png").write_text("hello")
    assert "c.png cannot be read as an image (" in said()
    assert not list((tmp_path / "data").rglob(".writing*"))


def test_wishes_that_make_no_sense_are_refused():
    for options_, complaint in (
        ({"held_out": 1.0}, "held_out must be at least 0 and below 1, got 1.0"),
        ({"held_out": -0.1}, "held_out must be at least 0"),
        ({"size": 0}, "size must be at least 1, got 0"),
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
    once = Npz(path=path, dequantise="once").load(draw())
    none = Npz(path=path, dequantise="none").load(draw())
    assert once.bin_width == none.bin_width == 0
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


def real(source, monkeypatch, root):
    """Load a published data set, or skip."""
    if root is None:
        monkeypatch.delenv("CSWF_DATA")
    else:
        monkeypatch.setenv("CSWF_DATA", root)
    skip_without(source.NAME)
    return source.load(draw())


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
    assert data.conditions.labels[:5].tolist() == first
    assert float(data.x.double().mean() + 1) * 128 / 255 == pytest.approx(mean, abs=5e-4)
    assert len(data.classes) == len(torch.bincount(data.held_out.conditions.labels)) == 10
