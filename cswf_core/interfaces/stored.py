"""Contract of images that are read a block at a time: from files, from memory, or decoded when asked for."""

from __future__ import annotations

import abc
import hashlib
import itertools
from typing import Literal

import attrs
import torch
from torch import Tensor

from cswf_core.errors import DataError
from cswf_core.interfaces.space import Space

READ = 8192
"""Images that are read at a time, where all are gone through."""

Dequantise = Literal["step", "once", "middle", "none"]
"""How grey levels become numbers: with fresh noise at every step, with noise added once, or without noise."""


@attrs.frozen(eq=False, kw_only=True)
class StoredImages(abc.ABC):
    """n images of 8 bits per value, of which only labels are in memory.

    A byte v is the pixel x = v·bin_width − 1. Mirror images and noise are not among the bytes: `flips` and
    `dequantise` say whether `DatasetSource.load` adds them.
    """

    count: int
    """n."""
    space: Space
    """C×H×W."""
    labels: Tensor | None = attrs.field(default=None, repr=False)
    """n whole numbers (int64), the index of each image's class; None if there are no classes."""
    classes: tuple[str, ...] = ()
    """Name of each class; empty where there are no labels."""
    bin_width: float
    """Distance between two grey levels."""
    split: str = "train"
    """Which part of published data these are."""
    held_out: StoredImages | None = attrs.field(default=None, repr=False)
    """Images of the same kind that the flow never sees."""
    flips: bool = False
    """Whether the mirror image of each belongs to the data too, behind all the others."""
    dequantise: Dequantise = "step"
    """How the bytes become numbers."""
    checksum: str = attrs.field(default="", repr=False)
    """A SHA-256 that only these bytes have, if it is known without reading them; else empty."""

    def __len__(self) -> int:
        return self.count

    @abc.abstractmethod
    def fill(self, first: int, out: Tensor) -> None:
        """Read the images from number `first` on into `out`: m×C×H×W bytes on the CPU, pinned or not.

        Nothing else is read. `first` + m is at most n.
        """

    def block(self, first: int, stop: int) -> Tensor:
        """Return the images from number `first` to before `stop`: m×C×H×W bytes on the CPU."""
        if not 0 <= first <= stop <= len(self):
            raise IndexError(f"there are no images from {first} to {stop} among {len(self)}")
        out = torch.empty(stop - first, *self.space.shape, dtype=torch.uint8)
        self.fill(first, out)
        return out

    def take(self, numbers: Tensor, out: Tensor) -> None:
        """Read the images with these numbers (m), in that order, into `out`: m×C×H×W bytes on the CPU."""
        apart = (numbers.diff() != 1).nonzero()[:, 0] + 1
        bounds = [0, *apart.tolist(), len(numbers)]
        for begin, end in itertools.pairwise(bounds):
            if begin < end:
                self.fill(int(numbers[begin]), out[begin:end])


@attrs.frozen(eq=False)
class StoredPixels:
    """The pixels of stored images, as columns of numbers that are made when they are asked for: d×n.

    Mirror images come behind all others, where they belong to the data.
    """

    images: StoredImages
    """The images whose pixels these are."""
    dtype: torch.dtype = attrs.field(factory=lambda: torch.float32)
    """The type of the numbers that are made."""
    most: int | None = None
    """Bytes of numbers that may be made at once; None: any."""
    numbers: Tensor | None = attrs.field(default=None, repr=False)
    """Which of the images these are, of those and then their mirror images; None: all, in that order."""

    @property
    def count(self) -> int:
        """n."""
        return self._available if self.numbers is None else len(self.numbers)

    @property
    def _available(self) -> int:
        return len(self.images) * (2 if self.images.flips else 1)

    @property
    def shape(self) -> tuple[int, int]:
        """(d, n)."""
        return self.images.space.dimension, self.count

    def take(self, index: Tensor | slice) -> StoredPixels:
        """Return the pixels of those images that `index` names, without reading any."""
        numbers = torch.arange(self._available) if self.numbers is None else self.numbers
        return attrs.evolve(self, numbers=numbers[index])

    def levels(self, index: Tensor | slice, out: Tensor | None = None) -> Tensor:
        """Read the bytes of some images: m×d. They may go to the beginning of `out`, pinned or not."""
        images, d = self.images, self.images.space.dimension
        chosen = index if isinstance(index, Tensor) else torch.arange(*index.indices(self.count))
        chosen = chosen if self.numbers is None else self.numbers[chosen]
        out = torch.empty(len(chosen), d, dtype=torch.uint8) if out is None else out[: len(chosen)]
        pictures, n = out.view(len(chosen), *images.space.shape), len(images)
        images.take(chosen % n if images.flips else chosen, pictures)
        mirrored = (chosen >= n).nonzero()[:, 0]
        if len(mirrored):
            pictures[mirrored] = pictures[mirrored].flip(3)
        return out

    def pixels(self, levels: Tensor) -> Tensor:
        """Return the numbers of bytes (m×d), wherever these are: d×m."""
        x = levels.T.to(self.dtype, memory_format=torch.contiguous_format).contiguous()
        x.mul_(self.images.bin_width).sub_(1)
        return x.add_(self.images.bin_width / 2) if self.images.dequantise == "middle" else x

    def columns(self, index: Tensor | slice) -> Tensor:
        """Return the numbers of some images: d×m, on the CPU."""
        return self.pixels(self.levels(index))

    def digest(self) -> str:
        """Return a SHA-256 of the images: of their bytes, or of a checksum that these have already."""
        sha, images = hashlib.sha256(), self.images
        about = (self.shape, images.bin_width, images.dequantise, images.flips, images.checksum)
        sha.update(repr(about).encode())
        if self.numbers is not None:
            sha.update(self.numbers.numpy().tobytes())
        if not images.checksum:
            for first in range(0, self.count, READ):
                sha.update(self.levels(slice(first, first + READ)).numpy().data)
        return sha.hexdigest()

    def loaded(self) -> Tensor:
        """Return the numbers of all images: d×n; raise `DataError` if they are too many to be in memory."""
        d, n = self.shape
        if self.most is not None and d * n * self.dtype.itemsize > self.most:
            raise DataError(
                f"the {n:,} samples are streamed, as memory does not hold them, and all are needed here at "
                "once: take fewer (data.count), or allow more memory (--memory-limit)"
            )
        return self.columns(slice(None))
