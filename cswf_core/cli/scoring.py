"""What `cswf eval` and `cswf compare` ask in common: how samples are scored, and against what."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import attrs
import click

from cswf_core.cli.options import Decorator, WholeNumber
from cswf_core.evaluation.samples import Reading
from cswf_core.evaluation.task import Task
from cswf_core.files import bytes_of
from cswf_core.interfaces.metric import FeaturePrecision
from cswf_core.plugins import Registry
from cswf_core.recipe import Recipe


@attrs.frozen(kw_only=True)
class Scoring:
    """What a person asks for; None: what the task says."""

    against: tuple[str, ...]
    metrics: tuple[str, ...]
    count: int | None
    real_count: int | None
    limit: int | None
    resize: int | None
    rgb: bool
    weights: Path | None
    no_download: bool
    precision: FeaturePrecision | None
    seed: int | None
    no_copy_check: bool

    @property
    def reading(self) -> Reading:
        """How folders of pictures and .npz files are read."""
        return Reading(self.limit, self.resize, self.rgb)

    def with_copying(self, task: Task, registry: Registry, *recipes: Recipe | None) -> Task:
        """Return a task that looks for copies too, unless somebody or one of the recipes says not to."""
        allowed = all(recipe is None or recipe.evaluation.copying for recipe in recipes)
        return task.with_copying(registry) if allowed and not self.no_copy_check else task

    def adjust(self, task: Task) -> Task:
        """Return a task with what was asked for."""
        named = {"samples": self.count, "weights": self.weights, "precision": self.precision, "seed": self.seed}
        changes: dict[str, Any] = {name: value for name, value in named.items() if value is not None}
        download = task.download and not self.no_download
        return attrs.evolve(task.with_fewer_real(self.real_count), download=download, **changes)


def _size(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """Return the bytes of a size."""
    size = None if value is None else bytes_of(value)
    if value is not None and not size:
        raise click.BadParameter(f"'{value}' is no size; write 500MB, 1.5GB or 2GiB", ctx, param)
    return size


def scoring_options(usual: str) -> Decorator:
    """Return all options of a `Scoring`, which the command gets as `scoring`; `usual` are its metrics."""
    options = (
        click.option(
            "--against",
            multiple=True,
            metavar="DATA[:SPLIT]",
            help="Real samples: a data set (both its splits, or :train or :test), a folder of pictures, an "
            ".npz file; may be given several times.  [default: the data of the run]",
        ),
        click.option(
            "--metric",
            "metrics",
            multiple=True,
            metavar="NAME",
            help="A metric, as in a recipe: fid, or '{use: fid, mode: clean}'; may be given several times.  "
            f"[default: {usual}]",
        ),
        click.option(
            "--count", type=WholeNumber(1), metavar="N", help="Score at most N samples.  [default: 50,000]"
        ),
        click.option(
            "--real-count",
            type=WholeNumber(2),
            metavar="N",
            help="Compare with at most N real samples of each split, evenly spread.  [default: all]",
        ),
        click.option(
            "--limit",
            metavar="SIZE",
            callback=_size,
            help="Memory that the images of a file or folder may take as they are, such as 20GB.  "
            "[default: a quarter of this machine's]",
        ),
        click.option(
            "--resize",
            type=WholeNumber(1, 8192),
            metavar="N",
            help="Resize the images of folders and files to N×N pixels by Pillow's bicubic filter.",
        ),
        click.option("--rgb", is_flag=True, help="Convert grey images of folders and files to RGB."),
        click.option("--weights", type=click.Path(path_type=Path), help="The feature network's file."),
        click.option(
            "--no-download",
            is_flag=True,
            help="Download neither the feature network nor published statistics.",
        ),
        click.option(
            "--precision",
            type=click.Choice(["float32", "fast"]),
            help="Of the feature network; fast is float16 on CUDA, and float32 elsewhere.  "
            "[default: that of the run's recipe, else float32]",
        ),
        click.option(
            "--seed",
            type=WholeNumber(0),
            help="Of the evaluation's own choices: subsets, directions, classifiers.  "
            "[default: evaluate.seed of the run's recipe, else 0]",
        ),
        click.option(
            "--no-copy-check", is_flag=True, help="Do not look for copies, unless a metric is named that does."
        ),
    )

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(command)
        def collected(**values: Any) -> Any:
            fields = [field.name for field in attrs.fields(Scoring)]
            return command(scoring=Scoring(**{name: values.pop(name) for name in fields}), **values)

        for option in reversed(options):
            collected = option(collected)
        return collected

    return decorate
