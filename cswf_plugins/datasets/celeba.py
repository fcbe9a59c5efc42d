"""Data `celeba`: faces of celebrities, 162,770 to see and 19,962 held out, as 3×64×64 pixels by default.

What it is: Liu, Luo, Wang and Tang's data set, from its aligned JPEG files of 178×218 pixels; the 140×140 in
the middle are resized with Pillow's bicubic filter, as 8-bit numbers. There are no classes.
Cost: minutes to decode, once, and 2.5 GB of cache at 64×64; 8 GB of memory in float32, 16 GB with flips.
When not to use it: where there are no files yet; they cannot be downloaded automatically.
"""

from __future__ import annotations

import re
from pathlib import Path

import attrs
import numpy as np

from cswf_core.arrays import default_limit
from cswf_core.errors import DataError
from cswf_core.files import read_whole
from cswf_core.interfaces import Draw, NeededFiles, StoredImages, parameter
from cswf_core.pictures.read import files_in
from cswf_plugins.datasets.image_folder import LARGEST, Cut, FolderPixels
from cswf_plugins.datasets.images import (
    ROOT_HELP,
    SPLIT_HELP,
    ImageSource,
    Pictures,
    Split,
    Whole,
    data_root,
    selected,
)
from cswf_plugins.references import bibtex

FOLDERS = ("celeba/img_align_celeba", "img_align_celeba", ".")
PARTITION = "list_eval_partition.txt"
TEST = 2
"""The split that is held out, as the partition file numbers them; 0 is train, 1 validation."""


@attrs.frozen(kw_only=True)
class CelebA(ImageSource):
    """Faces of celebrities, cropped and resized."""

    NAME = "celeba"
    references = bibtex("liu2015deep")
    licence = "CelebA is for research that is not commercial; its photographs are not its authors'."

    root: Path | None = parameter(ROOT_HELP, default=None)
    split: Split = parameter(SPLIT_HELP, default="train")
    crop: int = parameter("side of the square cut out of the middle, in pixels", default=140, at_least=1)
    size: int = parameter("side of the images, in pixels", default=64, at_least=1, at_most=LARGEST)

    def needed_files(self) -> NeededFiles:
        """Return where the aligned images are."""
        root = data_root(self.root)
        try:
            folder: Path | None = self._find()[0]
        except DataError:
            folder = None
        return NeededFiles(name=self.NAME, folder=root, path=folder, advice=_advice(root))

    def _images(self, draw: Draw) -> StoredImages:
        del draw
        folder, files = self._find()
        splits = self._splits(folder, files)
        pixels = FolderPixels(folder, files, Cut(self.size, 3, self.crop), self.root)
        every = Pictures.of(pixels, split=self.split)
        train, test = (selected(every, np.flatnonzero(splits == split)) for split in (0, TEST))
        return test if self.split == "test" else attrs.evolve(train, held_out=test)

    def _find(self) -> tuple[Path, list[Path]]:
        root = data_root(self.root)
        for folder in (root / name for name in FOLDERS):
            files = files_in(folder, (".jpg",)) if folder.is_dir() else []
            if files:
                return folder, files
        raise DataError(f"there are no images in {root}; {_advice(root)}, or name another folder with root")

    def _splits(self, folder: Path, files: list[Path]) -> Whole:
        """Return the split of each file; where none would be left to hold out, the last tenth is."""
        root = data_root(self.root)
        places = [place / PARTITION for place in (folder.parent, root, root / "celeba", folder)]
        partition = next((path for path in places if path.is_file()), None)
        splits = _by_number(files) if partition is None else _by_partition(partition, files)
        if not (splits == TEST).any() and len(files) > 1:
            splits[-max(1, len(files) // 10) :] = TEST
        return splits


def _advice(root: Path) -> str:
    """Return what to do where there are no images."""
    return (
        "CelebA cannot be downloaded automatically: put the aligned JPEG files 000001.jpg … 202599.jpg into "
        f"{root / FOLDERS[0]} (and {PARTITION} beside that folder)"
    )


def _by_number(files: list[Path]) -> Whole:
    odd = next((path for path in files if re.fullmatch("[0-9]{1,18}", path.stem) is None), None)
    if odd is not None:
        raise DataError(
            f"{odd} has no number such as 000001.jpg, which says its split; rename or remove it, "
            f"or put {PARTITION} beside its folder"
        )
    last_of_train_and_validation = (162_770, 182_637)
    numbers = [int(path.stem) for path in files]
    return np.searchsorted(np.array(last_of_train_and_validation), numbers).astype(np.int64)


def _by_partition(partition: Path, files: list[Path]) -> Whole:
    """Return each file's split from lines such as `000001.jpg 0`."""
    splits = {}
    lines = read_whole(partition, default_limit()).decode("utf-8", errors="replace").splitlines()
    for number, line in enumerate(lines, start=1):
        words = line.split()
        if not words:
            continue
        if len(words) != 2 or words[1] not in ("0", "1", "2"):
            raise DataError(
                f"{partition}, line {number}, should be a file name and 0, 1 or 2, got {line[:60]!r}; "
                f"replace or remove the file"
            )
        splits[words[0]] = int(words[1])
    unknown = next((path for path in files if path.name not in splits), None)
    if unknown is not None:
        raise DataError(f"{partition} does not say which split {unknown.name} belongs to; replace or remove it")
    return np.array([splits[path.name] for path in files], np.int64)
