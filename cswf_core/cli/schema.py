"""`cswf schema`: print the JSON Schema of recipes, for editors."""

from __future__ import annotations

from pathlib import Path

import click

from cswf_core.cli import options
from cswf_core.plugins import Registry
from cswf_core.recipe.sections import recipe_schema
from cswf_core.runs.printing import say_json


@click.command()
@options.plugins_dir
def schema(plugins_dir: tuple[Path, ...]) -> None:
    """Print the JSON Schema of recipes, with all plugins that are loaded."""
    say_json(recipe_schema(Registry.discover(plugins_dir)))
