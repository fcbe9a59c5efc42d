"""`cswf run`."""

from __future__ import annotations

from pathlib import Path

import click

from cswf_core.cli.recipes import plugins_dir_option
from cswf_core.cli.running import (
    device_option,
    folder_name,
    get_ready,
    introduce,
    quiet_option,
    results_folder,
    run_in_sight,
)
from cswf_core.recipe import choose_device, load_recipe
from cswf_core.runs.progress import say


@click.command()
@click.argument("recipe")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Folder for the results.  [default: runs/NAME, or runs/NAME-2 and so on if that is taken]",
)
@device_option
@quiet_option
@click.option("--force", is_flag=True, help="Replace an earlier run in the folder, runs/NAME without --out.")
@plugins_dir_option
def run(
    recipe: str,
    overrides: tuple[str, ...],
    out: Path | None,
    device: str,
    quiet: bool,
    force: bool,
    plugins_dir: Path | None,
) -> None:
    """Run RECIPE, a built-in name or a path, and leave its samples in a folder.

    KEY=VALUE changes a value of the recipe: schedule.steps=50, outputs.snapshots.0=1.
    """
    loaded = load_recipe(recipe, overrides, plugins_dir=plugins_dir)
    choose_device(device)
    directory = results_folder(folder_name(loaded), out, force=force)
    directory.refuse_if_taken(force=force, reading=loaded.path)
    get_ready(quiet=quiet)
    if not quiet:
        introduce(loaded)
        if loaded.variants:
            say(f"this runs the recipe itself; `cswf sweep {recipe}` runs its {len(loaded.variants)} variants")
    try:
        run_in_sight(loaded, directory, device=device, force=force, quiet=quiet)
    except KeyboardInterrupt:
        if directory.file("run.json").exists():
            done = "recipe, log and record, no samples"
            if directory.file("samples.npz").exists():
                done = f"the samples are there, and `cswf eval {directory.path}` scores them"
            click.echo(f"{directory.path} has what was done until then: {done}", err=True)
        raise
    finally:
        if out is None:
            directory.remove_if_empty()
    if not quiet:
        made = [directory.file(name) for name in ("report.html", "samples.png", "completions.png")]
        say(f"see {', '.join(str(path) for path in made if path.exists())}")
