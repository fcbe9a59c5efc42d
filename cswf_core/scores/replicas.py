"""Replicas: runs that differ in their seed only, taken together as a mean and a standard deviation."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import attrs
import torch

from cswf_core.arrays import read_archive
from cswf_core.documents import is_file_name, read_json, short
from cswf_core.errors import CswfError, OtherFormatError, RunError
from cswf_core.interfaces.dataset import digest_of
from cswf_core.nodes import RecipeError
from cswf_core.recipe.render import flattened, from_yaml, short_paths
from cswf_core.runs.folder import RunFolder
from cswf_core.runs.scores import Score, mapping, read_scores
from cswf_core.scores.layout import Quantity, quantity

CONFIDENCE = 0.95
"""Of intervals: that of the true difference lies within, if errors are what they are said to be."""


@attrs.frozen
class Estimate:
    """A score, the mean of several, or a difference of two, with its standard error."""

    value: float
    error: float | None = None
    """Its standard error; None: not known."""
    freedom: float = math.inf
    """Degrees of freedom of that error (Student's t): few seeds make a wide interval."""
    among: int = 1
    """How many differences are looked at together: all are within their intervals at once (Bonferroni)."""

    @property
    def interval(self) -> float | None:
        """Half of the interval of CONFIDENCE around it; None where its error is not known."""
        from scipy.special import ndtri, stdtrit  # only now: it takes a while to import

        if self.error is None:
            return None
        level = 1 - (1 - CONFIDENCE) / 2 / self.among
        quantile = ndtri(level) if math.isinf(self.freedom) else stdtrit(max(self.freedom, 1.0), level)
        return self.error * float(quantile)

    @property
    def is_noise(self) -> bool:
        """Whether a difference may be chance: the interval has 0 in it, or nobody knows its width."""
        return self.interval is None or abs(self.value) <= self.interval

    def minus(self, other: Estimate) -> Estimate:
        """Return the difference of independent estimates; degrees of freedom by Welch and Satterthwaite."""
        if self.error is None or other.error is None:
            return Estimate(self.value - other.value)
        squares = (self.error**2, other.error**2)
        total = sum(squares)
        shares = sum(
            (square / total) ** 2 / each.freedom
            for square, each in zip(squares, (self, other), strict=True)
            if total and not math.isinf(each.freedom)
        )
        return Estimate(self.value - other.value, math.sqrt(total), 1 / shares if shares else math.inf)


def best(estimates: Sequence[Estimate | None], better: str) -> int | None:
    """Return which estimate is the best beyond noise; None where none is, or nothing can be told."""
    there = {i: estimate for i, estimate in enumerate(estimates) if estimate is not None}
    if better not in ("lower", "higher") or len(there) < 2:
        return None
    sign = 1 if better == "lower" else -1
    first, *others = sorted(there, key=lambda i: sign * there[i].value)
    differences = [there[first].minus(there[other]) for other in others]
    clear = all(not attrs.evolve(each, among=len(others)).is_noise for each in differences)
    return first if clear else None


UNCOMPARED = ("seed", "name", "description")
"""Keys of a recipe by which replicas may differ."""


def groups(recipes: Sequence[Mapping[str, Any]]) -> list[list[int]]:
    """Return the numbers of the recipes that are alike but for their seed, group by group in their order.

    A recipe that is not known (an empty one), or one that is there twice with one seed, is a group of its own.
    """
    alike: dict[str, list[int]] = {}
    seeds: dict[str, set[Any]] = {}
    for number, recipe in enumerate(recipes):
        flat = flattened(dict(recipe))
        key = repr(sorted((name, value) for name, value in flat.items() if name not in UNCOMPARED))
        seed = flat.get("seed")
        if not recipe or seed in seeds.setdefault(key, set()):
            key = f"{number} alone"
        seeds.setdefault(key, set()).add(seed)
        alike.setdefault(key, []).append(number)
    return list(alike.values())


@attrs.frozen
class Summary:
    """One score of replicas: their mean and standard deviation, or of a single run with its standard error."""

    scores: tuple[Score, ...]
    """One for each run that has it, at least one."""

    @property
    def first(self) -> Score:
        """The score of the first run, for its name and meaning."""
        return self.scores[0]

    @property
    def mean(self) -> float:
        """The mean over runs."""
        return statistics.fmean(score.value for score in self.scores)

    @property
    def deviation(self) -> float | None:
        """The standard deviation over seeds (with n − 1); None for a single run."""
        return statistics.stdev(score.value for score in self.scores) if len(self.scores) > 1 else None

    @property
    def spread(self) -> float | None:
        """What stands behind ±: the deviation over seeds, else the single score's standard error."""
        return self.first.error if self.deviation is None else self.deviation

    @property
    def spread_method(self) -> str:
        """What it is, in words; nothing where there is no spread."""
        if self.deviation is not None:
            method = f"standard deviation over {len(self.scores)} seeds"
            return method if self.deviation else f"{method}, which all have the same value"
        if not self.first.error:
            return ""
        method = f": {self.first.error_method}" if self.first.error_method else ""
        return f"standard error of one run's score{method}"

    @property
    def remark(self) -> str:
        """What is printed instead of ± 0, where all seeds have the same value; else nothing."""
        count = len(self.scores)
        return f"{'both' if count == 2 else f'all {count}'} seeds" if self.deviation == 0 else ""

    def printed(self, spread: float | None, *, share: bool = False, best: bool = False) -> Quantity:
        """Return the mean with a spread, or with the remark."""
        return attrs.evolve(quantity(self.mean, spread, share=share, best=best), remark=self.remark)

    @property
    def estimate(self) -> Estimate:
        """The mean with its standard error, to be compared with others.

        An error of 0 is none: seeds that agree by chance, as few samples may, do not make a number certain.
        """
        if self.deviation is None:
            return Estimate(self.mean, self.first.error or None, self.first.error_freedom)
        count = len(self.scores)
        return Estimate(self.mean, self.deviation / math.sqrt(count) or None, count - 1)

    @property
    def ranked(self) -> Estimate | None:
        """The estimate to rank it by; None where the samples include copies, which improve most scores."""
        return None if any(score.copying for score in self.scores) else self.estimate

    @property
    def basis(self) -> tuple[Any, ...] | None:
        """What all of the runs' scores were computed by; None if that is not one and the same."""
        bases = {score.basis for score in self.scores}
        return bases.pop() if len(bases) == 1 else None


def common_label(labels: Sequence[str], folders: Sequence[Path]) -> str:
    """Return what replicas are called together: their label if it is one, else the folder they lie in."""
    if len(set(labels)) == 1:
        return labels[0]
    parents = {folder.resolve().parent.name for folder in folders}
    return parents.pop() if len(parents) == 1 else labels[0]


@attrs.define(eq=False, slots=False)
class Group:
    """Runs that differ in their seed only, at least one."""

    runs: Sequence[RunFolder]
    label: str = ""

    @property
    def first(self) -> RunFolder:
        """The first of the runs, for all that they share."""
        return self.runs[0]

    @property
    def seeds(self) -> list[int]:
        """The seeds of the runs whose recipe is known."""
        return [run.seed for run in self.runs if run.seed is not None]

    @cached_property
    def summaries(self) -> dict[str, Summary]:
        """What the runs score together: name of a score → mean and spread."""
        by_run = [{score.name: score for score in run.scores.scores} for run in self.runs]
        names = dict.fromkeys(name for scores in by_run for name in scores)
        return {name: Summary(tuple(run[name] for run in by_run if name in run)) for name in names}

    @cached_property
    def flat(self) -> dict[str, str]:
        """The recipe's values by key path, but for those in which replicas may differ."""
        values = flattened(self.first.recipe)
        return {key: value for key, value in values.items() if key not in UNCOMPARED}

    def seeds_of(self, name: str) -> list[int]:
        """Return the seeds of the runs that have a score."""
        having = [run for run in self.runs if any(score.name == name for score in run.scores.scores)]
        return [run.seed for run in having if run.seed is not None]

    def plain(self, names: Sequence[str] | None = None) -> dict[str, Any]:
        """Return it as JSON has it: label, folders, seeds, and the scores of some names, or all."""
        chosen = (
            self.summaries if names is None else {n: self.summaries[n] for n in names if n in self.summaries}
        )
        return {
            "label": self.label,
            "name": self.first.name,
            "folders": [str(run.path) for run in self.runs],
            "seeds": self.seeds,
            "scores": {
                name: {
                    "mean": summary.mean,
                    "deviation": summary.deviation,
                    "error": summary.estimate.error,
                    "n": len(summary.scores),
                    "seeds": self.seeds_of(name),
                    "method": summary.spread_method,
                    "values": [score.value for score in summary.scores],
                    "detail": summary.first.detail,
                }
                for name, summary in chosen.items()
            },
        }


def grouped(runs: Sequence[RunFolder]) -> list[Group]:
    """Return runs in groups of replicas, in their order, each with a label of its own."""
    made = [Group([runs[i] for i in numbers]) for numbers in groups([run.recipe for run in runs])]
    for group, label in zip(made, _labels(made), strict=True):
        group.label = label
    return made


def _labels(made: Sequence[Group]) -> list[str]:
    """Return a label for each group: the recipe's name, and where several share it, the keys that differ."""
    names = [group.first.name for group in made]
    labels = []
    for group, name in zip(made, names, strict=True):
        alike = [other for other in made if other.first.name == name]
        if len(alike) == 1:
            labels.append(name)
            continue
        single = all(len(other.runs) == 1 and other.first.label for other in alike)  # runs of a sweep
        own = (group.first.label if single else "") or _differing(group, alike)
        if not own:
            folders = [run.path for run in group.runs]
            own = common_label([folder.resolve().name for folder in folders], folders)
        labels.append(own if len(alike) == len(made) else f"{name}, {own}")
    return [
        label if labels.count(label) == 1 else f"{label} ({group.first.path})"
        for label, group in zip(labels, made, strict=True)
    ]


def _differing(group: Group, alike: Sequence[Group]) -> str:
    """Return the values of the keys in which recipes differ; nothing if they are more than 4, or not known."""
    if not all(other.flat for other in alike):
        return ""
    keys = [
        key
        for key in dict.fromkeys(key for other in alike for key in other.flat)
        if len({other.flat.get(key) for other in alike}) > 1
    ]
    if not 0 < len(keys) <= 4:
        return ""
    pairs = zip(short_paths(keys), keys, strict=True)
    return ", ".join(f"{name}={group.flat.get(key, 'none')}" for name, key in pairs)


def first_summaries(groups_of_runs: Sequence[Group]) -> dict[str, Summary]:
    """Return each score's first summary, by name, in the order in which groups have them."""
    first: dict[str, Summary] = {}
    for group in groups_of_runs:
        for name, summary in group.summaries.items():
            first.setdefault(name, summary)
    return first


def read_scored(folders: Iterable[Path]) -> tuple[list[RunFolder], list[str]]:
    """Return the scored runs of folders, each once, and a sentence on each thing that a reader has to know.

    A folder is a run's, a sweep's for all of its runs, or has just a metrics.json. The label of a run is that
    in its sweep. Raises `RunError` for one without scores, and for a run that is not done; in a sweep such runs
    are told and left out.
    """
    runs: dict[Path, RunFolder] = {}
    told: list[str] = []
    for folder in folders:
        chosen = _of_sweep(folder, told) if (folder / "sweep.json").is_file() else [_scored(folder, told)]
        for run in chosen:
            runs.setdefault(run.path.resolve(), run)
    return list(runs.values()), told


def _of_sweep(folder: Path, told: list[str]) -> list[RunFolder]:
    """Return the runs that a sweep lists and that are done, in its order; never one outside its folder."""
    path = folder / "sweep.json"
    try:
        listed = [(str(row["label"]), str(row["folder"])) for row in read_json(path)]
    except (OSError, ValueError) as error:
        raise RunError(f"{path} cannot be read ({short(error)})") from None
    except (TypeError, KeyError):
        raise RunError(f"{path} is damaged: it is not a list of runs with their labels and folders") from None
    runs = []
    for label, name in listed:
        if is_file_name(name):
            try:
                runs.append(_scored(folder / name, told, label))
            except RunError as error:
                told.append(f"{error}; left out")
    if not runs:
        raise RunError(f"{folder} is the folder of a sweep, and none of its runs is done and has scores")
    return runs


def _scored(folder: Path, told: list[str], label: str = "") -> RunFolder:
    """Return one run, or a folder with a metrics.json; raise `RunError` if it cannot be in a table."""
    run = RunFolder(folder, label)
    if not folder.is_dir():
        raise RunError(
            f"{folder} {'is not a folder' if folder.exists() else 'does not exist'}; RUN is a folder"
        )
    facts = run.facts()
    if facts is not None and facts.status != "done":
        raise RunError(f"{folder} is not done: its status is '{facts.status}'")
    path = run.file("metrics.json")
    if not path.is_file():
        advice = f"`cswf eval {folder}` computes some" if facts is not None else "it is no run's folder"
        raise RunError(f"{folder} has no scores (metrics.json): {advice}")
    try:
        run.scores = read_scores(path)
    except (OSError, ValueError, OtherFormatError) as error:
        raise RunError(f"{path} cannot be read: {short(error)}") from None
    if not run.scores.scores:
        raise RunError(f"{path} has no scores; `cswf eval {folder}` computes some")
    for score in run.scores.scores:
        if max(abs(score.value), score.error or 0.0) > 1e100:  # squares of it would be no numbers any more
            raise RunError(f"{path}: {score.name} is {score.value:.3g}, which is no score")
    told += _other_samples(run)
    file = run.file("recipe.yaml")
    try:  # by the rules of recipes, and without any that cannot be read
        run.recipe = mapping(from_yaml(file.read_text(encoding="utf-8"))) if file.is_file() else {}
    except (OSError, ValueError, RecipeError):
        run.recipe = {}
    return run


def _other_samples(run: RunFolder) -> list[str]:
    """Return a sentence for each file of samples that is not the one that was scored."""
    scored: dict[str, dict[str, list[str]]] = {}
    for score in run.scores.scores:
        if score.all_samples_digest and is_file_name(score.source) and score.source.endswith(".npz"):
            names = scored.setdefault(score.source, {}).setdefault(score.all_samples_digest, [])
            names.append(score.name)
    told = []
    for name, by_digest in scored.items():
        file = run.file(name)
        if not file.is_file():
            continue
        try:
            held = read_archive(file, ("images", "points"))
            samples = [torch.from_numpy(array) for array in held.values()]
        except (CswfError, TypeError) as error:
            told.append(f"{error}; nobody can say whether its samples are those that were scored")
            continue
        # An evaluation by a command reads points as float32, so that these have two digests.
        samples += [each.float() for each in samples if each.is_floating_point()]
        digests = set(map(digest_of, samples))
        stale = [score for digest, names in by_digest.items() if digest not in digests for score in names]
        if stale:
            more = f" and {len(stale) - 3} more" if len(stale) > 3 else ""
            told.append(f"{file} has other samples than those that were scored: {', '.join(stale[:3])}{more}")
    return told
