"""The task of an evaluation: its metrics, and the real samples to compare with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import attrs
import torch
from torch import Tensor

from cswf_core.errors import DataError
from cswf_core.evaluation.samples import SPLITS, TRAINING_CALLED, RealSamples, Reference, in_memory, references
from cswf_core.flow.particles import balanced
from cswf_core.interfaces import Dataset, Key, Workbench
from cswf_core.interfaces.metric import FEATURE_PRECISION, FeaturePrecision, Tell
from cswf_core.plugins import Registry
from cswf_core.recipe import Choice, Recipe, choose
from cswf_core.recipe.build import load_everything

COPYING = "nearest-neighbours"
"""The metric that is computed beside all others of images: a method without a network could copy its data."""

PRODUCTS = 200_000_000_000
"""Multiplications that it may spend on a CPU where nobody has asked for it: seconds, not minutes."""


@attrs.frozen(eq=False, kw_only=True)
class Task:
    """Metrics, and real samples to compare with."""

    metrics: tuple[Choice, ...]
    references: tuple[Reference, ...]
    training: Dataset | None = attrs.field(default=None, repr=False)
    """Data that may have been copied."""
    training_called: str = TRAINING_CALLED
    """What these are called in sentences."""
    of_training: int | None = None
    """How many such data there are, if `training` are only some of them; None: they are all."""
    mirrored: Dataset | None = attrs.field(default=None, repr=False)
    """Their mirror images, if the flow has seen these too."""
    held_out: Dataset | None = attrs.field(default=None, repr=False)
    data: Dataset | None = attrs.field(default=None, repr=False)
    """Data whose images the samples complete."""
    seed: int = 0
    """Of the evaluation's own choices; the same for all runs, unless somebody wants others."""
    samples: int = 50_000
    """Generated samples to score, at most."""
    weights: Path | None = None
    download: bool = True
    precision: FeaturePrecision = FEATURE_PRECISION

    @classmethod
    def of_recipe(cls, recipe: Recipe, data: Dataset) -> Task:
        """Return the task that a recipe's `evaluate:` describes; `data` are the recipe's.

        Scores against `train` are against the target of the flow: the data, or what the condition took of them.
        """
        section = recipe.evaluation
        splits = section.against if recipe.metrics else ()
        training, mirrored = in_memory(data, section.samples)
        available = len(data.genuine())
        return cls(
            metrics=with_copying(recipe.metrics, data, recipe.registry) if section.copying else recipe.metrics,
            references=_own_references(recipe, training, splits, data),
            training=training,
            of_training=available if available > len(training) else None,
            mirrored=mirrored,
            held_out=training.held_out,
            data=data,
            seed=section.seed,
            samples=section.samples,
            weights=section.weights,
            download=section.download,
            precision=section.precision,
        )

    @classmethod
    def of_run(
        cls, recipe: Recipe, real: Sequence[RealSamples], metrics: Sequence[Choice], *, copying: bool = True
    ) -> Task:
        """Return the task for a run's samples: its recipe's data and metrics, where none are given.

        Without `copying`, copies are looked for only if a metric does.
        """
        data = load_everything(recipe)
        task = cls.of_recipe(recipe, data)
        assert task.training is not None
        splits = [split for split in SPLITS if split == "train" or data.held_out is not None]
        own = _own_references(recipe, task.training, splits, data)
        digests = {reference.samples.shown_digest() for reference in own} if real else set()
        others = tuple(
            attrs.evolve(reference, foreign=reference.samples.shown_digest() not in digests).like(data)
            for each in real
            for reference in each.references
        )
        chosen = tuple(metrics) or recipe.metrics or _default_metrics(recipe.registry, data)
        if copying and recipe.evaluation.copying:
            chosen = with_copying(chosen, data, recipe.registry)
        return attrs.evolve(task, metrics=chosen, references=others or own)

    @classmethod
    def of_images(
        cls,
        real: Sequence[RealSamples],
        metrics: Sequence[Choice],
        registry: Registry,
        *,
        copying: bool = True,
    ) -> Task:
        """Return the task for images of any program; copies are looked for in the first real samples."""
        first = real[0]
        data = first.references[0].samples
        chosen = tuple(metrics) or _default_metrics(registry, data)
        return cls(
            metrics=with_copying(chosen, data, registry) if copying else chosen,
            references=tuple(reference.like(data) for each in real for reference in each.references),
            training=first.training,
            training_called=first.training_called,
            mirrored=first.mirrored,
            held_out=first.held_out,
        )

    def adjusted(
        self,
        *,
        count: int | None,
        weights: Path | None,
        download: bool,
        precision: FeaturePrecision | None,
        seed: int | None,
    ) -> Task:
        """Return the task with what somebody has asked for in place of what the recipe says; None: as it is."""
        return attrs.evolve(
            self,
            samples=self.samples if count is None else count,
            weights=self.weights if weights is None else weights,
            download=self.download and download,
            precision=self.precision if precision is None else precision,
            seed=self.seed if seed is None else seed,
        )

    def bench(self, tell: Tell | None = None) -> Workbench:
        """Return the workbench that the metrics share."""
        names = {reference.samples: reference.name for reference in self.references}
        first = next(iter(self.references), None)
        if first is not None:  # real samples that no score is taken against are cached by name as well
            others = ((self.training, "seen"), (self.mirrored, "mirrored"), (self.held_out, "test"))
            for samples, split in others:
                if samples is not None:
                    names.setdefault(samples, f"{first.data}:{split}")
        bench = Workbench(names=names, weights=self.weights, download=self.download, precision=self.precision)
        return bench if tell is None else attrs.evolve(bench, tell=tell)

    def check(self, like: Dataset) -> None:
        """Let each metric refuse samples like these before anything is computed."""
        bench = self.bench()
        for metric in self.metrics:
            metric.checked.check(like, bench)

    def originals(self, generated: Dataset) -> Tensor | None:
        """Return the images that generated samples complete: d×n; None if they complete none."""
        if self.data is None or generated.conditions.origin is None:
            return None
        held_out = 0 if self.data.held_out is None else len(self.data.held_out)
        least, most = (int(bound) for bound in generated.conditions.origin.aminmax())
        if most >= len(self.data) or least < -held_out:
            raise DataError(
                f"the samples complete images from number {least} to {most}, and there are {len(self.data):,} "
                f"and {held_out:,} held out; were they made with other data?"
            )
        return self.data.originals(generated.conditions)

    def subset(self, generated: Dataset) -> Tensor:
        """Return which samples to score: completions of held-out images first, then others at random."""
        order = torch.from_numpy(Key(self.seed, "evaluated").open().host.permutation(len(generated)))
        origin = generated.conditions.origin
        if origin is not None:
            held_out = origin[order] < 0
            order = torch.cat([order[held_out], order[~held_out]])
        return order[: self.samples].sort().values


def _own_references(
    recipe: Recipe, data: Dataset, splits: Sequence[str], everything: Dataset
) -> tuple[Reference, ...]:
    """Return splits of a recipe's data, which have no mirror images here; they may be some of `everything`."""
    target = balanced(data, recipe.condition.checked, recipe.evaluation.seed)
    return references(recipe.data.name, target, splits, everything)


def _default_metrics(registry: Registry, data: Dataset) -> tuple[Choice, ...]:
    """Return the metric where none is named."""
    return (choose(registry, "metric", "fid" if data.space.is_image else "sliced-wasserstein"),)


def with_copying(metrics: Sequence[Choice], data: Dataset, registry: Registry) -> tuple[Choice, ...]:
    """Return metrics of images with one that finds copies, by their pixels, unless it is among them."""
    there = any(metric.plugin.owner.name == COPYING for metric in metrics)
    if not metrics or there or not data.space.is_image or len(data) < 2:
        return tuple(metrics)
    text = f"{{use: {COPYING}, spaces: [pixels], products: {PRODUCTS}}}"
    return (*metrics, choose(registry, "metric", text, "evaluation"))
