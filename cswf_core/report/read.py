"""Runs read from their folders, as far as that goes: nothing that is missing or damaged stops a report."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import attrs
import numpy as np
import yaml
from numpy.typing import NDArray

from cswf_core.arrays import read_archive
from cswf_core.documents import parse_json, read_json
from cswf_core.errors import RunError
from cswf_core.files import read_whole
from cswf_core.pictures.frames import Frames
from cswf_core.pictures.read import read_picture
from cswf_core.scores.document import ScoreDocument, mapping, read_scores

MOST_ROWS = 3000
"""Logged steps that curves are drawn from; of a longer log, evenly spaced ones and the ends of stages."""

FEW_SAMPLES = 120
"""Images that are enough for an overview: samples in a comparison of runs, and real images."""

SAMPLE_BYTES = 4_000_000
"""Bytes of all samples that a page of one run holds, where nobody has said how many they are to be."""

COLOURS = 8
"""Colours that runs are told apart by; the ninth has the first one's again."""

MOST_PICTURE = 10**8
"""Bytes of a picture that is put into a page, at most."""

OF_A_RUN = ("run.json", "recipe.yaml")
"""Files by one of which the folder of a run is known."""

COLUMNS = ("step", "stage", "sliced_distance", "displacement", "seconds")

T = TypeVar("T")


@attrs.frozen(eq=False)
class SampledImages:
    """Some of the images in a file (n×C×H×W bytes), with their labels (n) if they have any."""

    images: NDArray[np.uint8]
    labels: NDArray[np.int64] | None
    count: int
    """How many images the file has."""


@attrs.define(eq=False)
class ReportedRun:
    """One run, read from its folder. What is not there is None or empty, what is damaged has a sentence."""

    path: Path
    label: str = ""
    """What it is called on a page, where no two runs have the same label."""
    colour: int = 0
    """The number of its colour."""
    facts: dict[str, Any] = attrs.field(factory=dict)
    """The content of run.json."""
    recipe_text: str = ""
    recipe: dict[str, Any] = attrs.field(factory=dict)
    rows: list[list[float | None]] = attrs.field(factory=list)
    """A list of COLUMNS per logged step."""
    samples: SampledImages | None = None
    real: SampledImages | None = None
    """Some real images, to be seen beside the samples."""
    frames: Frames | None = None
    evaluation: ScoreDocument = ScoreDocument()
    evaluation_facts: dict[str, str] = attrs.field(factory=dict)
    """What was evaluated, on which device, with which weights and versions: name → words."""
    source: str = ""
    """Where the samples of an evaluation came from."""
    problems: dict[str, str] = attrs.field(factory=dict)
    """File → a sentence on what is wrong with it."""

    @property
    def is_run(self) -> bool:
        """Whether the folder is that of a run, and not of an evaluation of any program's images."""
        return any((self.path / name).is_file() for name in OF_A_RUN)

    @property
    def name(self) -> str:
        """The recipe's name, or what was evaluated, or the folder's name if nothing says it."""
        source = "" if self.is_run else self.source
        return str(self.facts.get("name") or self.recipe.get("name") or source or self.path.resolve().name)

    @property
    def status(self) -> str:
        """How it ended, in a word."""
        return str(self.facts.get("status") or "unknown")

    @property
    def data_name(self) -> str:
        """The name of the data set's plugin."""
        data = self.recipe.get("data")
        named = mapping(mapping(self.facts.get("plugins")).get("data")).get("name")
        return str(named or (data.get("use") if isinstance(data, dict) else data) or "")

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes, where the run has kept them."""
        return self.frames.classes if self.frames is not None else ()

    def picture(self, name: str) -> tuple[bytes, tuple[int, int]] | None:
        """Return a PNG of the folder with its width and height; None if it is not there or damaged."""
        return self._read(name, _png)

    def file(self, name: str) -> bytes | None:
        """Return a file's content; None if there is none."""
        return self._read(name, Path.read_bytes)

    def _read(self, name: str, reader: Callable[[Path], T]) -> T | None:
        """Read a file of the run; if that fails for any reason, remember a sentence instead."""
        path = self.path / name
        try:
            if not path.is_file():
                return None
            return reader(path)
        except Exception as error:  # whatever a damaged file makes its reader raise
            reason = str(error).partition("\n")[0].rstrip(".:") or type(error).__name__
            self.problems[name] = f"{name} cannot be read: {reason}."
            return None


def read_run(folder: Path, samples: int | None = None) -> ReportedRun:
    """Read the folder of a run or an evaluation, with so many samples; raises `RunError` if it is none."""
    if not folder.is_dir() or not any((folder / name).is_file() for name in (*OF_A_RUN, "metrics.json")):
        raise RunError(
            f"{folder} is not the folder of a run or an evaluation: it has none of run.json, recipe.yaml and "
            "metrics.json"
        )
    run = ReportedRun(folder)
    run.facts = run._read("run.json", _document) or {}
    run.recipe_text = run._read("recipe.yaml", lambda path: path.read_text(encoding="utf-8")) or ""
    run.recipe = run._read("recipe.yaml", lambda path: _checked(yaml.safe_load(path.read_bytes()))) or {}
    run.rows = run._read("metrics.jsonl", _rows) or []
    run.samples = run._read("samples.npz", lambda path: _samples(path, samples))
    run.real = run._read("real.npz", lambda path: _samples(path, FEW_SAMPLES))
    run.frames = run._read("frames.npz", Frames.read)
    run.evaluation = run._read("metrics.json", read_scores) or ScoreDocument()
    run.evaluation_facts = run._read("metrics.json", lambda path: _evaluation_facts(_document(path))) or {}
    run.source = run._read("metrics.json", lambda path: _source(_document(path))) or ""
    run.label = run.name
    return run


def read_runs(folders: Sequence[Path]) -> list[ReportedRun]:
    """Read several runs and give each a label of its own: name, else folder, else path."""
    runs = [read_run(folder, FEW_SAMPLES) for folder in folders]
    paths = [str(run.path) for run in runs]
    choices = [run.name for run in runs], [run.path.resolve().name for run in runs], paths
    numbered = [f"{path} ({i})" for i, path in enumerate(paths, 1)]
    labels = next((labels for labels in choices if len(set(labels)) == len(runs)), numbered)
    for i, (run, label) in enumerate(zip(runs, labels, strict=True)):
        run.label, run.colour = label, i % COLOURS
    return runs


def _document(path: Path) -> dict[str, Any]:
    return _checked(read_json(path))


def _checked(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("it is not a mapping")
    return value


def _rows(path: Path) -> list[list[float | None]]:
    """Return the logged steps; a last line that an interruption has cut off is left out."""
    lines = path.read_text(encoding="utf-8").splitlines()
    rows: list[list[float | None]] = []
    for number, line in enumerate(lines, 1):
        try:
            row = parse_json(line)
            rows.append([_finite(row.get(name)) for name in COLUMNS])
            if rows[-1][0] is None:
                raise ValueError("no step")
        except (ValueError, AttributeError):
            if number < len(lines):
                raise ValueError(f"line {number} is not a logged step") from None
            rows = rows[: number - 1]
    every = math.ceil(len(rows) / MOST_ROWS)
    last = len(rows) - 1
    return [
        row
        for i, row in enumerate(rows)
        if i % every == 0 or i == last or row[1] != rows[i + 1][1] or row[1] != rows[i - 1][1]
    ]


def _finite(value: Any) -> float | None:
    """Return a number with six digits; None for what is none."""
    if not _is_number(value):
        return None
    return value if isinstance(value, int) else float(f"{value:.6g}")


def _samples(path: Path, most: int | None) -> SampledImages | None:
    """Return so many of a file's images, of all classes alike; None if it has points.

    Without a number, as many as SAMPLE_BYTES hold.
    """
    names = ("images", "points", "labels")
    images, points, labels = map(read_archive(path, names).get, names)
    if images is None:
        if points is None:
            raise ValueError("it has neither images nor points")
        return None
    if images.ndim != 4 or images.dtype != np.uint8 or not images.size:
        raise ValueError("its images are not n×C×H×W bytes")
    room = max(1, SAMPLE_BYTES // images[0].size) if most is None else most
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


def _png(path: Path) -> tuple[bytes, tuple[int, int]]:
    content = read_whole(path, MOST_PICTURE)
    return content, read_picture(path, "RGB").size


def _source(content: dict[str, Any]) -> str:
    """Return where the evaluated samples came from: a file, a folder."""
    return str(mapping(content.get("generated")).get("source") or "")


def _evaluation_facts(content: dict[str, Any]) -> dict[str, str]:
    """Return what stands beside the scores, in words."""
    generated, weights, device = (mapping(content.get(key)) for key in ("generated", "weights", "device"))
    evaluated, available = generated.get("count"), generated.get("available")
    of = f" of {available:,}" if _is_number(available) and available != evaluated else ""
    facts = {
        "samples evaluated": f"{evaluated:,}{of}" if _is_number(evaluated) else "",
        "SHA-256 of these samples": generated.get("sha256"),
        "weights": weights.get("file"),
        "SHA-256 of the weights": weights.get("sha256"),
        "evaluated on": device.get("name") or device.get("type"),
        "evaluated at": content.get("finished"),
    }
    versions = {f"{name} (evaluation)": version for name, version in mapping(content.get("versions")).items()}
    return {name: str(value) for name, value in {**facts, **versions}.items() if value}


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
