"""`cswf check`, `cswf show`, `cswf recipes`, `cswf schema`."""

from __future__ import annotations

import json
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from cswf_core.plugins import Registry
from cswf_core.recipe import RecipeError, builtin_recipes, load_recipe
from cswf_core.recipe.merge import Source
from cswf_core.recipe.nodes import Mapping, Problem, Scalar
from cswf_core.recipe.render import origin_of_every_value, with_origins
from cswf_core.recipe.sections import recipe_schema

plugins_dir_option = click.option(
    "--plugins-dir", type=click.Path(path_type=Path), help="Also load the one-file plugins in this folder."
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.command()
@click.argument("recipe")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@plugins_dir_option
def check(recipe: str, overrides: tuple[str, ...], plugins_dir: Path | None) -> None:
    """Validate RECIPE without running it; every mistake is reported as FILE:LINE:COL: message."""
    loaded = load_recipe(recipe, overrides, plugins_dir=plugins_dir)
    click.echo(f"{loaded.name}: fine")


@click.command()
@click.argument("recipe")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@json_option
@plugins_dir_option
def show(recipe: str, overrides: tuple[str, ...], as_json: bool, plugins_dir: Path | None) -> None:
    """Print RECIPE as it will run, every default filled in, and where each value came from."""
    loaded = load_recipe(recipe, overrides, plugins_dir=plugins_dir)
    if as_json:
        whole = {"recipe": loaded.resolved(), "origins": origin_of_every_value(loaded)}
        click.echo(json.dumps(whole, indent=2, ensure_ascii=False))
    else:
        click.echo(with_origins(loaded), nl=False)
        if loaded.variants:
            click.echo(f"# variants, run by `cswf sweep {recipe}`: {'; '.join(loaded.variants)}")


@click.command()
@json_option
def recipes(as_json: bool) -> None:
    """List the built-in recipes."""
    rows = [{"name": name, **_described(source)} for name, source in builtin_recipes().items()]
    if as_json:
        click.echo(json.dumps(rows, indent=2, ensure_ascii=False))
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("recipe", "what it is for"):
        table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(row["name"], row["description"])
    Console().print(table)


@click.command()
@plugins_dir_option
def schema(plugins_dir: Path | None) -> None:
    """Print the JSON Schema of recipes, with all plugins that are loaded."""
    click.echo(json.dumps(recipe_schema(Registry.discover(plugins_dir)), indent=2, ensure_ascii=False))


def _described(source: Source) -> dict[str, str]:
    problems: list[Problem] = []
    tree = source.read(problems)
    if not isinstance(tree, Mapping):
        raise RecipeError(problems)
    node = tree.get("description")
    return {"description": node.raw if isinstance(node, Scalar) else "", "path": str(source)}
