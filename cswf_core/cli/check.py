"""`cswf check`: validate a recipe without running it."""

from __future__ import annotations

from pathlib import Path

import click

from cswf_core.cli import options
from cswf_core.recipe import load_recipe
from cswf_core.runs.printing import say


@click.command()
@click.argument("recipe")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@options.plugins_dir
def check(recipe: str, overrides: tuple[str, ...], plugins_dir: tuple[Path, ...]) -> None:
    """Validate RECIPE without running it; every mistake is reported as FILE:LINE:COL: message."""
    loaded = load_recipe(recipe, overrides, plugins_dir=plugins_dir)
    say(f"{loaded.name}: fine")
