"""`cswf show`: print a recipe as it will run, and where every value came from."""

from __future__ import annotations

from pathlib import Path

import click

from cswf_core.cli import options
from cswf_core.recipe import load_recipe
from cswf_core.recipe.render import origin_of_every_value, with_origins
from cswf_core.runs.printing import say, say_json


@click.command()
@click.argument("recipe")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@options.json
@options.plugins_dir
def show(recipe: str, overrides: tuple[str, ...], as_json: bool, plugins_dir: tuple[Path, ...]) -> None:
    """Print RECIPE as it will run, every default filled in, and where each value came from."""
    loaded = load_recipe(recipe, overrides, plugins_dir=plugins_dir)
    if as_json:
        whole = {"recipe": loaded.resolved(), "origins": origin_of_every_value(loaded)}
        say_json(whole)
    else:
        say(*with_origins(loaded).rstrip("\n").split("\n"))
        if loaded.variants:
            sweep = options.command(f"cswf sweep {recipe}")
            say(f"# variants, run by {sweep}: {'; '.join(loaded.variants)}")
