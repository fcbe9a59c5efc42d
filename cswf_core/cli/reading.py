"""What commands do that only read recipes and plugins: they need no PyTorch."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from cswf_core.cli.options import command
from cswf_core.nodes import Mapping, Problem, Scalar
from cswf_core.plugins import Registry
from cswf_core.recipe import known_recipes, load_recipe
from cswf_core.recipe.citations import citations
from cswf_core.recipe.merge import RecipeFile
from cswf_core.recipe.render import origin_of_every_value, with_origins
from cswf_core.recipe.sections import recipe_schema
from cswf_core.runs.printing import say, say_json
from cswf_core.scaffold import names_of, new_package


def check(recipe: str, overrides: tuple[str, ...], plugins_dir: tuple[Path, ...]) -> None:
    """Do the work of `cswf check`."""
    say(f"{load_recipe(recipe, overrides, plugins_dir=plugins_dir).name}: fine")


def show(recipe: str, overrides: tuple[str, ...], as_json: bool, plugins_dir: tuple[Path, ...]) -> None:
    """Do the work of `cswf show`."""
    loaded = load_recipe(recipe, overrides, plugins_dir=plugins_dir)
    if as_json:
        say_json({"recipe": loaded.resolved(), "origins": origin_of_every_value(loaded)})
        return
    say(*with_origins(loaded).rstrip("\n").split("\n"))
    if loaded.variants:
        sweep = command(f"cswf sweep {recipe}")
        say(f"# variants, run by {sweep}: {'; '.join(loaded.variants)}")


def cite(recipe: str, overrides: tuple[str, ...], as_json: bool, plugins_dir: tuple[Path, ...]) -> None:
    """Do the work of `cswf cite`."""
    works = citations(load_recipe(recipe, overrides, plugins_dir=plugins_dir))
    if as_json:
        say_json([work.plain() for work in works])
    else:
        say(*"\n\n".join(map(str, works)).split("\n"))


def recipes(as_json: bool, plugins_dir: tuple[Path, ...]) -> None:
    """Do the work of `cswf recipes`."""
    registry = Registry.discover(plugins_dir)
    rows = [_described(name, source) for name, source in known_recipes(registry).items()]
    for broken in registry.broken:
        if broken.owner.kind == "recipe":
            name = f"{broken.owner.distribution}:"
            rows.append({"name": name, "description": "", "path": "", "error": broken.reason})
    if as_json:
        say_json(rows)
        return
    from cswf_core.runs.screen import console, table  # with it comes rich, which only this command needs

    lines = [(row["name"], f"broken: {row['error']}" if row["error"] else row["description"]) for row in rows]
    console().print(table(("recipe", "what it is for"), lines))


def _described(name: str, source: RecipeFile) -> dict[str, Any]:
    """Return what the listing says about a recipe."""
    problems: list[Problem] = []
    tree = source.read(problems)
    node = tree.get("description") if isinstance(tree, Mapping) else None
    description = node.raw if isinstance(node, Scalar) else ""
    error = None if isinstance(tree, Mapping) else str(problems[0])
    return {"name": name, "description": description, "path": str(source), "error": error}


def schema(plugins_dir: tuple[Path, ...]) -> None:
    """Do the work of `cswf schema`."""
    say_json(recipe_schema(Registry.discover(plugins_dir)))


def new(kind: str, name: str, folder: Path | None) -> None:
    """Do the work of `cswf new`."""
    names = names_of(kind, name, Registry.discover())
    place = Path(names["distribution"]) if folder is None else folder
    for path in new_package(names, place):
        say(str(path))
    say("", "Next:")
    for step in (
        f"cd {shlex.quote(str(place))}",
        "pip install --editable '.[dev]'",
        "pytest",
        f"cswf run {name}.yaml",
        f"cswf plugins check {name}",
    ):
        say(f"  {step}")
