"""Data `packed`: images from a folder of shards that `cswf data pack` has written.

What it is: the images, labels and held-out images of another data set, to the bit, as files that are mapped
into memory. Checksums are compared when a folder is used for the first time, and again when a file's size
or time has changed.
Cost: the first use reads all files once. `load` makes d×n numbers of them in memory, as for any other data.
When not to use it: for images that are to be cut or resized otherwise; pack those anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
from pathlib import Path
from typing import Literal

import attrs

from cswf_core.errors import DataError, OtherFormatError
from cswf_core.interfaces import Draw, StoredImages, parameter
from cswf_core.packed import Manifest, PackedImages, find_damage
from cswf_plugins.cache import write_cached
from cswf_plugins.datasets.images import CLASSES_HELP, ImageSource, data_root

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

    def _images(self, draw: Draw) -> StoredImages:
        del draw
        folder = self.path.expanduser().absolute()
        try:
            manifest = Manifest.read(folder)
            images = PackedImages.open(folder, manifest)
        except OtherFormatError as error:
            raise DataError(str(error)) from None
        self._verify(folder, manifest)
        return images

    def _verify(self, folder: Path, manifest: Manifest) -> None:
        """Raise `DataError` if a file is not what was written, going by its checksum."""
        if self.verify == "never":
            return
        name = hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:20]
        stamp = data_root() / "verified" / f"{folder.name}-{name}.json"
        state = _state(folder, manifest)
        with contextlib.suppress(OSError):
            if self.verify == "once" and stamp.read_bytes() == state:
                return
        if manifest.bytes >= 10**9:
            log.warning("comparing the checksums of %s once, %.1f GB", folder, manifest.bytes / 1e9)
        damage = find_damage(folder, manifest)
        if damage:
            more = f" (and {len(damage) - 1} more files: see `cswf data check {folder}`)" if damage[1:] else ""
            raise DataError(f"{damage[0]}{more}")
        write_cached(stamp, lambda file: file.write(state))


def _state(folder: Path, manifest: Manifest) -> bytes:
    """Return the manifest's checksum, and size and time of every file."""
    known: list[object] = [str(folder.resolve()), hashlib.sha256(manifest.text().encode()).hexdigest()]
    for entry in manifest.files():
        status = (folder / entry.file).stat()
        known.append([entry.file, status.st_size, status.st_mtime_ns])
    return json.dumps(known).encode()
