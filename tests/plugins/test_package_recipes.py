"""Recipes that packages bring: named `package:recipe`, and used as built-in ones are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cswf_core.plugins import Registry
from cswf_core.recipe import RecipeError, load_recipe
from tests.plugins.conftest import GOOD

HOOK = "\n@hookimpl\ndef register_recipes(register):\n    {body}\n"
FAST = """
description: "a [bold] recipe"
extends: digits
projection: axis
particles: {count: 10}
schedule: {use: constant, steps: 2, directions: 300}
evaluate: null
"""


def offer(install, tmp_path: Path, body: str = 'register("acme_recipes")', **files: str) -> Path:
    """Install the package acme-axes with files in a folder `acme_recipes` beside its module."""
    folder = tmp_path / "site/acme_recipes"
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in {"fast": FAST, **files}.items():
        (folder / f"{name}.yaml").write_text(text)
    install("acme-axes", GOOD.replace("{name}", "axis") + HOOK.replace("{body}", body))
    return folder


def rows(cswf) -> dict[str, dict[str, str]]:
    return {row["name"]: row for row in json.loads(cswf.output("recipes", "--json"))}


def test_a_recipe_of_a_package_is_listed_checked_shown_swept_and_run_by_its_name(install, cswf, tmp_path):
    offer(install, tmp_path, slow="extends: acme-axes:fast\nvariants: {a: {seed: 1}}\n")
    listed = rows(cswf)
    assert listed["acme-axes:fast"]["description"] == "a [bold] recipe"
    assert listed["acme-axes:fast"]["error"] is None
    assert "a [bold] recipe" in cswf.output("recipes")
    assert "digits" in listed
    assert cswf.output("check", "acme-axes:fast")
    assert "use: axis" in cswf.output("show", "acme-axes:slow")
    small = ("--device", "cpu", "--quiet")
    cswf.output("run", "acme-axes:fast", *small, "--out", tmp_path / "run")
    assert json.loads((tmp_path / "run/run.json").read_text())["name"] == "fast"
    cswf.output("sweep", "acme-axes:slow", *small, "--out", tmp_path / "sweep")
    assert (tmp_path / "sweep/a/run.json").exists()


def test_recipes_extend_those_of_packages_and_spellings_of_a_package_are_one(install, tmp_path):
    offer(install, tmp_path)
    mine = tmp_path / "mine.yaml"
    mine.write_text("extends: Acme_Axes:fast\nseed: 7\n")
    recipe = load_recipe(mine, registry=Registry.discover(environment={}))
    assert (recipe.seed, recipe.projection.name, recipe.particles.count) == (7, "axis", 10)


def test_paths_in_a_recipe_of_a_package_count_from_its_file(install, tmp_path):
    folder = offer(install, tmp_path, own="extends: acme-axes:fast\ndata: {use: npz, path: points.npz}\n")
    recipe = load_recipe("acme-axes:own", registry=Registry.discover(environment={}))
    assert recipe.data.part.path == (folder / "points.npz").resolve()


@pytest.mark.parametrize("name", ["fast", "acme-axes:fats", "acme:fast"])
def test_a_name_that_is_nearly_right_is_guessed(install, tmp_path, name):
    offer(install, tmp_path)
    with pytest.raises(RecipeError, match=f"recipe '{name}'; did you mean 'acme-axes:fast'"):
        load_recipe(name, registry=Registry.discover(environment={}))


@pytest.mark.parametrize(
    "body",
    [
        'register("acme_recipes/fast.yaml")',
        'import pathlib; register(pathlib.Path(__file__).parent / "acme_recipes")',
        'import importlib.resources as r; register(r.files("acme_recipes"))',
    ],
)
def test_a_recipe_may_be_a_file_a_folder_or_a_resource(install, tmp_path, body):
    folder = offer(install, tmp_path, body)
    assert Registry.discover(environment={}).recipes == {"acme-axes:fast": folder / "fast.yaml"}


def test_a_broken_file_is_told_and_harms_no_other(install, cswf, tmp_path):
    folder = offer(install, tmp_path, torn="data: [\n")
    listed = rows(cswf)
    assert listed["acme-axes:fast"]["error"] is None
    assert str(folder / "torn.yaml") in listed["acme-axes:torn"]["error"]
    assert "broken:" in cswf.output("recipes")
    assert "torn.yaml:2:1" in cswf.refusal("check", "acme-axes:torn")


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ('register("nowhere")', "takes a .yaml file, or a folder with some, got 'nowhere'"),
        ("register(3)", "takes a .yaml file, or a folder with some, got 3"),
        (
            'register("acme_recipes"); register("acme_recipes/fast.yaml")',
            "recipe 'acme-axes:fast' is registered twice",
        ),
        ("1 / 0", "ZeroDivisionError"),
        ('register("odd")', "recipe 'Two Words.yaml': a name has small letters"),
    ],
)
def test_a_hook_that_offers_no_recipes_is_told_and_plugins_stay(install, cswf, tmp_path, body, reason):
    offer(install, tmp_path, body)
    (tmp_path / "site/odd").mkdir()
    (tmp_path / "site/odd/Two Words.yaml").write_text(FAST)
    registry = Registry.discover(environment={})
    (broken,) = registry.broken
    assert (broken.owner.kind, broken.owner.distribution) == ("recipe", "acme-axes")
    assert reason in broken.reason
    assert registry.find("projection", "axis")
    assert not registry.recipes
    assert reason in rows(cswf)["acme-axes:"]["error"]
    assert reason in cswf.refusal("check", "acme-axes:fast")
