"""`cswf eval`: score a run, or a folder or file of images that any program made."""

from __future__ import annotations

from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any, get_args

import attrs
import click

from cswf_core.cli import options
from cswf_core.cli.terminal import prepare, show_protocols, show_scores
from cswf_core.errors import DataError, RunError
from cswf_core.evaluation.evaluate import Evaluation, evaluate
from cswf_core.evaluation.samples import Generated, conform, read, read_real
from cswf_core.evaluation.task import Task
from cswf_core.interfaces.metric import FEATURE_PRECISION, FeaturePrecision
from cswf_core.kernels.memory import memory_limited
from cswf_core.plugins import Registry
from cswf_core.recipe import choose, choose_device, load_recipe
from cswf_core.runs.folder import RunFolder
from cswf_core.runs.printing import say, say_json
from cswf_core.runs.progress import WorkProgress
from cswf_core.runs.screen import console
from cswf_core.session.run import refresh_report, write_scores

PATIENCE_S = 10.0
"""Seconds to wait for another command that is about to write scores into the same folder."""


@click.command()
@click.argument("path", metavar="RUN|FOLDER|FILE.npz", type=click.Path(path_type=Path))
@click.option(
    "--against",
    multiple=True,
    metavar="DATA[:SPLIT]",
    help="Real samples: a data set (both its splits, or :train or :test), a folder of pictures, an .npz file; "
    "may be given several times.  [default: the data of the run]",
)
@click.option(
    "--metric",
    "metrics",
    multiple=True,
    metavar="NAME",
    help="A metric, as in a recipe: fid, or '{use: fid, mode: clean}'; may be given several times.  "
    "[default: those of the run's recipe, else fid]",
)
@click.option(
    "--samples",
    "kind",
    type=click.Choice(["batched", "offline"]),
    default="batched",
    show_default=True,
    help="Which samples of a run: its particles, or those carried along or sampled from its saved model.",
)
@click.option("--count", type=options.WholeNumber(1), help="Score so many at most.  [default: 50,000]")
@options.limit
@click.option("--weights", type=click.Path(path_type=Path), help="The feature network's file.")
@click.option("--no-download", is_flag=True, help="Never fetch the feature network from the internet.")
@click.option(
    "--precision",
    type=click.Choice(get_args(FeaturePrecision)),
    help="Of the feature network; fast is TF32 on CUDA, and float32 elsewhere.  "
    f"[default: that of the run's recipe, else {FEATURE_PRECISION}]",
)
@options.device
@options.memory_limit
@options.quiet
@options.json
@options.plugins_dir
def eval(
    path: Path,
    against: tuple[str, ...],
    metrics: tuple[str, ...],
    kind: str,
    count: int | None,
    limit: int | None,
    weights: Path | None,
    no_download: bool,
    precision: FeaturePrecision | None,
    device: str,
    quiet: bool,
    as_json: bool,
    plugins_dir: tuple[Path, ...],
) -> None:
    """Score samples: those of a RUN, a FOLDER of pictures, or a FILE.npz of images.

    Scores of a run are written to its metrics.json and into its report.html. A folder's pictures must be of one
    size; folders in it are classes.
    """
    chosen_device = choose_device(device)
    prepare(quiet=quiet)
    generated = read(path, kind, plugins_dir, limit)
    facts = None if generated.run is None else RunFolder(generated.run).facts()
    with memory_limited(None if facts is None else facts.memory_limit):
        task = _task(generated, against, metrics, plugins_dir, limit)
    task = attrs.evolve(
        task,
        samples=task.samples if count is None else count,
        weights=task.weights if weights is None else weights,
        download=task.download and not no_download,
        precision=task.precision if precision is None else precision,
    )
    samples = generated.samples
    if task.data is not None:  # a run's labels count its own classes
        samples = attrs.evolve(samples, classes=task.data.classes)
    real = task.references[0].samples if task.data is None else task.data
    samples = conform(samples, real, str(path))
    task.check(samples)
    with closing(WorkProgress(silent=quiet)) as progress:
        evaluation = evaluate(
            samples,
            task,
            source=generated.source,
            device=chosen_device,
            ending="_offline" if kind == "offline" else "",
            tell=progress.tell,
        )
    _print(evaluation.document, quiet=quiet, as_json=as_json)
    if generated.run is not None:
        _save(evaluation, RunFolder(generated.run), quiet=quiet or as_json)


def _task(
    generated: Generated,
    against: tuple[str, ...],
    metrics: tuple[str, ...],
    plugins_dir: tuple[Path, ...],
    limit: int | None,
) -> Task:
    registry = Registry.discover(plugins_dir)
    chosen = [choose(registry, "metric", text, "--metric") for text in metrics]
    if generated.run is None and not against:
        raise DataError(
            f"{generated.path} is not a run's folder; say what to compare with: --against cifar10, say"
        )
    real = [read_real(text, registry, limit) for text in against]
    if generated.run is None:
        return Task.of_images(real, chosen, registry)
    return Task.of_run(load_recipe(generated.run / "recipe.yaml", registry=registry), real, chosen)


def _save(evaluation: Evaluation, folder: RunFolder, *, quiet: bool) -> None:
    """Write the scores into the run's folder, and say what becomes of those that are there."""
    with ExitStack() as held:
        with suppress(RunError):  # a run that scores itself may hold it for long
            held.enter_context(folder.held(PATIENCE_S))
        told = write_scores(folder, evaluation)
    refresh_report(folder)
    if quiet:
        return
    say(*told)
    say(f"see {folder.file('report.html')}")


def _print(document: dict[str, Any], *, quiet: bool, as_json: bool) -> None:
    if as_json:
        say_json(document)
        return
    screen = console()
    show_scores(document, screen)
    if not quiet:
        show_protocols(document, screen)
