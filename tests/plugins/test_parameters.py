"""Parameters of plugin classes: types, flags that are none, and plugins as defaults."""

from __future__ import annotations

import collections.abc
import enum
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import attrs
import jsonschema
import pytest
import torch

from cswf_core.errors import PluginError
from cswf_core.fields import kind_of, options, unsupported
from cswf_core.interfaces import CDFEstimator, Metric, ProjectionSampler, parameter
from cswf_core.interfaces.cdf import Part
from cswf_core.interfaces.contract import Interval
from cswf_core.plugins import Registry
from cswf_core.recipe import RecipeError, load_recipe
from cswf_core.recipe.sections import recipe_schema
from cswf_plugins.cdfs.histogram import Histogram
from cswf_plugins.projections.uniform import Uniform
from tests.plugins.conftest import GOOD

SMALL = {"data": "digits", "schedule": {"use": "constant", "steps": 1, "directions": 1}}


@attrs.frozen
class Tree:
    children: tuple[Tree, ...] = ()


@attrs.frozen
class Holder:
    tensor: torch.Tensor


class Colour(enum.Enum):
    RED = 1


FINE = [
    *(bool, int, float, str, Path, type(None), Any, list, tuple, dict),
    *(Literal["a", 2], int | str, int | None, Part, Interval, Tree, ProjectionSampler),
    *(list[int], tuple[int, ...], tuple[int, str], collections.abc.Sequence[float], dict[str, int]),
    *(collections.abc.Mapping[str, list[float]], tuple[ProjectionSampler, ...], ProjectionSampler | None),
]
ODD = [
    *(torch.Tensor, complex, bytes, set[int], Callable[[int], int], Colour, object, Holder, Uniform),
    *(list[torch.Tensor], int | complex, dict[str, bytes], dict[int, str], tuple[int, set[int]]),
]


@pytest.mark.parametrize("type_", FINE)
def test_a_type_that_recipes_can_write_is_taken(type_):
    assert unsupported(type_) == ""
    assert kind_of(type_).words


@pytest.mark.parametrize("type_", ODD)
def test_a_type_that_recipes_cannot_write_is_named(type_):
    assert unsupported(type_)


@pytest.mark.parametrize(
    ("written", "name"),
    [("torch.Tensor", "Tensor"), ("list[complex] | None", "complex"), ("dict[int, str]", "dict[int, str]")],
)
def test_an_odd_type_is_refused_when_it_is_registered(tmp_path, written, name):
    code = GOOD.replace("{name}", "axis").replace("sign: float", f"sign: {written}").replace("1.0", "None")
    (tmp_path / "axes.py").write_text(code)
    (broken,) = Registry.discover(tmp_path, {}).broken
    assert broken.owner.kind == "projection"
    said = (
        f"projection 'axis': parameter 'sign' has the type {name}, which recipes cannot write: take int, float"
    )
    assert broken.reason.startswith(said)


def flagged(tmp_path: Path, line: str) -> Registry:
    (tmp_path / "axes.py").write_text(
        GOOD.replace("{name}", "axis").replace("    sign:", f"    {line}\n    sign:")
    )
    registry = Registry.discover(tmp_path, {})
    assert not registry.broken, registry.broken
    return registry


@pytest.mark.parametrize("line", ["tempered = True", "tempered: bool = True", "tempered: 'bool' = True"])
def test_a_flag_is_no_parameter_however_it_is_written(tmp_path, cswf, line):
    registry = flagged(tmp_path, line)
    recipe = load_recipe({**SMALL, "projection": "axis"}, registry=registry)
    assert recipe.projection.checked.tempered is True
    assert recipe.projection.plain() == {"use": "axis", "sign": 1.0}
    with pytest.raises(RecipeError, match="unknown key 'tempered' of projection 'axis'"):
        load_recipe({**SMALL, "projection": {"use": "axis", "tempered": False}}, registry=registry)
    rows = json.loads(cswf.output("plugins", "--json", "--plugins-dir", tmp_path))
    (row,) = [row for row in rows if row["name"] == "axis"]
    assert [each["name"] for each in row["parameters"]] == ["sign"]
    sections = recipe_schema(registry)["$defs"]["projection"]["anyOf"][1:-1]
    (own,) = [section for section in sections if "axis" in section["properties"]["use"]["enum"]]
    assert set(own["properties"]) == {"use", "sign", "reuse"}


def test_a_flag_before_a_required_parameter_is_fine():
    @attrs.frozen
    class Late(ProjectionSampler):
        sees_data: bool = True
        patch: int = parameter("required")

        def sample(self, space, count, draw): ...

    assert list(options(Late)) == ["patch"]
    assert Late(3).sees_data is Late.sees_data is True


def test_a_flag_made_with_parameter_is_one_and_so_is_a_number_of_the_contract(tmp_path):
    registry = flagged(tmp_path, 'tempered: bool = parameter("uneven on purpose", default=True)')
    chosen = {**SMALL, "projection": {"use": "axis", "tempered": False}}
    assert load_recipe(chosen, registry=registry).projection.checked.tempered is False
    assert "bins" in options(Histogram)

    @attrs.frozen
    class Binned(CDFEstimator):
        bins: int = 64
        compact: bool = True

        def fit(self, values): ...

    assert list(options(Binned)) == ["bins"]

    @attrs.frozen
    class Score(Metric):
        once: bool = True
        better: str = "lower"

        def compute(self, comparison): ...

    assert not options(Score)


WRAPPER = (
    GOOD.replace("{name}", "turned")
    .replace('sign: float = parameter("which way", default=1.0)', "{field}")
    .replace(
        "import attrs, torch",
        "import attrs, torch\nfrom cswf_plugins.projections.high_pass import HighPass\n"
        "from cswf_plugins.projections.conv_stack import ConvStack",
    )
)


def wrapper(tmp_path: Path, field: str) -> Registry:
    (tmp_path / "turned.py").write_text(WRAPPER.replace("{field}", field))
    return Registry.discover(tmp_path, {})


def test_a_parameter_that_is_a_plugin_may_have_a_default(tmp_path, cswf):
    field = 'of: ProjectionSampler = parameter("whose", default=HighPass(of=ConvStack()))'
    registry = wrapper(tmp_path, field)
    assert not registry.broken
    recipe = load_recipe({**SMALL, "projection": "turned"}, registry=registry)
    choices = recipe.choices()
    assert choices["projection.of"].name == "high-pass"
    assert choices["projection.of.of"].name == "conv-stack"
    assert recipe.projection.part.of is choices["projection.of"].part
    assert {"high-pass", "conv-stack"} <= {fact["name"] for fact in recipe.plugin_facts()}
    resolved = recipe.resolved()
    assert resolved["projection"]["of"]["use"] == "high-pass"
    assert resolved["projection"]["of"]["of"]["use"] == "conv-stack"
    assert load_recipe(resolved, registry=registry).resolved() == resolved
    other = load_recipe({**SMALL, "projection": {"use": "turned", "of": "uniform"}}, registry=registry)
    assert other.resolved()["projection"]["of"] == {"use": "uniform"}

    options = ("projection=turned", "--plugins-dir", tmp_path)
    shown = cswf.output("show", "digits", *options)
    assert "use: high-pass" in shown
    schema = recipe_schema(registry)
    sections = schema["$defs"]["projection"]["anyOf"][1:-1]
    (own,) = [section for section in sections if "turned" in section["properties"]["use"]["enum"]]
    default = own["properties"]["of"]["default"]
    assert (default["use"], default["of"]["use"]) == ("high-pass", "conv-stack")
    jsonschema.Draft202012Validator(schema).validate({"projection": {"use": "turned", "of": default}})
    rows = json.loads(cswf.output("plugins", "--json", "--plugins-dir", tmp_path))
    (row,) = [row for row in rows if row["name"] == "turned"]
    assert row["parameters"][0]["default"] == default


def test_a_default_in_a_list_or_from_a_factory_is_named_too(tmp_path):
    registry = wrapper(
        tmp_path, "several: tuple[ProjectionSampler, ...] = attrs.field(factory=lambda: (ConvStack(),))"
    )
    recipe = load_recipe({**SMALL, "projection": "turned"}, registry=registry)
    assert recipe.choices()["projection.several.0"].name == "conv-stack"
    resolved = recipe.resolved()
    assert resolved["projection"]["several"][0]["use"] == "conv-stack"
    assert load_recipe(resolved, registry=registry).resolved() == resolved


def test_a_default_that_recipes_have_no_name_for_is_refused(tmp_path):
    code = WRAPPER.replace("{field}", "of: ProjectionSampler = Hidden()").replace(
        "@attrs.frozen\nclass Axis", "class Hidden(ConvStack): ...\n\n@attrs.frozen\nclass Axis"
    )
    (tmp_path / "turned.py").write_text(code)
    registry = Registry.discover(tmp_path, {})
    (broken,) = registry.broken
    assert broken.owner.name == "turned"
    said = "the default of parameter 'of' is a Hidden, which no plugin registers"
    assert broken.reason == f"{said}, so that recipes have no name for it"
    with pytest.raises(PluginError, match=r"unknown projection 'turned'.*which no plugin registers"):
        registry.find("projection", "turned")
