"""The built-in recipes, loaded once for all tests."""

from __future__ import annotations

import pytest

from cswf_core.plugins import Registry
from cswf_core.recipe import Recipe, builtin_recipes, load_recipe


@pytest.fixture(scope="session")
def recipes(registry: Registry) -> dict[str, Recipe]:
    """Every built-in recipe by name."""
    return {name: load_recipe(name, registry=registry) for name in builtin_recipes()}
