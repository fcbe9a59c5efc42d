"""`cswf eval`: score a run, or a folder or file of images that any program made."""

from __future__ import annotations

import itertools
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import attrs
import click

from cswf_core.cli import options
from cswf_core.cli.scoring import Scoring, scoring_options
from cswf_core.cli.terminal import prepare, show_protocols, show_scores
from cswf_core.errors import DataError, RunError, printable
from cswf_core.evaluation.evaluate import Evaluation, evaluate
from cswf_core.evaluation.samples import Generated, conform, read, read_all_real
from cswf_core.evaluation.task import Task
from cswf_core.interfaces import Dataset
from cswf_core.kernels.memory import memory_limited
from cswf_core.pictures import grid as pictures
from cswf_core.plugins import Registry
from cswf_core.recipe import choose, choose_device, load_recipe
from cswf_core.runs.folder import RunFolder
from cswf_core.runs.printing import complain, say, say_json
from cswf_core.runs.samples import samples_picture
from cswf_core.runs.scores import mapping
from cswf_core.runs.screen import WorkProgress, console
from cswf_core.scores.tables import FORMATS, Format, document_table
from cswf_core.session.run import refresh_report, write_features, write_scores

PATIENCE_S = 10.0
"""Seconds to wait for another command that is about to write scores into the same folder."""

COLUMNS = 10
"""Samples in a row of the picture that is drawn of a folder's or a file's."""


@click.command()
@click.argument("path", metavar="RUN|FOLDER|FILE.npz", type=click.Path(path_type=Path))
@scoring_options("those of the run's recipe, else fid")
@click.option(
    "--samples",
    "kind",
    type=click.Choice(["batched", "offline"]),
    default="batched",
    show_default=True,
    help="Which samples of a run: its particles, or those carried along or sampled from its saved model.",
)
@options.out(
    "Folder for scores, figures and page.  [default: the run's own; for a folder or file NAME, runs/NAME-eval]"
)
@click.option("--save-features", is_flag=True, help="Also write the features of all images, as .npy files.")
@click.option(
    "--format",
    "form",
    type=click.Choice(FORMATS),
    help="Print the scores as a table for a terminal, as CSV, Markdown, LaTeX or JSON.  [default: table]",
)
@options.device
@options.memory_limit
@options.quiet
@options.json
@options.plugins_dir
def eval(
    path: Path,
    scoring: Scoring,
    kind: str,
    out: Path | None,
    save_features: bool,
    form: Format | None,
    device: str,
    quiet: bool,
    as_json: bool,
    plugins_dir: tuple[Path, ...],
) -> None:
    """Score samples: those of a RUN, a FOLDER of pictures, or a FILE.npz of images.

    Scores of a run are written to its metrics.json and into its report.html; those of others, or with --out,
    into a folder of their own. Folders in a FOLDER are classes; pictures of different sizes need --resize, and
    grey ones beside colour ones --rgb.
    """
    chosen_device = choose_device(device)
    prepare(quiet=quiet)
    generated = read(path, kind, plugins_dir, scoring.reading)
    folder, source = _folder(generated, out)
    if not folder.path.is_dir():
        folder.make()  # a place that cannot be written to is told before anything is computed
        click.get_current_context().call_on_close(folder.withdraw)  # if nothing comes to be in it
    facts = None if generated.run is None else RunFolder(generated.run).facts()
    with memory_limited(None if facts is None else facts.memory_limit):
        task = _task(generated, scoring, plugins_dir)
    task = scoring.adjust(task)
    samples, notes = generated.samples, list(generated.notes)
    if task.data is not None:  # a run's labels count its own classes
        samples = attrs.evolve(samples, classes=task.data.classes)
    real = task.references[0].samples if task.data is None else task.data
    samples = conform(samples, real, str(path), notes)
    task.check(samples)
    with closing(WorkProgress(silent=quiet)) as progress:
        evaluation = evaluate(
            samples,
            task,
            source=source,
            device=chosen_device,
            ending="_offline" if kind == "offline" else "",
            notes=notes,
            tell=progress.tell,
        )
    _print(evaluation, "json" if as_json else form, quiet=quiet)
    told = _save(evaluation, folder, samples, real, features=save_features)
    if quiet:
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


def _task(generated: Generated, scoring: Scoring, plugins_dir: tuple[Path, ...]) -> Task:
    registry = Registry.discover(plugins_dir)
    chosen = [choose(registry, "metric", text, "--metric") for text in scoring.metrics]
    if generated.run is None and not scoring.against:
        raise DataError(
            f"{generated.path} is not a run's folder; name what to compare with, such as --against cifar10"
        )
    real = read_all_real(scoring.against, registry, scoring.reading)
    if generated.run is None:
        return scoring.with_copying(Task.of_images(real, chosen, registry), registry)
    recipe = load_recipe(generated.run / "recipe.yaml", registry=registry)
    return scoring.with_copying(Task.of_run(recipe, real, chosen), registry, recipe)


def _save(
    evaluation: Evaluation, folder: RunFolder, samples: Dataset, real: Dataset, *, features: bool
) -> list[str]:
    """Write scores, figures and page into a folder; return what becomes of scores that are there."""
    with ExitStack() as held:
        with suppress(RunError):  # a run that scores itself may hold it for long
            held.enter_context(folder.held(PATIENCE_S))
        if not folder.file("run.json").exists():
            folder.write("samples.png", pictures.png(samples_picture(samples, real, COLUMNS)))
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
        screen = console()
        show_scores(document, screen)
        show_protocols(document, screen)
