"""What is in a run's folder, as far as it can be read: nothing that is missing or damaged stops a report."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import attrs
import numpy as np
import yaml
from numpy.typing import NDArray
from PIL import Image

from cswf_core.errors import RunError
from cswf_core.pictures.moments import Moments
from cswf_core.report.scores import Evaluation, flat, parsed

MOST_ROWS = 3000
"""Logged steps that curves are drawn from; of a longer log, evenly spaced ones and the ends of stages."""

MOST_SHOWN = 100
MOST_OF_A_CLASS = 12
"""Samples that are kept to be shown: without classes, and of each class."""

COLUMNS = ("step", "stage", "sliced_distance", "displacement", "seconds")

T = TypeVar("T")


@attrs.frozen(eq=False)
class Samples:
    """Some of the images in samples.npz (n×C×H×W bytes), with their labels (n) if they have any; no points."""

    images: NDArray[np.uint8] | None
    labels: NDArray[np.int64] | None
    count: int
    """How many samples the run has made."""


@attrs.define(eq=False)
class Run:
    """One run, read from its folder. What is not there is None or empty, what is damaged has a sentence."""

    path: Path
    label: str
    facts: dict[str, Any] = attrs.field(factory=dict)
    recipe_text: str = ""
    recipe: dict[str, Any] = attrs.field(factory=dict)
    rows: list[list[float | None]] = attrs.field(factory=list)
    """A list of COLUMNS per logged step."""
    samples: Samples | None = None
    moments: Moments | None = None
    evaluation: Evaluation | None = None
    problems: dict[str, str] = attrs.field(factory=dict)
    """File → a sentence on what is wrong with it."""

    @property
    def name(self) -> str:
        """The recipe's name, or the folder's if nothing says it."""
        return str(self.facts.get("name") or self.recipe.get("name") or self.path.resolve().name)

    @property
    def description(self) -> str:
        """What the recipe says it is for."""
        return str(self.recipe.get("description") or "")

    @property
    def data_name(self) -> str:
        """The name of the data set's plugin."""
        plugins = self.facts.get("plugins")
        owner = plugins.get("data") if isinstance(plugins, dict) else None
        data = self.recipe.get("data")
        named = owner.get("name") if isinstance(owner, dict) else None
        return str(named or (data.get("use") if isinstance(data, dict) else data) or "")

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes, where the run has kept them."""
        return self.moments.classes if self.moments is not None else ()

    def picture(self, name: str) -> tuple[bytes, tuple[int, int]] | None:
        """Return a PNG of the folder with its width and height; None if it is not there or damaged."""
        return self._read(name, _checked_png)

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


def read_run(folder: Path) -> Run:
    """Read a run's folder; raises `RunError` if it is none."""
    if not folder.is_dir() or not any((folder / name).is_file() for name in ("run.json", "recipe.yaml")):
        raise RunError(f"{folder} is not the folder of a run: it has neither run.json nor recipe.yaml")
    run = Run(folder, label="")
    run.facts = run._read("run.json", _mapping) or {}
    run.recipe_text = run._read("recipe.yaml", lambda path: path.read_text(encoding="utf-8")) or ""
    run.recipe = run._read("recipe.yaml", _recipe) or {}
    run.rows = run._read("metrics.jsonl", _rows) or []
    run.samples = run._read("samples.npz", _samples)
    run.moments = run._read("frames.npz", Moments.read)
    run.evaluation = run._read("metrics.json", lambda path: parsed(_mapping(path)))
    if run.evaluation is None:
        run.evaluation = flat(run.facts.get("metrics"))
    run.label = run.name
    return run


def read_runs(folders: Sequence[Path]) -> list[Run]:
    """Read several runs and give each a label of its own: name, else folder, else path."""
    runs = [read_run(folder) for folder in folders]
    choices: tuple[Callable[[Run], str], ...] = (
        lambda run: run.name,
        lambda run: run.path.resolve().name,
        lambda run: str(run.path),
    )
    for choice in choices:
        labels = [choice(run) for run in runs]
        if len(set(labels)) == len(runs):
            break
    else:
        labels = [f"{label} ({i})" for i, label in enumerate(labels, 1)]
    for run, label in zip(runs, labels, strict=True):
        run.label = label
    return runs


def _mapping(path: Path) -> dict[str, Any]:
    value = json.loads(path.read_bytes())
    if not isinstance(value, dict):
        raise ValueError("it is not a mapping")
    return value


def _recipe(path: Path) -> dict[str, Any]:
    value = yaml.safe_load(path.read_bytes())
    if not isinstance(value, dict):
        raise ValueError("it is not a mapping")
    return value


def _rows(path: Path) -> list[list[float | None]]:
    """Return the logged steps; a last line that an interruption has cut off is left out."""
    lines = path.read_text(encoding="utf-8").splitlines()
    rows: list[list[float | None]] = []
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
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
    """Return a number with five digits; None for what is none."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return value if isinstance(value, int) else float(f"{value:.6g}")


def _samples(path: Path) -> Samples:
    with np.load(path) as arrays:
        found = {name: arrays[name] for name in ("images", "points", "labels") if name in arrays.files}
    images, labels = found.get("images"), found.get("labels")
    if images is None:
        return Samples(None, None, len(found["points"]))
    if images.ndim != 4 or images.dtype != np.uint8 or not len(images):
        raise ValueError("its images are not n×C×H×W bytes")
    if labels is None:
        return Samples(images[:MOST_SHOWN].copy(), None, len(images))
    if labels.shape != (len(images),):
        raise ValueError("it has not a label for each sample")
    chosen = np.concatenate([np.flatnonzero(labels == c)[:MOST_OF_A_CLASS] for c in np.unique(labels)])
    return Samples(images[chosen], labels[chosen], len(images))


def _checked_png(path: Path) -> tuple[bytes, tuple[int, int]]:
    content = path.read_bytes()
    with Image.open(io.BytesIO(content)) as picture:
        if picture.format != "PNG":
            raise ValueError("it is not a PNG")
        picture.load()
        return content, picture.size
