"""The manifest of a folder of shards: what is in it, and size and checksum of every file."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs

from cswf_core.errors import DataError, OtherFormatError, RunError
from cswf_core.runs.durable import refuse_changed

MANIFEST = "manifest.json"
"""The file that is written last: a folder without it is not whole."""

FORMAT = 1
"""To be raised when an older cswf could not read, or would misread, what is written."""

AGAIN = "copy the folder again, or pack it anew with `cswf data pack SOURCE {} --force`"
"""What to do about a damaged folder."""

LONGEST_NAME = 256
"""Bytes that the name of a file has fewer than."""

Tell = Callable[[str, int, int], None]
"""(work, done, total), for progress."""


def _tuple(value: Any) -> tuple[Any, ...]:
    if not isinstance(value, (list, tuple)):
        raise TypeError(f"a list was expected, got {type(value).__name__}")
    return tuple(value)


def _whole(_instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise TypeError(f"{attribute.name} must be a whole number, got {value!r}")


def _text(_instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    if not isinstance(value, str):
        raise TypeError(f"{attribute.name} must be a text, got {value!r}")


@attrs.frozen(kw_only=True)
class FileFacts:
    """One file of the folder."""

    file: str = attrs.field()
    bytes: int = attrs.field(validator=_whole)
    sha256: str = attrs.field(validator=_text)

    @file.validator
    def _in_the_folder(self, _attribute: attrs.Attribute[Any], value: Any) -> None:
        if not isinstance(value, str) or Path(value).name != value or not _is_name(value):
            raise ValueError(f"the file {value!r} is not in the folder")


def _is_name(text: str) -> bool:
    """Say whether a file system may have a file of this name."""
    return text.isprintable() and len(text.encode()) < LONGEST_NAME


@attrs.frozen(kw_only=True)
class ShardFacts:
    """Some images one after the other (n×C×H×W bytes), and their labels if there are classes."""

    samples: int = attrs.field(validator=_whole)
    images: FileFacts
    labels: FileFacts | None

    @property
    def files(self) -> tuple[FileFacts, ...]:
        """The shard's files."""
        return (self.images,) if self.labels is None else (self.images, self.labels)

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> ShardFacts:
        """Return the shard that the manifest describes."""
        images, labels = document["images"], document["labels"]
        facts = None if labels is None else FileFacts(**labels)
        return cls(samples=document["samples"], images=FileFacts(**images), labels=facts)


@attrs.frozen(kw_only=True)
class SplitFacts:
    """The images that a flow sees, or those held out."""

    name: str = attrs.field(validator=_text)
    samples: int = attrs.field(validator=_whole)
    shards: tuple[ShardFacts, ...]

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> SplitFacts:
        """Return the split that the manifest describes."""
        shards = tuple(ShardFacts.of(shard) for shard in _tuple(document["shards"]))
        split = cls(name=document["name"], samples=document["samples"], shards=shards)
        if sum(shard.samples for shard in shards) != split.samples:
            raise ValueError(f"the shards of '{split.name}' have not {split.samples:,} samples together")
        return split


@attrs.frozen(kw_only=True)
class Manifest:
    """What a folder of shards has."""

    format: int = attrs.field(validator=_whole)
    cswf: str = attrs.field(validator=_text)
    """The version that has written it."""
    source: dict[str, Any] = attrs.field(validator=attrs.validators.instance_of(dict))
    """The dataset that was packed, as in a recipe."""
    seed: int = attrs.field(validator=_whole)
    """The seed that chose held-out images, and some of all where `count` asks for some."""
    shape: tuple[int, ...] = attrs.field(converter=_tuple)
    """C×H×W."""
    samples: int = attrs.field(validator=_whole)
    """Images of all splits."""
    classes: tuple[str, ...] = attrs.field(converter=_tuple, validator=attrs.validators.deep_iterable(_text))
    bin_width: float = attrs.field(validator=attrs.validators.instance_of((int, float)))
    """Distance between two grey levels: a byte v is the pixel v·bin_width − 1."""
    splits: tuple[SplitFacts, ...]
    """The images that the flow sees, then those held out if there are any."""

    def files(self) -> Iterator[FileFacts]:
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
            document = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise DataError(f"{path} cannot be read ({_short(error)}); {again}") from None
        if not isinstance(document, dict) or "format" not in document:
            raise DataError(f"{path} is no manifest of packed images: it does not say its format; {again}")
        if document["format"] != FORMAT:
            raise OtherFormatError(
                f"{path} has format {document['format']}, and this version of cswf reads format {FORMAT}; "
                f"use cswf {document.get('cswf', 'of its version')}, which has written it, or pack anew"
            )
        try:
            return cls._of(document)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DataError(f"{path} is damaged ({_short(error)}); {again}") from None

    @classmethod
    def _of(cls, document: Mapping[str, Any]) -> Manifest:
        splits = tuple(SplitFacts.of(split) for split in _tuple(document["splits"]))
        manifest = cls(**{**document, "splits": splits})
        if len(manifest.shape) != 3 or not all(type(n) is int and n > 0 for n in manifest.shape):
            raise ValueError(f"the shape should be [C, H, W], got {list(manifest.shape)}")
        if not 0 < manifest.bin_width <= 2:
            raise ValueError(f"bin_width should be above 0 and at most 2, got {manifest.bin_width}")
        if len(splits) not in (1, 2) or not all(split.samples for split in splits):
            raise ValueError(f"there should be one split or two, with images, got {len(splits)}")
        if sum(split.samples for split in splits) != manifest.samples:
            raise ValueError(f"its splits have not {manifest.samples:,} samples together")
        shards = [shard for split in splits for shard in split.shards]
        if any((shard.labels is None) is bool(manifest.classes) for shard in shards):
            raise ValueError("there should be labels where there are classes, and nowhere else")
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


def _short(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
