"""Files of strangers end in data or in one sentence: bombs, lies, pipes, and names that are no text."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import socket
import struct
import time
import zipfile
import zlib
from contextlib import contextmanager

import numpy as np
import pytest
from PIL import Image

from cswf_core import arrays
from cswf_core.errors import DataError
from cswf_core.interfaces import Size
from cswf_core.nodes import RecipeError
from cswf_core.pictures.read import find_pictures, read_picture
from cswf_core.recipe import load_recipe
from cswf_plugins.conditions.mask import _from_picture
from cswf_plugins.datasets.celeba import CelebA
from cswf_plugins.datasets.cifar10 import Cifar10, read_python
from cswf_plugins.datasets.image_folder import ImageFolder
from cswf_plugins.datasets.mnist import read_idx
from cswf_plugins.datasets.npz import Npz
from tests.plugins.image_files import complaint_of, draw, pixels_and_labels, write_cifar

pytestmark = pytest.mark.usefixtures("elsewhere")

QUICK_S = 2.0
"""Seconds within which anything is refused."""


@contextmanager
def refused(pattern: str):
    """Quickly, and in one sentence."""
    began = time.perf_counter()
    with pytest.raises(DataError, match=pattern) as error:
        yield
    assert time.perf_counter() - began < QUICK_S
    assert "\n" not in str(error.value)


def header(shape: str = "(4, 3)", kind: str = "'<f4'", order: str = "False") -> bytes:
    text = f"{{'descr': {kind}, 'fortran_order': {order}, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


def archive(path, compression: int = zipfile.ZIP_DEFLATED, **members: bytes):
    with zipfile.ZipFile(path, "w", compression) as file:
        for name, content in members.items():
            file.writestr(f"{name}.npy", content)
    return path


def test_a_zip_bomb_is_refused_before_it_is_unpacked_and_data_limit_raises_the_limit(tmp_path, monkeypatch):
    images = np.zeros((4000, 1, 50, 50), np.uint8)
    np.savez_compressed(tmp_path / "bomb.npz", images=images)
    assert (tmp_path / "bomb.npz").stat().st_size < images.nbytes / 500
    monkeypatch.setattr(arrays, "_filled", lambda *_: pytest.fail("unpacked"))
    small = Npz(path=tmp_path / "bomb.npz", limit=Size.from_text("9MB"))
    with refused(r"bomb.npz needs 10 MB of memory, and the limit is 9 MB; data.limit: 10MB allows it"):
        small.load(draw())
    monkeypatch.undo()
    assert len(Npz(path=tmp_path / "bomb.npz", limit=Size.from_text("10MB")).load(draw())) == 4000


def test_by_default_a_quarter_of_the_memory_is_the_limit(tmp_path, monkeypatch):
    np.savez(tmp_path / "a.npz", points=np.zeros((100, 10)))
    for memory, fits in ((32_000, True), (31_999, False)):
        monkeypatch.setattr(arrays, "total_memory", lambda _, memory=memory: memory)
        if fits:
            assert len(Npz(path=tmp_path / "a.npz").load(draw())) == 100
        else:
            with refused("needs 8 kB of memory, and the limit is 7.999 kB"):
                Npz(path=tmp_path / "a.npz").load(draw())


def test_a_recipe_writes_the_limit_as_a_size(tmp_path):
    np.savez(tmp_path / "a.npz", points=np.zeros((100, 10)))
    flow = {"schedule": {"use": "constant", "steps": 1, "directions": 1}}
    data = {"use": "npz", "path": str(tmp_path / "a.npz"), "limit": "1.5GiB"}
    recipe = load_recipe({**flow, "data": data})
    assert recipe.data.part.limit == Size(3 * 2**29)
    assert recipe.data.plain()["limit"] == "1.5GiB"
    for wrong in ("much", "0", "-1GB", "9" * 5000, "1e9"):
        with pytest.raises(RecipeError, match=r"data.limit must be a size such as 500MB, 1.5GB or 2GiB, got"):
            load_recipe({**flow, "data": {**data, "limit": wrong}})


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (header("(400000000000,)") + bytes(48), "'points' has 1,600,.* bytes by its header and 1.. by the dir"),
        (header("(4, 3)") + bytes(47), "by its header and .* by the directory"),
        (header("(4, 3)") + bytes(49), "by its header and .* by the directory"),
        (header("(-4, 3)") + bytes(48), "its header is not that of an array of numbers"),
        (header("(" + "9" * 30 + ",)"), "it cannot have the shape"),
        (header("(99999999999999999, 99999999999999999)"), "by its header"),
        (header("(" + "1," * 40 + ")") + bytes(4), "it cannot have the shape"),
        (header("(4, 3)", "'|O'") + bytes(48), "it has Python objects, which are not read"),
        (header("(4, 3)", "[('a', '<f4')]") + bytes(48), "its header is not that of an array of numbers"),
        (header("(4, 3)", "'<M8'") + bytes(48), "neither numbers nor text"),
        (header("(99999999999999,)", "'<U0'"), "have no bytes"),
        (header("__import__('os').abort()") + bytes(48), "its header is not that of an array of numbers"),
        (b"\x93NUMPY\x03\x00\xff\xff\xff\x7f", "its header has 2,147,483,647 bytes"),
        (b"\x93NUMPY\x09\x00", "it does not begin as an array does"),
        (b"", "it does not begin as an array does"),
    ],
)
def test_an_array_whose_header_lies_is_one_sentence(tmp_path, content, complaint):
    archive(tmp_path / "a.npz", points=content)
    with refused(complaint):
        Npz(path=tmp_path / "a.npz").load(draw())


def test_a_length_of_0_hides_no_other_length(tmp_path):
    archive(tmp_path / "a.npz", points=header("(99999999999999999, 0)"))
    with refused("needs .* of memory, and the limit is"):
        Npz(path=tmp_path / "a.npz").load(draw())


def test_a_directory_that_lies_is_one_sentence(tmp_path):
    path = archive(tmp_path / "a.npz", points=header("(4, 3)") + bytes(48))
    whole = path.read_bytes()
    place = whole.index(b"PK\x01\x02")

    def patched(offset: int, layout: str, value: int) -> None:
        changed = bytearray(whole)
        struct.pack_into(layout, changed, place + offset, value)
        path.write_bytes(changed)

    patched(8, "<H", 1)
    with refused("'points' is encrypted"):
        Npz(path=path).load(draw())
    patched(10, "<H", zipfile.ZIP_LZMA)
    with refused("compressed in a way that .npz files are not"):
        Npz(path=path).load(draw())
    patched(24, "<I", 2**31)
    with refused("by its header and 2,147,483,648 by the directory"):
        Npz(path=path).load(draw())
    patched(16, "<I", 0)
    with refused("Bad CRC-32"):
        Npz(path=path).load(draw())
    claim = header("(2000000,)", "'|u1'")
    archive(path, points=claim + bytes(40))
    content = path.read_bytes()
    path.write_bytes(
        content.replace(struct.pack("<I", len(claim) + 40), struct.pack("<I", len(claim) + 2_000_000))
    )
    with refused("cannot have 2,000,.* bytes, packed in"):
        Npz(path=path).load(draw())


def test_an_archive_of_too_many_members_or_of_two_with_one_name_is_refused(tmp_path):
    archive(tmp_path / "many.npz", **{f"a{i}": b"" for i in range(1001)})
    with refused("it has 1,001 members, and 1,000 is the most"):
        Npz(path=tmp_path / "many.npz").load(draw())
    archive(tmp_path / "long.npz", **{"x" * 60_000 + str(i): b"" for i in range(80)})
    with refused("its list of members has 4.8.* MB; an .npz file has few members"):
        Npz(path=tmp_path / "long.npz").load(draw())
    with zipfile.ZipFile(tmp_path / "two.npz", "w") as file:
        file.writestr("points.npy", header() + bytes(48))
        with pytest.warns(UserWarning, match="Duplicate"):
            file.writestr("points.npy", header() + bytes(48))
    with refused("it has two arrays of the name 'points'"):
        Npz(path=tmp_path / "two.npz").load(draw())


@pytest.mark.parametrize("kind", ["<f8", ">i2", "|u1", "<f2", "|b1", "<U3"])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("shape", [(), (3,), (2, 3, 4), (0, 2)])
def test_arrays_are_read_as_numpy_wrote_them(tmp_path, kind, order, shape):
    written = np.arange(np.prod(shape)).reshape(shape).astype(kind, order=order)
    np.savez_compressed(tmp_path / "a.npz", a=written)
    np.save(tmp_path / "a.npy", written)
    mapped, whole = arrays.map_array(tmp_path / "a.npy"), arrays.read_array(tmp_path / "a.npy")
    for array in (arrays.read_archive(tmp_path / "a.npz", ("a", "b"))["a"], mapped, whole):
        assert (array.dtype, array.shape) == (written.dtype, shape)
        assert np.array_equal(array, written)


def specials(folder):
    """A pipe, a device, a socket, a link to nothing, links in a circle, each named as a picture."""
    folder.mkdir()
    os.mkfifo(folder / "pipe.png")
    yield "pipe.png is a named pipe, not a file"
    (folder / "zero.png").symlink_to("/dev/zero")
    yield "zero.png is a device, not a file"
    with socket.socket(socket.AF_UNIX) as opened:
        os.chdir(folder)  # the path of a socket is short
        opened.bind("socket.png")
    yield "socket.png is a socket, not a file"
    (folder / "away.png").symlink_to("nowhere")
    yield "away.png is a link to nothing"
    (folder / "circle.png").symlink_to("circle.png")
    yield "circle.png is a link in a circle of links"


def test_what_is_no_file_in_a_folder_of_images_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "f"
    for complaint in specials(folder):
        path = folder / complaint.split()[0]
        with refused(complaint):
            find_pictures(folder)
        assert complaint in complaint_of(ImageFolder(path=folder, size=4))
        readers = (
            read_picture,
            lambda p: read_idx(p, 1),
            read_python,
            arrays.map_array,
            lambda p: Npz(path=p).load(draw()),
            lambda p: _from_picture(p, 4, 4),
        )
        for reader in readers:
            with refused(complaint):
                reader(path)
        path.unlink()
    with refused("has no pictures"):
        find_pictures(folder)


def png(width: int, height: int) -> bytes:
    """The first bytes of a PNG file of any size, which is all that need be read to refuse it."""
    buffer = io.BytesIO()
    Image.new("L", (1, 1)).save(buffer, "PNG")
    content = bytearray(buffer.getvalue())
    struct.pack_into(">II", content, 16, width, height)
    struct.pack_into(">I", content, 29, zlib.crc32(content[12:29]))
    return bytes(content)


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("side", [9460, 12_000, 65_000, 2**31 - 1])
def test_a_picture_with_too_many_pixels_is_refused(tmp_path, side):
    (tmp_path / "a.png").write_bytes(png(side, side))
    with refused("a.png has .* pixels, and 89,478,485 is the most|exceeds limit"):
        read_picture(tmp_path / "a.png")


def test_an_animated_picture_and_one_of_another_format_are_refused(tmp_path):
    frames = [Image.new("L", (8, 8), level) for level in (0, 99, 200)]
    for kind in ("png", "webp"):
        frames[0].save(tmp_path / f"a.{kind}", save_all=True, append_images=frames[1:])
        with refused(f"a.{kind} is animated, with 3 frames"):
            read_picture(tmp_path / f"a.{kind}")
    for kind in ("GIF", "TIFF", "EPS", "PPM"):  # Pillow would call Ghostscript for the third
        frames[0].save(tmp_path / "b.png", kind)
        with refused(r"b.png cannot be read as an image \(it is none of PNG, JPEG, BMP, WEBP\)"):
            read_picture(tmp_path / "b.png")


def test_an_idx_file_is_read_no_further_than_its_header_says(tmp_path):
    labels = struct.pack(">BBBBI", 0, 0, 8, 1, 10)
    (tmp_path / "bomb.gz").write_bytes(gzip.compress(labels + bytes(50_000_000), 1))
    with refused("it should have 18 bytes and has 1,048,594 or more"):
        read_idx(tmp_path / "bomb.gz", 1)
    lies = struct.pack(">BBBB3I", 0, 0, 8, 3, 2**32 - 1, 2**32 - 1, 2**32 - 1)
    (tmp_path / "lies.gz").write_bytes(gzip.compress(lies))
    (tmp_path / "lies").write_bytes(lies)
    for name in ("lies", "lies.gz"):
        with refused(r"it should have 79,228,.* bytes and has"):
            read_idx(tmp_path / name, 3)
    (tmp_path / "sparse").write_bytes(struct.pack(">BBBBI", 0, 0, 8, 1, 2**32 - 1))
    os.truncate(tmp_path / "sparse", 2**32 + 7)


@pytest.mark.parametrize(
    "content",
    [
        b"r\xff\xff\xff\x7f.",  # a place far away, up to which memory would be taken
        b"}r\xff\xff\xff\x7f.",
        b"}p2147483647\n.",
        pickle.dumps({b"data": np.zeros((2, 3072)), b"labels": [1, 2]}),
        pickle.dumps({b"data": np.zeros((2, 3072), np.uint8), b"labels": [1, 2**70]}),
        pickle.dumps({b"data": np.zeros((2, 3072), np.uint8).T, b"labels": [1, 2]}),
        pickle.dumps({b"data": [[1]] * 2, b"labels": [1, 2]}),
        pickle.dumps(np.zeros(3)),
        b"cos\nabort\n(tR.",
        b"cnumpy\nndarray\n((I99999999999\ntR.",
    ],
)
def test_a_pickle_makes_nothing_but_rows_of_bytes(tmp_path, content):
    (tmp_path / "batch").write_bytes(content)
    with refused("batch is damaged: "):
        read_python(tmp_path / "batch")


def test_a_large_sparse_file_is_refused_by_its_size(tmp_path, monkeypatch):
    monkeypatch.setattr(arrays, "total_memory", lambda _: 10**9)
    write_cifar(tmp_path / "cifar-10-batches-bin", "binary")
    os.truncate(tmp_path / "cifar-10-batches-bin" / "data_batch_2.bin", 3073 * 10**9)
    said = complaint_of(Cifar10(root=tmp_path, download=False))
    assert "data_batch_2.bin needs 3.073 TB of memory, and the limit is 250 MB" in said


def test_a_face_with_a_number_of_many_digits_is_one_sentence(tmp_path):
    folder = tmp_path / "img_align_celeba"
    folder.mkdir()
    Image.new("RGB", (178, 218)).save(folder / f"{'9' * 40}.jpg")
    assert "has no number such as 000001.jpg" in complaint_of(CelebA(root=tmp_path))


def test_names_that_are_no_text_become_text_and_stay_apart(tmp_path):
    pixels, _ = pixels_and_labels(1, (4, 4), 0)
    folder = os.fsencode(tmp_path / "f")
    names = [b"cat", b"d\xffg", b"d\xfeg", b"new\nline", "reversed\u202e".encode(), "Käse".encode()]
    for name in names:
        os.makedirs(os.path.join(folder, name))
        with open(os.path.join(folder, name, b"\xff.png"), "wb") as file:
            Image.fromarray(pixels[0]).save(file, "PNG")
    data = ImageFolder(path=tmp_path / "f", size=4, held_out=0).load(draw())
    assert set(data.classes) == {"cat", r"d\xffg", r"d\xfeg", r"new\nline", r"reversed\u202e", "Käse"}
    assert sorted(data.conditions.labels.tolist()) == list(range(6))
    os.rename(os.path.join(folder, b"cat"), os.path.join(folder, rb"d\xffg"))
    assert r"has two folders that are written as d\xffg" in complaint_of(
        ImageFolder(path=tmp_path / "f", size=4)
    )
