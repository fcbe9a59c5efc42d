"""`cswf recipes`: list the recipes that have a name."""

from __future__ import annotations

import json
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from cswf_core.cli import options
from cswf_core.plugins import Registry
from cswf_core.recipe import known_recipes
from cswf_core.recipe.merge import Source
from cswf_core.recipe.nodes import Mapping, Problem, Scalar


@click.command()
@options.json
@options.plugins_dir
def recipes(as_json: bool, plugins_dir: tuple[Path, ...]) -> None:
    """List the built-in recipes, and those of packages as PACKAGE:RECIPE."""
    registry = Registry.discover(plugins_dir)
    rows = [{"name": name, **_described(source)} for name, source in known_recipes(registry).items()]
    for broken in registry.broken:
        if broken.owner.kind == "recipe":
            rows.append({"name": f"{broken.owner.distribution}:", **_row(error=broken.reason)})
    if as_json:
        click.echo(json.dumps(rows, indent=2, ensure_ascii=False))
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("recipe", "what it is for"):
        table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(row["name"], f"broken: {row['error']}" if row["error"] else row["description"])
    Console().print(table, markup=False)


def _described(source: Source) -> dict[str, str | None]:
    problems: list[Problem] = []
    tree = source.read(problems)
    if not isinstance(tree, Mapping):
        return _row(str(source), error=str(problems[0]))
    node = tree.get("description")
    return _row(str(source), node.raw if isinstance(node, Scalar) else "")


def _row(path: str = "", description: str = "", error: str | None = None) -> dict[str, str | None]:
    return {"description": description, "path": path, "error": error}
