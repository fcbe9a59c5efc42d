"""The manifest of a folder of shards: what is in it, and size and checksum of every file."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import attrs

from cswf_core.documents import Count, MisfitError, Rule, Size, read_json, short, structured
from cswf_core.errors import DataError, OtherFormatError, RunError
from cswf_core.runs.durable import FileEntry, refuse_changed

MANIFEST = "manifest.json"
"""The file that is written last: a folder without it is not whole."""

FORMAT: Final = 1
"""The format that is written, and the only one that is read."""

AGAIN = "copy the folder again, or pack it anew with `cswf data pack SOURCE {} --force`"
"""What to do about a damaged folder."""

Tell = Callable[[str, int, int], None]
"""(work, done, total), for progress."""


@attrs.frozen(kw_only=True)
class ShardFacts:
    """Some images one after the other (n×C×H×W bytes), and their labels if there are classes."""

    samples: Count
    images: FileEntry
    labels: FileEntry | None

    @property
    def files(self) -> tuple[FileEntry, ...]:
        """The shard's files."""
        return (self.images,) if self.labels is None else (self.images, self.labels)


@attrs.frozen(kw_only=True)
class SplitFacts:
    """The images that a flow sees, or those held out."""

    name: str
    samples: Size
    shards: tuple[ShardFacts, ...]

    def __attrs_post_init__(self) -> None:
        """Refuse another number of samples than the shards have."""
        if sum(shard.samples for shard in self.shards) != self.samples:
            raise MisfitError(f"the shards of '{self.name}' do not have {self.samples:,} samples together")


@attrs.frozen(kw_only=True)
class Manifest:
    """What a folder of shards has."""

    format: Literal[1]
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
    splits: tuple[SplitFacts, ...]
    """The images that the flow sees, then those held out if there are any."""

    def __attrs_post_init__(self) -> None:
        """Refuse parts that do not fit each other."""
        if len(self.shape) != 3:
            raise MisfitError(f"the shape should be [C, H, W], got {list(self.shape)}")
        if len(self.splits) not in (1, 2):
            raise MisfitError(f"there should be one split or two, with images, got {len(self.splits)}")
        if sum(split.samples for split in self.splits) != self.samples:
            raise MisfitError(f"its splits do not have {self.samples:,} samples together")
        shards = [shard for split in self.splits for shard in split.shards]
        if any((shard.labels is None) is bool(self.classes) for shard in shards):
            raise MisfitError("there should be labels where there are classes, and nowhere else")

    def files(self) -> Iterator[FileEntry]:
        """Yield all files but the manifest."""
        return (file for split in self.splits for shard in split.shards for file in shard.files)

    @property
    def bytes(self) -> int:
        """Bytes of all files but the manifest."""
        return sum(file.bytes for file in self.files())

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
        again = AGAIN.format(folder)
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


def refuse_incomplete(folder: Path, manifest: Manifest) -> None:
    """Raise `DataError` if a file is missing or has another size than it should."""
    for entry in manifest.files():
        path, again = folder / entry.file, AGAIN.format(folder)
        if not path.is_file():
            raise DataError(f"{path} is missing; {again}")
        size = path.stat().st_size
        if size != entry.bytes:
            raise DataError(f"{path} has {size:,} bytes and should have {entry.bytes:,}; {again}")


def find_damage(folder: Path, manifest: Manifest, tell: Tell | None = None) -> list[str]:
    """Read all files, and return a sentence for each that is not what was written."""
    sentences, done = [], 0
    for entry in manifest.files():
        if tell is not None:
            tell("MB checked", done // 10**6, manifest.bytes // 10**6)
        try:
            refuse_changed(folder / entry.file, entry.sha256, entry.bytes)
        except RunError as error:
            sentences.append(f"{error}; {AGAIN.format(folder)}")
        except OSError as error:
            sentences.append(f"{folder / entry.file} cannot be read ({error.strerror or error})")
        done += entry.bytes
    return sentences
