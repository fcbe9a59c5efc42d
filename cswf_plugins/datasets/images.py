"""Base of the sources of 8-bit images, with the parameters that all of them have.

What it is: images of an array as a data set; a value of a pixel is a byte v, and x = v/128 − 1.
Cost: the bytes stay where they are (in memory or in a file) and only what is taken becomes numbers.
When not to use it: for images that are not bytes; `npz` reads those.
"""

from __future__ import annotations

import abc
import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, Protocol

import attrs
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cswf_core.errors import DataError, did_you_mean
from cswf_core.interfaces import (
    BIN,
    Conditions,
    Dataset,
    DatasetSource,
    Dequantise,
    Draw,
    Space,
    StoredImages,
    parameter,
)

Bytes = NDArray[np.uint8]
Whole = NDArray[np.int64]

BLOCK = 4096
"""Images that are turned into numbers at a time; also decides which noise falls on which image."""
FINE = 2**16
"""Levels of the noise within a bin: with v they make 24 bits, so that float32 adds them without rounding up."""

COUNT_HELP = "N, a random subset of that many images, before flips; all of them if left out"
FLIPS_HELP = "add the mirror image of each image, which doubles N"
CLASSES_HELP = "which classes to take, by name or number from 0; all of them if left out"
DEQUANTISE_HELP = (
    "'step': the flow fills each grey level with fresh noise at every step; "
    "'once': noise is added when the data are loaded; "
    "'middle': no noise, a pixel is the middle of its grey level; 'none': it is the level's lower end"
)


def data_root(root: Path | None = None) -> Path:
    """Return the folder that data sets lie in: the one given, else $CSWF_DATA, else ~/.cache/cswf."""
    if root is None:
        root = Path(os.environ.get("CSWF_DATA") or "~/.cache/cswf")
    return root.expanduser().absolute()


class Pixels(Protocol):
    """m×C×H×W bytes, of which some rows are read at a time: an array, or files that are not decoded yet."""

    @property
    def shape(self) -> tuple[int, ...]:
        """(m, C, H, W)."""

    def __getitem__(self, rows: Whole, /) -> Bytes:
        """Return the images in these rows."""


@attrs.frozen(eq=False)
class Pictures:
    """Some of the images of an array, in order."""

    pixels: Pixels
    """m×C×H×W, in memory or in files."""
    rows: Whole
    """The rows of the n images."""
    labels: Whole | None = None
    """The class of each of the n."""
    classes: tuple[str, ...] = ()
    bin_width: float = BIN
    """Distance between two grey levels: a byte v is the pixel v·bin_width − 1."""
    split: str = "train"
    """Which part of published data these are."""

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, index: Whole) -> Pictures:
        """Return the images that `index` names, without copying a pixel."""
        labels = None if self.labels is None else self.labels[index]
        return attrs.evolve(self, rows=self.rows[index], labels=labels)

    def of_classes(self, wanted: tuple[str, ...]) -> Pictures:
        """Return the images of these classes, renumbered from 0 in their old order; all if none is named."""
        if not wanted:
            return self
        if self.labels is None:
            raise DataError(f"there are no classes to choose {wanted[0]!r} from")
        index, labels, classes = members(wanted, self.labels, self.classes)
        return attrs.evolve(self, rows=self.rows[index], labels=labels, classes=classes)


@attrs.frozen(eq=False, kw_only=True)
class StoredPictures(StoredImages):
    """Pictures that are read a block at a time."""

    pictures: Pictures = attrs.field(repr=False)

    def fill(self, first: int, out: Tensor) -> None:
        """Read the images from number `first` on into `out`."""
        out.numpy()[...] = self.pictures.pixels[self.pictures.rows[first : first + len(out)]]

    def take(self, numbers: Tensor, out: Tensor) -> None:
        """Read the images with these numbers into `out`."""
        out.numpy()[...] = self.pictures.pixels[self.pictures.rows[numbers.numpy()]]


@attrs.frozen(kw_only=True)
class ImageSource(DatasetSource):
    """Images from files, and the parameters that all of them have."""

    NAME: ClassVar[str]
    """The plugin's name in recipes."""

    count: int | None = parameter(COUNT_HELP, default=None, at_least=1)
    flips: bool = parameter(FLIPS_HELP, default=False)
    dequantise: Dequantise = parameter(DEQUANTISE_HELP, default="step")

    opens = True

    def load(self, draw: Draw) -> Dataset:
        """Return the images on the CPU: x is d×n with d = C·H·W, channels before rows before columns."""
        with self._naming_itself():
            seen, held_out = self._chosen(draw)
            self._prepare(seen)
            rest = None if held_out is None else self._dataset(held_out, False, draw)
            return attrs.evolve(self._dataset(seen, self.flips, draw), held_out=rest, split=seen.split)

    def open(self, draw: Draw) -> StoredImages:
        """Return the same images, to be read a block at a time."""
        with self._naming_itself():
            seen, held_out = self._chosen(draw)
            rest = None if held_out is None else self._stored(held_out)
            return attrs.evolve(self._stored(seen), held_out=rest, split=seen.split, flips=self.flips)

    @contextlib.contextmanager
    def _naming_itself(self) -> Iterator[None]:
        """Put the source's name before what is wrong with its files."""
        try:
            yield
        except DataError as error:
            raise DataError(f"dataset '{self.NAME}': {error}") from None
        except OSError as error:
            reason = f"{error.filename or 'a file'} cannot be read ({error.strerror or error})"
            raise DataError(f"dataset '{self.NAME}': {reason}") from None

    @abc.abstractmethod
    def _pictures(self, draw: Draw) -> tuple[Pictures, Pictures | None]:
        """Return the images that the flow may see and the held-out ones, of the classes that are chosen."""

    def _prepare(self, pictures: Pictures) -> None:
        """Prepare for all of an array to be read; folders decode their pictures first, once."""

    def _chosen(self, draw: Draw) -> tuple[Pictures, Pictures | None]:
        """Return the images that the flow sees, as many as it should, and those held out if there are any."""
        seen, held_out = self._pictures(draw)
        seen = seen.take(subset(len(seen), self.count, draw))
        if not len(seen):
            named = f" of class {' or '.join(seen.classes)}" if seen.classes else ""
            raise DataError(f"there are no images{named}")
        return seen, held_out if held_out is not None and len(held_out) else None

    def _stored(self, pictures: Pictures) -> StoredImages:
        return StoredPictures(
            count=len(pictures),
            space=Space(pictures.pixels.shape[1:]),
            labels=None if pictures.labels is None else torch.from_numpy(pictures.labels),
            classes=pictures.classes,
            bin_width=pictures.bin_width,
            dequantise=self.dequantise,
            pictures=pictures,
        )

    def _dataset(self, pictures: Pictures, flips: bool, draw: Draw) -> Dataset:
        x = columns(pictures, flips, draw.dtype)
        fill_levels(x, self.dequantise, draw, pictures.bin_width)
        labels = None if pictures.labels is None else torch.from_numpy(pictures.labels)
        if labels is not None and flips:
            labels = torch.cat([labels, labels])
        return Dataset(
            x=x,
            space=Space(pictures.pixels.shape[1:]),
            conditions=Conditions(labels=labels),
            classes=pictures.classes,
            augmented=len(pictures) if flips else 0,
            bin_width=pictures.bin_width if self.dequantise == "step" else 0.0,
        )


def class_numbers(wanted: tuple[str, ...], classes: tuple[str, ...]) -> list[int]:
    """Return the numbers of the classes named, each once, in increasing order.

    A name is tried as it is, then without regard to case, then as a number; where the names are numbers
    themselves (digits), a number is a name and nothing else.
    """
    exact = {name: c for c, name in enumerate(classes)}
    folded = {name.casefold(): c for c, name in enumerate(classes)}
    numbers = {} if all(name.isdecimal() for name in classes) else {str(c): c for c in range(len(classes))}
    known = {**numbers, **folded, **exact}
    chosen = set()
    for name in wanted:
        number = known.get(name, known.get(name.casefold()))
        if number is None:
            raise DataError(f"there is no class {name!r}{did_you_mean(name, classes)}")
        chosen.add(number)
    return sorted(chosen)


def members(
    wanted: tuple[str, ...], labels: Whole, classes: tuple[str, ...]
) -> tuple[Whole, Whole, tuple[str, ...]]:
    """Return which samples are of these classes, their labels renumbered from 0, and the classes' names."""
    numbers = class_numbers(wanted, classes)
    index = np.flatnonzero(np.isin(labels, numbers))
    renumbered = np.searchsorted(numbers, labels[index]).astype(np.int64)
    return index, renumbered, tuple(classes[c] for c in numbers)


def subset(available: int, count: int | None, draw: Draw) -> Whole:
    """Return which `count` of so many samples to take, in order; a smaller count takes some of the same."""
    if count is None:
        return np.arange(available)
    if count > available:
        raise DataError(f"count is {count:,}, but there are {available:,} samples; ask for that many or fewer")
    return np.sort(draw.host.permutation(available)[:count])


def columns(pictures: Pictures, flips: bool, dtype: torch.dtype) -> Tensor:
    """Return x = v·bin_width − 1 as d×n, or d×2n with the mirror images after the others."""
    n, d = len(pictures), int(np.prod(pictures.pixels.shape[1:]))
    x = torch.empty(d, 2 * n if flips else n, dtype=dtype)
    for first in range(0, n, BLOCK):
        block = torch.from_numpy(pictures.pixels[pictures.rows[first : first + BLOCK]])
        last = first + len(block)
        x[:, first:last] = block.reshape(len(block), d).T
        if flips:
            x[:, n + first : n + last] = block.flip(3).reshape(len(block), d).T
    return x.mul_(pictures.bin_width).sub_(1)


def fill_levels(x: Tensor, dequantise: Dequantise, draw: Draw, bin_width: float = BIN) -> None:
    """Add to x (d×n) what does not change from step to step: noise in [0, bin_width), its mean, or nothing.

    Noise is added block by block; no value leaves its grey level.
    """
    if dequantise == "middle":
        x.add_(bin_width / 2)
    if dequantise != "once":
        return
    for first in range(0, x.shape[1], BLOCK):
        block = x[:, first : first + BLOCK]
        noise = draw.uniform(*block.shape).to(x.device)
        block.add_(noise.mul_(FINE).floor_().mul_(bin_width / FINE))
