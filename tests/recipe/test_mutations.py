"""Whatever is done to the values of a valid recipe, the answer is a recipe or a list of mistakes.

Damaged texts and overrides are those of `tests/fuzz`.
"""

from __future__ import annotations

import contextlib
import copy
from functools import cache

import yaml
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from cswf_core.recipe import RecipeError, builtin_recipes, load_recipe
from cswf_core.recipe.render import from_yaml, to_yaml, with_origins

RECIPES = {name: source.path.read_text(encoding="utf-8") for name, source in builtin_recipes().items()}
RECIPES["npz"] = "data: {use: npz, path: ../x.npz}\nschedule: {use: constant, steps: 2, directions: 3}\n"
WORDS = ["uniform", "one-hot", "digits", "all", "paper", "dimension", "no", "1e-3", "<<", "../x.yaml"]
KEYS = st.sampled_from(["use", "steps", "count", "mean", "metrics", "x", "1"])

parsed = cache(lambda name: yaml.safe_load(RECIPES[name]))
singles = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=12), st.sampled_from(WORDS)
)
junk = st.recursive(
    singles,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=6,
)


def paths(value: object, here: tuple = ()) -> list[tuple]:
    """Every place in a nested value."""
    below = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [here, *(p for key, item in below for p in paths(item, (*here, key)))]


@st.composite
def mutated(draw: st.DrawFn) -> str:
    """A built-in recipe with a few values replaced, removed, added or moved."""
    recipe = copy.deepcopy(parsed(draw(st.sampled_from(sorted(RECIPES)))))
    for _ in range(draw(st.integers(1, 3))):
        *place, last = draw(st.sampled_from(paths(recipe)[1:] or [("description",)]))
        parent = recipe
        for key in place:
            parent = parent[key]
        action = draw(st.sampled_from(["replace", "remove", "add", "rename"]))
        if action == "replace" or isinstance(parent, list):
            parent[last] = draw(junk)
        elif action == "add":
            parent[draw(st.text(max_size=6))] = draw(junk)
        else:
            value = parent.pop(last, None)
            if action == "rename":
                parent[draw(st.text(max_size=6))] = value
    return yaml.safe_dump(recipe, allow_unicode=draw(st.booleans()), default_flow_style=draw(st.booleans()))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(text=mutated())
def test_a_mutated_recipe_reads_back_or_has_mistakes_with_places_as_a_file_and_as_a_mapping(
    text, tmp_path, registry
):
    path = tmp_path / "mutated.yaml"
    path.write_text(text, encoding="utf-8")
    mistakes = []
    try:
        recipe = load_recipe(path, registry=registry)
    except RecipeError as error:
        event("mistakes")
        mistakes = error.problems or [None]
    else:
        event("a recipe")
        assert with_origins(recipe)
        resolved = to_yaml(recipe.resolved())
        assert to_yaml(load_recipe(from_yaml(resolved), registry=registry).resolved()) == resolved
    for problem in mistakes:
        assert min(problem.location.line, problem.location.column) >= 1
        assert problem.message
        assert "\n" not in problem.message
    with contextlib.suppress(RecipeError):
        assert load_recipe(from_yaml(text), registry=registry).path is None
