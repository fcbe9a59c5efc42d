"""The folder of a run: its files, written atomically, and the lock that keeps other processes out."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import math
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import attrs
import numpy as np
import yaml
from numpy.typing import NDArray

from cswf_core.arrays import read_archive
from cswf_core.documents import (
    Amount,
    Count,
    Digest,
    Rule,
    Size,
    parse_json,
    read_document,
    read_json,
)
from cswf_core.errors import RunError, printable
from cswf_core.files import is_text
from cswf_core.pictures.frames import Frames
from cswf_core.runs.durable import encoded, open_plainly, remove_parts, write_durably
from cswf_core.runs.scores import ScoreDocument, is_number, mapping, read_scores, texts

Status = Literal["running", "done", "interrupted", "failed"]


PluginRecord = Annotated[
    dict[str, str],
    Rule(
        "kind, name, distribution, version and sha256 of a plugin",
        {"kind", "name", "distribution", "version", "sha256"}.issubset,
    ),
]
"""Facts of a plugin in models and checkpoints, as `Recipe.plugin_facts` has them."""


@attrs.frozen(kw_only=True)
class DataRecord:
    """The data of a run."""

    open_ended: ClassVar[bool] = True
    sha256: Digest
    shape: tuple[Size, ...]
    """C×H×W for images, d for points."""
    streamed: bool = False
    """Whether they were not in memory, so that the digest is that of their bytes."""


@attrs.frozen(kw_only=True)
class DeviceRecord:
    """The device of a run."""

    open_ended: ClassVar[bool] = True
    type: str
    threads: Size | None = None
    """Of a CPU."""


@attrs.frozen(kw_only=True)
class RunFacts:
    """What other commands want to know of a run; `run.json` has more, for people."""

    open_ended: ClassVar[bool] = True
    status: Status = "running"
    started: str | None = None
    command: str | None = None
    """The command that began it."""
    resumed: tuple[dict[str, Any], ...] = ()
    """Where it has gone on after a stop."""
    updates: dict[str, Any] | None = None
    """The run that it goes on from with new data, if it does."""
    seconds: Amount | None = None
    data: DataRecord | None = None
    device: DeviceRecord | None = None
    memory_limit: Size | None = None
    """Bytes of memory that it plans with, at most."""
    particles: Count | None = None
    steps_done: Count | None = None
    samples_sha256: Digest | None = None
    metrics: dict[str, float | None] | None = None
    """Its scores, once there are some."""
    plugins: dict[str, dict[str, str]] = attrs.field(factory=dict)
    """Facts of each plugin, by the place in the recipe that chose it."""


FILES = (
    "recipe.yaml",
    "run.json",
    "metrics.jsonl",
    "samples.png",
    "samples.npz",
    "real.npz",
    "flow.png",
    "frames.npz",
    "flow.gif",
    "completions.png",
    "metrics.json",
    "report.html",
    "samples-offline.npz",
    "samples-offline.png",
    "counts.safetensors",
)
"""Files that a run writes, beside the figures that metrics.json lists; `--force` removes no others."""

FOLDERS = {
    "checkpoints": ("manifest.json", "step-*.safetensors"),
    "model": ("model.json", "fitted.safetensors", "tables-*.safetensors"),
}
"""Folders that a run makes, with the names of the files in them."""

LOGGED = ("step", "stage", "sliced_distance", "displacement", "seconds")
"""Keys of a row of metrics.jsonl."""

T = TypeVar("T")


@attrs.frozen(eq=False)
class SampledImages:
    """Some of the images in a file (n×C×H×W bytes), with their labels (n) if they have any."""

    images: NDArray[np.uint8]
    labels: NDArray[np.int64] | None
    count: int
    """How many images the file has."""


class RunFolder:
    """The folder of a run, or of an evaluation: written by a run or a command, and read as far as that goes.

    Of what is read through properties, what is missing is None or empty, and what is damaged has a sentence in
    `problems`; whatever else reads raises an error.
    """

    def __init__(self, path: Path, label: str = "") -> None:
        self.path = path
        self.label = label
        """What it is called beside others."""
        self.colour = 0
        """The number of its colour on a page."""
        self.problems: dict[str, str] = {}
        """File → a sentence on what is wrong with it."""
        self._images: dict[str, SampledImages | None] = {}
        self._made: list[Path] = []
        """Folders that were made for it, each before those inside it."""
        self._claimed = False
        """Whether an empty run.json was made here, which keeps other runs out until there is a record."""

    @classmethod
    def fresh(cls, parent: Path, name: str) -> RunFolder:
        """Make and return the first of parent/name, parent/name-2, parent/name-3, … that is free.

        Making it at once keeps it from another run that starts at the same moment.
        """
        above = cls(parent)
        above.make()
        for number in itertools.count(1):
            path = parent / (name if number == 1 else f"{name}-{number}")
            try:
                path.mkdir()
            except FileExistsError:
                continue
            except OSError as error:
                above.withdraw()
                raise RunError(f"{path} cannot be made: {error.strerror or error}") from None
            break
        fresh = cls(path)
        fresh._made = [*above._made, path]
        return fresh

    def withdraw(self) -> None:
        """Take back what was made for a run that has not begun: its files, and folders with nothing else in.

        It has begun when run.json has its record. A folder that was claimed is still to be `held`.
        """
        with contextlib.suppress(OSError, RunError):
            if self._claimed and self.file("run.json").lstat().st_size == 0:
                self.clear()
        for path in reversed(self._made):
            with contextlib.suppress(OSError):
                path.rmdir()
        self._claimed = False
        self._made = []

    def refuse_if_taken(self, *, force: bool, reading: Path | None = None) -> None:
        """Raise `RunError` if the folder is a file, or has something in it and `force` is not given.

        `reading` is the recipe's file, which a run in its own folder would overwrite.
        """
        if not is_text(str(self.path.absolute())):  # safetensors reads no such paths
            name = printable(str(self.path.absolute()))
            raise RunError(f"{name} is no text (UTF-8), and models cannot lie there; give another --out")
        try:
            if self.path.exists() and not self.path.is_dir():
                raise RunError(f"{self.path} is a file; --out names a folder")
            if reading is not None and any(reading == self.file(name).resolve() for name in FILES):
                raise RunError(
                    f"{reading} is the recipe itself, and a run here would overwrite it; give another --out"
                )
            if self.path.is_dir() and any(self.path.iterdir()) and not force:
                hint = f"--force to replace {', '.join(FILES[:2])} and the other files of a run in it"
                raise RunError(f"{self.path} is not empty; give another --out, or {hint}")
        except (OSError, ValueError, RuntimeError) as error:
            raise RunError(f"{self.path} cannot be used: {error}") from None

    def create(self, *, force: bool) -> None:
        """Make the folder and claim it; with `force`, remove the files of an earlier run from it first."""
        self.make()
        if force:
            self.clear()
        try:
            self._claimed = True  # before it is so: a signal may come in between
            self.file("run.json").touch(exist_ok=False)
        except FileExistsError:
            self._claimed = False
            raise RunError(f"{self.path} has been taken by another run; give another --out") from None
        except OSError as error:
            raise self._unwritable(error) from None

    def make(self) -> None:
        """Make the folder if it is not there."""
        try:
            for path in reversed((self.path, *self.path.parents)):
                if not path.exists():
                    self._made.append(path)
                    path.mkdir(exist_ok=True)
            self.path.mkdir(exist_ok=True)  # raises for a file
        except OSError as error:
            raise self._unwritable(error) from None

    def clear(self, names: Sequence[str] | None = None) -> None:
        """Remove files, those that a run leaves if not said otherwise, and nothing else: of a link, itself.

        Recipe and record are the last: a kill meanwhile leaves a run that can go on, or be begun again.
        """
        try:
            if names is None:
                self._remove((*self.figures(), *FILES[2:]))
                self._remove_folders()
            self._remove(FILES[:2] if names is None else names)
        except OSError as error:
            raise self._unwritable(error) from None

    def _remove(self, names: Sequence[str]) -> None:
        for name in names:
            self.file(name).unlink(missing_ok=True)
            remove_parts(self.path, name)

    def _remove_folders(self) -> None:
        for folder, patterns in FOLDERS.items():
            if self.file(folder).is_symlink():
                self.file(folder).unlink()
            for path in [path for pattern in patterns for path in self.file(folder).glob(pattern)]:
                path.unlink(missing_ok=True)
            remove_parts(self.file(folder))
            if self.file(folder).is_dir() and not any(self.file(folder).iterdir()):
                self.file(folder).rmdir()

    def figures(self) -> list[str]:
        """Return the names of the pictures that metrics have drawn."""
        listed = texts(mapping(self.read_json("metrics.json")).get("figures"))
        return [name for name in listed if re.fullmatch(r"[a-z0-9-]+\.png", name)]

    def file(self, name: str) -> Path:
        """Return the path of one of the run's files."""
        return self.path / name

    def write(self, name: str, content: str | bytes) -> None:
        """Replace a file as a whole: after a crash it is the old one or the new one, never half of either."""
        write_durably(self.file(name), content)

    def _unwritable(self, error: OSError) -> RunError:
        return RunError(f"{self.path} cannot be written: {error.strerror or error}")

    def facts(self) -> RunFacts | None:
        """Return the facts of the run here; None if there is none; raise `RunError` if they are damaged."""
        path = self.file("run.json")
        try:
            if path.stat().st_size == 0:  # a run has claimed the folder, and has not begun
                return None
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise RunError(f"{path} cannot be read: {error.strerror or error}") from None
        return read_document(path, RunFacts, advice="; bring back what was there, or begin anew with --force")

    def read_json(self, name: str) -> Any:
        """Return what a JSON file says; None if there is none that can be read."""
        try:
            return read_json(self.file(name))
        except (OSError, ValueError):
            return None

    def append(self, name: str, line: str) -> None:
        """Add a line to a file."""
        try:
            with open_plainly(self.file(name), "ab") as file:
                file.write(encoded(line))
        except OSError as error:
            raise RunError(f"{self.file(name)} cannot be written: {error.strerror or error}") from None

    def read_rows(self) -> list[dict[str, Any]]:
        """Return the rows of metrics.jsonl, up to the first that makes no sense."""
        path = self.file("metrics.jsonl")
        rows: list[dict[str, Any]] = []
        if not path.is_file():  # to open a pipe may take for ever
            return rows
        try:
            for line in path.read_text(encoding="utf-8").splitlines():
                rows.append(_object(parse_json(line)))
        except (OSError, ValueError):
            pass  # a kill may have cut the last line
        return rows

    def refuse_links(self) -> None:
        """Raise `RunError` if a folder that the run writes to is a link: what lies behind is not the run's."""
        for path in map(self.file, FOLDERS):
            if path.is_symlink():
                raise RunError(f"{path} is a link, and a run writes to its own folder only; remove the link")

    @contextmanager
    def held(self, patience_s: float = 0.0) -> Iterator[None]:
        """Keep the folder from other processes; it is free again when this ends, or the process does.

        Raises `RunError` if another process has it, and does not leave it in some seconds.
        """
        try:
            descriptor = os.open(self.path, os.O_RDONLY)
        except OSError as error:
            raise self._unwritable(error) from None
        try:
            deadline = time.monotonic() + patience_s
            while not _locks(descriptor):
                if time.monotonic() >= deadline:
                    raise RunError(f"{self.path} is in use: another process is running there")
                time.sleep(0.05)
            yield
        finally:
            os.close(descriptor)

    @property
    def begun(self) -> bool:
        """Whether a run has been begun here that can go on."""
        return self.file("recipe.yaml").is_file() and self.facts() is not None

    @property
    def only_touched(self) -> bool:
        """Whether a run was killed here before it had written its recipe: there is nothing to lose."""
        whole_or_unfinished = re.compile(r"(run\.json|recipe\.yaml)|\.(run\.json|recipe\.yaml)\..*part")
        names = [path.name for path in self.path.iterdir()] if self.path.is_dir() else []
        return bool(names) and all(map(whole_or_unfinished.fullmatch, names))

    @property
    def done(self) -> bool:
        """Whether a run has come to its end here."""
        facts = self.facts()
        return facts is not None and facts.status == "done" and self.file("samples.npz").is_file()

    def write_json(self, name: str, value: Any) -> None:
        """Write a value as indented JSON."""
        self.write(name, json.dumps(value, indent=2, ensure_ascii=False) + "\n")

    def attempt(self, name: str, reader: Callable[[Path], T]) -> T | None:
        """Return what a reader makes of a file; None if it is not there, or damaged, which is remembered."""
        path = self.file(name)
        try:
            if not path.is_file():
                return None
            return reader(path)
        except Exception as error:  # whatever a damaged file makes its reader raise
            reason = str(error).partition("\n")[0].rstrip(".:") or type(error).__name__
            self.problems[name] = f"{name} cannot be read: {reason}."
            return None

    @cached_property
    def record(self) -> dict[str, Any]:
        """The content of run.json, whatever that is."""
        return self.attempt("run.json", _document) or {}

    @cached_property
    def recipe_text(self) -> str:
        """The content of recipe.yaml."""
        return self.attempt("recipe.yaml", lambda path: path.read_text(encoding="utf-8")) or ""

    @cached_property
    def recipe(self) -> dict[str, Any]:
        """The values in recipe.yaml."""
        return self.attempt("recipe.yaml", lambda path: _object(yaml.safe_load(path.read_bytes()))) or {}

    @cached_property
    def rows(self) -> list[list[float | None]]:
        """The numbers of LOGGED for steps of metrics.jsonl: for 3,000 of them, and those where stages end."""
        return self.attempt("metrics.jsonl", _logged_rows) or []

    @cached_property
    def frames(self) -> Frames | None:
        """The frames of the flow."""
        return self.attempt("frames.npz", Frames.read)

    @cached_property
    def scores(self) -> ScoreDocument:
        """The scores in metrics.json."""
        return self.attempt("metrics.json", read_scores) or ScoreDocument()

    @cached_property
    def evaluated(self) -> dict[str, Any]:
        """The content of metrics.json, whatever that is."""
        return self.attempt("metrics.json", _document) or {}

    def images(self, name: str, most: int | None = None) -> SampledImages | None:
        """Return so many images of an .npz file, of all classes alike, or 4 MB of them; None if it has points.

        A file is read once.
        """
        if name not in self._images:
            self._images[name] = self.attempt(name, lambda path: _some_images(path, most))
        return self._images[name]

    @property
    def is_run(self) -> bool:
        """Whether the folder is that of a run, and not of an evaluation of any program's images."""
        return any(self.file(name).is_file() for name in FILES[:2])

    @property
    def name(self) -> str:
        """The recipe's name, or the folder's."""
        return str(self.recipe.get("name") or self.path.resolve().name)

    @property
    def title(self) -> str:
        """The recipe's name, or what was evaluated, or the folder's name if nothing says it."""
        source = "" if self.is_run else mapping(self.evaluated.get("generated")).get("source")
        return str(self.record.get("name") or self.recipe.get("name") or source or self.path.resolve().name)

    @property
    def seed(self) -> int | None:
        """The seed of the flow; None: not known."""
        seed = self.recipe.get("seed")
        return seed if isinstance(seed, int) and not isinstance(seed, bool) else None

    @property
    def status(self) -> str:
        """How it ended, in a word."""
        return str(self.record.get("status") or "unknown")

    @property
    def data_name(self) -> str:
        """The name of the data set's plugin."""
        data = self.recipe.get("data")
        named = mapping(mapping(self.record.get("plugins")).get("data")).get("name")
        return str(named or (data.get("use") if isinstance(data, dict) else data) or "")

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes, where the run has kept them."""
        return self.frames.classes if self.frames is not None else ()


def _document(path: Path) -> dict[str, Any]:
    return _object(read_json(path))


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("it is not a mapping")
    return value


def _logged_rows(path: Path) -> list[list[float | None]]:
    """Return the logged steps; a last line that an interruption has cut off is left out."""
    lines = path.read_text(encoding="utf-8").splitlines()
    rows: list[list[float | None]] = []
    for number, line in enumerate(lines, 1):
        try:
            row = parse_json(line)
            rows.append([_six_digits(row.get(name)) for name in LOGGED])
            if rows[-1][0] is None:
                raise ValueError("no step")
        except (ValueError, AttributeError):
            if number < len(lines):
                raise ValueError(f"line {number} is not a logged step") from None
            rows = rows[: number - 1]
    every = math.ceil(len(rows) / 3000)
    last = len(rows) - 1
    return [
        row
        for i, row in enumerate(rows)
        if i % every == 0 or i == last or row[1] != rows[i + 1][1] or row[1] != rows[i - 1][1]
    ]


def _six_digits(value: Any) -> float | None:
    """Return a number with six digits; None for what is none."""
    if not is_number(value):
        return None
    return value if isinstance(value, int) else float(f"{value:.6g}")


def _some_images(path: Path, most: int | None) -> SampledImages | None:
    names = ("images", "points", "labels")
    images, points, labels = map(read_archive(path, names).get, names)
    if images is None:
        if points is None:
            raise ValueError("it has neither images nor points")
        return None
    if images.ndim != 4 or images.dtype != np.uint8 or not images.size:
        raise ValueError("its images are not n×C×H×W bytes")
    room = max(1, 4_000_000 // images[0].size) if most is None else most
    if labels is None:
        return SampledImages(images[:room].copy(), None, len(images))
    if labels.shape != (len(images),) or labels.dtype.kind not in "iu":
        raise ValueError("it has not a label for each sample")
    chosen = _of_each_class(labels, room)
    return SampledImages(images[chosen], labels[chosen].astype(np.int64), len(images))


def _of_each_class(labels: NDArray[Any], room: int) -> NDArray[np.int64]:
    """Return the numbers of so many samples: the first of every class, then the second, and so on."""
    order = np.argsort(labels, kind="stable")
    starts = np.flatnonzero(np.r_[True, np.diff(labels[order]) != 0])
    lengths = np.diff(np.r_[starts, len(order)])
    rank = np.arange(len(order)) - np.repeat(starts, lengths)
    first = np.lexsort((order, rank))[:room]
    return np.sort(order[first])


def _locks(descriptor: int) -> bool:
    """Say whether this process holds the lock of a folder from now on, or there are no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass  # a file system without locks
    return True
