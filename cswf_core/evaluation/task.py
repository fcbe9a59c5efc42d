"""The task of an evaluation: its metrics, and the real samples to compare with, from wherever these are."""

from __future__ import annotations

import operator
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import torch
from torch import Tensor

from cswf_core.checks.data import check_loaded
from cswf_core.errors import DataError, printable
from cswf_core.evaluation.samples import AS_THEY_ARE, Reading, conform, read
from cswf_core.flow.particles import balanced
from cswf_core.interfaces import Dataset, Key, Observation, Owner, Workbench
from cswf_core.interfaces.metric import ShareOut, Tell
from cswf_core.plugins import Registry
from cswf_core.recipe import Choice, Recipe, choose
from cswf_core.recipe.build import load_chosen, load_everything

SPLITS = ("train", "test")

COPYING = "nearest-neighbours"
"""The metric that is computed beside all others of images: a method without a network could copy its data."""

FLOW_SHARE = 10
"""After a run, the check takes at most 1/FLOW_SHARE of the flow's multiplications, unless it was asked for."""
PRODUCTS = 50_000_000_000
"""Multiplications that it takes at most in a command that only scores, on a CPU: seconds, not minutes."""


@attrs.frozen(eq=False)
class Reference:
    """Real samples to compare with."""

    data: str
    """Name of the data set, folder or file."""
    split: str
    """`train`, `test`, or nothing where there are no splits."""
    samples: Dataset = attrs.field(repr=False)
    foreign: bool = False
    """Whether these are other data than those of the run that is scored."""
    of: int | None = None
    """How many there are, if these are only some of them; None: these are all."""
    notes: tuple[str, ...] = ()
    """Sentences on the files, and on what was done to them, that a score may depend on."""

    @property
    def name(self) -> str:
        """Data and split, as `--against` takes them."""
        return f"{self.data}:{self.split}" if self.split else self.data

    @property
    def suffix(self) -> str:
        """The end of a score's name that tells the data, where they are not the run's own, and the split."""
        data = "_" + re.sub(r"\W+", "_", self.data).strip("_") if self.foreign else ""
        return data + ("_test" if self.split == "test" else "")

    def like(self, data: Dataset) -> Reference:
        """Return the real samples with the channels and classes of others that they stand beside."""
        if self.samples.space == data.space:
            return self
        notes = list(self.notes)
        samples = conform(self.samples, data, self.name, notes)
        return attrs.evolve(self, samples=samples, notes=tuple(notes))


@attrs.frozen(eq=False, kw_only=True)
class Task:
    """Metrics, and real samples to compare with."""

    metrics: tuple[Choice, ...] = ()
    references: tuple[Reference, ...] = ()
    training: Dataset | None = attrs.field(default=None, repr=False)
    """Data that may have been copied."""
    training_called: str = "training images"
    """What these are called in sentences; those of a folder may never have trained anything."""
    of_training: int | None = None
    """How many such data there are, if `training` are only some of them; None: they are all."""
    mirrored: Dataset | None = attrs.field(default=None, repr=False)
    """Their mirror images, if the flow has seen these too."""
    held_out: Dataset | None = attrs.field(default=None, repr=False)
    data: Dataset | None = attrs.field(default=None, repr=False)
    """Data whose images the samples complete."""
    recipe: Recipe | None = attrs.field(default=None, repr=False)
    """The recipe of the flow that the samples are from; None: they are from elsewhere."""
    products: int | None = None
    """Multiplications that the last metric may spend, as nobody has asked for it; None: somebody has."""
    seed: int = 0
    """Of the evaluation's own choices; the same for all runs, unless somebody wants others."""
    samples: int = 50_000
    """Generated samples to score, at most."""
    weights: Path | None = None
    download: bool = True

    @classmethod
    def of_recipe(cls, recipe: Recipe, data: Dataset) -> Task:
        """Return the task that a recipe's `evaluate:` describes; `data` are the recipe's.

        Scores against `train` are against the target of the flow: the data, or what the condition took of them.
        """
        section = recipe.evaluation
        splits = section.against if recipe.metrics else ()
        training, mirrored = in_memory(data, section.samples)
        available = len(data.genuine())
        task = cls(
            metrics=recipe.metrics,
            references=_own_references(recipe, training, splits, data),
            training=training,
            of_training=available if available > len(training) else None,
            mirrored=mirrored,
            held_out=training.held_out,
            data=data,
            recipe=recipe,
            seed=section.seed,
            samples=section.samples,
            weights=section.weights,
            download=section.download,
        )
        products = _flow_products(recipe, training) // FLOW_SHARE
        return task.with_copying(recipe.registry, products) if section.copying else task

    @classmethod
    def of_run(cls, recipe: Recipe, real: Sequence[Task], metrics: Sequence[Choice]) -> Task:
        """Return the task for a run's samples: its recipe's data and metrics, where none are given."""
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
        return attrs.evolve(task, metrics=chosen, references=others or own, products=None)

    @classmethod
    def of_images(cls, real: Sequence[Task], metrics: Sequence[Choice], registry: Registry) -> Task:
        """Return the task for images of any program; copies are looked for in the first real samples."""
        first = real[0]
        data = first.references[0].samples
        return attrs.evolve(
            first,
            metrics=tuple(metrics) or _default_metrics(registry, data),
            references=tuple(reference.like(data) for each in real for reference in each.references),
        )

    def with_copying(self, registry: Registry, products: int = PRODUCTS) -> Task:
        """Return the task with a metric that finds copies of images, by their pixels, unless it has one.

        It takes at most `products` multiplications: a bound on time would give other scores at another speed.
        """
        there = any(metric.plugin.owner.name == COPYING for metric in self.metrics)
        training = self.training
        if there or training is None or not training.space.is_image or len(training) < 2:
            return self
        added = choose(registry, "metric", f"{{use: {COPYING}, spaces: [pixels]}}", "evaluation")
        return attrs.evolve(self, metrics=(*self.metrics, added), products=products)

    def with_fewer_real(self, count: int | None) -> Task:
        """Return the task with at most `count` real samples of each split, evenly spread; None: with all.

        Copies are looked for among these only.
        """
        if count is None:
            return self
        fewer: dict[Dataset, Dataset] = {}

        def some(samples: Dataset) -> Dataset:
            # A set stays one object wherever it is used, so that its features are computed once.
            if samples not in fewer:
                fewer[samples] = samples.spread(count)
            return fewer[samples]

        references = [
            attrs.evolve(each, samples=some(each.samples), of=each.of or len(each.samples))
            for each in self.references
        ]
        trained = 0 if self.training is None else len(self.training)
        return attrs.evolve(
            self,
            references=tuple(references),
            training=None if self.training is None else some(self.training),
            of_training=self.of_training or trained,
            mirrored=None if self.mirrored is None else some(self.mirrored),
            held_out=None if self.held_out is None else some(self.held_out),
        )

    def bench(self, tell: Tell | None = None, share_out: ShareOut | None = None) -> Workbench:
        """Return the workbench that the metrics share; `share_out` has several devices compute features."""
        names = {reference.samples: reference.name for reference in self.references}
        first = next(iter(self.references), None)
        if first is not None:  # real samples that no score is taken against are cached by name as well
            others = ((self.training, "seen"), (self.mirrored, "mirrored"), (self.held_out, "test"))
            for samples, split in others:
                if samples is not None:
                    names.setdefault(samples, f"{first.data}:{split}")
        by_features = [each.part for each in self.metrics if each.part.network and not each.part.once]
        bench = Workbench(
            names=names,
            references=tuple(reference.samples for reference in self.references if by_features),
            real_features=any(part.real_features for part in by_features),
            weights=self.weights,
            download=self.download,
            share_out=share_out,
        )
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

    def observation(self, generated: Dataset) -> Observation | None:
        """Return what samples were given of the images that they complete; None if not all the same part."""
        if self.data is None or self.recipe is None or generated.conditions.origin is None:
            return None
        draw = Key(self.recipe.seed, "observation").open()
        observation: Observation | None = self.recipe.condition.checked.observation(
            self.data, generated.conditions, draw
        )
        return None if observation is None or not observation.shared else observation

    def subset(self, generated: Dataset) -> Tensor:
        """Return which samples to score: completions of held-out images first, then others at random."""
        order = torch.from_numpy(Key(self.seed, "evaluated").open().host.permutation(len(generated)))
        origin = generated.conditions.origin
        if origin is not None:
            held_out = origin[order] < 0
            order = torch.cat([order[held_out], order[~held_out]])
        return order[: self.samples].sort().values


def read_real(text: str, registry: Registry, reading: Reading = AS_THEY_ARE) -> Task:
    """Return a task without metrics, against what `--against` names: a data set, a folder or a file.

    All are checked as a run's data are. `reading` is for folders and files. Without a split, a data set's
    training split and its test split. A data set's name comes before a folder of the same name, which `./` can
    begin.
    """
    if not text.strip():
        raise DataError("--against needs a data set, a folder of pictures or an .npz file")
    written = text.startswith("{")
    path = Path(text).expanduser()
    if not written and text.split(":")[0] not in registry.names("dataset"):
        if path.exists():
            source = read(path, reading=reading)
            samples = _real(path, source.samples)
            name = printable(path.resolve().name)
            called = f"images of {name}" if samples.space.is_image else f"points of {name}"
            reference = Reference(name, "", samples, notes=tuple(source.notes))
            return Task(references=(reference,), training=samples, training_called=called)
        without, colon, _ = text.rpartition(":")
        if colon and Path(without).expanduser().exists():
            raise DataError(f"--against {text}: folders and files have no splits; write --against {without}")
        if "/" in text or text.lower().endswith(".npz"):
            hint = "--against takes a data set, a folder of pictures or an .npz file"
            raise DataError(f"{path} does not exist; {hint}")
    name, split = (text, "") if written else _split(text)
    choice = choose(registry, "dataset", name, "--against", or_path=True)
    owner = choice.plugin.owner
    data = load_chosen(choice, 0, torch.float32)
    splits = (split,) if split else SPLITS if data.held_out is not None else SPLITS[:1]
    training, mirrored = in_memory(data, 50_000)  # enough to compare with, where memory does not hold all
    real = references(owner.name, training, splits, data)
    return Task(references=real, training=training, mirrored=mirrored, held_out=training.held_out)


def read_all_real(texts: Sequence[str], registry: Registry, reading: Reading = AS_THEY_ARE) -> list[Task]:
    """Return a task for each `--against`; folders or files of one name are told apart by their paths."""
    real = [read_real(text, registry, reading) for text in texts]
    names = [reference.name for each in real for reference in each.references]
    return [
        attrs.evolve(each, references=tuple(_apart(reference, text, names) for reference in each.references))
        for each, text in zip(real, texts, strict=True)
    ]


def _apart(reference: Reference, text: str, names: Sequence[str]) -> Reference:
    if names.count(reference.name) == 1:
        return reference
    return attrs.evolve(reference, data=printable(str(Path(text).expanduser())))


def _real(path: Path, samples: Dataset) -> Dataset:
    """Return samples of a folder or file as data, whose classes have names; refuse what a run would refuse."""
    labels = samples.conditions.labels
    if labels is not None and not samples.classes:
        least = int(labels.min())
        most = int(labels.max())
        if least < 0 or most >= len(labels):
            wrong = least if least < 0 else most
            raise DataError(f"{path}: 'labels' must count from 0 without large gaps, got {wrong}")
        samples = attrs.evolve(samples, classes=tuple(map(str, range(most + 1))))
    return check_loaded(samples, Owner("dataset", printable(str(path)), "given by its path", ""))


def in_memory(data: Dataset, count: int) -> tuple[Dataset, Dataset | None]:
    """Return the samples that are not made from others, and those that are; of streamed ones `count` each."""
    training = data.genuine()
    mirrored = data.made()
    if data.stored is None:
        return training, mirrored
    return training.spread(count), None if mirrored is None else mirrored.spread(count)


def references(
    name: str, data: Dataset, splits: Sequence[str], everything: Dataset | None = None
) -> tuple[Reference, ...]:
    """Return splits of a data set that has no mirror images; it may be a part of `everything`."""
    each = []
    for split in splits:
        samples = data if split == "train" else data.held_out
        if samples is None:
            raise DataError(f"scores against 'test' are asked for, and dataset '{name}' holds nothing out")
        whole = everything if split == "train" or everything is None else everything.held_out
        size = 0 if whole is None or whole.stored is None else len(whole.genuine())
        some = size if size > len(samples) else None
        partly = (
            "scores against test are against held-out samples of the first data: later data hold nothing out"
        )
        notes = (partly,) if split == "test" and data.partly_held_out else ()
        called = data.split if split == "train" else split
        each.append(Reference(name, called, samples, of=some, notes=notes))
    return tuple(each)


def _split(text: str) -> tuple[str, str]:
    name, colon, split = text.rpartition(":")
    if not colon:
        return text, ""
    if split not in SPLITS:
        raise DataError(f"--against {text}: there is no split '{split}'; write {name}:train or {name}:test")
    return name, split


def _own_references(
    recipe: Recipe, data: Dataset, splits: Sequence[str], everything: Dataset
) -> tuple[Reference, ...]:
    """Return splits of a recipe's data, which have no mirror images here; they may be some of `everything`."""
    target = balanced(data, recipe.condition.checked, recipe.evaluation.seed)
    return references(recipe.data.name, target, splits, everything)


def _default_metrics(registry: Registry, data: Dataset) -> tuple[Choice, ...]:
    """Return the metric where none is named."""
    return (choose(registry, "metric", "fid" if data.space.is_image else "sliced-wasserstein"),)


def _flow_products(recipe: Recipe, data: Dataset) -> int:
    """Return how many multiplications the projections of a recipe's flow take, there and back."""
    count = len(data) if recipe.particles.count is None else recipe.particles.count
    stages = recipe.schedule.checked.stages(data.space, recipe.projection.checked)
    steps: Any = [stage.steps for stage in stages]
    if recipe.arrivals and recipe.online is not None:  # an evaluation follows the last round of all stages
        later = recipe.online.steps_after(len(recipe.arrivals) - 1)
        steps = steps if later is None else [later] * len(stages) if isinstance(later, int) else later
    each = [stage.directions * stage.dimension(data.space) for stage in stages]
    projected: int = sum(map(operator.mul, steps, each))
    return projected * (2 * count + len(data))
