"""The JSON Schema for editors agrees with what recipes are."""

from __future__ import annotations

import jsonschema
import pytest

from cswf_core.recipe import builtin_recipes
from cswf_core.recipe.render import from_yaml
from cswf_core.recipe.sections import recipe_schema


@pytest.fixture(scope="module")
def validator(registry):
    schema = recipe_schema(registry)
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.mark.parametrize("name", sorted(builtin_recipes()))
def test_built_in_recipes_satisfy_the_schema_as_written_and_as_resolved(name, validator, recipes):
    validator.validate(from_yaml(builtin_recipes()[name].path.read_text(encoding="utf-8")))
    validator.validate(recipes[name].resolved())


@pytest.mark.parametrize(
    "faulty",
    [
        {"schedul": "constant"},
        {"schedule": {"use": "constant", "stepz": 3}},
        {"schedule": {"use": "constant", "steps": 0}},
        {"data": "nothing"},
        {"particles": {"precision": "float16"}},
        {"evaluate": {"metrics": "sliced-wasserstein"}},
    ],
)
def test_mistakes_do_not(faulty, validator):
    assert not validator.is_valid(faulty)


def test_parameters_are_described(registry):
    constant = recipe_schema(registry)["$defs"]["schedule"]["anyOf"][1]
    assert constant["properties"]["steps"]["description"] == "K, the number of steps"
    assert constant["properties"]["steps"]["minimum"] == 1
    assert constant["properties"]["step_size"]["default"] == "dimension"
