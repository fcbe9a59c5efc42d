"""The idx format of MNIST and its like: a header of big-endian numbers, then bytes; gzipped or not.

What it is: the reader, and the base of the data sets whose files are of this kind (28×28, grey, ten classes).
Cost: a file is read whole.
When not to use it: for idx files of anything but bytes, which are refused.
"""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path
from typing import ClassVar

import attrs
import numpy as np

from cswf_core.errors import DataError
from cswf_plugins.datasets.images import Bytes, Whole
from cswf_plugins.datasets.published import PublishedImages, Split

SIDE = 28
UNSIGNED_BYTE = 0x08


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
    """Return the bytes of an idx file as an array with so many dimensions."""
    content = path.read_bytes()
    if path.suffix == ".gz":
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError, zlib.error) as error:
            raise damaged(path, f"it cannot be unzipped, {error}") from None
    start = 4 + 4 * dimensions
    magic = bytes([0, 0, UNSIGNED_BYTE, dimensions])
    if content[:4] != magic or len(content) < start:
        got = content[:4].hex(" ") or "nothing"
        raise damaged(path, f"it should begin with {magic.hex(' ')} and {dimensions} sizes, got {got}")
    shape = [int(n) for n in np.frombuffer(content, ">u4", dimensions, offset=4)]
    if len(content) - start != math.prod(shape):
        expected = start + math.prod(shape)
        raise damaged(path, f"it should have {expected:,} bytes and has {len(content):,}")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def damaged(path: Path, reason: str) -> DataError:
    """Return the error for a file that is not what its name says."""
    return DataError(f"{path} is damaged: {reason}; replace or remove it")
