"""`cswf sweep`: run a recipe with several values of a key, and compare the results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click

from cswf_core.cli import options
from cswf_core.cli.terminal import folder_name, introduce, prepare, results_folder, resume_run, run_recipe
from cswf_core.recipe import Recipe, choose_device
from cswf_core.runs.folder import RunFolder
from cswf_core.runs.printing import complain, say
from cswf_core.runs.screen import console, table
from cswf_core.scores.replicas import Group
from cswf_core.session.sweep import Sweep, Trial, plan


@click.command()
@click.argument("recipe")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]... [KEY=A,B,C]...")
@options.out(
    "Folder for the results; if it has this sweep already, what is missing is run."
    "  [default: runs/NAME-sweep, or runs/NAME-sweep-2 and so on if that is taken]"
)
@options.device
@options.memory_limit
@options.quiet
@click.option(
    "--force", is_flag=True, help="Replace an earlier sweep in the folder, runs/NAME-sweep without --out."
)
@options.plugins_dir
def sweep(
    recipe: str,
    overrides: tuple[str, ...],
    out: Path | None,
    device: str,
    quiet: bool,
    force: bool,
    plugins_dir: tuple[Path, ...],
) -> None:
    """Run RECIPE once for each of several values, and draw the results side by side.

    KEY=A,B,C gives the values, as in condition.amplifier=0,2,10; several such keys give every combination.
    Without one, the variants that the recipe itself lists are run. KEY=VALUE holds for all runs.
    """
    trials = plan(recipe, overrides, plugins_dir=plugins_dir)
    run_trials(trials, "sweep", out, device=device, quiet=quiet, force=force)


def run_trials(
    trials: Sequence[Trial], kind: str, out: Path | None, *, device: str, quiet: bool, force: bool
) -> None:
    """Run trials that are not done yet, in `out` or in runs/NAME-KIND, and compare their results."""
    choose_device(device)
    prepare(quiet=quiet)
    folder = results_folder(f"{folder_name(trials[0].recipe)}-{kind}", out, force=force)
    runs = Sweep(trials, folder)
    try:
        with runs.claimed(force=force):
            if not quiet:
                introduce(trials[0].recipe)
            runs.run(partial(_run, device=device, quiet=quiet), (lambda _: None) if quiet else say)
            runs.draw()
            groups = runs.summarise()
    except KeyboardInterrupt:
        if runs.is_begun():
            complain(f"{folder.path} has the runs done until then; --out {folder.path} goes on")
        raise
    finally:
        folder.withdraw()
    if not quiet:
        _show(runs.rows(), groups)
        say(f"see {folder.file('sweep.png')}")


def _run(recipe: Recipe, folder: RunFolder, *, device: str, quiet: bool) -> None:
    """Run one recipe, or go on with it where it was stopped."""
    if folder.begun:
        resume_run(recipe, folder, device=device, quiet=quiet)
    else:
        run_recipe(recipe, folder, device=device, force=True, quiet=quiet)


def _show(rows: Sequence[Mapping[str, Any]], groups: Sequence[Group]) -> None:
    """Print label, seconds and metrics of all runs, then means over seeds; lines break on terminals only."""
    scores = [row["metrics"] or {} for row in rows]
    metrics = list(dict.fromkeys(name for each in scores for name in each))
    lines = []
    for row, own in zip(rows, scores, strict=True):
        numbers = ["" if own.get(name) is None else f"{own[name]:.4g}" for name in metrics]
        lines.append([row["label"], f"{row['seconds'] or 0:.1f}", *numbers])
    lines += [_mean(group, metrics) for group in groups if len(group.runs) > 1]
    screen = console()
    if not screen.is_terminal:
        screen.width = 1000
    screen.print(table(["run", "seconds", *metrics], lines, others="right"))


def _mean(group: Group, metrics: Sequence[str]) -> list[str]:
    """Return the line of a group of seeds: mean ± standard deviation of each metric."""
    numbers = []
    for name in metrics:
        summary = group.summaries.get(name)
        numbers.append("" if summary is None else str(summary.printed(summary.deviation)))
    return [f"{group.label}: mean ± deviation of {len(group.runs)} seeds", "", *numbers]
