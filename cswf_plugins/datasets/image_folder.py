"""Data `image-folder`: your own pictures; each subfolder is a class, with all folders below it.

What it is: PNG, JPEG, BMP and WebP files, cut to a square in the middle and resized with Pillow's bicubic
filter, as 8-bit numbers; a tenth of each class is held out by default.
Cost: about a millisecond per picture, once; the result is cached.
When not to use it: for pictures that must not be cropped, or with more than 8 bits per value; see `npz`.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import attrs
import numpy as np
from PIL import Image

from cswf_core.arrays import map_array
from cswf_core.errors import CswfError, DataError
from cswf_core.interfaces import Draw, StoredImages, parameter
from cswf_core.pictures.read import KINDS, find_pictures, read_picture
from cswf_plugins.cache import write_cached
from cswf_plugins.datasets.images import (
    CLASSES_HELP,
    Bytes,
    ImageSource,
    Pictures,
    Whole,
    data_root,
    selected,
)

LARGEST = 8192
"""Pixels of the side of an image, at most."""
REPORT = 20_000
"""Pictures after which it is said how many are decoded."""
CHUNK = 500
"""Pictures that are decoded at once."""

log = logging.getLogger("cswf")


@attrs.frozen
class Cut:
    """How a picture becomes an array of channels×size×size."""

    size: int
    channels: int = 3
    crop: int | None = None
    """Side of the square that is cut out of the middle; the largest there is if None."""


class FolderPixels:
    """The pictures of a folder as n×channels×size×size bytes, decoded when they are asked for.

    A picture is turned upright, made grey or RGB, cut to a square in its middle and resized with a filter that
    widens where a picture shrinks, and so does not alias.
    """

    def __init__(self, folder: Path, files: Sequence[Path], cut: Cut, root: Path | None = None) -> None:
        self.shape: tuple[int, ...] = (len(files), cut.channels, cut.size, cut.size)
        self._folder = folder
        self._files = files
        self._cut = cut
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
        count = f"{len(self._files):,}"
        cache = self._cache
        log.warning("decoding %s images of %s once; the result is cached in %s", count, self._folder, cache)
        pixels = _decode(self._files, self._cut)
        write_cached(cache, lambda file: np.save(file, pixels, allow_pickle=False))
        self._pixels = pixels


def _fingerprint(folder: Path, files: Sequence[Path], cut: Cut) -> str:
    """Return a name that changes with any file's name, size or time, and with the way of cutting."""
    sha = hashlib.sha256(json.dumps([1, str(folder.resolve()), attrs.astuple(cut)]).encode())
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
    left = (width - side) // 2
    top = (height - side) // 2
    square = picture.crop((left, top, left + side, top + side))
    resized = square.resize((cut.size, cut.size), Image.Resampling.BICUBIC)
    levels: Bytes = np.asarray(resized, np.uint8).reshape(cut.size, cut.size, cut.channels)
    return levels.transpose(2, 0, 1)


def _a_share(_instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    if not 0 <= value < 1:
        raise ValueError(f"{attribute.name} must be at least 0 and below 1, got {value!r}")


@attrs.frozen(kw_only=True)
class ImageFolder(ImageSource):
    """Your own pictures from a folder."""

    NAME = "image-folder"

    path: Path = parameter("the folder; a relative path counts from the recipe that names it")
    size: int = parameter("side of the images, in pixels", at_least=1, at_most=LARGEST)
    crop: int | None = parameter(
        "side of the square cut out of the middle, in pixels; the largest there is if left out",
        default=None,
        at_least=1,
    )
    channels: Literal[1, 3] = parameter("1 for grey, 3 for colour", default=3)
    classes: tuple[str, ...] = parameter(CLASSES_HELP, default=())
    held_out: float = parameter(
        "share of each class that the flow does not see, from 0 to below 1", default=0.1, validator=_a_share
    )

    def _images(self, draw: Draw) -> StoredImages:
        folder = self.path.expanduser().absolute()
        if not folder.is_dir():
            reason = "is not a folder" if folder.exists() else "does not exist"
            raise DataError(f"{folder} {reason}; path must name a folder of pictures ({KINDS})")
        files, labels, classes = find_pictures(folder)
        # Chosen before classes are, so that a class's share is the same whichever others are taken.
        held = self._held_out(labels, draw)
        pixels = FolderPixels(folder, files, Cut(self.size, self.channels, self.crop))
        every = Pictures.of(pixels, labels if classes else None, classes)
        rest = selected(every, np.flatnonzero(held))
        return attrs.evolve(selected(every, np.flatnonzero(~held)), held_out=rest)

    def _held_out(self, labels: Whole, draw: Draw) -> np.typing.NDArray[np.bool_]:
        """Return which images to hold out: a share of each class, but never all of it."""
        held = np.zeros(len(labels), np.bool_)
        for c in np.unique(labels) if self.held_out else ():
            members = np.flatnonzero(labels == c)
            share = min(round(self.held_out * len(members)), len(members) - 1)
            held[draw.host.permutation(members)[:share]] = True
        return held
