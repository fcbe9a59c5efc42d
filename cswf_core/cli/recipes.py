"""`cswf recipes`: list the recipes that have a name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from cswf_core.cli import options
from cswf_core.nodes import Mapping, Problem, Scalar
from cswf_core.plugins import Registry
from cswf_core.recipe import known_recipes
from cswf_core.recipe.merge import RecipeFile
from cswf_core.runs.printing import say_json
from cswf_core.runs.screen import console, table


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
        say_json(rows)
        return
    lines = [(row["name"], f"broken: {row['error']}" if row["error"] else row["description"]) for row in rows]
    console().print(table(("recipe", "what it is for"), lines))


def _described(source: RecipeFile) -> dict[str, Any]:
    problems: list[Problem] = []
    tree = source.read(problems)
    if not isinstance(tree, Mapping):
        return _row(str(source), error=str(problems[0]))
    node = tree.get("description")
    return _row(str(source), node.raw if isinstance(node, Scalar) else "")


def _row(path: str = "", description: str = "", error: str | None = None) -> dict[str, Any]:
    return {"description": description, "path": path, "error": error}
