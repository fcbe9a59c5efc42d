"""`cswf run`: run a recipe and leave its samples in a folder."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

from cswf_core.cli import options
from cswf_core.cli.ranks import on_ranks
from cswf_core.cli.sweep import run_trials
from cswf_core.cli.terminal import (
    folder_name,
    introduce,
    point_to_results,
    prepare,
    results_folder,
    resume_run,
    run_recipe,
)
from cswf_core.errors import RunError
from cswf_core.ranks import Ranks
from cswf_core.recipe import Recipe, choose_device, load_recipe
from cswf_core.runs.folder import RunFolder
from cswf_core.runs.printing import say
from cswf_core.session.devices import follow, is_rank
from cswf_core.session.sweep import plan_seeds


@click.command()
@click.argument("recipe")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@options.out("Folder for the results.  [default: runs/NAME, or runs/NAME-2 and so on if that is taken]")
@options.device
@options.devices
@options.memory_limit
@options.quiet
@click.option("--force", is_flag=True, help="Replace an earlier run in the folder, runs/NAME without --out.")
@click.option(
    "--resume", is_flag=True, help="Go on with the same recipe's run in --out, if it has one; else begin."
)
@click.option(
    "--seeds",
    type=options.WholeNumber(1),
    help="Run it with so many seeds, the recipe's own and those that follow, in a new runs/NAME-seeds, or in "
    "--out; if that has some of these runs already, the others are run.",
)
@options.accept_changed_plugins
@options.accept_unverified
@options.plugins_dir
def run(
    recipe: str,
    overrides: tuple[str, ...],
    out: Path | None,
    device: str,
    devices: str | None,
    quiet: bool,
    force: bool,
    resume: bool,
    seeds: int | None,
    plugins_dir: tuple[Path, ...],
) -> int | None:
    """Run RECIPE, a name of `cswf recipes` or a path, and leave its samples in a folder.

    KEY=VALUE changes a value of the recipe: schedule.steps=50, outputs.snapshots.0=1.
    """
    if seeds is not None:
        _refuse_with_seeds(devices, resume=resume)
        trials = plan_seeds(recipe, overrides, seeds, plugins_dir=plugins_dir)
        run_trials(trials, "seeds", out, device=device, quiet=quiet, force=force)
        return None
    loaded = load_recipe(recipe, overrides, plugins_dir=plugins_dir)
    choose_device(device)
    if resume and (out is None or force):
        raise RunError("--resume goes on with the run in a folder: give its --out, and no --force")
    before = RunFolder(out) if resume and out is not None else None
    if out is not None:  # before ranks are started
        going_on = before is not None and (before.begun or before.only_touched)
        RunFolder(out).refuse_if_taken(force=force or going_on, reading=loaded.path)
    return on_ranks(
        devices,
        device,
        before,
        lead=partial(_lead, recipe, loaded, out, quiet=quiet, force=force, resume=resume),
        follow=partial(follow, loaded),
    )


def _refuse_with_seeds(devices: str | None, *, resume: bool) -> None:
    """Raise `RunError` for options that runs with several seeds do not have."""
    if resume:
        raise RunError("--seeds goes on by itself with what --out lacks: leave out --resume")
    if devices is not None or is_rank():
        raise RunError("--seeds runs on one device, one seed after the other: leave out --devices and torchrun")


def _lead(
    name: str,
    loaded: Recipe,
    out: Path | None,
    ranks: Ranks,
    device: str,
    *,
    quiet: bool,
    force: bool,
    resume: bool,
) -> None:
    """Run a recipe that was loaded by its name, or go on with its run."""
    prepare(quiet=quiet)
    if not quiet:
        introduce(loaded)
        if loaded.variants:
            sweep = options.command(f"cswf sweep {name}")
            say(f"this runs the recipe itself; {sweep} runs its {len(loaded.variants)} variants")
    folder = results_folder(folder_name(loaded), out, force=force)
    try:
        if resume and folder.begun:
            resume_run(loaded, folder, device=device, quiet=quiet, ranks=ranks)
        else:
            run_recipe(loaded, folder, device=device, force=force or resume, quiet=quiet, ranks=ranks)
    finally:
        folder.withdraw()
    if not quiet:
        point_to_results(folder)
