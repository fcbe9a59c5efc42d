"""Runs with their scores, as tables take them: read from folders, and what is wrong with them told."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import attrs
import torch

from cswf_core.arrays import read_archive
from cswf_core.documents import is_file_name, read_json, short
from cswf_core.errors import CswfError, RunError
from cswf_core.interfaces.dataset import digest_of
from cswf_core.nodes import RecipeError
from cswf_core.recipe.render import from_yaml
from cswf_core.runs.folder import RunFolder
from cswf_core.scores.document import ScoreDocument, mapping, read_scores

SCORES = "metrics.json"
SWEEP = "sweep.json"

LARGEST = 1e100
"""Scores beyond this are no scores: squares of them would be no numbers any more."""


@attrs.frozen
class ScoredRun:
    """The scores of one folder, and the recipe of its run where there is one."""

    path: Path
    document: ScoreDocument
    recipe: dict[str, Any] = attrs.field(factory=dict)
    """The resolved recipe; empty: not known."""
    swept_as: str = ""
    """Its label in a sweep, if it is a part of one."""

    @property
    def name(self) -> str:
        """The recipe's name, or the folder's."""
        return str(self.recipe.get("name") or self.path.resolve().name)

    @property
    def seed(self) -> int | None:
        """The seed of the flow; None: not known."""
        seed = self.recipe.get("seed")
        return seed if isinstance(seed, int) and not isinstance(seed, bool) else None


def read_scored(folders: Iterable[Path]) -> tuple[list[ScoredRun], list[str]]:
    """Return the scored runs of folders, each once, and a sentence on each thing that a reader has to know.

    A folder is a run's, a sweep's for all of its runs, or has just a metrics.json. Raises `RunError` for one
    without scores, and for a run that is not done; in a sweep such runs are told and left out.
    """
    runs: dict[Path, ScoredRun] = {}
    told: list[str] = []
    for folder in folders:
        chosen = _of_sweep(folder, told) if (folder / SWEEP).is_file() else [_scored(folder, told)]
        for run in chosen:
            runs.setdefault(run.path.resolve(), run)
    return list(runs.values()), told


def _of_sweep(folder: Path, told: list[str]) -> list[ScoredRun]:
    """Return the runs that a sweep lists and that are done, in its order."""
    runs = []
    for label, name in _listed(folder):
        try:
            runs.append(attrs.evolve(_scored(folder / name, told), swept_as=label))
        except RunError as error:
            told.append(f"{error}; left out")
    if not runs:
        raise RunError(f"{folder} is the folder of a sweep, and none of its runs is done and has scores")
    return runs


def _listed(folder: Path) -> list[tuple[str, str]]:
    """Return label and folder of each run in a sweep.json, never one outside."""
    path = folder / SWEEP
    try:
        rows = read_json(path)
        listed = [(str(row["label"]), str(row["folder"])) for row in rows]
    except (OSError, ValueError) as error:
        raise RunError(f"{path} cannot be read ({short(error)})") from None
    except (TypeError, KeyError):
        raise RunError(f"{path} is damaged: it is not a list of runs with their labels and folders") from None
    return [(label, name) for label, name in listed if is_file_name(name)]


def _scored(folder: Path, told: list[str]) -> ScoredRun:
    """Return one run, or a folder with a metrics.json; raise `RunError` if it cannot be in a table."""
    if not folder.is_dir():
        raise RunError(
            f"{folder} {'is not a folder' if folder.exists() else 'does not exist'}; RUN is a folder"
        )
    facts = RunFolder(folder).facts()
    if facts is not None and facts.status != "done":
        raise RunError(f"{folder} is not done: its status is '{facts.status}'")
    path = folder / SCORES
    if not path.is_file():
        advice = f"`cswf eval {folder}` computes some" if facts is not None else "it is no run's folder"
        raise RunError(f"{folder} has no scores ({SCORES}): {advice}")
    try:
        document = read_scores(path)
    except (OSError, ValueError) as error:
        raise RunError(f"{path} cannot be read: {short(error)}") from None
    if not document.scores:
        raise RunError(f"{path} has no scores; `cswf eval {folder}` computes some")
    for score in document.scores:
        if max(abs(score.value), score.error or 0.0) > LARGEST:
            raise RunError(f"{path}: {score.name} is {score.value:.3g}, which is no score")
    told += _other_samples(folder, document)
    return ScoredRun(folder, document, _recipe(folder))


def _recipe(folder: Path) -> dict[str, Any]:
    """Return a run's recipe.yaml; an empty one if it has none that can be read."""
    file = folder / "recipe.yaml"
    try:
        return mapping(from_yaml(file.read_text(encoding="utf-8"))) if file.is_file() else {}
    except (OSError, ValueError, RecipeError):
        return {}


def _other_samples(folder: Path, document: ScoreDocument) -> list[str]:
    """Return a sentence for each file of samples that is not the one that was scored."""
    scored: dict[str, dict[str, list[str]]] = {}
    for score in document.scores:
        if score.all_samples_digest and is_file_name(score.source) and score.source.endswith(".npz"):
            names = scored.setdefault(score.source, {}).setdefault(score.all_samples_digest, [])
            names.append(score.name)
    told = []
    for name, by_digest in scored.items():
        file = folder / name
        if not file.is_file():
            continue
        try:
            digests = digests_of_samples(file)
        except (CswfError, TypeError) as error:
            told.append(f"{error}; nobody can say whether its samples are those that were scored")
            continue
        stale = [score for digest, names in by_digest.items() if digest not in digests for score in names]
        if stale:
            more = f" and {len(stale) - 3} more" if len(stale) > 3 else ""
            told.append(f"{file} has other samples than those that were scored: {', '.join(stale[:3])}{more}")
    return told


def digests_of_samples(file: Path) -> set[str]:
    """Return the SHA-256 that the samples of an .npz file may have in a document of scores.

    Images have one. Points have two, as an evaluation by a command reads them as float32.
    """
    held = read_archive(file, ("images", "points"))
    samples: Sequence[torch.Tensor] = [torch.from_numpy(array) for array in held.values()]
    return {digest_of(each) for each in samples} | {
        digest_of(each.float()) for each in samples if each.is_floating_point()
    }
