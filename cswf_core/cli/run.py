"""`cswf run`."""

from __future__ import annotations

import logging
import re
import signal
from pathlib import Path

import click
from rich.console import Console

from cswf_core.errors import Terminated
from cswf_core.launch import launch
from cswf_core.recipe import Recipe, choose_device, load_recipe
from cswf_core.runs.directory import RunDirectory
from cswf_core.runs.progress import BarProgress, LineProgress, say


@click.command()
@click.argument("recipe")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Folder for the results.  [default: runs/NAME, or runs/NAME-2 and so on if that is taken]",
)
@click.option(
    "--device", default="auto", show_default=True, metavar="auto|cpu|cuda|cuda:N", help="Where to compute."
)
@click.option("--quiet", is_flag=True, help="Print nothing but errors.")
@click.option("--force", is_flag=True, help="Replace an earlier run in the folder, runs/NAME without --out.")
@click.option(
    "--plugins-dir", type=click.Path(path_type=Path), help="Also load the one-file plugins in this folder."
)
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
    directory = _directory(loaded, out, force)
    logging.basicConfig(format="%(message)s", level=logging.ERROR if quiet else logging.WARNING)
    progress = None if quiet else _progress(loaded)
    signal.signal(signal.SIGTERM, _terminate)
    try:
        facts = launch(loaded, directory, device=device, force=force, observers=[progress] if progress else [])
    except KeyboardInterrupt:
        if directory.file("run.json").exists():
            click.echo(
                f"{directory.path} has what was done until then: recipe, log and record, no samples", err=True
            )
        raise
    finally:
        if out is None:
            directory.remove_if_empty()
        if progress is not None:
            progress.close()
    if not quiet:
        scores = "".join(f"  {name} {value:.4g}" for name, value in facts["metrics"].items())
        say(f"done in {facts['seconds']:.1f} s{scores}  sha256 {facts['samples_sha256'][:12]}")
        say(f"see {directory.file('samples.png')}")


def _progress(recipe: Recipe) -> BarProgress | LineProgress:
    say(f"{recipe.name}: {recipe.description}".rstrip(": "))
    console = Console()
    return BarProgress(console) if console.is_terminal else LineProgress()


def _directory(recipe: Recipe, out: Path | None, force: bool) -> RunDirectory:
    if out is None and not force:
        return RunDirectory.fresh(Path("runs"), _folder_name(recipe))
    directory = RunDirectory(out if out is not None else Path("runs") / _folder_name(recipe))
    directory.refuse_if_taken(force=force, reading=recipe.path)
    return directory


def _terminate(*_: object) -> None:
    """End as Ctrl-C does when a scheduler or `timeout` says so."""
    raise Terminated


def _folder_name(recipe: Recipe) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", recipe.name).strip("-.") or "run"
