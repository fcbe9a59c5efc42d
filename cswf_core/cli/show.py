"""`cswf show`: print a recipe as it will run, and where every value came from."""

from __future__ import annotations

import json
from pathlib import Path

import click

from cswf_core.cli import options
from cswf_core.recipe import load_recipe
from cswf_core.recipe.render import origin_of_every_value, with_origins


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
        click.echo(json.dumps(whole, indent=2, ensure_ascii=False))
    else:
        click.echo(with_origins(loaded), nl=False)
        if loaded.variants:
            sweep = options.command(f"cswf sweep {recipe}")
            click.echo(f"# variants, run by {sweep}: {'; '.join(loaded.variants)}")
