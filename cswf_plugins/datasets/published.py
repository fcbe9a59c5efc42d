"""Data sets that are published as files with fixed names, in a train and a test split.

What it is: the base of `mnist`, `fashion-mnist` and `cifar10`; it finds the files, or fetches them once.
Cost: the first use without the files downloads them, through torchvision, which checks their sums.
When not to use it: for data sets that cannot be downloaded without asking somebody.
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
from typing import ClassVar, Literal

import attrs

from cswf_core.errors import DataError
from cswf_core.interfaces import Draw, NeededFiles, StoredImages, parameter
from cswf_plugins.datasets.images import CLASSES_HELP, Bytes, ImageSource, Pictures, Whole, data_root

Split = Literal["train", "test"]

ROOT_HELP = "the folder that data sets lie in; $CSWF_DATA, else ~/.cache/cswf, if left out"
SPLIT_HELP = "what the flow sees; with 'train', the test split is held out to measure against"

log = logging.getLogger("cswf")


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


@contextlib.contextmanager
def impatient(seconds: float = 30.0) -> Iterator[None]:
    """Let no connection stay silent for so long, and keep what libraries print out of the results."""
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
