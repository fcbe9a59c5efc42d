"""Whatever is done to a valid recipe, the answer is a recipe or a list of mistakes, never a traceback."""

from __future__ import annotations

import contextlib
import copy
from functools import cache
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, find, given, settings
from hypothesis import strategies as st

from cswf_core.plugins import Registry
from cswf_core.recipe import Recipe, RecipeError, builtin_recipes, load_recipe
from cswf_core.recipe.render import from_yaml, to_yaml, with_origins

RECIPES = {name: source.path.read_text(encoding="utf-8") for name, source in builtin_recipes().items()}
RECIPES["npz"] = (
    "data: {use: npz, path: ../some/points.npz}\nschedule: {use: constant, steps: 2, directions: 3}\n"
)


@cache
def parsed(name: str) -> dict:
    """A built-in recipe's values, read once."""
    return yaml.safe_load(RECIPES[name])


junk = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.text(max_size=12),
        st.sampled_from(
            ["uniform", "one-hot", "digits", "all", "paper", "dimension", "no", "1e-3", "<<", "../x.yaml"]
        ),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(["use", "steps", "count", "mean", "metrics", "x", "1"]), inner, max_size=3
        ),
    ),
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
        path = draw(st.sampled_from(paths(recipe)[1:] or [()]))
        if not path:
            break
        parent = recipe
        for key in path[:-1]:
            parent = parent[key]
        action = draw(st.sampled_from(["replace", "remove", "add", "rename"]))
        if action == "replace" or isinstance(parent, list):
            parent[path[-1]] = draw(junk)
        elif action == "remove":
            del parent[path[-1]]
        elif action == "add":
            parent[draw(st.text(max_size=6))] = draw(junk)
        else:
            parent[draw(st.text(max_size=6))] = parent.pop(path[-1])
    return yaml.safe_dump(recipe, allow_unicode=draw(st.booleans()), default_flow_style=draw(st.booleans()))


@st.composite
def damaged(draw: st.DrawFn) -> str:
    """A built-in recipe with characters cut out or thrown in."""
    text = RECIPES[draw(st.sampled_from(sorted(RECIPES)))]
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(text)))
        cut = draw(st.integers(0, 8))
        throw = draw(
            st.one_of(st.text(max_size=4), st.sampled_from(["&a ", "*a", "!!x ", "[", "{", "- ", ": ", "\t"]))
        )
        text = text[:at] + throw + text[at + cut :]
    return text


def read(text: str, path: Path, registry: Registry) -> None:
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    problems = []
    try:
        recipe = load_recipe(path, registry=registry)
    except RecipeError as error:
        problems = error.problems or [None]
    for problem in problems:
        assert problem.location.line >= 1
        assert problem.location.column >= 1
        assert problem.message
        assert "\n" not in problem.message
    if not problems:
        assert isinstance(recipe, Recipe)
        assert with_origins(recipe)
        again = path.with_name("again.yaml")
        again.write_text(to_yaml(recipe.resolved()), encoding="utf-8")
        assert to_yaml(load_recipe(again, registry=registry).resolved()) == to_yaml(recipe.resolved())


relaxed = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


@relaxed
@given(text=mutated())
def test_mutated_recipes_never_give_a_traceback(text, tmp_path, registry):
    read(text, tmp_path / "mutated.yaml", registry)


@relaxed
@given(text=damaged())
def test_damaged_text_never_gives_a_traceback(text, tmp_path, registry):
    read(text, tmp_path / "damaged.yaml", registry)


@relaxed
@given(text=mutated())
def test_no_mapping_gives_a_traceback(text, registry):
    with contextlib.suppress(RecipeError):
        assert load_recipe(from_yaml(text), registry=registry).path is None


@relaxed
@given(key=st.text(max_size=20), value=st.text(max_size=20))
def test_no_override_gives_a_traceback(key, value, registry):
    with contextlib.suppress(RecipeError):
        assert load_recipe("digits", [f"{key}={value}"], registry=registry)


@pytest.mark.parametrize("valid", [True, False])
def test_mutations_reach_both_outcomes(valid, registry, tmp_path):
    def is_valid(text: str) -> bool:
        (tmp_path / "found.yaml").write_text(text, encoding="utf-8")
        with contextlib.suppress(RecipeError):
            load_recipe(tmp_path / "found.yaml", registry=registry)
            return True
        return False

    unmutated = set(RECIPES.values())
    persistent = settings(relaxed, max_examples=300)
    found = find(mutated(), lambda text: text not in unmutated and is_valid(text) == valid, settings=persistent)
    assert is_valid(found) == valid
