"""`model.json`: what a saved model is, so that it can be read without running anything."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import torch
from torch import Tensor

from cswf_core.errors import RunError

NAME = "model.json"
FORMAT = 1
"""Version of the format. To be raised when an older cswf could not read, or would misread, what is written."""


def _tuple(value: Any) -> tuple[Any, ...]:
    if not isinstance(value, (list, tuple)):
        raise TypeError(f"a list was expected, got {type(value).__name__}")
    return tuple(value)


@attrs.frozen(kw_only=True)
class DataFacts:
    """What the model learned from."""

    sha256: str
    """Digest of the data; see `Dataset.digest`."""
    samples: int
    """N."""
    shape: tuple[int, ...] = attrs.field(converter=_tuple)
    """C×H×W for images, d for points."""
    classes: tuple[str, ...] = attrs.field(converter=_tuple)
    counts: tuple[int, ...] = attrs.field(converter=_tuple)
    """How many data of each class the particles flowed to."""
    bin_width: float
    """Distance between two grey levels; 0 for continuous data."""


@attrs.frozen(kw_only=True)
class ConditionFacts:
    """What can be asked for."""

    length: int
    """l, the dimension of Y; 0 where Y is no vector."""
    asks: tuple[str, ...] = attrs.field(converter=_tuple)
    """What a particle carries: `labels`, `vectors`, `image` (a part of x is given); nothing: unconditional."""
    strata: tuple[int, ...] | None = attrs.field(converter=attrs.converters.optional(_tuple))
    """The label of each stratum, where classes flow apart; null: there is one flow for all."""
    shared: bool
    """Whether the same part of every image is given."""
    mask: str | None
    """If whole pixels are given, and the same of every image: which coordinates, as hexadecimal bits."""


@attrs.frozen(kw_only=True)
class StageFacts:
    """One stage of the flow."""

    name: str
    directions: int
    """H."""
    steps: int
    """K as planned."""


@attrs.frozen(kw_only=True)
class TableFacts:
    """How maps were kept."""

    knots: int
    dtype: str
    directions: float
    """Share of the directions that have tables."""
    every: int
    """One of so many steps has tables."""


@attrs.frozen(kw_only=True)
class Shard:
    """One file of tables."""

    file: str
    stage: int
    """Number of the stage, from 0."""
    steps: int
    """Steps in it."""
    bytes: int
    sha256: str


@attrs.frozen(kw_only=True)
class Cost:
    """What saving took."""

    bytes: int
    """Size of all shards."""
    seconds: float
    """Time to bring tables to the host and to write them."""
    share: float
    """Of the time of all steps."""


@attrs.frozen(kw_only=True, eq=False)
class Header:
    """All that `model.json` says."""

    format: int
    cswf: str
    """Version that wrote it."""
    name: str
    """Of the recipe."""
    complete: bool
    """Whether all steps are there."""
    recipe: str
    """The resolved recipe, as YAML."""
    data: DataFacts
    condition: ConditionFacts
    precision: str
    """Numbers the flow was computed in: float32 or float64."""
    particles: int
    """M."""
    stages: tuple[StageFacts, ...]
    tables: TableFacts
    steps: int
    """Steps that have tables."""
    cost: Cost
    shards: tuple[Shard, ...]

    def text(self) -> str:
        """Return the header as JSON."""
        return json.dumps(attrs.asdict(self), indent=2, ensure_ascii=False) + "\n"

    @classmethod
    def read(cls, path: Path) -> Header:
        """Return the header in a file; raise `RunError` if it is damaged, or of another format."""
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise RunError(f"{path} cannot be read as a model's header ({_short(error)})") from None
        if not isinstance(document, dict) or "format" not in document:
            raise RunError(f"{path} is no model's header: it does not say its format")
        if document["format"] != FORMAT:
            raise RunError(
                f"{path} has format {document['format']}, and this version of cswf reads format {FORMAT}; "
                f"it was written by cswf {document.get('cswf', 'of an unknown version')}"
            )
        try:
            return cls._of(document)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise RunError(f"{path} is damaged ({_short(error)})") from None

    @classmethod
    def _of(cls, document: Mapping[str, Any]) -> Header:
        sections: dict[str, Any] = {
            "data": DataFacts(**document["data"]),
            "condition": ConditionFacts(**document["condition"]),
            "tables": TableFacts(**document["tables"]),
            "cost": Cost(**document["cost"]),
            "stages": tuple(StageFacts(**stage) for stage in document["stages"]),
            "shards": tuple(Shard(**shard) for shard in document["shards"]),
        }
        header = cls(**{**document, **sections})
        outside = [shard.file for shard in header.shards if Path(shard.file).name != shard.file]
        if outside:
            raise ValueError(f"the shard '{outside[0]}' is not in the model's folder")
        return header


def packed(mask: Tensor) -> str:
    """Return d booleans as hexadecimal bits, the first coordinate first."""
    bits = "".join("1" if bit else "0" for bit in mask.flatten().tolist())
    return f"{int(bits, 2):0{-(-len(bits) // 4)}x}"


def unpacked(text: str, dimension: int) -> Tensor:
    """Return the d booleans that `packed` has written: d."""
    bits = f"{int(text, 16):0{dimension}b}"
    if len(bits) != dimension:
        raise RunError(f"the model's mask has {len(bits)} coordinates, and its images {dimension}")
    return torch.tensor([bit == "1" for bit in bits])


def _short(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
