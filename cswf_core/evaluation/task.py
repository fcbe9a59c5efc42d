"""What is to be computed: which metrics, against which real samples."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import attrs
from torch import Tensor

from cswf_core.errors import DataError
from cswf_core.flow.particles import balanced
from cswf_core.interfaces import Dataset, Workbench
from cswf_core.interfaces.metric import Tell
from cswf_core.plugins import Registry
from cswf_core.recipe import Choice, Recipe, choose

COPYING = "nearest-neighbours"
"""The metric that is computed beside all others of images: a method without a network could copy its data."""


@attrs.frozen(eq=False)
class Reference:
    """Real samples to compare with."""

    data: str
    """What they are called: a data set, a folder, a file."""
    split: str
    """`train`, `test`, or nothing where there are no splits."""
    samples: Dataset = attrs.field(repr=False)
    foreign: bool = False
    """Whether these are other data than those of the run that is scored."""

    @property
    def name(self) -> str:
        """Data and split, as `--against` takes them."""
        return f"{self.data}:{self.split}" if self.split else self.data

    @property
    def ending(self) -> str:
        """What is put behind the names of scores: of which data, if of others, and whether of a test split."""
        other = "_" + re.sub(r"\W+", "_", self.data).strip("_") if self.foreign else ""
        return other + ("_test" if self.split == "test" else "")


@attrs.frozen(eq=False, kw_only=True)
class Task:
    """Metrics, and real samples to compare with."""

    metrics: tuple[Choice, ...]
    references: tuple[Reference, ...]
    training: Dataset | None = attrs.field(default=None, repr=False)
    """What may have been copied, mirror images included."""
    held_out: Dataset | None = attrs.field(default=None, repr=False)
    data: Dataset | None = attrs.field(default=None, repr=False)
    """What completed images were taken from."""
    seed: int = 0
    samples: int = 50_000
    weights: Path | None = None
    download: bool = True

    @classmethod
    def of_recipe(cls, recipe: Recipe, data: Dataset) -> Task:
        """Return what a recipe's `evaluate:` asks for; `data` are the recipe's.

        Against `train` is against what the particles flowed to: the data, or what the condition took of them.
        """
        section = recipe.evaluation
        splits = section.against if recipe.metrics else ()
        return cls(
            metrics=with_copying(recipe.metrics, data, recipe.registry),
            references=references_of(recipe, data, splits),
            training=data,
            held_out=data.held_out,
            data=data,
            seed=recipe.seed,
            samples=section.samples,
            weights=section.weights,
            download=section.download,
        )

    def bench(self, tell: Tell | None = None) -> Workbench:
        """Return what the metrics share."""
        names = {reference.samples: reference.name for reference in self.references}
        first = next(iter(self.references), None)
        if first is not None:  # real samples that no score is taken against are cached by name as well
            for samples, split in ((self.training, "seen"), (self.held_out, "test")):
                if samples is not None:
                    names.setdefault(samples, f"{first.data}:{split}")
        bench = Workbench(names=names, weights=self.weights, download=self.download)
        return bench if tell is None else attrs.evolve(bench, tell=tell)

    def check(self, like: Dataset) -> None:
        """Raise what is already certain to go wrong for samples like these, before anything is computed."""
        bench = self.bench()
        for metric in self.metrics:
            metric.checked.check(like, bench)

    def originals(self, generated: Dataset) -> Tensor | None:
        """Return what generated samples are completions of: d×n; None if they are none."""
        if self.data is None or generated.conditions.origin is None:
            return None
        return self.data.originals(generated.conditions)


def references_of(recipe: Recipe, data: Dataset, splits: Sequence[str]) -> tuple[Reference, ...]:
    """Return splits of a recipe's data to compare with."""
    target = balanced(data.genuine(), recipe.condition.checked, recipe.seed)
    return references(recipe.data.name, target, splits)


def references(name: str, data: Dataset, splits: Sequence[str]) -> tuple[Reference, ...]:
    """Return the splits of a data set that are asked for; mirror images are left out."""
    found = []
    for split in splits:
        samples = data.genuine() if split == "train" else data.held_out
        if samples is None:
            raise DataError(f"scores against 'test' are asked for, and dataset '{name}' holds nothing out")
        found.append(Reference(name, data.split if split == "train" else split, samples))
    return tuple(found)


def with_copying(metrics: Sequence[Choice], data: Dataset, registry: Registry) -> tuple[Choice, ...]:
    """Return metrics with the one that tells copies, by pixels, where images are scored and it is not there."""
    there = any(metric.plugin.owner.name == COPYING for metric in metrics)
    if not metrics or there or not data.space.is_image or len(data) < 2:
        return tuple(metrics)
    return (*metrics, choose(registry, "metric", f"{{use: {COPYING}, spaces: [pixels]}}", "evaluation"))
