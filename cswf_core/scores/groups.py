"""Groups of replicas: runs that differ in their seed only, one row of a table, with a label of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import attrs

from cswf_core.recipe.render import flattened, short_paths
from cswf_core.scores.replicas import UNCOMPARED, Summary, common_label, groups, summaries
from cswf_core.scores.scored import ScoredRun

MOST_KEYS = 4
"""Keys of recipes that a label names at most."""

ABSENT = "none"
"""The value in labels of a key that a recipe does not have."""


@attrs.define(eq=False, slots=False)
class Group:
    """Runs that differ in their seed only, at least one."""

    runs: Sequence[ScoredRun]
    label: str = ""

    @property
    def first(self) -> ScoredRun:
        """The first of the runs, for all that they share."""
        return self.runs[0]

    @property
    def seeds(self) -> list[int]:
        """The seeds of the runs whose recipe is known."""
        return [run.seed for run in self.runs if run.seed is not None]

    @cached_property
    def summaries(self) -> dict[str, Summary]:
        """What the runs score together: name of a score → mean and spread."""
        return summaries([run.document for run in self.runs])

    @cached_property
    def flat(self) -> dict[str, str]:
        """The recipe's values by key path, but for those in which replicas may differ."""
        values = flattened(self.first.recipe) if self.first.recipe else {}
        return {key: value for key, value in values.items() if key not in UNCOMPARED}

    def seeds_of(self, name: str) -> list[int]:
        """Return the seeds of the runs that have a score."""
        having = [run for run in self.runs if any(score.name == name for score in run.document.scores)]
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


def grouped(runs: Sequence[ScoredRun]) -> list[Group]:
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
        own = _swept(group, alike) or _differing(group, alike) or _folder(group)
        labels.append(own if len(alike) == len(made) else f"{name}, {own}")
    return [
        label if labels.count(label) == 1 else f"{label} ({group.first.path})"
        for label, group in zip(labels, made, strict=True)
    ]


def _swept(group: Group, alike: Sequence[Group]) -> str:
    """Return the label of a sweep's only run in each group; nothing if there are others."""
    single = all(len(other.runs) == 1 and other.first.swept_as for other in alike)
    return group.first.swept_as if single else ""


def _differing(group: Group, alike: Sequence[Group]) -> str:
    """Return the values of the keys in which recipes differ; nothing if they are many, or not known."""
    if not all(other.flat for other in alike):
        return ""
    keys = [
        key
        for key in dict.fromkeys(key for other in alike for key in other.flat)
        if len({other.flat.get(key) for other in alike}) > 1
    ]
    if not 0 < len(keys) <= MOST_KEYS:
        return ""
    pairs = zip(short_paths(keys), keys, strict=True)
    return ", ".join(f"{name}={group.flat.get(key, ABSENT)}" for name, key in pairs)


def _folder(group: Group) -> str:
    return common_label([run.path.resolve().name for run in group.runs], [run.path for run in group.runs])


def listed(groups_of_runs: Sequence[Group]) -> Mapping[str, Summary]:
    """Return each score's first summary, by name, in the order in which groups have them."""
    first: dict[str, Summary] = {}
    for group in groups_of_runs:
        for name, summary in group.summaries.items():
            first.setdefault(name, summary)
    return first
