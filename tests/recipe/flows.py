"""The flows of the built-in recipes, on random images: the published ones may not be on this machine."""

from __future__ import annotations

import json

import attrs

from cswf_core.flow.flow import Flow
from cswf_core.recipe import Recipe, build_flow, choose

SHAPES = {"mnist": (1, 28, 28), "fashion-mnist": (1, 28, 28), "cifar10": (3, 32, 32), "celeba": (3, 64, 64)}
OBSERVING = ("mask", "super-resolution", "colorize")


def on_random_data(recipe: Recipe) -> Recipe:
    """The recipe with ten particles, at most three more that are carried along offline, and random images.

    Particles that begin as a Gaussian of colour images begin as noise: its covariance takes seconds.
    """
    in_colour = SHAPES.get(recipe.data.name, (1,))[0] == 3
    if recipe.data.name in SHAPES:
        images = {"use": "synthetic", "count": 20, "shape": SHAPES[recipe.data.name], "classes": 10}
        data = choose(recipe.registry, "dataset", json.dumps(images))
        recipe = attrs.evolve(recipe, data=data, arrivals=(data,) * len(recipe.arrivals))
    if recipe.condition.name in OBSERVING:  # random images are not held out
        condition = attrs.evolve(recipe.condition, part=attrs.evolve(recipe.condition.part, held_out=0))
        recipe = attrs.evolve(recipe, condition=condition)
    particles = attrs.evolve(recipe.particles, count=10, offline=min(3, recipe.particles.offline))
    if in_colour:
        particles = attrs.evolve(particles, start="noise")
    return attrs.evolve(recipe, particles=particles)


FLOWS: dict[str, list[Flow]] = {}


def flows_of(recipe: Recipe) -> list[Flow]:
    """The flows of a recipe and of its variants, on random data, built once."""
    if recipe.name not in FLOWS:
        each = (recipe, *recipe.variants.values())
        FLOWS[recipe.name] = [build_flow(on_random_data(one), device="cpu") for one in each]
    return FLOWS[recipe.name]
