"""Packed images, mapped into memory from their folder of shards."""

from __future__ import annotations

import hashlib
import itertools
import warnings
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cswf_core.arrays import map_array
from cswf_core.errors import DataError
from cswf_core.interfaces import Space, StoredImages
from cswf_core.packed.format import AGAIN, Manifest, ShardFacts, SplitFacts, refuse_incomplete


class MappedShard:
    """The images of one shard: n×C×H×W bytes, of which the pages are read that are looked at.

    The file is mapped at once, read-only, and stays so if another takes its name. A process that this is sent
    to maps the file itself.
    """

    def __init__(self, path: Path, shape: tuple[int, ...]) -> None:
        self.path, self.shape = path, shape
        self.pixels: NDArray[np.uint8] = _mapped(path)
        if self.pixels.dtype != np.uint8 or self.pixels.shape != shape or not self.pixels.flags.c_contiguous:
            expected = "×".join(map(str, shape))
            raise DataError(f"{path} should have {expected} bytes, row by row; {AGAIN.format(path.parent)}")
        with warnings.catch_warnings():  # PyTorch does not know of memory that is read only, and nobody writes
            warnings.simplefilter("ignore", UserWarning)
            self.rows = torch.from_numpy(self.pixels).flatten(1)

    def __reduce__(self) -> tuple[Any, ...]:
        return MappedShard, (self.path, self.shape)


@attrs.frozen(eq=False, kw_only=True)
class PackedImages(StoredImages):
    """The images of a folder of shards; only their labels are in memory.

    Several processes may read one folder at once: nothing is written, and they share the pages that they read.
    """

    shards: tuple[MappedShard, ...] = attrs.field(repr=False)
    stops: NDArray[np.int64] = attrs.field(repr=False)
    """For each shard, the number of images in it and in those before."""

    @classmethod
    def open(cls, folder: Path, manifest: Manifest | None = None) -> PackedImages:
        """Map a folder's images; raise `DataError` if a file is missing, shortened, or not what it should be.

        Checksums are not compared, which takes time: see `find_damage`.
        """
        manifest = Manifest.read(folder) if manifest is None else manifest
        refuse_incomplete(folder, manifest)
        splits = [cls._of(folder, manifest, split) for split in manifest.splits]
        return attrs.evolve(splits[0], held_out=splits[1] if len(splits) > 1 else None)

    @classmethod
    def _of(cls, folder: Path, manifest: Manifest, split: SplitFacts) -> PackedImages:
        labels = [
            _labels(folder, shard, manifest.classes) for shard in split.shards if shard.labels is not None
        ]
        shards = [
            MappedShard(folder / shard.images.file, (shard.samples, *manifest.shape)) for shard in split.shards
        ]
        sums = " ".join(shard.images.sha256 for shard in split.shards)
        return cls(
            count=split.samples,
            space=Space(manifest.shape),
            labels=torch.from_numpy(np.concatenate(labels)) if labels else None,
            classes=manifest.classes,
            bin_width=manifest.bin_width,
            split=split.name,
            checksum=hashlib.sha256(sums.encode()).hexdigest(),
            shards=tuple(shards),
            stops=np.cumsum([shard.samples for shard in split.shards], dtype=np.int64),
        )

    def fill(self, first: int, out: Tensor) -> None:
        """Read the images from number `first` on into `out`."""
        target = out.numpy()
        done = 0
        while done < len(target):
            number, start = self._place(first + done)
            part = self.shards[number].pixels[start : start + len(target) - done]
            target[done : done + len(part)] = part
            done += len(part)

    def take(self, numbers: Tensor, out: Tensor) -> None:
        """Read the images with these numbers, in that order, into `out`; several threads copy them."""
        shard_of = torch.searchsorted(torch.from_numpy(self.stops), numbers, right=True)
        target = out.flatten(1)
        bounds = [0, *((shard_of.diff() != 0).nonzero()[:, 0] + 1).tolist(), len(numbers)]
        for begin, end in itertools.pairwise(bounds):
            if begin < end:
                shard = int(shard_of[begin])
                rows = numbers[begin:end] - self._begin(shard)
                torch.index_select(self.shards[shard].rows, 0, rows, out=target[begin:end])

    def _place(self, image: int) -> tuple[int, int]:
        """Return an image's shard, and its number in it."""
        if not 0 <= image < len(self):
            raise IndexError(f"there is no image {image} among {len(self)}")
        number = int(np.searchsorted(self.stops, image, side="right"))
        return number, image - self._begin(number)

    def _begin(self, number: int) -> int:
        return int(self.stops[number - 1]) if number else 0


def _labels(folder: Path, shard: ShardFacts, classes: tuple[str, ...]) -> NDArray[np.int64]:
    """Return the labels of a shard; raise `DataError` if they are not one per image, each naming a class."""
    assert shard.labels is not None
    path, again = folder / shard.labels.file, AGAIN.format(folder)
    labels = _mapped(path)
    if labels.dtype.kind != "u" or labels.shape != (shard.samples,):
        raise DataError(f"{path} should have {shard.samples:,} whole numbers; {again}")
    highest = int(labels.max()) if len(labels) else 0
    if highest >= len(classes):
        raise DataError(f"{path} has the label {highest}, and {len(classes) - 1} is the last class; {again}")
    return labels.astype(np.int64)


def _mapped(path: Path) -> NDArray[Any]:
    """Map an array of a file, read-only."""
    try:
        return map_array(path)
    except DataError as error:
        raise DataError(f"{error}; {AGAIN.format(path.parent)}") from None
