"""`cswf sample`."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

from cswf_core.cli.recipes import plugins_dir_option
from cswf_core.cli.running import device_option, get_ready, quiet_option
from cswf_core.errors import CswfError, RunError
from cswf_core.interfaces import Dataset
from cswf_core.model import Model, load_model
from cswf_core.model.output import destinations, write_samples
from cswf_core.model.requests import Label
from cswf_core.runs.folder import RunDirectory
from cswf_core.runs.progress import WorkProgress, say
from cswf_core.session.run import refresh_report

seed_option = click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Another one, other samples."
)
force_option = click.option("--force", is_flag=True, help="Replace files that are there.")


@click.command()
@click.argument("path", metavar="RUN|MODEL", type=click.Path(path_type=Path))
@click.option("--count", type=click.IntRange(min=1), help="How many samples.  [default: 100]")
@click.option("--label", metavar="CLASS", help="Of one class, by name or by number from 0.")
@click.option("--labels", metavar="CLASS:N,…", help="So many of each class: 0:100,7:50.")
@click.option("--vector", metavar="Y,…", help="Of one condition vector, any numbers: 0.3,0.7.")
@seed_option
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="FILE.png, FILE.npz, or a folder for one PNG each.  [default: samples-offline.npz and .png in RUN; "
    "samples.npz and .png here for a MODEL]",
)
@force_option
@device_option
@quiet_option
@plugins_dir_option
def sample(
    path: Path,
    count: int | None,
    label: str | None,
    labels: str | None,
    vector: str | None,
    seed: int,
    out: Path | None,
    force: bool,
    device: str,
    quiet: bool,
    plugins_dir: Path | None,
) -> None:
    """Draw samples from a saved model: RUN, a run with model.save=true, or MODEL, the folder `model` in it.

    Without --label or --labels, classes come in the data's proportions. The same seed gives the same samples,
    and the first of many are those of few. `cswf eval RUN --samples offline` scores those of a run.
    """
    many = None if labels is None else _parsed_labels(labels)
    if many is not None and (label is not None or count not in (None, sum(many.values()))):
        raise RunError("--labels says how many of each class: leave out --label and --count")
    total = sum(many.values()) if many is not None else 100 if count is None else count
    numbers = None if vector is None else _parsed_vector(vector)
    get_ready(quiet=quiet)
    model = load_model(path, plugins_dir=plugins_dir)
    run = path if (path / "run.json").is_file() else None
    stem = Path("samples") if run is None else run / "samples-offline"
    usual = [stem.with_suffix(ending) for ending in (".npz", ".png")]
    places = destinations(out, usual, model.space, force=force or (out is None and run is not None))
    progress = WorkProgress(silent=quiet)
    try:
        drawn = model.sample(
            total,
            labels=label if many is None else many,
            vectors=numbers,
            seed=seed,
            device=device,
            tell=progress.tell,
        )
    finally:
        progress.close()
    write_samples(drawn, partial(_target, model, drawn), places)
    if run is not None and out is None:
        refresh_report(RunDirectory(run))
    if not quiet:
        say(f"{len(drawn):,} samples: see {', '.join(map(str, places))}")


def _parsed_labels(text: str) -> dict[Label, int]:
    """Return how many of each class `0:100,7:50` asks for."""
    found: dict[Label, int] = {}
    for part in text.split(","):
        name, _, number = part.rpartition(":")
        if not name.strip() or not number.strip().isdecimal() or int(number) == 0:
            raise RunError(f"--labels takes CLASS:N, separated by commas, such as 0:100,7:50; got '{part}'")
        found[name.strip()] = found.get(name.strip(), 0) + int(number)
    return found


def _parsed_vector(text: str) -> list[float]:
    """Return the numbers of `0.3,0.7`."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise RunError(f"--vector takes numbers, separated by commas, such as 0.3,0.7; got '{text}'") from None


def _target(model: Model, drawn: Dataset) -> Dataset:
    """Return what points are drawn on: the data, if they are at hand."""
    try:
        return model.data()
    except CswfError:
        return drawn
