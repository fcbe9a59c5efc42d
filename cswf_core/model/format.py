"""The files of a saved model: its header, `model.json`; shards with its maps; what was fitted to the data.

The header says what the model is, without running anything, and what each of the other files must have. Shards,
`tables-00000.safetensors` and so on, have the tables of some steps of one stage, and are read by memory map.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Final, Literal

import attrs
import torch
from torch import Tensor

from cswf_core.documents import (
    Amount,
    Count,
    Digest,
    MisfitError,
    Rule,
    Size,
    TensorForm,
    read_json,
    require_forms,
    seal,
    short,
    structured,
    unseal,
)
from cswf_core.errors import PluginError, RunError
from cswf_core.flow.flow import Flow
from cswf_core.flow.gaussian import Gaussian
from cswf_core.flow.settings import Parts
from cswf_core.flow.tables import LONGEST, StepTables
from cswf_core.interfaces import LinearMap, Space
from cswf_core.kernels.columns import is_finite
from cswf_core.runs.durable import FileEntry, read_tensors, tensors_under, write_tensors
from cswf_core.runs.folder import PluginRecord

HEADER = "model.json"

FITTED = "fitted.safetensors"
"""Name of the file with what was fitted to the data besides the maps, which only some models have."""

FORMAT: Final = 5
"""The format that is written, and the only one that is read."""

LARGEST_DIMENSION = 1 << 28

SHAPE = Rule(
    f"that of points or images, up to {LARGEST_DIMENSION:,} numbers",
    lambda shape: len(shape) in (1, 3) and math.prod(shape) <= LARGEST_DIMENSION,
)

LONGEST_CONDITION = 1 << 20
"""Largest dimension l of a condition, as `condition.room` may have."""

SHARD_BYTES = 32_000_000
"""Approximate size of a shard in bytes; a shard also ends where its stage does."""

TABLE_NAMES = tuple(field.name for field in attrs.fields(StepTables))
ANY_TABLES = {
    "centre": TensorForm(torch.float32, (None,) * 3),
    "spans": TensorForm(torch.uint8, (None, None, None, 3)),
    "levels": TensorForm(lambda tensor: not torch.is_floating_point(tensor), (None,) * 4),
}
HOST = torch.device("cpu")

ConditionKind = Literal["labels", "vectors", "image"]
"""Kinds of the condition Y."""


@attrs.frozen(kw_only=True)
class DataFacts:
    """The data that the model learned from."""

    sha256: Digest
    """That of `Dataset.digest`; of the data's bytes where they are streamed."""
    samples: Size
    shape: Annotated[tuple[Size, ...], SHAPE]
    """C×H×W for images, d for points."""
    classes: tuple[str, ...]
    counts: tuple[Count, ...]
    """How many data of each class the particles flowed to."""
    bin_width: Amount
    """Distance between two grey levels; 0 for continuous data."""
    streamed: bool

    def __attrs_post_init__(self) -> None:
        """Refuse counts of other classes."""
        if self.counts and (len(self.counts) < len(self.classes) or not any(self.counts)):
            raise MisfitError(f"counts are of {len(self.counts)} classes, and there are {len(self.classes)}")


@attrs.frozen(kw_only=True)
class ConditionFacts:
    """The condition: Y, which requests may set."""

    length: Annotated[int, Rule(f"from 0 to {LONGEST_CONDITION:,}", range(LONGEST_CONDITION + 1).__contains__)]
    """l, the dimension of Y; 0 where Y is no vector."""
    asks: tuple[ConditionKind, ...]
    """Kinds of Y that a particle has: `labels`, `vectors`, `image` (a part of x); empty: unconditional."""
    tables: tuple[Count, ...] | None
    """The label of each table of a direction, where particles have classes; null: one table serves all."""
    shared: bool
    """Whether the same part of every image is observed."""
    mask: Annotated[str, Rule("hexadecimal digits", re.compile("[0-9a-f]+").fullmatch)] | None
    """If whole pixels are observed, and the same of every image: which coordinates, as hexadecimal bits."""
    low: tuple[float, ...]
    """Minimum of each number of the data's vectors; empty where there are none."""
    high: tuple[float, ...]

    def __attrs_post_init__(self) -> None:
        """Refuse ranges of other vectors than Y, and tables of classes without labels."""
        if len(self.low) != len(self.high) or (self.length and self.low and len(self.low) != self.length):
            raise MisfitError(f"low and high should have {self.length} numbers each")
        if self.tables is not None and ("labels" not in self.asks or not self.tables):
            raise MisfitError("tables are of classes, and there are no labels for them")


@attrs.frozen(kw_only=True)
class StageFacts:
    """One stage of the flow."""

    name: str
    directions: Size
    steps: Count
    fingerprint: Annotated[str, Rule("hexadecimal digits", re.compile("[0-9a-f/]*").fullmatch)]
    """That of its first directions; empty where these follow the particles."""


@attrs.frozen(kw_only=True)
class TableFacts:
    """The tables that maps were saved in."""

    knots: Annotated[int, Rule("an odd number, 3 or more", lambda number: number >= 3 and number % 2)]
    bits: Literal[4, 8, 16]
    """Of a displacement."""

    def forms(self, steps: int, tables: int, directions: int) -> dict[str, TensorForm]:
        """Return the forms of a shard's tensors; each step has tables × directions maps."""
        rows = (steps, tables, directions)
        dtype = {4: torch.uint8, 8: torch.int8, 16: torch.int16}[self.bits]
        length = self.knots if self.bits > 4 else self.knots // 2 + 1
        return {
            "centre": TensorForm(torch.float32, rows),
            "spans": TensorForm(torch.uint8, (*rows, 3)),
            "levels": TensorForm(dtype, (*rows, length)),
        }


@attrs.frozen(kw_only=True)
class TableShard(FileEntry):
    """One file of tables."""

    stage: Count
    steps: Size


@attrs.frozen(kw_only=True)
class FiltersFile(FileEntry):
    """One file of what the projection has fitted to the data for a stage."""

    stage: Count


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

    format: Literal[5]
    cswf: str
    """Version that wrote it."""
    name: str
    complete: bool
    recipe: str
    """The resolved recipe, as YAML."""
    data: DataFacts
    condition: ConditionFacts
    precision: Literal["float32", "float64"]
    particles: Size
    stages: tuple[StageFacts, ...]
    tables: TableFacts
    steps: Count
    """Number of steps that have tables."""
    cost: Cost
    shards: tuple[TableShard, ...]
    fitted: FileEntry | None
    filters: tuple[FiltersFile, ...]
    plugins: tuple[PluginRecord, ...]

    def __attrs_post_init__(self) -> None:
        """Refuse parts that do not fit each other."""
        self._check_shards()
        classes = len(self.data.classes)
        labels = self.condition.tables or ()
        if len(set(labels)) < len(labels) or any(label >= classes for label in labels):
            raise MisfitError(f"condition.tables should be different classes, of which there are {classes}")
        if self.condition.mask is not None:
            unpack_mask(self.condition.mask, math.prod(self.data.shape))

    def _check_shards(self) -> None:
        """Refuse shards that are not those of the stages, in their order."""
        stages = [shard.stage for shard in self.shards]
        if stages != sorted(stages) or (stages and stages[-1] >= len(self.stages)):
            raise MisfitError(f"shards should be in the order of the {len(self.stages)} stages")
        saved: Counter[int] = Counter()
        for shard in self.shards:
            saved[shard.stage] += shard.steps
        for number, steps in saved.items():
            if steps > self.stages[number].steps:
                raise MisfitError(f"shards have {steps} steps of stage {number}, more than it has")
        if self.complete and not self.steps:
            raise MisfitError("it is complete, and has no steps")
        if saved.total() != self.steps:
            raise MisfitError(f"the shards do not have {self.steps} steps together")
        filtered = [entry.stage for entry in self.filters]
        if filtered != sorted(set(filtered)) or (filtered and filtered[-1] >= len(self.stages)):
            raise MisfitError(f"filters should be in the order of the {len(self.stages)} stages")
        names = [entry.file for entry in self.files]
        if len(set(names)) < len(names) or HEADER in names:
            raise MisfitError("a file is listed twice")

    @property
    def dtype(self) -> torch.dtype:
        """Numbers the flow was computed in."""
        return torch.float64 if self.precision == "float64" else torch.float32

    @property
    def files(self) -> tuple[FileEntry, ...]:
        """All files of the model but the header."""
        fitted = () if self.fitted is None else (self.fitted,)
        return (*fitted, *self.filters, *self.shards)

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


@attrs.frozen(eq=False)
class SavedStep:
    """A step of a saved model."""

    stage: int
    number: int
    """Number of the step in its stage."""
    eta: float
    tables: StepTables

    def moved(self, move: Callable[[Tensor], Tensor]) -> SavedStep:
        """Return the step with its tables elsewhere."""
        return attrs.evolve(self, tables=self.tables.each(move))

    @property
    def finite(self) -> bool:
        """Whether all numbers are finite, and no length is cut off at the longest."""
        tables = self.tables
        return math.isfinite(self.eta) and is_finite(tables.centre) and not (tables.spans == LONGEST).any()


def shard_file(folder: Path, number: int) -> Path:
    """Return the path of a model's shard."""
    return folder / f"tables-{number:05}.safetensors"


def steps_per_shard(tables: StepTables) -> int:
    """Return how many steps with such tables a shard has at most, wherever a run is stopped and resumed."""
    return max(1, SHARD_BYTES // sum(tensor.nbytes for tensor in tables.tensors))


def write_shard(path: Path, steps: Sequence[SavedStep]) -> TableShard:
    """Write n steps of one stage durably, as n×S×H×… numbers, and return the shard's entry in the header."""
    tensors = {
        **{name: torch.stack([getattr(step.tables, name) for step in steps]) for name in TABLE_NAMES},
        "eta": torch.tensor([step.eta for step in steps], dtype=torch.float64),
        "steps": torch.tensor([step.number for step in steps], dtype=torch.int64),
    }
    write_tensors(path, tensors, {"stage": steps[0].stage})
    return TableShard.of(path, stage=steps[0].stage, steps=len(steps))


def read_shard(path: Path, forms: Mapping[str, TensorForm] = ANY_TABLES) -> list[SavedStep]:
    """Return the steps of a shard; raise `RunError` if it is damaged, or tables have other forms."""
    tensors, facts = read_tensors(path)
    numbers = {"eta": TensorForm(torch.float64, (None,)), "steps": TensorForm(torch.int64, (None,))}
    require_forms(tensors, {**forms, **numbers}, str(path))
    stage = facts.get("stage") if isinstance(facts, dict) else None
    counts = {len(tensor) for tensor in tensors.values()}
    shapes = {tensors[name].shape[:3] for name in TABLE_NAMES}
    if type(stage) is not int or len(counts) > 1 or 0 in counts or len(shapes) > 1:
        raise RunError(f"{path} has no tables of one stage")
    tables = map(StepTables, *(tensors[name] for name in TABLE_NAMES))
    rows = zip(tensors["steps"].tolist(), tensors["eta"].tolist(), tables, strict=True)
    return [SavedStep(stage, number, eta, own) for number, eta, own in rows]


def saved_steps(folder: Path, header: ModelHeader, device: torch.device = HOST) -> Iterator[SavedStep]:
    """Yield a model's steps in order, with their tables on a device.

    The next shard is read while the steps of this one are taken. For a GPU it is read into page-locked memory,
    from which it is copied to the device without waiting: PyTorch keeps such memory until that is done.
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
    """Return the steps of a shard; raise `RunError` if they are not as the header says."""
    path = folder / shard.file
    stage = header.stages[shard.stage]
    S = 1 if header.condition.tables is None else len(header.condition.tables)
    steps = read_shard(path, header.tables.forms(shard.steps, S, stage.directions))
    numbers = [step.number for step in steps]
    wrong = ""
    if steps[0].stage != shard.stage:
        wrong = f"its steps should be of stage {shard.stage}, and are of {steps[0].stage}"
    elif numbers != sorted(set(numbers)) or numbers[0] < 0 or numbers[-1] >= stage.steps:
        wrong = f"its steps should rise, below {stage.steps}"
    elif not all(step.finite for step in steps):
        wrong = "a number in its tables is not finite"
    if wrong:
        raise RunError(f"{path} cannot be read ({wrong})")
    return steps


@attrs.frozen(kw_only=True)
class FittedFacts:
    """The facts of the file of what was fitted to the data."""

    parts: tuple[Literal["W", "gaussian"], ...]
    """What it has; names of their tensors begin with that: `W/variances`, `gaussian/mean`."""


@attrs.frozen(eq=False)
class Fitted:
    """What a flow has fitted to its data once, and sampling needs in their place."""

    W: LinearMap | None = None
    """Coordinates of the steps; None: steps are taken in the data's own coordinates."""
    gaussian: Gaussian | None = None
    """Distribution of the first particles; None: they begin in noise, or where the data's source says."""

    @classmethod
    def read(cls, file: Path, parts: Parts, space: Space, like: Tensor) -> Fitted:
        """Return what a file has, on the device of `like`; raise `RunError` if it is damaged."""
        tensors, facts = read_tensors(file)
        W = None
        gaussian = None
        try:
            there = structured(facts, FittedFacts).parts
            if "W" in there:
                if parts.coordinates is None:
                    raise MisfitError("it has coordinates, and the model's recipe has none")
                W = parts.coordinates.of_tensors(space, tensors_under(tensors, "W"), like)
            if "gaussian" in there:
                own = tensors_under(tensors, "gaussian")
                d = space.dimension
                forms = {
                    "mean": TensorForm(torch.is_floating_point, (d, None)),
                    "root": TensorForm(torch.is_floating_point, (d, d), optional=True),
                    "samples": TensorForm(torch.int64, ()),
                }
                require_forms(own, forms, str(file))
                if not own["mean"].shape[1]:
                    raise MisfitError("its Gaussian has no mean")
                gaussian = Gaussian.of_tensors(own, W, like)
                if gaussian.root is None and (W is None or W.coloured(like) is None):
                    raise MisfitError("its Gaussian lacks a covariance")
        except MisfitError as error:
            raise RunError(f"{file} is damaged: {error}") from None
        except PluginError as error:
            raise RunError(f"{file} is damaged, or of another version of a plugin: {error}") from None
        return cls(W, gaussian)


def write_fitted(folder: Path, flow: Flow) -> FileEntry | None:
    """Write what a flow has fitted to its data, durably; return its entry in the header, None if there is none.

    Refuses coordinates that cannot be made again of their tensors, before a run has spent its time.
    """
    parts: dict[str, Mapping[str, Tensor]] = {}
    if flow.setup.W is not None:
        assert flow.parts.coordinates is not None
        parts["W"] = flow.parts.coordinates.tensors_of(flow.setup.W, flow.data.space, flow.setup.like)
    if flow.setup.gaussian is not None:
        parts["gaussian"] = flow.setup.gaussian.tensors()
    if not parts:
        return None
    path = folder / FITTED
    tensors = {f"{part}/{name}": own[name].clone() for part, own in parts.items() for name in own}
    write_tensors(path, tensors, {"parts": [*parts]})
    return FileEntry.of(path)


def filters_file(folder: Path, stage: int) -> Path:
    """Return the path of what the projection has fitted to the data for a stage."""
    return folder / f"filters-{stage:02}.safetensors"


def write_filters(folder: Path, stage: int, tensors: Mapping[str, Tensor]) -> FiltersFile:
    """Write what the projection has fitted to the data for a stage, durably; return its entry in the header."""
    path = filters_file(folder, stage)
    write_tensors(path, {name: part.clone() for name, part in tensors.items()})
    return FiltersFile.of(path, stage=stage)


def read_filters(folder: Path, header: ModelHeader, stage: int) -> dict[str, Tensor]:
    """Return what the projection has fitted to the data for a stage; raise `RunError` if it is not there."""
    for entry in header.filters:
        if entry.stage == stage:
            return read_tensors(folder / entry.file)[0]
    name = header.stages[stage].name or stage
    raise RunError(f"{folder / HEADER} lacks what the projection has fitted to the data for stage {name}")
