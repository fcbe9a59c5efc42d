"""Two sets of samples under one protocol: each scored, and the differences with their intervals."""

from __future__ import annotations

import math

import attrs
import torch

from cswf_core.errors import DataError
from cswf_core.evaluation.evaluate import Evaluation, evaluate
from cswf_core.evaluation.task import Task
from cswf_core.interfaces import Dataset
from cswf_core.interfaces.metric import Tell
from cswf_core.recipe import Recipe
from cswf_core.scores.differences import CONFIDENCE, Difference
from cswf_core.scores.document import Score, of_json
from cswf_core.scores.quantities import measured


@attrs.frozen
class Compared:
    """One score of both sets."""

    first: Score
    second: Score
    difference: Difference
    """Second minus first."""
    paired: bool
    """Whether both were computed from the same real samples, so that what these add to both cancels out."""

    def verdict(self, names: tuple[str, str]) -> str:
        """Return which set is better and by how much, in a sentence; `names` are the sets'."""
        name, better = self.first.name, self.first.better
        apart, interval = self.difference.value, self.difference.interval
        by = self._printed(abs(apart), interval)
        if interval is None:
            return f"{name}: {names[1]} has {by} {'more' if apart > 0 else 'less'}, of unknown uncertainty"
        if self.difference.is_noise:
            return f"{name}: no difference beyond noise ({self.signed})"
        if not better:
            return f"{names[apart > 0]} has {by} {name} more"
        winner = int((apart < 0) == (better == "lower"))
        if (self.first, self.second)[winner].copying:
            more = "less" if better == "lower" else "more"
            return f"{name}: {names[winner]} has {by} {more}, but copies: it is not better"
        return f"{names[winner]} is better by {by} {name}"

    @property
    def signed(self) -> str:
        """The difference with its sign and interval, by the same digits as in the verdict."""
        sign = "+" if self.difference.value > 0 else ""
        return sign + self._printed(self.difference.value, self.difference.interval)

    @property
    def values(self) -> tuple[str, str]:
        """Both scores."""
        return self._printed(self.first.value), self._printed(self.second.value)

    def _printed(self, value: float, interval: float | None = None) -> str:
        return measured(value, interval, share=self.first.share)


@attrs.frozen
class Comparing:
    """Both evaluations, and every score that both have."""

    evaluations: tuple[Evaluation, Evaluation]
    scores: tuple[Compared, ...]

    @property
    def method(self) -> str:
        """What ± means here, in a sentence."""
        paired = any(score.paired for score in self.scores)
        how = "; where both sets share the real samples' part of it, that part cancels out" if paired else ""
        return (
            f"± is the {CONFIDENCE:.0%} interval of the difference, for all scores here together, from the "
            f"standard errors of both{how}. "
            "It says nothing on other seeds of a flow: for these, compare several runs (cswf table)"
        )


def compare(
    first: Dataset,
    second: Dataset,
    task: Task,
    *,
    sources: tuple[str, str],
    notes: tuple[tuple[str, ...], tuple[str, ...]],
    recipes: tuple[Recipe | None, Recipe | None] = (None, None),
    device: torch.device,
    tell: Tell | None = None,
) -> Comparing:
    """Score two sets alike: by one seed, against the same real samples, and as many samples of each.

    FID falls with the number of samples, so of the larger set as many are drawn as the smaller has. `recipes`
    are those of sets that are runs: they say what samples were given of the images that they complete.
    """
    count = min(len(first), len(second), task.samples)
    if count < 2:
        raise DataError("two sets are compared by at least two samples of each")
    task = attrs.evolve(task, samples=count)
    bench = task.bench(tell)
    evaluations = tuple(
        evaluate(
            samples, attrs.evolve(task, recipe=recipe), source=source, device=device, notes=said, bench=bench
        )
        for samples, source, said, recipe in zip((first, second), sources, notes, recipes, strict=True)
    )
    assert len(evaluations) == 2
    return Comparing(evaluations, tuple(_compared(*evaluations)))


def _compared(first: Evaluation, second: Evaluation) -> list[Compared]:
    """Return every score, details left out, that both evaluations have."""
    theirs = {score.name: score for score in of_json(second.document).scores}
    compared = []
    for score in of_json(first.document).scores:
        other = theirs.get(score.name)
        if other is None or score.detail or not score.of_samples:
            continue
        ours, its = first.spreads.get(score.name), second.spreads.get(score.name)
        error = None if ours is None or its is None else its.error_of_difference(ours)
        if error == 0 and other.value != score.value:  # parts that agree by chance make no number certain
            error = None
        paired = ours is not None and its is not None and its.paired(ours)
        freedom = math.inf if ours is None or its is None else min(ours.freedom, its.freedom)
        compared.append(Compared(score, other, Difference(other.value - score.value, error, freedom), paired))
    among = len(compared)
    return [attrs.evolve(each, difference=attrs.evolve(each.difference, among=among)) for each in compared]
