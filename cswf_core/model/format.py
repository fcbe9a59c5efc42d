"""The shards of a saved model, `tables-00000.safetensors`, …: the maps of its steps.

A shard has the tables of some steps of one stage, and is read by memory map. The header (`header`) says what
each shard must have. What a flow has fitted to its data besides the maps is in one more file (`fitted`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path

import attrs
import torch
from torch import Tensor

from cswf_core.documents import TensorForm, require_forms
from cswf_core.errors import RunError
from cswf_core.flow.tables import StepTables
from cswf_core.kernels.finite import is_finite
from cswf_core.model.header import ModelHeader, TableShard
from cswf_core.runs.durable import FileEntry, fingerprint, read_tensors, refuse_changed, write_tensors

SHARD_BYTES = 32_000_000
"""Approximate size of a shard in bytes; a shard also ends where its stage does."""

FILES_AT_A_TIME = 4
"""Number of files that are read at once to compare their checksums."""

ANY_TABLES = TensorForm(torch.is_floating_point, (None,) * 4)
"""Positions or displacements of any steps: n×S×H'×K."""

HOST = torch.device("cpu")


@attrs.frozen(eq=False)
class SavedStep:
    """A step of a saved model."""

    stage: int
    number: int
    """Number of the step in its stage, from 0."""
    eta: float
    """Step size η."""
    tables: StepTables
    """Tables of the maps: S×H'×K each."""

    def moved(self, move: Callable[[Tensor], Tensor]) -> SavedStep:
        """Return the step with its tables elsewhere."""
        tables = StepTables(move(self.tables.positions), move(self.tables.displacements))
        return attrs.evolve(self, tables=tables)

    @property
    def finite(self) -> bool:
        """Whether all numbers are finite."""
        tables = self.tables
        return math.isfinite(self.eta) and is_finite(tables.positions) and is_finite(tables.displacements)


def shard_file(folder: Path, number: int) -> Path:
    """Return the path of a model's shard."""
    return folder / f"tables-{number:05}.safetensors"


def steps_per_shard(tables: StepTables) -> int:
    """Return how many steps with such tables a shard has at most, wherever a run is stopped and resumed."""
    return max(1, SHARD_BYTES // (tables.positions.nbytes + tables.displacements.nbytes))


def write_shard(path: Path, steps: Sequence[SavedStep]) -> TableShard:
    """Write n steps of one stage durably, as n×S×H'×K numbers, and return the shard's entry in the header."""
    tensors = {
        "positions": torch.stack([step.tables.positions for step in steps]),
        "displacements": torch.stack([step.tables.displacements for step in steps]),
        "eta": torch.tensor([step.eta for step in steps], dtype=torch.float64),
        "steps": torch.tensor([step.number for step in steps], dtype=torch.int64),
    }
    write_tensors(path, tensors, {"stage": steps[0].stage})
    return shard_entry(path, fingerprint(path), steps)


def shard_entry(path: Path, sha256: str, steps: Sequence[SavedStep]) -> TableShard:
    """Return the header's entry for a shard that is on the disk and has these steps."""
    return TableShard(
        file=path.name, bytes=path.stat().st_size, sha256=sha256, stage=steps[0].stage, steps=len(steps)
    )


def read_shard(path: Path, form: TensorForm = ANY_TABLES) -> list[SavedStep]:
    """Return the steps of a shard, whose tables are read from the disk when they are used.

    Raises `RunError` if the file is damaged, or its positions and displacements (n×S×H'×K) are not of `form`.
    """
    tensors, facts = read_tensors(path)
    numbers = {"eta": TensorForm(torch.float64, (None,)), "steps": TensorForm(torch.int64, (None,))}
    require_forms(tensors, {"positions": form, "displacements": form, **numbers}, str(path))
    positions = tensors["positions"]
    displacements = tensors["displacements"]
    stage = facts.get("stage") if isinstance(facts, dict) else None
    counts = {len(tensors[name]) for name in ("positions", "eta", "steps")}
    if type(stage) is not int or positions.shape != displacements.shape or len(counts) > 1 or 0 in counts:
        raise RunError(f"{path} has no tables of one stage")
    tables = map(StepTables, positions, displacements)
    rows = zip(tensors["steps"].tolist(), tensors["eta"].tolist(), tables, strict=True)
    return [SavedStep(stage, number, eta, own) for number, eta, own in rows]


def saved_steps(folder: Path, header: ModelHeader, device: torch.device = HOST) -> Iterator[SavedStep]:
    """Yield a model's steps in order, with their tables on a device.

    The next shard is read while the steps of this one are taken. For a GPU it is read into page-locked memory,
    from which it is copied to the device without waiting: PyTorch keeps such memory until that is done.
    Raises `RunError` for a shard that is not as the header says.
    """

    def read(shard: TableShard) -> list[SavedStep]:
        steps = _steps_of(folder, header, shard)
        return [step.moved(Tensor.pin_memory) for step in steps] if device.type == "cuda" else steps

    with ThreadPoolExecutor(1, "reading") as reader:
        pending: Future[list[SavedStep]] | None = None
        for shard in (*header.shards, None):
            following = None if shard is None else reader.submit(read, shard)
            for step in pending.result() if pending is not None else ():
                yield step.moved(lambda table: table.to(device, non_blocking=True))
            pending = following


def _steps_of(folder: Path, header: ModelHeader, shard: TableShard) -> list[SavedStep]:
    """Return the steps of a shard; raise `RunError` if they are not as the header says.

    Tables may be of some of the stage's directions only.
    """
    path = folder / shard.file
    stage = header.stages[shard.stage]
    S = 1 if header.condition.strata is None else len(header.condition.strata)
    dtype: torch.dtype = getattr(torch, header.tables.dtype)
    steps = read_shard(path, TensorForm(dtype, (shard.steps, S, None, header.tables.knots)))
    numbers = [step.number for step in steps]
    rows = steps[0].tables.positions.shape[1]
    wrong = ""
    if steps[0].stage != shard.stage:
        wrong = f"its steps should be of stage {shard.stage}, and are of {steps[0].stage}"
    elif not 1 <= rows <= stage.directions:
        wrong = f"its tables should be of up to {stage.directions} directions, and are of {rows}"
    elif numbers != sorted(set(numbers)) or numbers[0] < 0 or numbers[-1] >= stage.steps:
        wrong = f"its steps should rise, below {stage.steps}"
    elif not all(step.finite for step in steps):
        wrong = "a number in its tables is not finite"
    if wrong:
        raise RunError(f"{path} cannot be read ({wrong})")
    return steps


def find_damage(folder: Path, files: Iterable[FileEntry]) -> list[str]:
    """Read all files, some at a time, and return a sentence for each that is not what was written."""
    with ThreadPoolExecutor(FILES_AT_A_TIME, "reading") as readers:
        return [sentence for sentence in readers.map(partial(_damage, folder), files) if sentence]


def _damage(folder: Path, entry: FileEntry) -> str:
    try:
        refuse_changed(folder / entry.file, entry.sha256, entry.bytes)
    except (RunError, OSError) as error:
        return str(error)
    return ""
