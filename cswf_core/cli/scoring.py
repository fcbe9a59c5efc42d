"""What `cswf eval` and `cswf compare` do: samples of any program scored, and two sets of them alike."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import attrs
import click

from cswf_core.cli.terminal import Execution, prepare, show_scores
from cswf_core.errors import DataError, RunError, printable
from cswf_core.evaluation.evaluate import Comparing, Evaluation, evaluate
from cswf_core.evaluation.evaluate import compare as compare_samples
from cswf_core.evaluation.samples import Generated, Reading, conform, read
from cswf_core.evaluation.task import Task, read_all_real
from cswf_core.interfaces import Dataset
from cswf_core.kernels.memory import memory_limited
from cswf_core.pictures import grid as pictures
from cswf_core.plugins import Registry
from cswf_core.recipe import Choice, Recipe, choose, choose_device, load_recipe
from cswf_core.recipe.build import load_everything
from cswf_core.runs.folder import RunFolder
from cswf_core.runs.printing import complain, say, say_json
from cswf_core.runs.samples import samples_picture
from cswf_core.runs.scores import mapping
from cswf_core.runs.screen import console, table, words
from cswf_core.scores.replicas import groups
from cswf_core.scores.tables import Format, document_table
from cswf_core.session.run import refresh_report, write_features, write_scores


@attrs.frozen(kw_only=True)
class Scoring(Execution):
    """How samples are scored, and against what; None: what the task says."""

    against: tuple[str, ...]
    metrics: tuple[str, ...]
    count: int | None
    real_count: int | None
    limit: int | None
    resize: int | None
    rgb: bool
    weights: Path | None
    no_download: bool
    seed: int | None
    no_copy_check: bool

    def read(self, path: Path, kind: str = "batched") -> Generated:
        """Return the samples at a path."""
        return read(path, kind, self.plugins_dir, self.reading)

    @property
    def reading(self) -> Reading:
        """How folders of pictures and .npz files are read."""
        return Reading(self.limit, self.resize, self.rgb)

    def chosen(self, registry: Registry) -> list[Choice]:
        """Return the metrics that are named."""
        return [choose(registry, "metric", text, "--metric") for text in self.metrics]

    def adjust(self, task: Task, registry: Registry, *recipes: Recipe | None) -> Task:
        """Return a task with what was asked for; copies are looked for unless it or a recipe says not to."""
        if not self.no_copy_check and all(recipe is None or recipe.evaluation.copying for recipe in recipes):
            task = task.with_copying(registry)
        named = {"samples": self.count, "weights": self.weights, "seed": self.seed}
        changes: dict[str, Any] = {name: value for name, value in named.items() if value is not None}
        download = task.download and not self.no_download
        return attrs.evolve(task.with_fewer_real(self.real_count), download=download, **changes)


def eval(
    path: Path,
    kind: str,
    out: Path | None,
    save_features: bool,
    form: Format | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Do the work of `cswf eval`."""
    wanted = Scoring(**options)
    device = choose_device(wanted.device)
    prepare(quiet=wanted.quiet)
    generated = wanted.read(path, kind)
    folder, source = _folder(generated, out)
    if not folder.path.is_dir():
        folder.make()  # a place that cannot be written to is told before anything is computed
        click.get_current_context().call_on_close(folder.withdraw)  # if nothing comes to be in it
    registry = Registry.discover(wanted.plugins_dir)
    with memory_limited(_limit(generated)):
        recipe, task = _task(generated, wanted, registry)
    task = wanted.adjust(task, registry, recipe)
    conformed, real = _conformed(attrs.evolve(generated, source=source), recipe, task)
    with wanted.progress() as progress:
        evaluation = evaluate(
            conformed,
            task,
            device=device,
            bench=task.bench(progress.tell),
        )
    _print(evaluation, "json" if as_json else form, quiet=wanted.quiet)
    told = _save(evaluation, folder, conformed.samples, real, features=save_features)
    if wanted.quiet:
        return
    if as_json or form is not None:  # what is printed may be read by a program
        for sentence in told:
            complain(sentence)
    else:
        say(*told, f"see {folder.file('report.html')}")


def _folder(generated: Generated, out: Path | None) -> tuple[RunFolder, str]:
    """Return the folder for the results, and what the samples are called there; refuse one of something else.

    A run's samples are called by their file in its own folder, and elsewhere by their whole path.
    """
    run = generated.run
    if run is not None and (out is None or out.resolve() == run.resolve()):
        return RunFolder(run), generated.source
    source = generated.source if run is None else printable(str(run / generated.source))
    if out is None:
        name = printable(generated.path.resolve().name.removesuffix(".npz"))
        usual = RunFolder(Path("runs") / f"{name}-eval")
        others = (RunFolder(Path("runs") / f"{name}-eval-{number}") for number in itertools.count(2))
        folders = itertools.chain([usual], others)
        return next(each for each in folders if not each.path.exists() or _is_of(each, source)), source
    folder = RunFolder(out)
    if out.exists() and not out.is_dir():
        raise RunError(f"{out} is a file; --out names a folder")
    if out.is_dir() and any(out.iterdir()) and not _is_of(folder, source):
        raise RunError(f"{out} has other files in it, or scores of other samples; give another --out")
    return folder, source


def _is_of(folder: RunFolder, source: str) -> bool:
    """Say whether a folder has been made by this command, of samples from the same place."""
    document = mapping(folder.read_json("metrics.json"))
    same = mapping(document.get("generated")).get("source") == source
    return same and not folder.file("run.json").exists()


def _limit(*several: Generated) -> int | None:
    """Return the least memory that runs among these were planned with; None: no limit."""
    facts = [RunFolder(each.run).facts() for each in several if each.run is not None]
    return min((each.memory_limit for each in facts if each and each.memory_limit is not None), default=None)


def _recipe(generated: Generated, registry: Registry) -> Recipe | None:
    """Return the recipe of a run; None for samples of anything else."""
    return None if generated.run is None else load_recipe(generated.run / "recipe.yaml", registry=registry)


def _task(generated: Generated, wanted: Scoring, registry: Registry) -> tuple[Recipe | None, Task]:
    """Return the recipe of a run, and the task for samples: against what is named, else the run's data."""
    chosen = wanted.chosen(registry)
    if generated.run is None and not wanted.against:
        raise DataError(
            f"{generated.path} is not a run's folder; name what to compare with, such as --against cifar10"
        )
    real = read_all_real(wanted.against, registry, wanted.reading)
    recipe = _recipe(generated, registry)
    task = Task.of_images(real, chosen, registry) if recipe is None else Task.of_run(recipe, real, chosen)
    return recipe, task


def _conformed(generated: Generated, recipe: Recipe | None, task: Task) -> tuple[Generated, Dataset]:
    """Return samples in the form of those they are compared with, and these; notes say what was changed."""
    samples = generated.samples
    real = task.references[0].samples if task.data is None else task.data
    if recipe is not None and samples.conditions.labels is not None:  # they count the classes of its own data
        data = load_everything(recipe) if task.data is None else task.data
        samples = attrs.evolve(samples, classes=data.classes)
    notes = list(generated.notes)
    samples = conform(samples, real, str(generated.path), notes)
    task.check(samples)
    return attrs.evolve(generated, samples=samples, notes=notes), real


def _save(
    evaluation: Evaluation, folder: RunFolder, samples: Dataset, real: Dataset, *, features: bool
) -> list[str]:
    """Write scores, figures and page into a folder; return what becomes of scores that are there."""
    with ExitStack() as held:
        with suppress(RunError):  # a run that scores itself may hold it for long
            held.enter_context(folder.held(10.0))
        if not folder.file("run.json").exists():
            folder.write("samples.png", pictures.png(samples_picture(samples, real, 10)))
        files = write_features(folder, evaluation) if features else []
        told = write_scores(folder, evaluation)
    refresh_report(folder)
    if features:
        told = [*told, f"features: {', '.join(files) or 'no metric has computed any'}"]
    return told


def _print(evaluation: Evaluation, form: Format | None, *, quiet: bool) -> None:
    """Print the scores in a form that was asked for; if none was, as a table, and nothing if `quiet`."""
    document = evaluation.document
    if form == "json":
        say_json(document)
    elif form is not None and form != "table":
        say(*document_table(document, form).split("\n"))
    elif form == "table" or not quiet:
        show_scores(document, console(), protocols=True)


def compare(first: Path, second: Path, as_json: bool, **options: Any) -> None:
    """Do the work of `cswf compare`."""
    wanted = Scoring(**options)
    device = choose_device(wanted.device)
    prepare(quiet=wanted.quiet)
    both = wanted.read(first), wanted.read(second)
    registry = Registry.discover(wanted.plugins_dir)
    recipes = _recipe(both[0], registry), _recipe(both[1], registry)
    with memory_limited(_limit(*both)):
        task = _task_of_two(both, recipes, wanted, registry)
    task = wanted.adjust(task, registry, *recipes)
    conformed = []
    for generated, recipe in zip(both, recipes, strict=True):
        named = attrs.evolve(generated, source=printable(str(generated.path)))
        conformed.append(_conformed(named, recipe, task)[0])
    with wanted.progress() as progress:
        comparing = compare_samples(
            conformed[0],
            conformed[1],
            task,
            recipes=recipes,
            device=device,
            tell=progress.tell,
        )
    names = _names(first, second)
    seeds = None not in recipes and len(groups([each.resolved() for each in recipes if each])) == 1
    if as_json:
        say_json({**_document(comparing, names), "seeds_of_one_recipe": seeds})
    elif not wanted.quiet:
        _show(comparing, names)
        if seeds:
            say("note: both runs are of one recipe and differ in their seed only: the difference is chance")


def _task_of_two(
    both: Sequence[Generated], recipes: Sequence[Recipe | None], wanted: Scoring, registry: Registry
) -> Task:
    """Return the task for both sets: against what is named, else against the data that two runs share."""
    chosen = wanted.chosen(registry)
    if wanted.against:
        task = Task.of_images(read_all_real(wanted.against, registry, wanted.reading), chosen, registry)
    else:
        data = []
        for generated, recipe in zip(both, recipes, strict=True):
            if recipe is None:
                no_run = f"{generated.path} is not a run; name what to compare both with"
                raise DataError(f"{no_run}, such as --against cifar10")
            data.append((recipe.data.plain(), recipe.condition.plain()))
        if recipes[0] is None or data[0] != data[1]:
            others = "the two runs have other data or conditions"
            raise DataError(f"{others}; say what to compare both with: --against")
        task = Task.of_run(recipes[0], (), ())
    image = task.references[0].samples.space.is_image
    # Those of images share their features.
    usual = ("fid", "kid", "precision-recall") if image else ("sliced-wasserstein",)
    chosen = chosen or [choose(registry, "metric", name) for name in usual]
    return attrs.evolve(task, metrics=tuple(chosen))


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
