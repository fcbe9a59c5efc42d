"""`cswf recipes`: list the built-in recipes."""

from __future__ import annotations

import json

import click
from rich.console import Console
from rich.table import Table

from cswf_core.cli import options
from cswf_core.recipe import RecipeError, builtin_recipes
from cswf_core.recipe.merge import Source
from cswf_core.recipe.nodes import Mapping, Problem, Scalar


@click.command()
@options.json
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


def _described(source: Source) -> dict[str, str]:
    problems: list[Problem] = []
    tree = source.read(problems)
    if not isinstance(tree, Mapping):
        raise RecipeError(problems)
    node = tree.get("description")
    return {"description": node.raw if isinstance(node, Scalar) else "", "path": str(source)}
