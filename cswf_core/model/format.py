"""The files of a saved model: its header `model.json`, and shards `tables-00000.safetensors`, … with its maps.

The header says what the model is without running anything; a shard has the tables of some steps of one stage,
and is read by memory map. A flow that has fitted more than maps to its data has it in one more file (`fitted`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from cswf_core.errors import RunError
from cswf_core.flow.transport import StepTables
from cswf_core.runs.durable import fingerprint, read_tensors, refuse_changed, write_tensors

NAME = "model.json"
PATTERN = "tables-*.safetensors"
SIZE = 32_000_000
"""Bytes that a shard has, about; it also ends where its stage does."""

FITTED = "fitted.safetensors"
"""The file with what was fitted to the data besides the maps, where there is such a thing."""

FIRST, WITH_FITTED, FORMAT = 1, 2, 3
"""Versions of the format: that of a model without, and with a file of what was fitted to the data; and the one
that is written, with either, which also knows its plugins and directions.

To be raised when an older cswf could not read, or would misread, what is written.
"""


def _tuple(value: Any) -> tuple[Any, ...]:
    if not isinstance(value, (list, tuple)):
        raise TypeError(f"a list was expected, got {type(value).__name__}")
    return tuple(value)


@attrs.frozen(kw_only=True)
class DataFacts:
    """The data that the model learned from."""

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
    streamed: bool = False
    """Whether they were not in memory, so that the digest is that of their bytes."""
    looked_at: int | None = None
    """How many of them, evenly spread, anything was fitted to before the flow; null: all."""


@attrs.frozen(kw_only=True)
class ConditionFacts:
    """The condition: Y, which requests may set."""

    length: int
    """l, the dimension of Y; 0 where Y is no vector."""
    asks: tuple[str, ...] = attrs.field(converter=_tuple)
    """Kinds of Y that a particle has: `labels`, `vectors`, `image` (a part of x); empty: unconditional."""
    strata: tuple[int, ...] | None = attrs.field(converter=attrs.converters.optional(_tuple))
    """The label of each stratum, where classes flow apart; null: there is one flow for all."""
    shared: bool
    """Whether the same part of every image is observed."""
    mask: str | None
    """If whole pixels are observed, and the same of every image: which coordinates, as hexadecimal bits."""
    low: tuple[float, ...] = attrs.field(default=(), converter=_tuple)
    """The least of each of the data's vectors' numbers; empty where there are none, or in formats 1 and 2."""
    high: tuple[float, ...] = attrs.field(default=(), converter=_tuple)
    """The greatest."""


@attrs.frozen(kw_only=True)
class StageFacts:
    """One stage of the flow."""

    name: str
    directions: int
    """H."""
    steps: int
    """K as planned."""
    fingerprint: str = ""
    """Of its first directions; empty in formats 1 and 2. See `flow.fingerprint`."""


@attrs.frozen(kw_only=True)
class TableFacts:
    """The tables that maps were saved in."""

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
class FittedFile:
    """The file with what was fitted to the data."""

    file: str
    bytes: int
    sha256: str


@attrs.frozen(kw_only=True)
class Cost:
    """What saving cost."""

    bytes: int
    """Size of all files but the header."""
    seconds: float
    """Time to bring tables to the host and to write them."""
    share: float
    """Of the time of all steps."""


@attrs.frozen(kw_only=True, eq=False)
class Header:
    """The content of `model.json`."""

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
    fitted: FittedFile | None = None
    """What was fitted to the data besides the maps; null, or left out, where nothing was."""
    plugins: tuple[dict[str, str], ...] | None = None
    """kind, name, distribution, version and SHA-256 of each plugin; in formats 1 and 2 there are none."""

    @property
    def files(self) -> tuple[FittedFile | Shard, ...]:
        """All files of the model but the header."""
        return self.shards if self.fitted is None else (self.fitted, *self.shards)

    def text(self) -> str:
        """Return the header as JSON."""
        document = attrs.asdict(self)
        if self.fitted is None:
            del document["fitted"]
        for key in ("low", "high") if not self.condition.low else ():
            del document["condition"][key]
        for key, usual in (("streamed", False), ("looked_at", None)):
            if document["data"][key] is usual:
                del document["data"][key]  # earlier versions do not know of them
        return json.dumps(document, indent=2, ensure_ascii=False) + "\n"

    @classmethod
    def read(cls, path: Path) -> Header:
        """Return the header in a file; raise `RunError` if it is damaged, or of another format."""
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise RunError(f"{path} cannot be read as a model's header ({_short(error)})") from None
        if not isinstance(document, dict) or "format" not in document:
            raise RunError(f"{path} is no model's header: it does not say its format")
        if document["format"] not in (FIRST, WITH_FITTED, FORMAT):
            raise RunError(
                f"{path} has format {document['format']}, and this version of cswf reads formats {FIRST} to "
                f"{FORMAT}; it was written by cswf {document.get('cswf', 'of an unknown version')}"
            )
        try:
            return cls._from_json(document)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise RunError(f"{path} is damaged ({_short(error)})") from None

    @classmethod
    def _from_json(cls, document: Mapping[str, Any]) -> Header:
        sections: dict[str, Any] = {
            "data": DataFacts(**document["data"]),
            "condition": ConditionFacts(**document["condition"]),
            "tables": TableFacts(**document["tables"]),
            "cost": Cost(**document["cost"]),
            "stages": tuple(StageFacts(**stage) for stage in document["stages"]),
            "shards": tuple(Shard(**shard) for shard in document["shards"]),
        }
        if document["format"] == FORMAT:
            sections["plugins"] = tuple(
                {str(k): str(v) for k, v in each.items()} for each in document["plugins"]
            )
        if document["format"] == WITH_FITTED or (document["format"] == FORMAT and "fitted" in document):
            sections["fitted"] = FittedFile(**document["fitted"])
        elif "fitted" in document:
            raise ValueError(f"format {FIRST} has nothing that is fitted")
        header = cls(**{**document, **sections})
        for digits in (part for stage in header.stages for part in stage.fingerprint.split("/")):
            int(digits or "0", 16)  # raises ValueError
        outside = [entry.file for entry in header.files if Path(entry.file).name != entry.file]
        if outside:
            raise ValueError(f"the file '{outside[0]}' is not in the model's folder")
        return header


def pack_mask(mask: Tensor) -> str:
    """Return d booleans as hexadecimal bits, the first coordinate first."""
    bits = "".join("1" if bit else "0" for bit in mask.flatten().tolist())
    return f"{int(bits, 2):0{-(-len(bits) // 4)}x}"


def unpack_mask(text: str, dimension: int) -> Tensor:
    """Return the d booleans that `pack_mask` has written: d."""
    bits = f"{int(text, 16):0{dimension}b}"
    if len(bits) != dimension:
        raise RunError(f"the model's mask has {len(bits)} coordinates, and its images {dimension}")
    return torch.tensor([bit == "1" for bit in bits])


def shard_file(folder: Path, number: int) -> Path:
    """Return the path of a model's shard."""
    return folder / f"tables-{number:05}.safetensors"


@attrs.define(eq=False)
class Steps:
    """Tables of some steps of one stage, in memory; one shard has them on the disk."""

    stage: int = -1
    numbers: list[int] = attrs.field(factory=list)
    """Steps in the stage, from 0."""
    eta: list[float] = attrs.field(factory=list)
    """η of each."""
    tables: list[StepTables] = attrs.field(factory=list)
    """S×H'×K each, on the CPU."""

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def most(self) -> int:
        """Steps that a shard has at most: the same number, wherever a run was stopped and resumed."""
        first = self.tables[0]
        return max(1, SIZE // (first.positions.nbytes + first.displacements.nbytes))

    def add(self, number: int, eta: float, tables: StepTables) -> None:
        """Add a step."""
        self.numbers.append(number)
        self.eta.append(eta)
        self.tables.append(tables)

    def write(self, path: Path) -> Shard:
        """Write the file durably, n steps as n×S×H'×K numbers, and return its entry in the header."""
        tensors = {
            "positions": torch.stack([tables.positions for tables in self.tables]),
            "displacements": torch.stack([tables.displacements for tables in self.tables]),
            "eta": torch.tensor(self.eta, dtype=torch.float64),
            "steps": torch.tensor(self.numbers, dtype=torch.int64),
        }
        write_tensors(path, tensors, {"stage": self.stage})
        return shard_entry(path, fingerprint(path))

    @classmethod
    def read(cls, path: Path, count: int) -> Steps:
        """Return the first `count` steps of a file; raise `RunError` if they are not there."""
        tensors, facts = read_tensors(path)
        try:
            stage, numbers, eta = int(facts["stage"]), tensors["steps"].tolist(), tensors["eta"].tolist()
            pairs = zip(tensors["positions"], tensors["displacements"], strict=True)
            tables = [StepTables(positions, displacements) for positions, displacements in pairs]
        except (KeyError, TypeError, ValueError) as error:
            raise RunError(f"{path} has no tables ({error})") from None
        if len(numbers) < count:
            raise RunError(f"{path} has {len(numbers)} steps and should have {count}")
        return cls(stage, numbers[:count], eta[:count], tables[:count])


def shard_entry(path: Path, sha256: str) -> Shard:
    """Return the header's entry for a shard that is on the disk."""
    try:
        with safe_open(path, framework="pt") as file:
            stage = int(json.loads((file.metadata() or {})["facts"])["stage"])
            steps = int(file.get_slice("steps").get_shape()[0])
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise RunError(f"{path} cannot be read ({_short(error)})") from None
    return Shard(file=path.name, stage=stage, steps=steps, bytes=path.stat().st_size, sha256=sha256)


@attrs.frozen(eq=False)
class SavedStep:
    """A step of a saved model."""

    stage: int
    number: int
    """In the stage, from 0."""
    eta: float
    tables: StepTables


def saved_steps(folder: Path, shards: tuple[Shard, ...]) -> Iterator[SavedStep]:
    """Yield a model's steps in order; one at a time is in memory."""
    for shard in shards:
        path = folder / shard.file
        try:
            with safe_open(path, framework="pt") as file:
                positions, displacements = file.get_slice("positions"), file.get_slice("displacements")
                eta, numbers = file.get_tensor("eta").tolist(), file.get_tensor("steps").tolist()
                for i, number in enumerate(numbers):
                    tables = StepTables(positions[i], displacements[i])
                    yield SavedStep(shard.stage, number, eta[i], tables)
        except (OSError, SafetensorError) as error:
            raise RunError(f"{path} cannot be read ({_short(error)})") from None


def refuse_missing(folder: Path, files: Iterable[FittedFile | Shard]) -> None:
    """Raise `RunError` if a file is missing or has another size than it should."""
    for entry in files:
        path = folder / entry.file
        if not path.is_file():
            raise RunError(f"{path} is missing; the model cannot be used without it")
        size = path.stat().st_size
        if size != entry.bytes:
            raise RunError(f"{path} has {size:,} bytes and should have {entry.bytes:,}: it is damaged")


def find_damage(folder: Path, files: Iterable[FittedFile | Shard]) -> list[str]:
    """Read all files, and return a sentence for each that is not what was written."""
    sentences = []
    for entry in files:
        try:
            refuse_missing(folder, (entry,))
            refuse_changed(folder / entry.file, entry.sha256)
        except RunError as error:
            sentences.append(str(error))
    return sentences


def _short(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
