"""Bases of the sources of 8-bit images: of all of them, and of those published as files with fixed names.

A value of a pixel is a byte v, and x = v/128 − 1. Bytes stay where they are, in memory or in a file, and only
what is taken becomes numbers. Published files that are missing are downloaded once, through torchvision, which
checks their sums.
"""

from __future__ import annotations

import abc
import contextlib
import importlib
import logging
import os
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, Literal, Protocol

import attrs
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cswf_core.errors import DataError, did_you_mean
from cswf_core.interfaces import (
    BIN,
    Dataset,
    DatasetSource,
    Dequantise,
    Draw,
    NeededFiles,
    Space,
    StoredImages,
    parameter,
)

Split = Literal["train", "test"]
Bytes = NDArray[np.uint8]
Whole = NDArray[np.int64]

BLOCK = 4096
"""Images that are turned into numbers at a time; also decides which noise falls on which image."""

CLASSES_HELP = "which classes to take, by name or number from 0; all of them if left out"
DEQUANTISE_HELP = (
    "'step': the flow fills each grey level with fresh noise at every step; "
    "'once': noise is added when the data are loaded; "
    "'middle': no noise, a pixel is the middle of its grey level; 'none': it is the level's lower end"
)

ROOT_HELP = "the folder that data sets lie in; $CSWF_DATA, else ~/.cache/cswf, if left out"
SPLIT_HELP = "what the flow sees; with 'train', the test split is held out to measure against"

log = logging.getLogger("cswf")


def data_root(root: Path | None = None) -> Path:
    """Return the folder that data sets lie in: the one given, else $CSWF_DATA, else ~/.cache/cswf."""
    if root is None:
        root = Path(os.environ.get("CSWF_DATA") or "~/.cache/cswf")
    return root.expanduser().absolute()


class Undecoded(Protocol):
    """m×C×H×W bytes of files that are decoded when some rows are read, or once for all of them."""

    @property
    def shape(self) -> tuple[int, ...]:
        """(m, C, H, W)."""

    def __getitem__(self, rows: Whole, /) -> Bytes:
        """Return the images in these rows."""

    def decode(self) -> None:
        """Decode all of them."""


@attrs.frozen(eq=False, kw_only=True)
class Pictures(StoredImages):
    """All images of an array in memory or in a file, or of files that are decoded when they are asked for."""

    pixels: Bytes | Undecoded = attrs.field(repr=False)

    @classmethod
    def of(
        cls,
        pixels: Bytes | Undecoded,
        labels: Whole | None = None,
        classes: tuple[str, ...] = (),
        split: str = "train",
    ) -> Pictures:
        """Return all images of an array with the class of each, if there are classes."""
        return cls(
            count=pixels.shape[0],
            space=Space(pixels.shape[1:]),
            labels=None if labels is None else torch.from_numpy(labels),
            classes=classes,
            bin_width=BIN,
            split=split,
            pixels=pixels,
        )

    def fill(self, first: int, out: Tensor) -> None:
        """Read the images from number `first` on into `out`."""
        out.numpy()[...] = self.pixels[np.arange(first, first + len(out))]

    def take(self, numbers: Tensor, out: Tensor) -> None:
        """Read the images with these numbers into `out`."""
        out.numpy()[...] = self.pixels[numbers.numpy()]


@attrs.frozen(eq=False, kw_only=True)
class Selection(StoredImages):
    """Some of other images, in the same order."""

    images: StoredImages = attrs.field(repr=False)
    rows: Tensor = attrs.field(repr=False)
    """Their numbers among the others."""

    def fill(self, first: int, out: Tensor) -> None:
        """Read the images from number `first` on into `out`."""
        self.images.take(self.rows[first : first + len(out)], out)

    def take(self, numbers: Tensor, out: Tensor) -> None:
        """Read the images with these numbers into `out`."""
        self.images.take(self.rows[numbers], out)


@attrs.frozen(kw_only=True)
class ImageSource(DatasetSource):
    """Images from files, and the parameters that all of them have."""

    NAME: ClassVar[str]
    """The plugin's name in recipes."""

    count: int | None = parameter(
        "N, a random subset of that many images, before flips; all of them if left out",
        default=None,
        at_least=1,
    )
    flips: bool = parameter("add the mirror image of each image, which doubles N", default=False)
    dequantise: Dequantise = parameter(DEQUANTISE_HELP, default="step")

    opens = True

    def load(self, draw: Draw) -> Dataset:
        """Return the images on the CPU: x is d×n with d = C·H·W, channels before rows before columns."""
        with self._naming_itself():
            images = self._chosen(draw)
            every = images.images if isinstance(images, Selection) else images
            if isinstance(every, Pictures) and not isinstance(every.pixels, np.ndarray):
                every.pixels.decode()
            held_out = None if images.held_out is None else loaded(images.held_out, draw)
            return attrs.evolve(loaded(images, draw), held_out=held_out)

    def open(self, draw: Draw) -> StoredImages:
        """Return the same images, to be read a block at a time."""
        with self._naming_itself():
            return self._chosen(draw)

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
    def _images(self, draw: Draw) -> StoredImages:
        """Return the images that the flow may see, of all classes, and those held out if there are any."""

    def _chosen(self, draw: Draw) -> StoredImages:
        """Return the images that the flow sees, of the chosen classes and as many as it should."""
        every = self._images(draw)
        wanted: tuple[str, ...] = getattr(self, "classes", ())  # where there are classes, it is a parameter
        seen = of_classes(every, wanted)
        held_out = None if every.held_out is None else of_classes(every.held_out, wanted)
        seen = selected(seen, subset(len(seen), self.count, draw))
        if not len(seen):
            named = f" of class {' or '.join(seen.classes)}" if seen.classes else ""
            raise DataError(f"there are no images{named}")
        if held_out is not None:
            held_out = attrs.evolve(held_out, dequantise=self.dequantise) if len(held_out) else None
        return attrs.evolve(seen, held_out=held_out, flips=self.flips, dequantise=self.dequantise)


@attrs.frozen(kw_only=True)
class PublishedImages(ImageSource):
    """Labelled images with a train and a test split; a subclass says what the files are and reads them."""

    FOLDERS: ClassVar[tuple[str, ...]]
    """Folders under the root that may have the files, before the root itself; errors name the first."""
    FILES: ClassVar[dict[Split, tuple[str, ...]]]
    SUFFIXES: ClassVar[tuple[str, ...]]
    """Endings of the files' names, the preferred one first."""
    TORCHVISION: ClassVar[tuple[str, str]]
    """The class that downloads, and where under the root it puts the files."""
    CLASSES: ClassVar[tuple[str, ...]]

    root: Path | None = parameter(ROOT_HELP, default=None)
    split: Split = parameter(SPLIT_HELP, default="train")
    classes: tuple[str, ...] = parameter(CLASSES_HELP, default=())
    download: bool = parameter("fetch the files from the internet if they are not there", default=True)

    def needed_files(self) -> NeededFiles:
        """Return where the files of both splits are; the folder that has them all is taken."""
        root = data_root(self.root)
        paths = self._find(("train", "test"))
        advice = f"its first use downloads them, or put them into {root / self.FOLDERS[0]}"
        return NeededFiles(
            name=self.NAME,
            folder=root,
            path=None if paths is None else paths[0][0].parent,
            advice=advice,
        )

    @abc.abstractmethod
    def _read(self, files: list[Path]) -> tuple[Bytes, Whole]:
        """Return the images (n×C×H×W) and labels (n) of a split's files, which are in the order of FILES."""

    def _images(self, draw: Draw) -> StoredImages:
        del draw
        splits: tuple[Split, ...] = ("train", "test") if self.split == "train" else ("test",)
        paths = self._find(splits)
        if paths is None:
            self._fetch(splits)
            paths = self._find(splits)
            if paths is None:
                raise self._missing(splits, "and the download did not bring them")
        seen, *rest = (Pictures.of(*self._read(files), self.CLASSES, self.split) for files in paths)
        return attrs.evolve(seen, held_out=rest[0]) if rest else seen

    def _find(self, splits: tuple[Split, ...]) -> list[list[Path]] | None:
        """Return the files of each split, from the first folder that has them all."""
        root = data_root(self.root)
        for folder in (*(root / name for name in self.FOLDERS), root):
            paths = [[self._file(folder / stem) for stem in self.FILES[split]] for split in splits]
            if all(path.is_file() for files in paths for path in files):
                return paths
        return None

    def _file(self, stem: Path) -> Path:
        """Return the file of this name with the preferred ending of those that there are."""
        paths = [stem.with_name(stem.name + suffix) for suffix in self.SUFFIXES]
        return next((path for path in paths if path.is_file()), paths[0])

    def _fetch(self, splits: tuple[Split, ...]) -> None:
        """Download into a folder of its own first, so that nothing half-done is ever found."""
        if not self.download:
            raise self._missing(splits, "and download is false")
        name, where = self.TORCHVISION
        root = data_root(self.root)
        folder = root / where
        log.warning("downloading %s into %s", name, folder)
        try:
            root.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=root, prefix=".download-") as arriving, impatient():
                # By name: importing torchvision takes a second, and it has no types to check against.
                datasets = importlib.import_module("torchvision.datasets")
                getattr(datasets, name)(arriving, train=False, download=True)
                folder.mkdir(parents=True, exist_ok=True)
                for stem in (*self.FILES["train"], *self.FILES["test"]):
                    os.replace(Path(arriving, where, stem), folder / stem)
        except Exception as error:  # urllib, ssl, tarfile and torchvision each raise their own
            reason = " ".join(str(error).split()) or type(error).__name__
            reason = reason if len(reason) <= 200 else reason[:199] + "…"
            raise self._missing(splits, f"and could not be downloaded ({reason})") from None

    def _missing(self, splits: tuple[Split, ...], reason: str) -> DataError:
        root = data_root(self.root)
        names = ", ".join(stem + self.SUFFIXES[0] for split in splits for stem in self.FILES[split])
        other = f" (or the same with {self.SUFFIXES[1]!r})" if self.SUFFIXES[1] else ""
        return DataError(
            f"the files are not in {root} {reason}; put {names}{other} into {root / self.FOLDERS[0]}, "
            f"or name another folder with root"
        )


def selected(images: StoredImages, index: Whole) -> StoredImages:
    """Return the images with these numbers, each once and rising; no pixel is read."""
    if len(index) == len(images):
        return images
    rows = torch.from_numpy(index)
    labels = None if images.labels is None else images.labels[rows]
    every = images
    if isinstance(images, Selection):
        every = images.images
        rows = images.rows[rows]
    return Selection(
        count=len(rows),
        space=images.space,
        labels=labels,
        classes=images.classes,
        bin_width=images.bin_width,
        split=images.split,
        images=every,
        rows=rows,
    )


def of_classes(images: StoredImages, wanted: tuple[str, ...]) -> StoredImages:
    """Return the images of these classes, renumbered from 0 in their old order; all if none is named."""
    if not wanted:
        return images
    if images.labels is None:
        raise DataError(f"there are no classes to choose {wanted[0]!r} from")
    index, labels, classes = members(wanted, images.labels.numpy(), images.classes)
    return attrs.evolve(selected(images, index), labels=torch.from_numpy(labels), classes=classes)


def loaded(images: StoredImages, draw: Draw) -> Dataset:
    """Return images as numbers in memory, with mirror images and noise if these belong to them."""
    levels = attrs.evolve(images, held_out=None, dequantise="step" if images.dequantise == "step" else "none")
    data = Dataset.of_stored(levels, draw.dtype)
    assert data.stored is not None
    x = torch.empty(data.space.dimension, len(data), dtype=draw.dtype)
    for first in range(0, len(data), BLOCK):
        x[:, first : first + BLOCK] = data.stored.levels(slice(first, first + BLOCK)).T
    x.mul_(images.bin_width).sub_(1)
    fill_levels(x, images.dequantise, draw, images.bin_width)
    return attrs.evolve(data, x=x)


def members(
    wanted: tuple[str, ...], labels: Whole, classes: tuple[str, ...]
) -> tuple[Whole, Whole, tuple[str, ...]]:
    """Return which samples are of these classes, their labels renumbered from 0, and the classes' names.

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
    taken = sorted(chosen)
    index = np.flatnonzero(np.isin(labels, taken))
    renumbered = np.searchsorted(taken, labels[index]).astype(np.int64)
    return index, renumbered, tuple(classes[c] for c in taken)


def subset(available: int, count: int | None, draw: Draw) -> Whole:
    """Return which `count` of the samples to take, in order; a smaller count takes some of the same."""
    if count is None:
        return np.arange(available)
    if count > available:
        raise DataError(f"count is {count:,}, but there are {available:,} samples; ask for that many or fewer")
    return np.sort(draw.host.permutation(available)[:count])


def fill_levels(x: Tensor, dequantise: Dequantise, draw: Draw, bin_width: float = BIN) -> None:
    """Add to x (d×n) what does not change from step to step: noise in [0, bin_width), its mean, or nothing.

    Noise is added block by block; no value leaves its grey level. With v, its 2¹⁶ levels make 24 bits, so that
    float32 adds them without rounding up.
    """
    if dequantise == "middle":
        x.add_(bin_width / 2)
    if dequantise != "once":
        return
    for first in range(0, x.shape[1], BLOCK):
        block = x[:, first : first + BLOCK]
        noise = draw.uniform(*block.shape).to(x.device)
        block.add_(noise.mul_(2**16).floor_().mul_(bin_width / 2**16))


@contextlib.contextmanager
def impatient(seconds: float = 30.0) -> Iterator[None]:
    """Let no connection stay silent for longer, and keep what libraries print out of the results."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(seconds)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        socket.setdefaulttimeout(before)


def damaged(path: Path, reason: str) -> DataError:
    """Return the error for a file that is not what its name says."""
    return DataError(f"{path} is damaged: {reason}; replace or remove it")
