"""The projection `strokes`: what its contract asks for, what is its own, and its recipe."""

import torch
from cswf_strokes import Strokes

from cswf_core.interfaces import Key, Space
from cswf_core.plugins import Registry
from cswf_core.recipe import load_recipe
from cswf_core.testing import check_projection


def test_it_is_a_sound_projection():
    outcomes = check_projection(Strokes())
    assert {outcome.claim for outcome in outcomes if outcome.result == "skipped"} <= {
        "points are taken",
        "an operator agrees with its matrix",
    }


def test_a_stroke_is_one_colour_and_keeps_to_its_patch():
    theta = Strokes(strokes=1, patch=5).sample(Space((3, 20, 20)), 100, Key(0, "test").open()).dense()
    image = theta.unflatten(1, (3, 400))
    assert torch.linalg.matrix_rank(image, rtol=1e-4).tolist() == [1] * 100
    rows = (theta.unflatten(1, (3, 20, 20)) != 0).any(dim=(1, 3)).sum(dim=1)
    assert int(rows.max()) == 5


def test_its_recipe_comes_with_it():
    registry = Registry.discover()
    recipe = load_recipe("cswf-strokes:strokes-digits", registry=registry)
    assert recipe.projection.name == "strokes"
