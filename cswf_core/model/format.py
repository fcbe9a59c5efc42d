"""The shards of a saved model, `tables-00000.safetensors`, …: the maps of its steps.

A shard has the tables of some steps of one stage, and is read by memory map. The header (`header`) says what
each of them must have. A flow that has fitted more than maps to its data has it in one more file (`fitted`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import attrs
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from cswf_core.documents import TensorForm, parse_json, require_forms, short, structured
from cswf_core.errors import RunError
from cswf_core.flow.tables import StepTables
from cswf_core.model.header import Header, Shard
from cswf_core.runs.durable import FileEntry, fingerprint, read_tensors, refuse_changed, write_tensors

PATTERN = "tables-*.safetensors"
SIZE = 32_000_000
"""Bytes that a shard has, about; it also ends where its stage does."""

FITTED = "fitted.safetensors"
"""The file with what was fitted to the data besides the maps, where there is such a thing."""

TABLES = ("positions", "displacements")
"""The tensors of a shard with tables."""

DTYPES = {"float16": "F16", "float32": "F32", "float64": "F64"}
"""Numbers of tables as safetensors name them."""

READERS = 4
"""Files that are read at once to compare their checksums."""


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
        require_forms(tensors, STEPS, str(path))
        stage = facts.get("stage") if isinstance(facts, dict) else None
        sizes = {len(tensor) for tensor in tensors.values()}
        same = tensors["positions"].shape == tensors["displacements"].shape
        if type(stage) is not int or stage < 0 or len(sizes) != 1 or not same:
            raise RunError(f"{path} has no tables of one stage")
        if len(tensors["steps"]) < count:
            raise RunError(f"{path} has {len(tensors['steps'])} steps and should have {count}")
        tables = map(StepTables, tensors["positions"][:count], tensors["displacements"][:count])
        numbers, eta = (tensors[name][:count].tolist() for name in ("steps", "eta"))
        return cls(stage, numbers, eta, list(tables))


STEPS = {name: TensorForm(torch.is_floating_point, (None,) * 4) for name in TABLES} | {
    "eta": TensorForm(torch.float64, (None,)),
    "steps": TensorForm(torch.int64, (None,)),
}
"""Tensors of a shard: n×S×H'×K, n×S×H'×K, n and n."""


def shard_entry(path: Path, sha256: str) -> Shard:
    """Return the header's entry for a shard that is on the disk."""
    try:
        with safe_open(path, framework="pt") as file:
            stage = parse_json((file.metadata() or {})["facts"])["stage"]
            (steps,) = file.get_slice("steps").get_shape()
        document = {"file": path.name, "stage": stage, "steps": steps, "sha256": sha256}
        entry: Shard = structured({**document, "bytes": path.stat().st_size}, Shard)
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise RunError(f"{path} cannot be read ({short(error)})") from None
    return entry


@attrs.frozen(eq=False)
class SavedStep:
    """A step of a saved model."""

    stage: int
    number: int
    """In the stage, from 0."""
    eta: float
    tables: StepTables


def steps_of(file: Any, header: Header, shard: Shard) -> tuple[list[int], list[float]]:
    """Return the numbers and η of the steps in an open shard.

    Raises `ValueError` if it is not as the header says. Tables may be of some of the stage's directions only.
    """
    n, stage, knots = shard.steps, header.stages[shard.stage], header.tables.knots
    S = 1 if header.condition.strata is None else len(header.condition.strata)
    shapes = []
    for name in TABLES:
        part = file.get_slice(name)
        shape, dtype = part.get_shape(), part.get_dtype()
        rows = shape[2] if len(shape) == 4 else 0
        if shape != [n, S, rows, knots] or not 1 <= rows <= stage.directions:
            got, H = "×".join(map(str, shape)), stage.directions
            raise ValueError(f"'{name}' should be {n}×{S}×H'×{knots}, H' up to {H}, and is {got}")
        if dtype != DTYPES[header.tables.dtype]:
            raise ValueError(f"'{name}' should be of {header.tables.dtype}, and is of {dtype}")
        shapes.append(shape)
    if shapes[0] != shapes[1]:
        raise ValueError("its positions and displacements have different shapes")
    eta, numbers = file.get_tensor("eta"), file.get_tensor("steps")
    forms = {"eta": TensorForm(torch.float64, (n,)), "steps": TensorForm(torch.int64, (n,))}
    require_forms({"eta": eta, "steps": numbers}, forms, shard.file)
    within = bool((numbers.diff() > 0).all()) and int(numbers[0]) >= 0 and int(numbers[-1]) < stage.steps
    if not within or not bool(torch.isfinite(eta).all()):
        raise ValueError(f"its steps should rise, below {stage.steps}, each with a finite η")
    return numbers.tolist(), eta.tolist()


def refuse_infinite(*tables: Tensor) -> None:
    """Raise `ValueError` if a number in tables is not finite."""
    if not all(bool(torch.isfinite(table).all()) for table in tables):
        raise ValueError("a number in its tables is not finite")


def saved_steps(folder: Path, header: Header) -> Iterator[SavedStep]:
    """Yield a model's steps in order; one at a time is in memory."""
    for shard in header.shards:
        path = folder / shard.file
        try:
            with safe_open(path, framework="pt") as file:
                numbers, eta = steps_of(file, header, shard)
                positions, displacements = (file.get_slice(name) for name in TABLES)
                for i, number in enumerate(numbers):
                    tables = StepTables(positions[i], displacements[i])
                    refuse_infinite(tables.positions, tables.displacements)
                    yield SavedStep(shard.stage, number, eta[i], tables)
        except (OSError, SafetensorError, ValueError) as error:
            raise RunError(f"{path} cannot be read ({short(error)})") from None


def refuse_missing(folder: Path, files: Iterable[FileEntry]) -> None:
    """Raise `RunError` if a file is missing or has another size than it should."""
    for entry in files:
        path = folder / entry.file
        if not path.is_file():
            raise RunError(f"{path} is missing; the model cannot be used without it")
        size = path.stat().st_size
        if size != entry.bytes:
            raise RunError(f"{path} has {size:,} bytes and should have {entry.bytes:,}: it is damaged")


def find_damage(folder: Path, files: Iterable[FileEntry]) -> list[str]:
    """Read all files, some at a time, and return a sentence for each that is not what was written."""
    with ThreadPoolExecutor(READERS, "reading") as readers:
        return [sentence for sentence in readers.map(lambda entry: _damage(folder, entry), files) if sentence]


def _damage(folder: Path, entry: FileEntry) -> str:
    try:
        refuse_missing(folder, (entry,))
        refuse_changed(folder / entry.file, entry.sha256)
    except (RunError, OSError) as error:
        return str(error)
    return ""
