"""Replicas: runs that differ in their seed only, taken together as a mean and a standard deviation."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from cswf_core.recipe.render import flattened
from cswf_core.scores.differences import Estimate
from cswf_core.scores.document import Score, ScoreDocument
from cswf_core.scores.quantities import Quantity, quantity

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


def summaries(documents: Sequence[ScoreDocument]) -> dict[str, Summary]:
    """Return the scores of replicas by name, in the order of the first document that has them."""
    names = dict.fromkeys(score.name for document in documents for score in document.scores)
    by_run = [{score.name: score for score in document.scores} for document in documents]
    return {name: Summary(tuple(run[name] for run in by_run if name in run)) for name in names}


def common_label(labels: Sequence[str], folders: Sequence[Path]) -> str:
    """Return what replicas are called together: their label if it is one, else the folder they lie in."""
    if len(set(labels)) == 1:
        return labels[0]
    parents = {folder.resolve().parent.name for folder in folders}
    return parents.pop() if len(parents) == 1 else labels[0]
