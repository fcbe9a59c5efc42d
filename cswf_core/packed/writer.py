"""Packing: images are written into shards block by block, and the manifest last."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any

import attrs
import numpy as np
import torch

from cswf_core.errors import RunError
from cswf_core.interfaces import StoredImages
from cswf_core.packed.format import FORMAT, MANIFEST, Manifest, ShardFacts, SplitFacts, Tell
from cswf_core.runs.durable import FileEntry, make_folder, remove_parts, replacing, write_durably
from cswf_core.runs.folder import RunFolder

BLOCK_BYTES = 16_000_000
"""Bytes of images in memory at a time, about."""
BLOCK_IMAGES = 4096
"""Images in memory at a time, at most."""

HELD_OUT = "held-out"
"""Name of the split that the flow does not see."""

SHARD = re.compile(r"(held-out-)?(images|labels)-\d{5,}\.npy")
"""Names of a shard's files."""


def refuse_if_taken(folder: Path, *, force: bool) -> None:
    """Raise `RunError` if a folder has other files than shards, or is packed already and not to be replaced."""
    if folder.exists() and not folder.is_dir():
        raise RunError(f"{folder} is a file; name a folder for the shards")
    try:
        names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    except OSError as error:
        raise RunError(f"{folder} cannot be read: {error.strerror or error}") from None
    foreign = [name for name in names if not _of_a_pack(name)]
    if foreign:
        raise RunError(f"{folder} has files that are no shards, such as {foreign[0]}; name another folder")
    if MANIFEST in names and not force:
        raise RunError(f"{folder} has packed images already; give --force to replace them, or another folder")


def pack(
    images: StoredImages,
    folder: Path,
    *,
    source: dict[str, Any],
    seed: int,
    per_shard: int,
    force: bool = False,
    tell: Tell | None = None,
) -> Manifest:
    """Write images and their labels into a folder, so many to a shard, and return its manifest.

    A block of images is in memory at a time. While this goes on the folder has no manifest, so that nothing
    unfinished is ever taken for whole; calling it again begins anew.
    """
    refuse_if_taken(folder, force=force)
    make_folder(folder)
    parts = [part for part in (images, images.held_out) if part is not None]
    progress = _Progress(sum(len(part) for part in parts), tell)
    with RunFolder(folder).held():
        _clear(folder)
        splits = []
        for part in parts:
            name = images.split if part is images else HELD_OUT
            prefix = "" if part is images else f"{HELD_OUT}-"
            shards = tuple(_shards(part, folder, prefix, per_shard, progress))
            splits.append(SplitFacts(name=name, samples=len(part), shards=shards))
        manifest = Manifest(
            format=FORMAT,
            cswf=version("cswf"),
            source=source,
            seed=seed,
            shape=images.space.shape,
            samples=progress.total,
            classes=images.classes if images.labels is not None else (),
            bin_width=images.bin_width,
            splits=tuple(splits),
        )
        write_durably(folder / MANIFEST, manifest.text())
    return manifest


@attrs.define
class _Progress:
    """How many images are written."""

    total: int
    tell: Tell | None
    done: int = 0

    def add(self, count: int) -> None:
        self.done += count
        if self.tell is not None:
            self.tell("images packed", self.done, self.total)


class _Hashed:
    """A file that is written, and the checksum of what it has so far."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._sha, self._bytes = file, hashlib.sha256(), 0

    def write(self, content: Any) -> int:
        self._sha.update(content)
        self._bytes += len(content)
        return self._file.write(content)

    def facts(self, name: str) -> FileEntry:
        return FileEntry(file=name, bytes=self._bytes, sha256=self._sha.hexdigest())


def _shards(
    images: StoredImages, folder: Path, prefix: str, per_shard: int, progress: _Progress
) -> Iterator[ShardFacts]:
    """Write one shard after the other, and yield its facts."""
    for number, first in enumerate(range(0, len(images), per_shard)):
        stop = min(first + per_shard, len(images))
        yield ShardFacts(
            samples=stop - first,
            images=_write_images(folder / f"{prefix}images-{number:05}.npy", images, first, stop, progress),
            labels=_write_labels(folder / f"{prefix}labels-{number:05}.npy", images, first, stop),
        )


def _write_images(path: Path, images: StoredImages, first: int, stop: int, progress: _Progress) -> FileEntry:
    """Write images first … stop − 1 as an array of stop − first × C×H×W bytes."""
    header = {"descr": "|u1", "fortran_order": False, "shape": (stop - first, *images.space.shape)}
    size = max(1, min(BLOCK_IMAGES, BLOCK_BYTES // images.space.dimension))
    buffer = torch.empty(min(size, stop - first), *images.space.shape, dtype=torch.uint8)
    with replacing(path) as temporary, temporary.open("wb") as opened:
        file = _Hashed(opened)
        np.lib.format.write_array_header_1_0(file, header)
        for begin in range(first, stop, size):
            block = buffer[: min(size, stop - begin)]
            images.fill(begin, block)
            file.write(block.numpy().reshape(-1).data)
            progress.add(len(block))
    return file.facts(path.name)


def _write_labels(path: Path, images: StoredImages, first: int, stop: int) -> FileEntry | None:
    """Write labels as the smallest whole numbers that can count the classes."""
    if images.labels is None:
        return None
    labels = images.labels[first:stop].numpy().astype(np.min_scalar_type(len(images.classes) - 1))
    with replacing(path) as temporary, temporary.open("wb") as opened:
        file = _Hashed(opened)
        np.lib.format.write_array(file, labels, allow_pickle=False)
    return file.facts(path.name)


def _of_a_pack(name: str) -> bool:
    return name == MANIFEST or name.endswith(".part") or SHARD.fullmatch(name) is not None


def _clear(folder: Path) -> None:
    """Remove an earlier pack: first its manifest, so that the rest is never taken for whole."""
    try:
        (folder / MANIFEST).unlink(missing_ok=True)
        remove_parts(folder)
        for path in list(folder.iterdir()):
            if SHARD.fullmatch(path.name):
                path.unlink()
    except OSError as error:
        raise RunError(f"{folder} cannot be cleared: {error.strerror or error}") from None
