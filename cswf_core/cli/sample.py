"""`cswf sample`: draw new samples from the model that a run has saved."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import click

from cswf_core.cli import options
from cswf_core.cli.output import destinations, write_samples
from cswf_core.cli.terminal import prepare
from cswf_core.errors import CswfError, RunError, excerpt
from cswf_core.interfaces import Dataset
from cswf_core.model import Model, load_model
from cswf_core.model.requests import Label
from cswf_core.model.shards import MANIFEST, ShardJob, is_shards, write_shards
from cswf_core.numbers import whole_number
from cswf_core.runs.folder import RunFolder
from cswf_core.runs.printing import say
from cswf_core.runs.samples import tell_drift
from cswf_core.runs.screen import WorkProgress
from cswf_core.session.devices import is_rank, number_from, number_of, own_device, start
from cswf_core.session.run import refresh_report


@click.command()
@click.argument("path", metavar="RUN|MODEL", type=click.Path(path_type=Path))
@click.option("--count", type=options.WholeNumber(1), help="How many samples.  [default: 100]")
@click.option("--label", metavar="CLASS", help="Of one class, by name or by number from 0.")
@click.option("--labels", metavar="CLASS:N,…", help="So many of each class: 0:100,7:50.")
@click.option("--vector", metavar="Y,…", help="Of one condition vector, any numbers: 0.3,0.7.")
@options.seed
@click.option(
    "--out",
    type=click.Path(),
    help="FILE.png, FILE.npz, a folder for one PNG each, or FOLDER/ for shards of any number of samples.  "
    "[default: samples-offline.npz and .png in RUN; samples.npz and .png here for a MODEL]",
)
@options.replace
@options.device
@options.devices
@options.memory_limit
@options.quiet
@options.accept_changed_plugins
@options.plugins_dir
def sample(
    path: Path,
    count: int | None,
    label: str | None,
    labels: str | None,
    vector: str | None,
    seed: int,
    out: str | None,
    force: bool,
    device: str,
    devices: str | None,
    quiet: bool,
    plugins_dir: tuple[Path, ...],
) -> int | None:
    """Draw samples from a saved model: RUN, a run with model.save=true, or MODEL, the folder `model` in it.

    Without --label or --labels, classes come in the data's proportions. The same seed gives the same samples,
    and the first of many are those of few. `cswf eval RUN --samples offline` scores those of a run.

    With --out FOLDER/, which ends in a slash, samples are written in shards of 8,192, in constant memory, and a
    call that was interrupted goes on. With --devices, or started by torchrun, processes share the shards.
    """
    counts = None if labels is None else _parse_labels(labels)
    if counts is not None and (label is not None or count not in (None, sum(counts.values()))):
        raise RunError("--labels says how many of each class: leave out --label and --count")
    total = sum(counts.values()) if counts is not None else 100 if count is None else count
    numbers = None if vector is None else _parse_vector(vector)
    several = number_of(devices, device)
    if several is not None and several > 1 and not is_rank():
        if out is None or not is_shards(out):
            raise RunError("several devices share a folder of shards: give --out FOLDER/, with the slash")
        return start(several)
    prepare(quiet=quiet)
    rank = number_from("RANK", 0)
    processes = number_from("WORLD_SIZE", 1)
    wanted: dict[str, Any] = {"labels": label if counts is None else counts, "vectors": numbers, "seed": seed}
    if out is not None and is_shards(out):
        quiet = quiet or rank > 0
        model = load_model(path, plugins_dir=plugins_dir)
        device = str(own_device(device))
        with closing(WorkProgress(silent=quiet)) as progress:
            job = ShardJob(count=total, **wanted, device=device, rank=rank, processes=processes)
            write_shards(model, Path(out), job, force=force, tell=progress.tell)
        if not quiet:
            say(f"{total:,} samples: see {Path(out) / MANIFEST}")
        return None
    if processes > 1 or rank > 0:
        raise RunError("processes of torchrun share a folder of shards: give --out FOLDER/, with the slash")
    model = load_model(path, plugins_dir=plugins_dir)
    run = path if (path / "run.json").is_file() else None
    stem = Path("samples") if run is None else run / "samples-offline"
    usual = [stem.with_suffix(ending) for ending in (".npz", ".png")]
    places = destinations(
        None if out is None else Path(out), usual, model.space, force=force or (out is None and run is not None)
    )
    with closing(WorkProgress(silent=quiet)) as progress:
        drawn = model.sample(total, **wanted, device=device, tell=progress.tell)
    write_samples(drawn, partial(_target, model, drawn), places)
    if run is not None and not model.header.condition.asks:  # with classes, particles may have other ones
        facts = RunFolder(run).facts()
        if facts is not None and facts.spread is not None:
            tell_drift(drawn, facts.spread)
    if run is not None and out is None:
        refresh_report(RunFolder(run))
    if not quiet:
        say(f"{len(drawn):,} samples: see {', '.join(map(str, places))}")
    return None


def _parse_labels(text: str) -> dict[Label, int]:
    """Return the number of samples of each class in `0:100,7:50`."""
    counts: dict[Label, int] = {}
    for part in text.split(","):
        name, _, written = part.rpartition(":")
        number = whole_number(written)
        if not name.strip() or not number:
            got = f"got '{excerpt(part)}'"
            raise RunError(f"--labels takes CLASS:N, separated by commas, such as 0:100,7:50; {got}")
        counts[name.strip()] = counts.get(name.strip(), 0) + number
    return counts


def _parse_vector(text: str) -> list[float]:
    """Return the numbers of `0.3,0.7`."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise RunError(
            f"--vector takes numbers, separated by commas, such as 0.3,0.7; got '{excerpt(text)}'"
        ) from None


def _target(model: Model, drawn: Dataset) -> Dataset:
    """Return the data that points are drawn on; the points themselves if the data are not at hand."""
    try:
        return model.data()
    except CswfError:
        return drawn
