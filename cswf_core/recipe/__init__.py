"""Recipes: YAML or a mapping → located nodes → merged tree → typed recipe → a flow."""

from typing import TYPE_CHECKING, Any

from cswf_core.nodes import Location, Problem, RecipeError
from cswf_core.recipe.merge import builtin_recipes, known_recipes
from cswf_core.recipe.recipe import Choice, Recipe, choose, load_recipe

if TYPE_CHECKING:
    from cswf_core.recipe.build import build_flow, choose_device

__all__ = [
    "Choice",
    "Location",
    "Problem",
    "Recipe",
    "RecipeError",
    "build_flow",
    "builtin_recipes",
    "choose",
    "choose_device",
    "known_recipes",
    "load_recipe",
]


def __getattr__(name: str) -> Any:
    """Import what needs the engine, and so PyTorch, when it is first used: `cswf check` never does."""
    if name in ("build_flow", "choose_device"):
        from cswf_core.recipe import build

        return getattr(build, name)
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
