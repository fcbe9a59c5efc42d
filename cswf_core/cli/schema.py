"""`cswf schema`: print the JSON Schema of recipes, for editors."""

from __future__ import annotations

import json
from pathlib import Path

import click

from cswf_core.cli import options
from cswf_core.plugins import Registry
from cswf_core.recipe.sections import recipe_schema


@click.command()
@options.plugins_dir
def schema(plugins_dir: tuple[Path, ...]) -> None:
    """Print the JSON Schema of recipes, with all plugins that are loaded."""
    click.echo(json.dumps(recipe_schema(Registry.discover(plugins_dir)), indent=2, ensure_ascii=False))
