"""Contract of data: what a set of samples is, in memory or read a block at a time, and where it comes from."""

from __future__ import annotations

import abc
import hashlib
import itertools
from collections.abc import Iterator, Sequence
from typing import ClassVar, Literal

import attrs
import torch
from torch import Tensor

from cswf_core.errors import DataError
from cswf_core.interfaces.contract import Contract, NeededFiles
from cswf_core.interfaces.draw import Draw
from cswf_core.interfaces.space import Space

BIN = 1 / 128
"""Width of a byte's grey level in [−1, 1): a byte v is the pixel v·BIN − 1, exactly."""

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
        images = self.images
        d = self.images.space.dimension
        chosen = index if isinstance(index, Tensor) else torch.arange(*index.indices(self.count))
        chosen = chosen if self.numbers is None else self.numbers[chosen]
        out = torch.empty(len(chosen), d, dtype=torch.uint8) if out is None else out[: len(chosen)]
        pictures = out.view(len(chosen), *images.space.shape)
        n = len(images)
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
        sha = hashlib.sha256()
        images = self.images
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


@attrs.frozen(eq=False)
class Conditions:
    """The conditions Y of n samples: a class label each, a vector each, both or neither."""

    labels: Tensor | None = None
    """n whole numbers, the index of each sample's class."""
    vectors: Tensor | None = None
    """l×n, a vector per sample."""
    origin: Tensor | None = None
    """n whole numbers, the sample each was taken from: i ≥ 0 is the data's i-th, −1−i the held-out set's."""

    def __len__(self) -> int:
        """Return n; 0 where samples have no conditions."""
        kinds = (self.labels, self.vectors, self.origin)
        return next((int(kind.shape[-1]) for kind in kinds if kind is not None), 0)

    def take(self, index: Tensor | slice) -> Conditions:
        """Return the conditions of the samples that `index` names, in that order."""
        return Conditions(
            labels=None if self.labels is None else self.labels[index],
            vectors=None if self.vectors is None else self.vectors[:, index],
            origin=None if self.origin is None else self.origin[index],
        )

    @classmethod
    def joined(cls, parts: Sequence[Conditions]) -> Conditions:
        """Return the conditions of several sets of samples as one; kinds that one set lacks are left out."""
        kinds = {}
        for name in ("labels", "vectors", "origin"):
            each = [getattr(part, name) for part in parts]
            if all(tensor is not None for tensor in each):
                kinds[name] = torch.cat(each, dim=-1)
        return cls(**kinds)

    def to(self, device: torch.device, dtype: torch.dtype) -> Conditions:
        """Return them on a device, vectors in the given floating-point type."""
        return Conditions(
            labels=None if self.labels is None else self.labels.to(device),
            vectors=None if self.vectors is None else self.vectors.to(device, dtype),
            origin=None if self.origin is None else self.origin.to(device),
        )


@attrs.frozen(eq=False)
class Dataset:
    """n samples (x_i, y_i): real ones, or those a flow has generated.

    Pixels lie in [−1, 1). `bin_width` is the distance between two grey levels: a pixel stands for the
    interval [x, x + bin_width), and the flow fills it with uniform noise at every step
    (dequantisation). It is 0 for continuous data and for generated samples.

    Samples are in memory, or stay where they are stored: then `columns` reads some of them.
    """

    _x: Tensor | StoredPixels = attrs.field(alias="x", repr=False)
    space: Space
    """The space that samples are in: `(C, H, W)` for images."""
    conditions: Conditions = attrs.field(factory=Conditions)
    """The condition of each sample, if there are any."""
    classes: tuple[str, ...] = ()
    """Name of each class; empty where there are no labels."""
    bin_width: float = 0.0
    """Distance between two grey levels; 0 for numbers that have none."""
    augmented: int = 0
    """How many of the last samples are made from others (mirror images): to flow to, not to compare with."""
    split: str = "train"
    """Which part of published data these are."""
    held_out: Dataset | None = attrs.field(default=None, repr=False)
    """Samples of the same kind that the flow never sees: to complete, and to be measured against."""
    partly_held_out: bool = False
    """Whether `held_out` belong to the first of these samples only: data that came later hold nothing out."""

    @classmethod
    def of_stored(cls, images: StoredImages, dtype: torch.dtype, most: int | None = None) -> Dataset:
        """Return images as a data set without reading them; `most` bytes of numbers may be made at once."""
        if images.dequantise == "once":
            raise DataError(
                "data that memory does not hold are streamed, and noise that is added once (data.dequantise: "
                "once) would have to be kept: take dequantise: step"
            )
        labels = images.labels
        if labels is not None and images.flips:
            labels = torch.cat([labels, labels])
        held_out = None if images.held_out is None else cls.of_stored(images.held_out, dtype, most)
        return cls(
            x=StoredPixels(images, dtype, most),
            space=images.space,
            conditions=Conditions(labels),
            classes=images.classes,
            bin_width=images.bin_width if images.dequantise == "step" else 0.0,
            augmented=len(images) if images.flips else 0,
            split=images.split,
            held_out=held_out,
        )

    @property
    def x(self) -> Tensor:
        """d×n; raises `DataError` if samples are stored, and too many to be in memory."""
        return self._x if isinstance(self._x, Tensor) else self._x.loaded()

    @property
    def stored(self) -> StoredPixels | None:
        """The samples, where they are not in memory."""
        return None if isinstance(self._x, Tensor) else self._x

    def __len__(self) -> int:
        return int(self._x.shape[1])

    def columns(self, index: Tensor | slice) -> Tensor:
        """Return some of the samples: d×m, on the CPU; nothing else is read."""
        return self._x[:, index] if isinstance(self._x, Tensor) else self._x.columns(index)

    def blocks(self) -> Iterator[Tensor]:
        """Yield all samples in order, some at a time: d×m."""
        for first in range(0, len(self), READ):
            yield self.columns(slice(first, first + READ))

    def spread(self, count: int) -> Dataset:
        """Return `count` samples, evenly spread over all; fewer if there are, or if memory holds no more."""
        if self.stored is not None and self.stored.most is not None:
            count = min(count, max(1, self.stored.most // (self.space.dimension * self.stored.dtype.itemsize)))
        index = torch.arange(count) * len(self) // count if count < len(self) else slice(None)
        held_out = None if self.held_out is None else self.held_out.spread(count)
        return attrs.evolve(self.take(index), held_out=held_out)

    def images(self) -> Tensor:
        """Return the samples as 8-bit images: n×C×H×W, [−1, 1) cut into 256 equal levels."""
        if not self.space.is_image:
            raise DataError(f"samples in {self.space} dimensions are not images")
        images = torch.empty(len(self), self.space.dimension, dtype=torch.uint8)
        for first, block in zip(range(0, len(self), READ), self.blocks(), strict=True):
            levels = ((block + 1) / BIN).floor_().clamp_(0, 255).to(torch.uint8)
            images[first : first + READ] = levels.T  # bytes are transposed in half the time of numbers
        return images.view(len(self), *self.space.shape)

    def points(self) -> Tensor:
        """Return the samples as rows, followed by their condition vectors if they have any: n×(d+l)."""
        vectors = self.conditions.vectors
        rows = self.x if vectors is None else torch.cat([self.x, vectors.to(self.x)])
        return rows.T

    def take(self, index: Tensor | slice) -> Dataset:
        """Return the samples that `index` names, in that order, repeats too; a slice copies nothing."""
        chosen = self._x[:, index] if isinstance(self._x, Tensor) else self._x.take(index)
        return attrs.evolve(self, x=chosen, conditions=self.conditions.take(index), augmented=0)

    def with_classes(self, known: tuple[str, ...]) -> Dataset:
        """Return the samples with labels that number the `known` classes, by name, and then this set's own."""
        if self.conditions.labels is None:
            return self
        classes = (*known, *(name for name in self.classes if name not in known))
        numbers = torch.tensor([classes.index(name) for name in self.classes])
        conditions = attrs.evolve(self.conditions, labels=numbers[self.conditions.labels])
        held_out = None if self.held_out is None else self.held_out.with_classes(known)
        return attrs.evolve(self, conditions=conditions, classes=classes, held_out=held_out)

    def joined(self, new: Dataset) -> Dataset:
        """Return both sets as one; the classes of `new` are this set's and perhaps more (`with_classes`).

        Samples made from others stay last. Where bins have two widths, x is the middle of each, the width 0.
        """
        known = self
        if known.bin_width != new.bin_width:
            known, new = (
                attrs.evolve(part, x=part.x + part.bin_width / 2, bin_width=0.0) for part in (known, new)
            )
        made = [part.made() for part in (known, new)]
        parts = [known.genuine(), new.genuine(), *(part for part in made if part is not None)]
        held_out = known.held_out
        if held_out is not None:
            other = new.held_out
            held_out = held_out.with_classes(new.classes) if other is None else held_out.joined(other)
        return attrs.evolve(
            known,
            x=torch.cat([part.x.to(known.x) for part in parts], dim=1),
            conditions=Conditions.joined([part.conditions for part in parts]),
            classes=new.classes if new.conditions.labels is not None else known.classes,
            augmented=known.augmented + new.augmented,
            held_out=held_out,
            partly_held_out=known.partly_held_out or (held_out is not None and new.held_out is None),
        )

    def genuine(self) -> Dataset:
        """Return the samples without those made from others."""
        return self.take(slice(len(self) - self.augmented)) if self.augmented else self

    def made(self) -> Dataset | None:
        """Return the samples made from others; None if there are none."""
        return self.take(slice(len(self) - self.augmented, None)) if self.augmented else None

    def originals(self, conditions: Conditions) -> Tensor:
        """Return the samples that conditions were taken from, here or among the held-out: d×n."""
        assert conditions.origin is not None
        origin = conditions.origin.cpu()
        if self.held_out is None:
            return self.columns(origin)
        ours = origin >= 0
        seen = self.columns(origin[ours])
        originals_x = torch.empty(len(seen), len(origin), dtype=seen.dtype)
        originals_x[:, ours] = seen
        originals_x[:, ~ours] = self.held_out.columns(-1 - origin[~ours]).to(seen)
        return originals_x

    def shown_digest(self) -> str:
        """Return the SHA-256 of the images as bytes (n×C×H×W), or of points with their conditions."""
        return digest_of(self.images() if self.space.is_image else self.points())

    def digest(self) -> str:
        """Return the SHA-256 of x (d×n, row by row), then labels, then vectors: equal bits, equal digest.

        Samples that are stored have another one, as rows of x are not to be had at once: that of their bytes.
        """
        sha = hashlib.sha256()
        sha.update(_bytes(self._x) if isinstance(self._x, Tensor) else self._x.digest().encode())
        for part in (self.conditions.labels, self.conditions.vectors):
            if part is not None:
                sha.update(_bytes(part))
        return sha.hexdigest()


def digest_of(values: Tensor) -> str:
    """Return the SHA-256 of a tensor's bytes, row by row."""
    return hashlib.sha256(_bytes(values)).hexdigest()


def _bytes(values: Tensor) -> memoryview:
    """Return a tensor's bytes, row by row, without another copy of them."""
    return values.detach().cpu().contiguous().numpy().reshape(-1).view("uint8").data


class DatasetSource(Contract):
    """Loads or makes a data set. Subclasses are attrs classes whose fields are the parameters."""

    starts: bool = False
    """Whether `start` is overridden: then it says where particles begin."""
    opens: bool = False
    """Whether `open` is overridden: then images can be read a block at a time, without `load`."""
    licence: ClassVar[str] = ""
    """The terms under which the data may be used, in a sentence that a run's page shows."""

    @abc.abstractmethod
    def load(self, draw: Draw) -> Dataset:
        """Return the data, on the CPU; raise `DataError` with one sentence where that can't be done."""

    def open(self, draw: Draw) -> StoredImages:
        """Return the images that `load` would return, to be read a block at a time.

        They are the same and in the same order, without mirror images and noise. Only sources that declare
        `opens` are asked.
        """
        raise NotImplementedError

    def start(self, data: Dataset, count: int, draw: Draw) -> Dataset | None:
        """Return `count` samples of p₀, where particles begin; None (the usual) begins with N(0, I).

        `data` is what `load` returned. Only sources that declare `starts` are asked.
        """
        del data, count, draw
        return None

    def needed_files(self) -> NeededFiles | None:
        """Return the published files that it reads, for `cswf doctor`; None, the usual: it needs none.

        Nothing is downloaded here. Asked of a source with all parameters at their defaults, if it has any.
        """
        return None
