"""Packed images are the same images to the bit, and what is wrong with a folder is one sentence."""

from __future__ import annotations

import io
import json
import os
import pickle
from importlib.metadata import version

import numpy as np
import pytest
import torch

from cswf_core.errors import CswfError, DataError, RunError
from cswf_core.interfaces import BIN, Conditions, Dataset, Space
from cswf_core.packed import LoadedImages, Manifest, PackedImages, find_damage, pack
from cswf_plugins.datasets import image_folder
from cswf_plugins.datasets import packed as plugin
from cswf_plugins.datasets.celeba import CelebA
from cswf_plugins.datasets.digits import Digits
from cswf_plugins.datasets.image_folder import ImageFolder
from cswf_plugins.datasets.mnist import Mnist
from cswf_plugins.datasets.npz import Npz
from cswf_plugins.datasets.packed import Packed
from tests.conftest import read_json
from tests.plugins.image_files import complaint_of, draw, write_idx
from tests.plugins.test_image_folders import faces, folder_of_pictures
from tests.runs.unfinished import leave_unfinished

pytestmark = pytest.mark.usefixtures("elsewhere")


def some_images(count=23, held_out=7, classes=3, seed=0, bin_width=BIN):
    """A data set of random bytes."""
    generator = torch.Generator().manual_seed(seed)
    levels = torch.randint(0, int(2 / bin_width), (2 * 3 * 4, count), generator=generator)
    return Dataset(
        x=levels.float() * bin_width - 1,
        space=Space((2, 3, 4)),
        conditions=Conditions(torch.arange(count) % classes if classes else None),
        classes=tuple(f"class {c}" for c in range(classes)),
        bin_width=bin_width,
        held_out=some_images(held_out, 0, classes, 1, bin_width) if held_out else None,
    )


def packed(folder, data=None, per_shard=5, **options):
    images = LoadedImages.of(some_images() if data is None else data)
    return pack(images, folder, source={"use": "test"}, seed=0, per_shard=per_shard, **options)


@pytest.mark.parametrize(("per_shard", "bin_width"), [(1, BIN), (5, 2 / 17), (23, BIN), (1000, BIN)])
def test_blocks_of_any_place_are_the_images_as_they_were(tmp_path, per_shard, bin_width):
    data = some_images(bin_width=bin_width)
    manifest = packed(tmp_path / "p", data, per_shard)
    images, levels = PackedImages.open(tmp_path / "p"), LoadedImages.of(data).levels
    assert (len(images), images.space, images.classes, images.bin_width) == (
        23,
        data.space,
        data.classes,
        bin_width,
    )
    assert torch.equal(images.labels, data.conditions.labels)
    assert len(manifest.splits[0].images) == -(-23 // per_shard)
    for first, stop in ((0, 23), (0, 1), (4, 5), (5, 5), (4, 16), (22, 23)):
        assert torch.equal(images.block(first, stop), levels[first:stop])
    for numbers in ([22, 0, 7, 7], [0, 1, 2, 9, 10, 22], []):
        some = torch.empty(len(numbers), *data.space.shape, dtype=torch.uint8)
        images.take(torch.tensor(numbers, dtype=torch.long), some)
        assert torch.equal(some, levels[numbers])
    assert torch.equal(images.held_out.block(0, 7), LoadedImages.of(data.held_out).levels)
    for first, stop in ((-1, 2), (20, 24), (3, 2)):
        with pytest.raises(IndexError):
            images.block(first, stop)
    with pytest.raises(IndexError):
        images.fill(22, torch.empty(2, 2, 3, 4, dtype=torch.uint8))


def test_shards_are_arrays_of_bytes_that_any_program_can_map(tmp_path):
    manifest = packed(tmp_path)
    names = {
        "manifest.json",
        "images-00000.npy",
        "labels.npy",
        "held-out-images-00001.npy",
        "held-out-labels.npy",
    }
    assert names <= {path.name for path in tmp_path.iterdir()}
    assert np.load(tmp_path / "images-00004.npy", mmap_mode="r").shape == (3, 2, 3, 4)
    assert np.load(tmp_path / "labels.npy").dtype == np.uint8
    document = read_json(tmp_path / "manifest.json")
    assert (document["format"], document["shape"], document["samples"]) == (2, [2, 3, 4], 30)
    splits = {split["name"]: split["samples"] for split in document["splits"]}
    assert splits == {"train": 23, "held-out": 7}
    assert Manifest.read(tmp_path) == manifest
    assert find_damage(tmp_path, manifest) == []
    for entry in manifest.files():
        assert (tmp_path / entry.file).stat().st_size == entry.bytes


def test_labels_have_the_smallest_numbers_that_count_the_classes(tmp_path):
    packed(tmp_path / "many", some_images(300, 0, 300), per_shard=300)
    assert np.load(tmp_path / "many" / "labels.npy").dtype == np.uint16
    assert PackedImages.open(tmp_path / "many").labels.tolist() == list(range(300))
    packed(tmp_path / "none", some_images(5, 0, 0))
    assert PackedImages.open(tmp_path / "none").labels is None
    assert not list((tmp_path / "none").glob("labels*"))


def test_a_copy_for_another_process_has_no_pixel_and_maps_the_files_itself(tmp_path):
    packed(tmp_path, some_images(2000, 0, 3), per_shard=1000)
    images = PackedImages.open(tmp_path)
    sent = pickle.dumps(images)
    assert len(sent) < 20_000 < 2000 * 24  # labels alone
    copy = pickle.loads(sent)
    assert torch.equal(copy.block(990, 1010), images.block(990, 1010))
    assert all(isinstance(shard.pixels, np.memmap) for shard in copy.shards)
    (tmp_path / "images-00001.npy").unlink()
    with pytest.raises(DataError, match=r"images-00001.npy does not exist; copy the folder again"):
        pickle.loads(sent)


def test_who_has_a_folder_open_keeps_its_images_while_it_is_packed_anew(tmp_path):
    packed(tmp_path)
    images = PackedImages.open(tmp_path)
    before = images.block(0, 23)
    packed(tmp_path, some_images(seed=5), force=True)
    assert torch.equal(images.block(0, 23), before)
    assert not torch.equal(PackedImages.open(tmp_path).block(0, 23), before)


class Interrupted(LoadedImages):
    """Images of which one cannot be read."""

    def fill(self, first, out):
        if first >= 10:
            raise KeyboardInterrupt
        super().fill(first, out)


def test_an_interrupted_pack_leaves_no_manifest_and_can_be_called_again(tmp_path):
    good = LoadedImages.of(some_images())
    bad = Interrupted(**{f.name: getattr(good, f.name) for f in type(good).__attrs_attrs__})
    packed(tmp_path, some_images(40), per_shard=2)
    with pytest.raises(KeyboardInterrupt):
        pack(bad, tmp_path, source={}, seed=0, per_shard=5, force=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["images-00000.npy", "images-00001.npy"]
    with pytest.raises(
        DataError, match=r"has no manifest.json: it was not packed, or packing was interrupted; call"
    ):
        PackedImages.open(tmp_path)
    leave_unfinished(tmp_path / "images-00002.npy")
    packed(tmp_path)
    assert find_damage(tmp_path, Manifest.read(tmp_path)) == []
    assert not list(tmp_path.glob(".*"))


def test_a_folder_is_replaced_only_if_wanted_and_other_files_never(tmp_path):
    packed(tmp_path / "p")
    with pytest.raises(RunError, match="has packed images already; give --force"):
        packed(tmp_path / "p")
    packed(tmp_path / "p", some_images(5, 0), force=True)
    assert len(list((tmp_path / "p").iterdir())) == 3
    (tmp_path / "p" / "thesis.tex").write_text("years of work")
    with pytest.raises(RunError, match=r"has files that are no shards, such as thesis.tex"):
        packed(tmp_path / "p", force=True)
    with pytest.raises(RunError, match="is a file; name a folder"):
        packed(tmp_path / "p" / "thesis.tex", force=True)
    assert (tmp_path / "p" / "thesis.tex").read_text() == "years of work"


def array_bytes(array) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("images-00001.npy", None, "images-00001.npy is missing; copy the folder again, or pack"),
        ("labels.npy", None, "labels.npy is missing"),
        ("held-out-images-00000.npy", bytes(247), "has 247 bytes and should have 248"),
        ("labels.npy", array_bytes(np.full(23, 3, np.uint8)), "has the label 3, and 2 is the last class"),
        ("images-00000.npy", bytes(248), "images-00000.npy cannot be read as .npy ("),
        ("manifest.json", b"{}", "is no manifest of packed images: it does not say its format"),
        ("manifest.json", b'{"format": 2', "manifest.json cannot be read ("),
    ],
)
def test_a_damaged_file_is_one_sentence_when_a_folder_is_opened(tmp_path, name, content, sentence):
    packed(tmp_path)
    (tmp_path / name).unlink()
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError) as error:
        PackedImages.open(tmp_path)
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)
    assert str(tmp_path / name) in str(error.value)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda d: d.update(format=1), f"reads format 2; use cswf {version('cswf')}, which has written it, or"),
        (
            lambda d: d["splits"][0]["images"][0].update(file="../images-00000.npy"),
            "splits.0.images.0.file must be the name of a file in the same folder",
        ),
        (lambda d: d.update(samples=31), "is damaged: its splits do not have 31 samples together"),
        (lambda d: d["splits"][0]["images"].pop(), "the shards of 'train' do not have 23 samples together"),
        (lambda d: d.update(shape=[2, 4, 3]), "should have n×2×4×3 bytes, row by row"),
        (lambda d: d.update(classes=[]), "is damaged: there should be labels where there are classes"),
    ],
)
def test_a_manifest_that_does_not_fit_is_one_sentence(tmp_path, make, sentence):
    packed(tmp_path)
    document = read_json(tmp_path / "manifest.json")
    make(document)
    (tmp_path / "manifest.json").write_text(json.dumps(document))
    with pytest.raises(CswfError) as error:
        PackedImages.open(tmp_path)
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)
    assert str(tmp_path) in str(error.value)


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (Dataset(torch.zeros(2, 5), Space((2,))), "are not images"),
        (Dataset(torch.rand(4, 5), Space((1, 2, 2)), bin_width=0.0), "not 8-bit grey levels"),
        (Dataset(torch.full((4, 5), 0.001), Space((1, 2, 2)), bin_width=BIN), "not 8-bit grey levels"),
        (Dataset(torch.full((4, 5), 3.0), Space((1, 2, 2)), bin_width=BIN), "not 8-bit grey levels"),
        (
            Dataset(torch.zeros(4, 5), Space((1, 2, 2)), Conditions(vectors=torch.zeros(1, 5)), bin_width=BIN),
            "condition vectors",
        ),
    ],
)
def test_only_images_of_bytes_can_be_packed(data, complaint):
    with pytest.raises(DataError, match=complaint):
        LoadedImages.of(data)


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


def test_packed_data_are_the_data_they_were_packed_from(tmp_path):
    for name, source in sources(tmp_path).items():
        per_shard = 500 if "digits" in name else 7
        folder = written(source, tmp_path / f"packed {name}", per_shard)
        assert_same(source.load(draw()), Packed(path=folder).load(draw()))


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
