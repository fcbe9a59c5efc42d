"""Data `packed` are the data they were packed from, and their checksums are compared once."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch

from cswf_core.interfaces import StoredImages
from cswf_core.packed import LoadedImages, PackedImages, pack
from cswf_plugins.datasets import image_folder
from cswf_plugins.datasets import packed as plugin
from cswf_plugins.datasets.celeba import CelebA
from cswf_plugins.datasets.digits import Digits
from cswf_plugins.datasets.image_folder import ImageFolder
from cswf_plugins.datasets.mnist import Mnist
from cswf_plugins.datasets.npz import Npz
from cswf_plugins.datasets.packed import Packed
from tests.plugins.image_files import complaint_of, draw, write_idx
from tests.plugins.test_image_folders import faces, folder_of_pictures

pytestmark = pytest.mark.usefixtures("elsewhere")


def written(source, folder, per_shard=7):
    """Pack what a source has; a source that cannot be opened is loaded."""
    images = source.open(draw()) if source.opens else LoadedImages.of(source.load(draw()))
    pack(images, folder, source={"use": "test"}, seed=0, per_shard=per_shard)
    return folder


def assert_same(one, other):
    """Two data sets agree to the bit, and so do those they hold out."""
    assert one.digest() == other.digest()
    for name in ("space", "classes", "bin_width", "split", "augmented"):
        assert getattr(one, name) == getattr(other, name), name
    assert (one.held_out is None) == (other.held_out is None)
    if one.held_out is not None:
        assert_same(one.held_out, other.held_out)


def assert_same_images(stored, loaded):
    """Images that are read a block at a time are those of a data set."""
    assert torch.equal(stored.block(0, len(stored)), loaded.images())
    assert (stored.space, stored.classes, stored.bin_width) == (loaded.space, loaded.classes, loaded.bin_width)
    labels = loaded.conditions.labels
    assert stored.labels is None if labels is None else torch.equal(stored.labels, labels)


def sources(folder):
    """A source of each kind, by its name."""
    write_idx(folder / "mnist")
    faces(folder / "faces", range(1, 12))
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (9, 5, 6), np.uint8)
    np.savez(folder / "some.npz", images=images, labels=np.arange(9) % 4)
    return {
        "digits": Digits(),
        "some digits": Digits(classes=(3, 5)),
        "npz": Npz(path=folder / "some.npz"),
        "mnist": Mnist(root=folder),
        "mnist's test split": Mnist(root=folder, split="test", classes=("3", "8")),
        "few of mnist": Mnist(root=folder, count=11),
        "celeba": CelebA(root=folder / "faces", size=8),
        "a folder": ImageFolder(path=folder_of_pictures(folder / "pictures"), size=8, held_out=0.3),
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_packed_data_are_the_data_they_were_packed_from(tmp_path, dtype):
    for name, source in sources(tmp_path).items():
        per_shard = 500 if "digits" in name else 7
        folder = written(source, tmp_path / f"packed {name}", per_shard)
        assert_same(source.load(draw(dtype=dtype)), Packed(path=folder).load(draw(dtype=dtype)))


def test_parameters_mean_the_same_as_for_the_source(tmp_path):
    write_idx(tmp_path / "mnist")
    folder = written(Mnist(root=tmp_path), tmp_path / "p")
    for options in (
        {"flips": True},
        {"count": 20, "dequantise": "once"},
        {"classes": ("8", "3"), "dequantise": "middle", "flips": True},
        {"dequantise": "none", "count": 5, "classes": ("1",)},
    ):
        same = Mnist(root=tmp_path, **options).load(draw(3)), Packed(path=folder, **options).load(draw(3))
        assert_same(*same)
    assert "there is no class '11'; did you mean '1'?" in complaint_of(Packed(path=folder, classes=("11",)))


def test_opened_images_are_those_that_load_returns(tmp_path):
    for name, source in sources(tmp_path).items():
        if not source.opens:
            continue
        for opened in (source, Packed(path=written(source, tmp_path / f"packed {name}"))):
            images, data = opened.open(draw()), opened.load(draw())
            assert isinstance(images, StoredImages)
            assert (images.held_out is None) == (data.held_out is None)
            assert images.split == data.split
            for stored, loaded in ((images, data), (images.held_out, data.held_out)):
                if stored is not None:
                    assert_same_images(stored, loaded)
    flipped = Mnist(root=tmp_path, flips=True, dequantise="middle").open(draw())
    assert (flipped.flips, flipped.dequantise, len(flipped)) == (True, "middle", 60)


def test_opened_images_of_a_whole_folder_are_its_own_and_those_of_some_classes_are_picked(tmp_path):
    write_idx(tmp_path / "mnist")
    folder = written(Mnist(root=tmp_path), tmp_path / "p")
    assert isinstance(Packed(path=folder).open(draw()), PackedImages)
    options = {"classes": ("3", "8"), "dequantise": "once", "flips": True}
    one, other = (
        source.open(draw()) for source in (Mnist(root=tmp_path, **options), Packed(path=folder, **options))
    )
    assert torch.equal(one.block(2, 7), other.block(2, 7))
    assert (other.flips, other.dequantise, other.classes) == (True, "once", ("3", "8"))
    assert torch.equal(one.held_out.labels, other.held_out.labels)


def test_a_folder_of_pictures_is_packed_without_decoding_it_as_a_whole(tmp_path, monkeypatch):
    decoded = []

    def decode(files, cut, _real=image_folder._decode):
        decoded.append(len(files))
        return _real(files, cut)

    monkeypatch.setattr(image_folder, "_decode", decode)
    monkeypatch.setattr("cswf_core.packed.BLOCK_IMAGES", 4)
    source = ImageFolder(path=folder_of_pictures(tmp_path / "f"), size=8)
    folder = written(source, tmp_path / "p", per_shard=10)
    assert max(decoded) == 4
    assert sum(decoded) == 30
    assert not (tmp_path / "data" / "decoded").exists()
    assert_same(source.load(draw()), Packed(path=folder).load(draw()))


def test_checksums_are_compared_once_and_when_a_file_has_changed(tmp_path, monkeypatch):
    compared = []

    def find(folder, manifest, _real=plugin.find_damage):
        compared.append(folder)
        return _real(folder, manifest)

    monkeypatch.setattr(plugin, "find_damage", find)
    folder = written(Npz(path=sources(tmp_path)["npz"].path), tmp_path / "p")
    for verify, expected in (("never", 0), ("once", 1), ("once", 1), ("always", 2), ("once", 2)):
        Packed(path=folder, verify=verify).load(draw())
        assert len(compared) == expected
    os.utime(folder / "images-00001.npy", (1, 1))
    Packed(path=folder).load(draw())
    assert len(compared) == 3
    content = bytearray((folder / "images-00001.npy").read_bytes())
    content[-1] ^= 1
    (folder / "images-00001.npy").write_bytes(content)
    for _ in range(2):
        assert (
            "p/images-00001.npy is not what was written: its checksum differs; copy the folder"
            in complaint_of(Packed(path=folder))
        )
    Packed(path=folder, verify="never").load(draw())


def test_a_folder_that_is_not_packed_is_one_sentence(tmp_path):
    assert f"{tmp_path / 'p'} does not exist" in complaint_of(Packed(path=tmp_path / "p"))
    (tmp_path / "p").mkdir()
    assert "has no manifest.json: it was not packed, or packing" in complaint_of(Packed(path=tmp_path / "p"))
    (tmp_path / "p" / "manifest.json").write_text('{"format": 99}')
    assert "has format 99, and this version of cswf reads format 2" in complaint_of(Packed(path=tmp_path / "p"))
