"""`cswf cite`: print BibTeX of the works that a recipe rests on."""

from __future__ import annotations

from pathlib import Path

import click

from cswf_core.cli import options
from cswf_core.recipe import load_recipe
from cswf_core.recipe.citations import citations
from cswf_core.runs.printing import say, say_json


@click.command()
@click.argument("recipe")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@options.json
@options.plugins_dir
def cite(recipe: str, overrides: tuple[str, ...], as_json: bool, plugins_dir: tuple[Path, ...]) -> None:
    """Print BibTeX of the method, this program, and what RECIPE uses: its data, parts and metrics.

    A run is cited by its own recipe: cswf cite runs/NAME/recipe.yaml.
    """
    works = citations(load_recipe(recipe, overrides, plugins_dir=plugins_dir))
    if as_json:
        say_json([work.plain() for work in works])
    else:
        say(*"\n\n".join(map(str, works)).split("\n"))
