"""Pictures in folders become images of one size; what is wrong with a folder is one sentence."""

from __future__ import annotations

import logging
import os

import numpy as np
import pytest
import torch
from PIL import Image

from cswf_core.pictures.read import files_in
from cswf_plugins.datasets import image_folder
from cswf_plugins.datasets.celeba import CelebA
from cswf_plugins.datasets.image_folder import ImageFolder
from tests.plugins.image_files import complaint_of, draw

pytestmark = pytest.mark.usefixtures("elsewhere")


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
    folder = root / "celeba" / "img_align_celeba"
    faces(folder, range(1, 7))
    partition = root / place / "list_eval_partition.txt"
    partition.write_text("".join(f"{n:06}.jpg {n % 3}\n" for n in range(1, 10)) + "\n")
    files = files_in(folder, (".jpg",))
    everything = image_folder.FolderPixels(folder, files, image_folder.Cut(8, 3, 140))[np.arange(6)]
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
    monkeypatch.setattr(image_folder, "REPORT", 10)
    monkeypatch.setattr(image_folder, "CHUNK", 5)
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
    assert "cannot be written: No space left on device" in caplog.text
    assert list((tmp_path / "r" / "decoded").iterdir()) == []
    (tmp_path / "r" / "decoded").rmdir()
    caplog.clear()
    (tmp_path / "r" / "decoded").write_text("a file where the folder should be")
    assert len(CelebA(root=tmp_path / "r", size=8).load(draw())) == 2
    assert "the cache stays as it is: " in caplog.text


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
    assert not list((tmp_path / "data").rglob(".*.part"))
