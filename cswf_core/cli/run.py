"""`cswf run`."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from cswf_core.launch import launch
from cswf_core.recipe import Recipe, load_recipe
from cswf_core.runs.directory import RunDirectory
from cswf_core.runs.progress import BarProgress, LineProgress


@click.command()
@click.argument("recipe")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--out", type=click.Path(path_type=Path), help="Folder for the results.  [default: runs/NAME]")
@click.option(
    "--device", default="auto", show_default=True, metavar="auto|cpu|cuda|cuda:N", help="Where to compute."
)
@click.option("--quiet", is_flag=True, help="Print nothing but errors.")
@click.option("--force", is_flag=True, help="Replace an earlier run in the folder.")
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
    directory = RunDirectory(out) if out is not None else RunDirectory.fresh(Path("runs"), _folder_name(loaded))
    console = Console(stderr=False, quiet=quiet)
    logging.basicConfig(format="%(message)s", level=logging.ERROR if quiet else logging.WARNING)
    directory.refuse_if_taken(force=force)
    if not quiet:
        console.print(
            f"{loaded.name}: {loaded.description}".rstrip(": "), highlight=False, markup=False, soft_wrap=True
        )
    progress = BarProgress(console) if console.is_terminal and not quiet else LineProgress(console)
    try:
        facts = launch(loaded, directory, device=device, force=force, observers=[progress])
    finally:
        progress.close()
    _tell(console, directory, facts)


def _tell(console: Console, directory: RunDirectory, facts: dict[str, Any]) -> None:
    scores = "".join(f"  {name} {value:.4g}" for name, value in facts["metrics"].items())
    line = f"done in {facts['seconds']:.1f} s{scores}  sha256 {facts['samples_sha256'][:12]}"
    for text in (line, f"see {directory.file('samples.png')}"):
        console.print(text, highlight=False, markup=False, soft_wrap=True)


def _folder_name(recipe: Recipe) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", recipe.name).strip("-.") or "run"
