"""`cswf compare`: score two sets of samples alike, and say which is better beyond noise."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import attrs
import click

from cswf_core.cli import options
from cswf_core.cli.scoring import Scoring, scoring_options
from cswf_core.cli.terminal import prepare
from cswf_core.errors import DataError, printable
from cswf_core.evaluation.evaluate import Comparing
from cswf_core.evaluation.evaluate import compare as compare_samples
from cswf_core.evaluation.samples import Generated, conform, read, read_all_real
from cswf_core.evaluation.task import Task
from cswf_core.interfaces import Dataset
from cswf_core.kernels.memory import memory_limited
from cswf_core.plugins import Registry
from cswf_core.recipe import Recipe, choose, choose_device, load_recipe
from cswf_core.recipe.build import load_everything
from cswf_core.runs.folder import RunFolder
from cswf_core.runs.printing import say, say_json
from cswf_core.runs.screen import WorkProgress, console, table, words
from cswf_core.scores.replicas import groups

METRICS = ("fid", "kid", "precision-recall")
"""What images are compared by where no metric is named; they share their features."""


@click.command()
@click.argument("first", metavar="A", type=click.Path(path_type=Path))
@click.argument("second", metavar="B", type=click.Path(path_type=Path))
@scoring_options("fid, kid and precision-recall for images, else sliced-wasserstein")
@options.device
@options.memory_limit
@options.quiet
@options.json
@options.plugins_dir
def compare(
    first: Path,
    second: Path,
    scoring: Scoring,
    device: str,
    quiet: bool,
    as_json: bool,
    plugins_dir: tuple[Path, ...],
) -> None:
    """Score A and B alike and say which is better, with intervals.

    A and B are runs, folders of pictures or .npz files: as many samples of each, the same real samples, the
    same random choices. Of two runs, the real samples are their data, which must be the same.
    """
    chosen_device = choose_device(device)
    prepare(quiet=quiet)
    both = tuple(read(path, plugins_dir=plugins_dir, reading=scoring.reading) for path in (first, second))
    registry = Registry.discover(plugins_dir)
    facts = [RunFolder(each.run).facts() for each in both if each.run is not None]
    limits = [each.memory_limit for each in facts if each is not None and each.memory_limit is not None]
    recipes = _recipe(both[0], registry), _recipe(both[1], registry)
    with memory_limited(min(limits, default=None)):
        task = _task(both, recipes, scoring, registry)
    task = scoring.adjust(task)
    real = task.references[0].samples if task.data is None else task.data
    samples, notes = [], []
    for generated, recipe in zip(both, recipes, strict=True):
        said = list(generated.notes)
        own = _with_own_classes(generated.samples, task, recipe)
        samples.append(conform(own, real, str(generated.path), said))
        notes.append(tuple(said))
        task.check(samples[-1])
    with closing(WorkProgress(silent=quiet)) as progress:
        comparing = compare_samples(
            samples[0],
            samples[1],
            task,
            sources=(printable(str(first)), printable(str(second))),
            notes=(notes[0], notes[1]),
            recipes=recipes,
            device=chosen_device,
            tell=progress.tell,
        )
    names = _names(first, second)
    seeds = None not in recipes and len(groups([each.resolved() for each in recipes if each])) == 1
    if as_json:
        say_json({**_document(comparing, names), "seeds_of_one_recipe": seeds})
    elif not quiet:
        _show(comparing, names)
        if seeds:
            say("note: both runs are of one recipe and differ in their seed only: the difference is chance")


def _task(
    both: Sequence[Generated], recipes: Sequence[Recipe | None], scoring: Scoring, registry: Registry
) -> Task:
    """Return the task for both sets: against what is named, else against the data that two runs share."""
    chosen = [choose(registry, "metric", text, "--metric") for text in scoring.metrics]
    if scoring.against:
        task = Task.of_images(read_all_real(scoring.against, registry, scoring.reading), chosen, registry)
    else:
        task = _of_runs(both, recipes)
    image = task.references[0].samples.space.is_image
    usual = METRICS if image else ("sliced-wasserstein",)
    chosen = chosen or [choose(registry, "metric", name) for name in usual]
    return scoring.with_copying(attrs.evolve(task, metrics=tuple(chosen)), registry, *recipes)


def _with_own_classes(samples: Dataset, task: Task, recipe: Recipe | None) -> Dataset:
    """Return samples whose classes have names: a run's labels count the classes of its own data."""
    if recipe is None or samples.conditions.labels is None:
        return samples
    data = load_everything(recipe) if task.data is None else task.data
    return attrs.evolve(samples, classes=data.classes)


def _recipe(generated: Generated, registry: Registry) -> Recipe | None:
    """Return the recipe of a run; None for samples of anything else."""
    return None if generated.run is None else load_recipe(generated.run / "recipe.yaml", registry=registry)


def _of_runs(both: Sequence[Generated], recipes: Sequence[Recipe | None]) -> Task:
    """Return the task of the first run; raise `DataError` if the other is no run, or flowed to other data."""
    data = []
    for generated, recipe in zip(both, recipes, strict=True):
        if recipe is None:
            raise DataError(
                f"{generated.path} is not a run; name what to compare both with, such as --against cifar10"
            )
        data.append((recipe.data.plain(), recipe.condition.plain()))
    if recipes[0] is None or data[0] != data[1]:
        raise DataError("the two runs have other data or conditions; say what to compare both with: --against")
    return Task.of_run(recipes[0], (), ())


def _names(first: Path, second: Path) -> tuple[str, str]:
    """Return what the sets are called: their folders' names, or their paths where these are the same."""
    short = printable(first.resolve().name), printable(second.resolve().name)
    return short if short[0] != short[1] else (printable(str(first)), printable(str(second)))


def _show(comparing: Comparing, names: tuple[str, str]) -> None:
    """Print both scores, the difference and the verdict of each."""
    screen = console()
    lines = []
    for score in comparing.scores:
        lines.append([score.first.name, *score.values, score.signed, f"{score.first.samples:,}"])
    screen.print(table(["score", *names, "difference", "samples of each"], lines, others="right"))
    for score in comparing.scores:
        screen.print(words(score.verdict(names), "bold"), soft_wrap=True)
    noted = [each.document["notes"] for each in comparing.evaluations]
    for note in dict.fromkeys(noted[0] + noted[1]):
        having = [name for name, notes in zip(names, noted, strict=True) if note in notes]
        say(f"note: {having[0]}: {note}" if len(having) == 1 else f"note: {note}")
    screen.print(words(comparing.method, "dim"), soft_wrap=True)


def _document(comparing: Comparing, names: tuple[str, str]) -> dict[str, object]:
    """Return everything as JSON has it."""
    return {
        "names": list(names),
        "method": comparing.method,
        "scores": [
            {
                "name": score.first.name,
                "better": score.first.better,
                "values": [score.first.value, score.second.value],
                "errors": [score.first.error, score.second.error],
                "difference": score.difference.value,
                "interval": score.difference.interval,
                "paired": score.paired,
                "verdict": score.verdict(names),
            }
            for score in comparing.scores
        ],
        "evaluations": [evaluation.document for evaluation in comparing.evaluations],
    }
