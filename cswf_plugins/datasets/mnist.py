"""Data `mnist`: handwritten digits, 28×28 grey pixels, 60,000 to see and 10,000 held out.

What it is: LeCun, Cortes and Burges' data set, from its own idx files, gzipped or not.
Cost: 11 MB to download, once; 188 MB of memory in float32.
When not to use it: to try something out; `digits` needs no download and is 40 times smaller.
"""

from __future__ import annotations

import gzip
import math
import os
import zlib
from pathlib import Path
from typing import BinaryIO, ClassVar

import attrs
import numpy as np

from cswf_core.arrays import default_limit
from cswf_core.errors import DataError
from cswf_core.files import EXPANSION, open_file, refuse_large
from cswf_plugins.datasets.images import Bytes, PublishedImages, Split, Whole, damaged
from cswf_plugins.references import bibtex

BLOCK = 1 << 20
"""Bytes behind the end that are looked at."""


@attrs.frozen(kw_only=True)
class IdxImages(PublishedImages):
    """Grey images of 28×28 pixels in ten classes, as two idx files per split."""

    FILES: ClassVar[dict[Split, tuple[str, ...]]] = {
        "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
        "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
    }
    SUFFIXES = ("", ".gz")

    def _read(self, files: list[Path]) -> tuple[Bytes, Whole]:
        images = read_idx(files[0], 3)
        labels = read_idx(files[1], 1)
        if images.shape[1:] != (28, 28):
            got = "×".join(map(str, images.shape[1:]))
            raise DataError(f"{files[0]} has images of {got} pixels, not 28×28")
        if len(images) != len(labels):
            raise DataError(
                f"{files[0]} has {len(images):,} images but {files[1]} has {len(labels):,} labels; "
                f"replace or remove both"
            )
        if len(labels) and int(labels.max()) >= len(self.CLASSES):
            raise damaged(
                files[1], f"it has the label {int(labels.max())}, and {len(self.CLASSES) - 1} is the last"
            )
        return images[:, None], labels.astype(np.int64)


@attrs.frozen(kw_only=True)
class Mnist(IdxImages):
    """Handwritten digits of 28×28 pixels."""

    NAME = "mnist"
    references = bibtex("lecun1998gradient")
    licence = "Yann LeCun and Corinna Cortes hold the copyright of MNIST; it is available under CC BY-SA 3.0."
    FOLDERS = ("mnist", "MNIST/raw")
    TORCHVISION = ("MNIST", "MNIST/raw")
    CLASSES = tuple(str(digit) for digit in range(10))


def read_idx(path: Path, dimensions: int) -> Bytes:
    """Return the bytes of an idx file of these `dimensions` as an array; no more is read than these are."""
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        if path.suffix != ".gz":
            return _array(path, file, dimensions, size)
        try:
            with gzip.GzipFile(fileobj=file) as unzipped:
                return _array(path, unzipped, dimensions, EXPANSION * size)
        except (OSError, EOFError, zlib.error) as error:
            raise damaged(path, f"it cannot be unzipped, {error}") from None


def _array(path: Path, file: BinaryIO | gzip.GzipFile, dimensions: int, most: int) -> Bytes:
    """Return the array of an open file, which has `most` bytes at most."""
    magic = bytes([0, 0, 8, dimensions])  # unsigned bytes
    begin = file.read(4 + 4 * dimensions)
    if begin[:4] != magic or len(begin) < 4 + 4 * dimensions:
        got = begin[:4].hex(" ") or "nothing"
        raise damaged(path, f"it should begin with {magic.hex(' ')} and {dimensions} sizes, got {got}")
    shape = [int(n) for n in np.frombuffer(begin, ">u4", dimensions, offset=4)]
    count = math.prod(shape)
    if len(begin) + count > most:
        raise damaged(path, f"it should have {len(begin) + count:,} bytes and has {most:,} at most")
    if not count:
        raise damaged(path, f"it has no values: its sizes are {', '.join(map(str, shape))}")
    refuse_large(path, count, default_limit())
    content = file.read(count)
    surplus = len(file.read(BLOCK))
    if len(content) < count or surplus:
        has = f"{len(begin) + len(content) + surplus:,}{' or more' if surplus == BLOCK else ''}"
        raise damaged(path, f"it should have {len(begin) + count:,} bytes and has {has}")
    return np.frombuffer(content, np.uint8).reshape(shape)
