"""What `--against` names: a data set and its split, a folder of pictures, or an .npz file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import attrs

from cswf_core.errors import DataError
from cswf_core.evaluation import form
from cswf_core.evaluation import samples as subject
from cswf_core.evaluation.task import Reference, Task, references, references_of, with_copying
from cswf_core.interfaces import Dataset, Key
from cswf_core.plugins import Registry
from cswf_core.recipe import Choice, Recipe, choose
from cswf_core.recipe.build import load_everything

SPLITS = ("train", "test")


@attrs.frozen(eq=False)
class Real:
    """Real samples of one name: what to compare with, what may have been copied, what was held out."""

    references: tuple[Reference, ...]
    training: Dataset | None = None
    held_out: Dataset | None = None


def load(text: str, registry: Registry) -> Real:
    """Return what `--against` names; without a split, a data set's training split and its test split.

    A data set's name comes before a folder of the same name, which can be written with `./`.
    """
    if not text.strip():
        raise DataError("--against needs a data set, a folder of pictures or an .npz file")
    written = text.startswith("{")
    path = Path(text).expanduser()
    if not written and text.split(":")[0] not in registry.names("dataset"):
        if path.exists():
            found = subject.read(path).samples
            return Real((Reference(path.resolve().name, "", found),), training=found)
        if "/" in text or text.lower().endswith(".npz"):
            hint = "--against takes a data set, a folder of pictures or an .npz file"
            raise DataError(f"{path} does not exist; {hint}")
    name, split = (text, "") if written else _split(text)
    choice = choose(registry, "dataset", name, "--against")
    data: Dataset = choice.checked.load(Key(0, "data").open())
    wanted = (split,) if split else SPLITS if data.held_out is not None else SPLITS[:1]
    return Real(references(choice.plugin.owner.name, data, wanted), training=data, held_out=data.held_out)


def task_of_run(recipe: Recipe, real: Sequence[Real], metrics: Sequence[Choice]) -> Task:
    """Return what to compute for a run: its recipe's data and metrics, where nothing else is asked for."""
    data = load_everything(recipe)
    chosen = tuple(metrics) or recipe.metrics or _usual(recipe.registry, data)
    splits = [split for split in SPLITS if split == "train" or data.held_out is not None]
    own = references_of(recipe, data, splits)
    digests = {reference.samples.shown_digest() for reference in own} if real else set()
    asked = [
        attrs.evolve(reference, foreign=reference.samples.shown_digest() not in digests)
        for each in real
        for reference in each.references
    ]
    return attrs.evolve(
        Task.of_recipe(recipe, data),
        metrics=with_copying(chosen, data, recipe.registry),
        references=tuple(alike(reference, data) for reference in asked) or own,
    )


def task_of_images(real: Sequence[Real], metrics: Sequence[Choice], registry: Registry) -> Task:
    """Return what to compute for images of any program: copies are looked for in the first data named."""
    first = real[0]
    data = first.references[0].samples
    chosen = tuple(metrics) or _usual(registry, data)
    every = [reference for each in real for reference in each.references]
    return Task(
        metrics=with_copying(chosen, data, registry),
        references=tuple(alike(reference, data) for reference in every),
        training=first.training,
        held_out=first.held_out,
    )


def alike(reference: Reference, data: Dataset) -> Reference:
    """Return real samples in the form of others that they stand beside: same channels, same classes."""
    if reference.samples.space == data.space:
        return reference
    return attrs.evolve(reference, samples=form.like(reference.samples, data, reference.name))


def _usual(registry: Registry, data: Dataset) -> tuple[Choice, ...]:
    """Return what is computed where nothing is asked for."""
    return (choose(registry, "metric", "fid" if data.space.is_image else "sliced-wasserstein"),)


def _split(text: str) -> tuple[str, str]:
    name, colon, split = text.rpartition(":")
    if not colon:
        return text, ""
    if split not in SPLITS:
        raise DataError(f"--against {text}: there is no split '{split}'; write {name}:train or {name}:test")
    return name, split
