"""Folders of pictures, decoded once: cut to squares, brought to one size, and kept as one array.

What it is: what `celeba` and `image-folder` share. A picture is turned upright, made grey or RGB, cut to
a square in its middle and resized, as 8-bit numbers, with Pillow's bicubic filter, which widens where a
picture shrinks and so does not alias.
Cost: about a millisecond per picture the first time; the array is cached and mapped from then on. Pictures that
are read a block at a time are decoded block by block, and nothing is cached.
When not to use it: for pictures with more than 8 bits per value, which are refused.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import attrs
import numpy as np
from PIL import Image

from cswf_core.arrays import map_array
from cswf_core.errors import CswfError, DataError
from cswf_core.pictures.read import files_in, read_picture
from cswf_plugins.cache import write_cached
from cswf_plugins.datasets.images import Bytes, ImageSource, Pictures, Whole, data_root

__all__ = ["LARGEST", "Cut", "FolderPixels", "FolderSource", "files_in"]

VERSION = 1
"""To be raised when the same files and settings give other bytes."""
LARGEST = 8192
"""Pixels of the side of an image, at most."""
REPORT = 20_000
CHUNK = 500

log = logging.getLogger("cswf")


@attrs.frozen
class Cut:
    """How a picture becomes an array of channels×size×size."""

    size: int
    channels: int = 3
    crop: int | None = None
    """Side of the square that is cut out of the middle; the largest there is if None."""


class FolderPixels:
    """The pictures of a folder as n×channels×size×size bytes, decoded when they are asked for."""

    def __init__(self, folder: Path, files: Sequence[Path], cut: Cut, root: Path | None = None) -> None:
        self.shape: tuple[int, ...] = (len(files), cut.channels, cut.size, cut.size)
        self._folder, self._files, self._cut = folder, files, cut
        name = f"{folder.name}-{_fingerprint(folder, files, cut)}.npy"
        self._cache = data_root(root) / "decoded" / name
        self._pixels = _cached(self._cache, self.shape)

    def __getitem__(self, rows: Whole, /) -> Bytes:
        """Return the pictures in these rows, from the cache under the data's root if it has them."""
        if self._pixels is not None:
            return self._pixels[rows]
        return _decode([self._files[row] for row in rows], self._cut)

    def decode(self) -> None:
        """Decode all of them, if the cache does not have them, and keep them there and in memory."""
        if self._pixels is not None:
            return
        count, cache = f"{len(self._files):,}", self._cache
        log.warning("decoding %s images of %s once; the result is cached in %s", count, self._folder, cache)
        pixels = _decode(self._files, self._cut)
        write_cached(cache, lambda file: np.save(file, pixels, allow_pickle=False))
        self._pixels = pixels


class FolderSource(ImageSource):
    """Images from a folder of pictures, which are decoded once for all loads."""

    def _prepare(self, pictures: Pictures) -> None:
        if isinstance(pictures.pixels, FolderPixels):
            pictures.pixels.decode()


def _fingerprint(folder: Path, files: Sequence[Path], cut: Cut) -> str:
    """Return a name that changes with any file's name, size or time, and with the way of cutting."""
    sha = hashlib.sha256(json.dumps([VERSION, str(folder.resolve()), attrs.astuple(cut)]).encode())
    for path in files:
        status = path.stat()
        known = [str(path.relative_to(folder)), status.st_size, status.st_mtime_ns]
        sha.update(json.dumps(known).encode())
    return sha.hexdigest()[:20]


def _cached(path: Path, shape: tuple[int, ...]) -> Bytes | None:
    """Return the array of a cache file; None if there is none or it is not whole."""
    try:
        pixels: Bytes = map_array(path)
    except CswfError:  # then the array is made again
        return None
    return pixels if pixels.dtype == np.uint8 and pixels.shape == shape else None


def _decode(files: Sequence[Path], cut: Cut) -> Bytes:
    pixels: Bytes = np.empty((len(files), cut.channels, cut.size, cut.size), np.uint8)

    def fill(i: int) -> None:
        pixels[i] = _picture(files[i], cut)

    # Pillow decodes and resizes without holding the interpreter, so threads are enough.
    with ThreadPoolExecutor(max_workers=min(16, os.cpu_count() or 1)) as workers:
        for first in range(0, len(files), CHUNK):
            last = min(first + CHUNK, len(files))
            list(workers.map(fill, range(first, last)))
            if last % REPORT == 0 and last < len(files):
                log.warning("%s of %s images decoded", f"{last:,}", f"{len(files):,}")
    return pixels


def _picture(path: Path, cut: Cut) -> Bytes:
    """Return one picture as channels×size×size."""
    picture = read_picture(path, "RGB" if cut.channels == 3 else "L")
    width, height = picture.size
    side = cut.crop or min(width, height)
    if side > min(width, height):
        raise DataError(f"{path} has {width}×{height} pixels, fewer than crop: {side} in one direction")
    left, top = (width - side) // 2, (height - side) // 2
    square = picture.crop((left, top, left + side, top + side))
    resized = square.resize((cut.size, cut.size), Image.Resampling.BICUBIC)
    levels: Bytes = np.asarray(resized, np.uint8).reshape(cut.size, cut.size, cut.channels)
    return levels.transpose(2, 0, 1)
