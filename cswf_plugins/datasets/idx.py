"""The idx format of MNIST and its like: a header of big-endian numbers, then bytes; gzipped or not.

What it is: the reader, and the base of the data sets whose files are of this kind (28×28, grey, ten classes).
Cost: a file is read whole.
When not to use it: for idx files of anything but bytes, which are refused.
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
from cswf_plugins.datasets.images import Bytes, Whole
from cswf_plugins.datasets.published import PublishedImages, Split

SIDE = 28
UNSIGNED_BYTE = 0x08
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
        images, labels = read_idx(files[0], 3), read_idx(files[1], 1)
        if images.shape[1:] != (SIDE, SIDE):
            got = "×".join(map(str, images.shape[1:]))
            raise DataError(f"{files[0]} has images of {got} pixels, not {SIDE}×{SIDE}")
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


def read_idx(path: Path, dimensions: int) -> Bytes:
    """Return the bytes of an idx file as an array with so many dimensions; no more is read than these are."""
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
    magic = bytes([0, 0, UNSIGNED_BYTE, dimensions])
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


def damaged(path: Path, reason: str) -> DataError:
    """Return the error for a file that is not what its name says."""
    return DataError(f"{path} is damaged: {reason}; replace or remove it")
