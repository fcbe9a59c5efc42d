"""Recipes: YAML or a mapping → located nodes → merged tree → typed recipe → a flow."""

from cswf_core.nodes import Location, Problem, RecipeError
from cswf_core.recipe.build import build_flow, choose_device
from cswf_core.recipe.merge import builtin_recipes, known_recipes
from cswf_core.recipe.recipe import Choice, Recipe, choose, load_recipe

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
