"""`tables-00000.safetensors`, …: the tables of some steps of one stage, read by memory map."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import attrs
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from cswf_core.errors import RunError
from cswf_core.flow.transport import StepTables
from cswf_core.model.header import Shard
from cswf_core.runs.durable import fingerprint, read_tensors, write_tensors

PATTERN = "tables-*.safetensors"
SIZE = 32_000_000
"""Bytes that a shard has, about; it also ends where its stage does."""


def shard_file(folder: Path, number: int) -> Path:
    """Return where a model's shard is."""
    return folder / f"tables-{number:05}.safetensors"


@attrs.define(eq=False)
class Steps:
    """Tables of some steps of one stage, in memory."""

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
        """How many steps a shard has at most: the same wherever a run was stopped and gone on with."""
        first = self.tables[0]
        return max(1, SIZE // (first.positions.nbytes + first.displacements.nbytes))

    def add(self, number: int, eta: float, tables: StepTables) -> None:
        """Add a step."""
        self.numbers.append(number)
        self.eta.append(eta)
        self.tables.append(tables)

    def tensors(self) -> dict[str, Tensor]:
        """Return them as a file has them: n steps, n×S×H'×K."""
        return {
            "positions": torch.stack([tables.positions for tables in self.tables]),
            "displacements": torch.stack([tables.displacements for tables in self.tables]),
            "eta": torch.tensor(self.eta, dtype=torch.float64),
            "steps": torch.tensor(self.numbers, dtype=torch.int64),
        }

    def write(self, path: Path) -> Shard:
        """Write them durably, and return what the header says of the file."""
        write_tensors(path, self.tensors(), {"stage": self.stage})
        return listed(path, fingerprint(path))

    @classmethod
    def read(cls, path: Path, count: int) -> Steps:
        """Return the first `count` steps of a file; raise `RunError` if they are not there."""
        tensors, facts = read_tensors(path)
        try:
            found = cls(int(facts["stage"]), tensors["steps"].tolist(), tensors["eta"].tolist())
            pairs = zip(tensors["positions"], tensors["displacements"], strict=True)
            found.tables = [StepTables(positions, displacements) for positions, displacements in pairs]
        except (KeyError, TypeError, ValueError) as error:
            raise RunError(f"{path} has no tables ({error})") from None
        if len(found) < count:
            raise RunError(f"{path} has {len(found)} steps and should have {count}")
        return cls(found.stage, found.numbers[:count], found.eta[:count], found.tables[:count])


def listed(path: Path, sha256: str) -> Shard:
    """Return what the header says of a shard that is on the disk."""
    try:
        with safe_open(path, framework="pt") as file:
            stage = int(json.loads((file.metadata() or {})["facts"])["stage"])
            steps = int(file.get_slice("steps").get_shape()[0])
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise RunError(f"{path} cannot be read ({' '.join(str(error).split())})") from None
    return Shard(file=path.name, stage=stage, steps=steps, bytes=path.stat().st_size, sha256=sha256)


@attrs.frozen(eq=False)
class SavedStep:
    """A step as a model has it."""

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
            raise RunError(f"{path} cannot be read ({' '.join(str(error).split())})") from None


def refuse_missing(folder: Path, shards: tuple[Shard, ...]) -> None:
    """Raise `RunError` if a shard is not there, or has not the size it should have."""
    for shard in shards:
        path = folder / shard.file
        if not path.is_file():
            raise RunError(f"{path} is missing; the model cannot be used without it")
        size = path.stat().st_size
        if size != shard.bytes:
            raise RunError(f"{path} has {size:,} bytes and should have {shard.bytes:,}: it is damaged")


def damaged(folder: Path, shards: tuple[Shard, ...]) -> list[str]:
    """Read all shards, and return a sentence for each that is not what was written."""
    wrong = []
    for shard in shards:
        try:
            refuse_missing(folder, (shard,))
            if fingerprint(folder / shard.file) != shard.sha256:
                wrong.append(f"{folder / shard.file} is not what was written: its checksum differs")
        except RunError as error:
            wrong.append(str(error))
    return wrong
