"""The header of a saved model, `model.json`: what it is, without running anything, and what files it has.

Every value has a type and a range, and the header a checksum of itself.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from pathlib import Path
from typing import Annotated, Final, Literal

import attrs
import torch
from torch import Tensor

from cswf_core.documents import (
    Amount,
    Count,
    Digest,
    Fraction,
    MisfitError,
    Rule,
    Size,
    misfit,
    read_json,
    seal,
    short,
    structured,
    unseal,
)
from cswf_core.errors import RunError
from cswf_core.runs.durable import FileEntry
from cswf_core.runs.facts import PluginRecord

NAME = "model.json"

FORMAT: Final = 4
"""The format that is written, and the only one that is read."""

LARGEST_DIMENSION = 1 << 28
"""Largest dimension d of data."""

LONGEST_CONDITION = 1 << 20
"""Largest dimension l of a condition, as `condition.room` may have."""

ConditionLength = Annotated[
    int, Rule(f"from 0 to {LONGEST_CONDITION:,}", lambda number: 0 <= number <= LONGEST_CONDITION)
]

ConditionKind = Literal["labels", "vectors", "image"]
"""Kinds of the condition Y."""


@attrs.frozen(kw_only=True)
class DataFacts:
    """The data that the model learned from."""

    sha256: Digest
    """Digest of the data; see `Dataset.digest`."""
    samples: Size
    """N."""
    shape: tuple[Size, ...]
    """C×H×W for images, d for points."""
    classes: tuple[str, ...]
    counts: tuple[Count, ...]
    """How many data of each class the particles flowed to."""
    bin_width: Amount
    """Distance between two grey levels; 0 for continuous data."""
    streamed: bool
    """Whether they were not in memory, so that the digest is that of their bytes."""
    looked_at: Size | None
    """How many of them, evenly spread, anything was fitted to before the flow; null: all."""

    def __attrs_post_init__(self) -> None:
        """Refuse a shape that no data have, and counts of other classes."""
        if len(self.shape) not in (1, 3) or math.prod(self.shape) > LARGEST_DIMENSION:
            raise misfit(
                "shape", f"that of points or images, up to {LARGEST_DIMENSION:,} numbers", [*self.shape]
            )
        if self.counts and (len(self.counts) < len(self.classes) or not any(self.counts)):
            raise MisfitError(f"counts are of {len(self.counts)} classes, and there are {len(self.classes)}")


@attrs.frozen(kw_only=True)
class ConditionFacts:
    """The condition: Y, which requests may set."""

    length: ConditionLength
    """l, the dimension of Y; 0 where Y is no vector."""
    asks: tuple[ConditionKind, ...]
    """Kinds of Y that a particle has: `labels`, `vectors`, `image` (a part of x); empty: unconditional."""
    strata: tuple[Count, ...] | None
    """The label of each stratum, where classes flow apart; null: there is one flow for all."""
    shared: bool
    """Whether the same part of every image is observed."""
    mask: Annotated[str, Rule("hexadecimal digits", re.compile("[0-9a-f]+").fullmatch)] | None
    """If whole pixels are observed, and the same of every image: which coordinates, as hexadecimal bits."""
    low: tuple[float, ...]
    """The least of each of the data's vectors' numbers; empty where there are none."""
    high: tuple[float, ...]
    """The greatest."""

    def __attrs_post_init__(self) -> None:
        """Refuse ranges of other vectors than Y, and strata without labels."""
        if len(self.low) != len(self.high) or (self.length and self.low and len(self.low) != self.length):
            raise MisfitError(f"low and high should have {self.length} numbers each")
        if self.strata is not None and ("labels" not in self.asks or not self.strata):
            raise MisfitError("strata are there, and no labels for them")


@attrs.frozen(kw_only=True)
class StageFacts:
    """One stage of the flow."""

    name: str
    directions: Size
    """H."""
    steps: Count
    """K as planned."""
    fingerprint: Annotated[str, Rule("hexadecimal digits", re.compile("[0-9a-f/]*").fullmatch)]
    """Of its first directions; empty where these follow the particles. See `flow.fingerprint`."""


@attrs.frozen(kw_only=True)
class TableFacts:
    """The tables that maps were saved in."""

    knots: Annotated[int, Rule("2 or more", lambda number: number >= 2)]
    dtype: Literal["float16", "float32", "float64"]
    directions: Fraction
    """Share of the directions that have tables."""
    every: Size
    """One in this many steps has tables, after the first of each stage."""


@attrs.frozen(kw_only=True)
class TableShard(FileEntry):
    """One file of tables."""

    stage: Count
    """Number of the stage, from 0."""
    steps: Size
    """Steps in it."""


@attrs.frozen(kw_only=True)
class Cost:
    """What saving cost."""

    bytes: Count
    """Size of all files but the header."""
    seconds: Amount
    """Time to bring tables to the host and to write them."""
    share: Amount
    """Of the time of all steps."""


@attrs.frozen(kw_only=True, eq=False)
class ModelHeader:
    """The content of `model.json`."""

    format: Literal[4]
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
    precision: Literal["float32", "float64"]
    """Numbers the flow was computed in."""
    particles: Size
    """M."""
    stages: tuple[StageFacts, ...]
    tables: TableFacts
    steps: Count
    """Steps that have tables."""
    cost: Cost
    shards: tuple[TableShard, ...]
    fitted: FileEntry | None
    """What was fitted to the data besides the maps; null where nothing was."""
    plugins: tuple[PluginRecord, ...]
    """kind, name, distribution, version and SHA-256 of each plugin."""

    def __attrs_post_init__(self) -> None:
        """Refuse parts that do not fit each other."""
        self._check_shards()
        classes = max(len(self.data.classes), len(self.data.counts))
        strata = self.condition.strata or ()
        if len(set(strata)) < len(strata) or any(label >= classes for label in strata):
            raise MisfitError(f"condition.strata should be different classes, of which there are {classes}")
        if self.condition.mask is not None:
            unpack_mask(self.condition.mask, math.prod(self.data.shape))

    def _check_shards(self) -> None:
        """Refuse shards that are not those of the stages, in their order."""
        stages = [shard.stage for shard in self.shards]
        if stages != sorted(stages) or (stages and stages[-1] >= len(self.stages)):
            raise MisfitError(f"shards should be in the order of the {len(self.stages)} stages")
        saved = Counter({shard.stage: 0 for shard in self.shards})
        for shard in self.shards:
            saved[shard.stage] += shard.steps
        for number, steps in saved.items():
            if steps > self.stages[number].steps:
                raise MisfitError(f"shards have {steps} steps of stage {number}, more than it has")
        if self.complete and not self.steps:
            raise MisfitError("it is complete, and has no steps")
        if saved.total() != self.steps:
            raise MisfitError(f"the shards do not have {self.steps} steps together")
        names = [entry.file for entry in self.files]
        if len(set(names)) < len(names) or NAME in names:
            raise MisfitError("a file is listed twice")

    @property
    def dtype(self) -> torch.dtype:
        """Numbers the flow was computed in."""
        return torch.float64 if self.precision == "float64" else torch.float32

    @property
    def files(self) -> tuple[FileEntry, ...]:
        """All files of the model but the header."""
        return self.shards if self.fitted is None else (self.fitted, *self.shards)

    def text(self) -> str:
        """Return the header as JSON, with a checksum of itself."""
        return json.dumps(seal(attrs.asdict(self)), indent=2, ensure_ascii=False) + "\n"

    @classmethod
    def read(cls, path: Path) -> ModelHeader:
        """Return the header in a file; raise `RunError` if it is damaged, or of another format."""
        try:
            document = read_json(path)
        except (OSError, ValueError) as error:
            raise RunError(f"{path} cannot be read as a model's header ({short(error)})") from None
        if not isinstance(document, dict) or "format" not in document:
            raise RunError(f"{path} is no model's header: it does not say its format")
        version = document["format"]
        if type(version) is int and version != FORMAT:
            raise RunError(
                f"{path} has format {version}, and this version of cswf reads format {FORMAT}: it was written "
                f"by cswf {document.get('cswf', 'of an unknown version')}; run the recipe again"
            )
        try:
            header: ModelHeader = structured(unseal(document), cls)
        except MisfitError as misfit:
            raise RunError(f"{path} is damaged: {misfit}") from None
        return header


def pack_mask(mask: Tensor) -> str:
    """Return d booleans as hexadecimal bits, the first coordinate first."""
    bits = "".join("1" if bit else "0" for bit in mask.flatten().tolist())
    return f"{int(bits, 2):0{-(-len(bits) // 4)}x}"


def unpack_mask(text: str, dimension: int) -> Tensor:
    """Return the d booleans that `pack_mask` has written: d."""
    digits = -(-dimension // 4)
    bits = f"{int(text, 16):0{dimension}b}" if len(text) == digits else ""
    if len(bits) != dimension:
        raise MisfitError(f"the mask should have {dimension} coordinates, in {digits} digits")
    return torch.tensor([bit == "1" for bit in bits])
