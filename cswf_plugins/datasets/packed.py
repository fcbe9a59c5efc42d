"""Data `packed`: images from a folder of shards that `cswf data pack` has written.

What it is: the images, labels and held-out images of another data set, to the bit, as files that are mapped
into memory. Checksums are compared when a folder is used for the first time, and again when a file's size
or time has changed.
Cost: the first use reads all files once. `load` makes d×n numbers of them in memory, as for any other data.
When not to use it: for images that are to be cut or resized otherwise; pack those anew.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from pathlib import Path
from typing import Literal

import attrs
import numpy as np
import torch
from torch import Tensor

from cswf_core.errors import DataError, OtherFormatError
from cswf_core.interfaces import Draw, StoredImages, parameter
from cswf_core.packed import Manifest, PackedImages, find_damage
from cswf_plugins.cache import write_cached
from cswf_plugins.datasets.images import CLASSES_HELP, Bytes, ImageSource, Pictures, Whole, data_root

LARGE = 10**9
"""Bytes from which on it is said that checksums are compared."""

log = logging.getLogger("cswf")


@attrs.frozen(kw_only=True)
class Packed(ImageSource):
    """Images from a folder of shards."""

    NAME = "packed"

    path: Path = parameter("the folder; a relative path counts from the recipe that names it")
    classes: tuple[str, ...] = parameter(CLASSES_HELP, default=())
    verify: Literal["once", "always", "never"] = parameter(
        "when to read all files and compare their checksums: 'once': at the first use, and after a file has "
        "changed in size or time; 'always'; 'never'",
        default="once",
    )

    def _pictures(self, draw: Draw) -> tuple[Pictures, Pictures | None]:
        del draw
        folder = self.path.expanduser().absolute()
        try:
            manifest = Manifest.read(folder)
            images = PackedImages.open(folder, manifest)
        except OtherFormatError as error:
            raise DataError(str(error)) from None
        self._verify(folder, manifest)
        held_out = images.held_out
        assert held_out is None or isinstance(held_out, PackedImages)
        rest = None if held_out is None else _pictures_of(held_out).of_classes(self.classes)
        return _pictures_of(images).of_classes(self.classes), rest

    def _stored(self, pictures: Pictures) -> StoredImages:
        """Return images that are read from the folder without a copy on the way."""
        pixels, stored = pictures.pixels, super()._stored(pictures)
        assert isinstance(pixels, _PackedPixels)
        if len(pictures) < len(pixels.images):
            facts = {field.name: getattr(stored, field.name) for field in attrs.fields(StoredImages)}
            return _Some(**facts, images=pixels.images, rows=torch.from_numpy(pictures.rows))
        return attrs.evolve(
            pixels.images,
            labels=stored.labels,
            classes=stored.classes,
            held_out=None,
            dequantise=stored.dequantise,
        )

    def _verify(self, folder: Path, manifest: Manifest) -> None:
        """Raise `DataError` if a file is not what was written, going by its checksum."""
        if self.verify == "never":
            return
        name = hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:20]
        stamp = data_root() / "verified" / f"{folder.name}-{name}.json"
        state = _state(folder, manifest)
        if self.verify == "once" and _is(stamp, state):
            return
        if manifest.bytes >= LARGE:
            log.warning("comparing the checksums of %s once, %.1f GB", folder, manifest.bytes / 1e9)
        damage = find_damage(folder, manifest)
        if damage:
            more = f" (and {len(damage) - 1} more files: see `cswf data check {folder}`)" if damage[1:] else ""
            raise DataError(f"{damage[0]}{more}")
        write_cached(stamp, lambda file: file.write(state))


@attrs.frozen(eq=False, kw_only=True)
class _Some(StoredImages):
    """Some of the images of a folder."""

    images: PackedImages
    rows: Tensor

    def fill(self, first: int, out: Tensor) -> None:
        """Read the images from number `first` on into `out`."""
        self.images.take(self.rows[first : first + len(out)], out)

    def take(self, numbers: Tensor, out: Tensor) -> None:
        """Read the images with these numbers into `out`."""
        self.images.take(self.rows[numbers], out)


@attrs.frozen(eq=False)
class _PackedPixels:
    """Packed images, of which some rows are read at a time."""

    images: PackedImages

    @property
    def shape(self) -> tuple[int, ...]:
        """(m, C, H, W)."""
        return (len(self.images), *self.images.space.shape)

    def __getitem__(self, rows: Whole, /) -> Bytes:
        """Return the images in these rows."""
        images = np.empty((len(rows), *self.images.space.shape), np.uint8)
        self.images.take(torch.from_numpy(rows), torch.from_numpy(images))
        return images


def _pictures_of(images: PackedImages) -> Pictures:
    return Pictures(
        pixels=_PackedPixels(images),
        rows=np.arange(len(images)),
        labels=None if images.labels is None else images.labels.numpy(),
        classes=images.classes,
        bin_width=images.bin_width,
        split=images.split,
    )


def _state(folder: Path, manifest: Manifest) -> bytes:
    """Return the manifest's checksum, and size and time of every file."""
    known: list[object] = [str(folder.resolve()), hashlib.sha256(manifest.text().encode()).hexdigest()]
    for entry in manifest.files():
        status = (folder / entry.file).stat()
        known.append([entry.file, status.st_size, status.st_mtime_ns])
    return json.dumps(known).encode()


def _is(path: Path, content: bytes) -> bool:
    try:
        return path.read_bytes() == content
    except OSError:
        return False
