"""Loading of a saved model from a run's folder, a model's folder or a header."""

from __future__ import annotations

from pathlib import Path

from cswf_core.errors import RunError
from cswf_core.model.format import NAME, Header, refuse_missing
from cswf_core.model.model import Model
from cswf_core.recipe import Recipe, RecipeError, load_recipe
from cswf_core.recipe.render import from_yaml

UNUSED = ("cdf", "observers", "evaluate", "outputs", "model", "variants")
"""Sections of a recipe that sampling does without, so that their plugins need not be there."""


def header_file(path: Path) -> Path:
    """Return the header of the model that a path means: a run's folder, a model's, or the header itself."""
    if path.name == NAME and path.is_file():
        return path
    for place in (path / NAME, path / "model" / NAME):
        if place.is_file():
            return place
    if not path.exists():
        raise RunError(f"{path} does not exist; give a run's folder, a model's folder or its {NAME}")
    if (path / "run.json").is_file():
        raise RunError(f"{path} has no model; a run saves one with model.save=true")
    raise RunError(f"{path} has no model: there is no {NAME} in it")


def load_model(path: str | Path, *, plugins_dir: str | Path | None = None) -> Model:
    """Return the model of a run's folder, a model's folder or a header; raise `RunError` if it is unusable."""
    file = header_file(Path(path))
    header = Header.read(file)
    if not header.complete:
        run = file.parent.parent
        hint = f": `cswf resume {run}` goes on with its run" if (run / "run.json").is_file() else ""
        raise RunError(f"{file.parent} is not complete: it has {header.steps:,} steps{hint}")
    refuse_missing(file.parent, header.shards)
    return Model(file.parent, header, recipe_of(header, file, plugins_dir))


def recipe_of(header: Header, file: Path, plugins_dir: str | Path | None = None) -> Recipe:
    """Return the recipe in a header, as far as sampling needs it."""
    try:
        sections = from_yaml(header.recipe)
        needed = {key: value for key, value in sections.items() if key not in UNUSED}
    except (RecipeError, AttributeError):
        raise RunError(f"{file} is damaged: the recipe in it cannot be read") from None
    try:
        return load_recipe(needed, plugins_dir=plugins_dir)
    except RecipeError as error:
        reasons = "; ".join(problem.message for problem in error.problems)
        raise RunError(f"{file}: the model's recipe cannot be followed here: {reasons}") from None
