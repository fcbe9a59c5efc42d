"""What `--against` names: a data set and its split, a folder of pictures, or an .npz file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import attrs

from cswf_core.errors import DataError
from cswf_core.evaluation import subject
from cswf_core.evaluation.task import Reference, Task, references, references_of, with_copying
from cswf_core.flow import boundary
from cswf_core.interfaces import Dataset, Key
from cswf_core.plugins import Registry
from cswf_core.recipe import Choice, Recipe, choose
from cswf_core.recipe.build import load_data

SPLITS = ("train", "test")


@attrs.frozen(eq=False)
class Real:
    """Real samples of one name: what to compare with, what may have been copied, what was held out."""

    references: tuple[Reference, ...]
    training: Dataset | None = None
    held_out: Dataset | None = None


def load(text: str, registry: Registry) -> Real:
    """Return what `--against` names; without a split, a data set's training split and its test split."""
    path = Path(text).expanduser()
    if path.exists() and not text.startswith("{"):
        found = subject.read(path).samples
        return Real((Reference(path.name, "", found),), training=found)
    name, split = (text, "") if text.startswith("{") else _split(text)
    if not text.startswith("{") and name not in registry.names("dataset") and _looks_like_a_path(text):
        raise DataError(
            f"{path} does not exist; --against takes a data set, a folder of pictures or an .npz file"
        )
    choice = choose(registry, "dataset", name, "--against")
    owner = choice.plugin.owner
    with boundary.calling(owner, "load"):
        data: Dataset = choice.part.load(Key(0, "data").open())
    wanted = (split,) if split else SPLITS if data.held_out is not None else SPLITS[:1]
    return Real(references(owner.name, data, wanted), training=data, held_out=data.held_out)


def task_of_run(recipe: Recipe, real: Sequence[Real], metrics: Sequence[Choice]) -> Task:
    """Return what to compute for a run: its recipe's data and metrics, where nothing else is asked for."""
    data = load_data(recipe)
    chosen = tuple(metrics) or recipe.metrics or (choose(recipe.registry, "metric", "fid"),)
    splits = [split for split in SPLITS if split == "train" or data.held_out is not None]
    asked = tuple(reference for each in real for reference in each.references)
    return attrs.evolve(
        Task.of_recipe(recipe, data),
        metrics=with_copying(chosen, data, recipe.registry),
        references=asked or references_of(recipe, data, splits),
    )


def task_of_images(real: Sequence[Real], metrics: Sequence[Choice], registry: Registry) -> Task:
    """Return what to compute for images of any program: copies are looked for in the first data named."""
    first = real[0]
    chosen = tuple(metrics) or (choose(registry, "metric", "fid"),)
    sample = first.references[0].samples
    return Task(
        metrics=with_copying(chosen, sample, registry) if first.training is not None else chosen,
        references=tuple(reference for each in real for reference in each.references),
        training=first.training,
        held_out=first.held_out,
    )


def _split(text: str) -> tuple[str, str]:
    name, colon, split = text.rpartition(":")
    if not colon:
        return text, ""
    if split not in SPLITS:
        raise DataError(f"--against {text}: there is no split '{split}'; write {name}:train or {name}:test")
    return name, split


def _looks_like_a_path(text: str) -> bool:
    return "/" in text or text.lower().endswith(".npz") or text.startswith((".", "~"))
