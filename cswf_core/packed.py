"""Images packed into shards: a folder of arrays that are mapped into memory as they lie, with checksums."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import warnings
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import attrs
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cswf_core.arrays import map_array
from cswf_core.documents import MisfitError, Rule, Size, read_json, short, structured
from cswf_core.errors import DataError, OtherFormatError, RunError
from cswf_core.interfaces import Dataset, Space, StoredImages
from cswf_core.interfaces.metric import Tell
from cswf_core.runs import durable
from cswf_core.runs.durable import FileEntry, make_folder, remove_parts, replacing, write_durably
from cswf_core.runs.folder import RunFolder

MANIFEST = "manifest.json"
"""The file that is written last: a folder without it is not whole."""

FORMAT: Final = 2
"""The format that is written, and the only one that is read."""

HELD_OUT = "held-out"
"""Name of the split that the flow does not see, with which its files' names begin."""

SHARD = re.compile(r"(held-out-)?(images-\d{5,}|labels(-\d{5,})?)\.npy")
"""Names of a pack's arrays; those of format 1 had labels in shards."""

BLOCK_IMAGES = 4096
"""Images that are written, or turned into bytes, at a time; fewer if they are large."""


@attrs.frozen(kw_only=True)
class PackedSplit:
    """The images that a flow sees, or those held out."""

    name: str
    samples: Size
    images: tuple[FileEntry, ...]
    """Shards: some images one after the other (n×C×H×W bytes) in each."""
    labels: FileEntry | None
    """The class of every image, if there are classes."""


@attrs.frozen(kw_only=True)
class Manifest:
    """What a folder of shards has."""

    format: Literal[2]
    cswf: str
    """The version that has written it."""
    source: dict[str, Any]
    """The dataset that was packed, as in a recipe."""
    seed: int
    """The seed that chose held-out images, and some of all where `count` asks for some."""
    shape: tuple[Size, ...]
    """C×H×W."""
    samples: Size
    """Images of all splits."""
    classes: tuple[str, ...]
    bin_width: Annotated[float, Rule("above 0 and at most 2", lambda width: 0 < width <= 2)]
    """Distance between two grey levels: a byte v is the pixel v·bin_width − 1."""
    splits: tuple[PackedSplit, ...]
    """The images that the flow sees, then those held out if there are any."""

    def __attrs_post_init__(self) -> None:
        """Refuse parts that do not fit each other."""
        if len(self.shape) != 3:
            raise MisfitError(f"the shape should be [C, H, W], got {list(self.shape)}")
        if len(self.splits) not in (1, 2):
            raise MisfitError(f"there should be one split or two, with images, got {len(self.splits)}")
        if sum(split.samples for split in self.splits) != self.samples:
            raise MisfitError(f"its splits do not have {self.samples:,} samples together")
        if any((split.labels is None) is bool(self.classes) for split in self.splits):
            raise MisfitError("there should be labels where there are classes, and nowhere else")

    def files(self) -> Iterator[FileEntry]:
        """Yield all files but the manifest."""
        for split in self.splits:
            yield from split.images
            if split.labels is not None:
                yield split.labels

    @property
    def bytes(self) -> int:
        """Bytes of all files but the manifest."""
        return sum(file.bytes for file in self.files())

    @property
    def shards(self) -> int:
        """Files of images."""
        return sum(len(split.images) for split in self.splits)

    def text(self) -> str:
        """Return the manifest as JSON."""
        return json.dumps(attrs.asdict(self), indent=1, ensure_ascii=False) + "\n"

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """Return a folder's manifest; raise `DataError` if it has none, or `OtherFormatError`."""
        path = folder / MANIFEST
        if not path.is_file():
            if not folder.is_dir():
                raise DataError(f"{folder} {'is not a folder' if folder.exists() else 'does not exist'}")
            raise DataError(
                f"{folder} has no {MANIFEST}: it was not packed, or packing was interrupted; call "
                f"`cswf data pack SOURCE {folder}`"
            )
        again = pack_again(folder)
        try:
            document = read_json(path)
        except (OSError, ValueError) as error:
            raise DataError(f"{path} cannot be read ({short(error)}); {again}") from None
        if not isinstance(document, dict) or "format" not in document:
            raise DataError(f"{path} is no manifest of packed images: it does not say its format; {again}")
        if document["format"] != FORMAT:
            raise OtherFormatError(
                f"{path} has format {document['format']}, and this version of cswf reads format {FORMAT}; "
                f"use cswf {document.get('cswf', 'of its version')}, which has written it, or pack anew"
            )
        try:
            manifest: Manifest = structured(document, cls)
        except MisfitError as error:
            raise DataError(f"{path} is damaged: {error}; {again}") from None
        return manifest


def pack_again(folder: Path) -> str:
    """Return what to do about a damaged folder."""
    return f"copy the folder again, or pack it anew with `cswf data pack SOURCE {folder} --force`"


def find_damage(folder: Path, manifest: Manifest, tell: Tell | None = None) -> list[str]:
    """Read all files, and return a sentence for each that is not what was written."""
    damage = durable.find_damage(folder, manifest.files(), tell)
    return [f"{sentence}; {pack_again(folder)}" for sentence in damage]


@attrs.frozen(eq=False, kw_only=True)
class LoadedImages(StoredImages):
    """The images of a `Dataset`, from which the same numbers can be made again to the bit."""

    levels: Tensor = attrs.field(repr=False)
    """n×C×H×W bytes."""

    @classmethod
    def of(cls, data: Dataset) -> LoadedImages:
        """Return the images without those made from others; raise `DataError` if they are not bytes."""
        if not data.space.is_image:
            raise DataError(
                f"samples in {data.space} dimensions are not images, and only images are stored as bytes"
            )
        if data.conditions.vectors is not None:
            raise DataError("the images have condition vectors, and only labels are stored beside images")
        genuine = data.genuine()
        return cls(
            count=len(genuine),
            space=data.space,
            labels=genuine.conditions.labels,
            classes=data.classes,
            bin_width=data.bin_width,
            split=data.split,
            held_out=None if data.held_out is None else cls.of(data.held_out),
            flips=data.augmented > 0,
            levels=_levels(genuine),
        )

    def fill(self, first: int, out: Tensor) -> None:
        """Copy the images from number `first` on into `out`."""
        out.copy_(self.levels[first : first + len(out)])

    def take(self, numbers: Tensor, out: Tensor) -> None:
        """Copy the images with these numbers into `out`; several threads do."""
        torch.index_select(self.levels, 0, numbers, out=out)


def _levels(data: Dataset) -> Tensor:
    """Return the bytes v of which the pixels are v·bin_width − 1, exactly: n×C×H×W."""
    fault = DataError(
        "the pixels are not 8-bit grey levels, and only those can be stored as bytes; images that are bytes "
        "stay so with dequantise: step"
    )
    if not data.bin_width:
        raise fault
    levels = torch.empty(len(data), data.space.dimension, dtype=torch.uint8)
    for first in range(0, len(data), BLOCK_IMAGES):
        x = data.x[:, first : first + BLOCK_IMAGES]
        v = ((x + 1) / data.bin_width).round().clamp(0, 255)
        if not torch.equal(v * data.bin_width - 1, x):
            raise fault
        levels[first : first + BLOCK_IMAGES] = v.T.to(torch.uint8)
    return levels.reshape(len(data), *data.space.shape)


class MappedShard:
    """The images of one shard: n×C×H×W bytes, `shape` being C×H×W. Pages are read that are looked at.

    The file is mapped at once, read-only, and stays so if another takes its name. A process that this is sent
    to maps the file itself.
    """

    def __init__(self, path: Path, shape: tuple[int, ...]) -> None:
        self.path = path
        self.shape = shape
        self.pixels: NDArray[np.uint8] = _mapped(path)
        fits = self.pixels.shape[1:] == shape and self.pixels.dtype == np.uint8
        if not fits or not self.pixels.flags.c_contiguous:
            expected = "×".join(map(str, shape))
            raise DataError(f"{path} should have n×{expected} bytes, row by row; {pack_again(path.parent)}")
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

    @classmethod
    def open(cls, folder: Path, manifest: Manifest | None = None) -> PackedImages:
        """Map a folder's images; raise `DataError` if a file is missing, shortened, or not what it should be.

        Checksums are not compared, which takes time: see `find_damage`.
        """
        manifest = Manifest.read(folder) if manifest is None else manifest
        try:
            for entry in manifest.files():
                entry.refuse_incomplete(folder)
        except RunError as error:
            raise DataError(f"{error}; {pack_again(folder)}") from None
        splits = [cls._of(folder, manifest, split) for split in manifest.splits]
        seen = attrs.evolve(splits[0], split=manifest.splits[0].name)
        return attrs.evolve(seen, held_out=splits[1]) if splits[1:] else seen

    @classmethod
    def _of(cls, folder: Path, manifest: Manifest, split: PackedSplit) -> PackedImages:
        labels = None if split.labels is None else _labels(folder / split.labels.file, manifest, split.samples)
        shards = tuple(MappedShard(folder / entry.file, manifest.shape) for entry in split.images)
        if sum(len(shard.pixels) for shard in shards) != split.samples:
            raise DataError(
                f"{folder}: the shards of '{split.name}' do not have {split.samples:,} samples together; "
                f"{pack_again(folder)}"
            )
        sums = " ".join(entry.sha256 for entry in split.images)
        return cls(
            count=split.samples,
            space=Space(manifest.shape),
            labels=labels,
            classes=manifest.classes,
            bin_width=manifest.bin_width,
            checksum=hashlib.sha256(sums.encode()).hexdigest(),
            shards=shards,
        )

    def fill(self, first: int, out: Tensor) -> None:
        """Read the images from number `first` on into `out`."""
        self.take(torch.arange(first, first + len(out)), out)

    def take(self, numbers: Tensor, out: Tensor) -> None:
        """Read the images with these numbers, in that order, into `out`; several threads copy them."""
        stops = torch.tensor([len(shard.pixels) for shard in self.shards]).cumsum(0)
        shard_of = torch.searchsorted(stops, numbers, right=True)
        target = out.flatten(1)
        bounds = [0, *((shard_of.diff() != 0).nonzero()[:, 0] + 1).tolist(), len(numbers)]
        for begin, end in itertools.pairwise(bounds):
            if begin < end:
                shard = self.shards[int(shard_of[begin])]
                rows = numbers[begin:end] - (stops[shard_of[begin]] - len(shard.pixels))
                torch.index_select(shard.rows, 0, rows, out=target[begin:end])


def _labels(path: Path, manifest: Manifest, samples: int) -> Tensor:
    """Return the labels of a split; raise `DataError` if they are not one per image, each naming a class."""
    labels = _mapped(path)
    again = pack_again(path.parent)
    if labels.dtype.kind != "u" or labels.shape != (samples,):
        raise DataError(f"{path} should have {samples:,} whole numbers; {again}")
    highest = int(labels.max())
    last = len(manifest.classes) - 1
    if highest > last:
        raise DataError(f"{path} has the label {highest}, and {last} is the last class; {again}")
    return torch.from_numpy(labels.astype(np.int64))


def _mapped(path: Path) -> NDArray[Any]:
    """Map an array of a file, read-only."""
    try:
        return map_array(path)
    except DataError as error:
        raise DataError(f"{error}; {pack_again(path.parent)}") from None


def refuse_if_taken(folder: Path, *, force: bool) -> None:
    """Raise `RunError` if a folder has other files than shards, or is packed already and not to be replaced."""
    if folder.exists() and not folder.is_dir():
        raise RunError(f"{folder} is a file; name a folder for the shards")
    try:
        names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    except OSError as error:
        raise RunError(f"{folder} cannot be read: {error.strerror or error}") from None
    ours = (MANIFEST, *(name for name in names if name.endswith(".part") or SHARD.fullmatch(name)))
    foreign = [name for name in names if name not in ours]
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
    total = sum(len(part) for part in parts)
    done = 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        if tell is not None:
            tell("images packed", done, total)

    with RunFolder(folder).held():
        _clear(folder)
        splits = []
        for part in parts:
            prefix = "" if part is images else f"{HELD_OUT}-"
            shards = []
            for number, first in enumerate(range(0, len(part), per_shard)):
                stop = min(first + per_shard, len(part))
                path = folder / f"{prefix}images-{number:05}.npy"
                shards.append(_write_images(path, part, range(first, stop), advance))
            labels = _write_labels(folder / f"{prefix}labels.npy", part)
            name = images.split if part is images else HELD_OUT
            splits.append(PackedSplit(name=name, samples=len(part), images=tuple(shards), labels=labels))
        manifest = Manifest(
            format=FORMAT,
            cswf=version("cswf"),
            source=source,
            seed=seed,
            shape=images.space.shape,
            samples=total,
            classes=images.classes if images.labels is not None else (),
            bin_width=images.bin_width,
            splits=tuple(splits),
        )
        write_durably(folder / MANIFEST, manifest.text())
    return manifest


def _write_images(
    path: Path, images: StoredImages, numbers: range, advance: Callable[[int], None]
) -> FileEntry:
    """Write some images as an array of n×C×H×W bytes."""
    header = {"descr": "|u1", "fortran_order": False, "shape": (len(numbers), *images.space.shape)}
    size = max(1, min(BLOCK_IMAGES, 16_000_000 // images.space.dimension))  # 16 MB in memory
    with replacing(path) as temporary, temporary.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        for first in range(numbers.start, numbers.stop, size):
            block = images.block(first, min(first + size, numbers.stop))
            file.write(block.numpy().data)
            advance(len(block))
    return FileEntry.of(path)


def _write_labels(path: Path, images: StoredImages) -> FileEntry | None:
    """Write labels as the smallest whole numbers that can count the classes."""
    if images.labels is None:
        return None
    labels = images.labels.numpy().astype(np.min_scalar_type(len(images.classes) - 1))
    with replacing(path) as temporary, temporary.open("wb") as file:
        np.lib.format.write_array(file, labels, allow_pickle=False)
    return FileEntry.of(path)


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
