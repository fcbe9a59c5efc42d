"""Requests of `cswf bench`: a recipe, or random data of some sizes, and the values of a sweep."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import attrs
import torch

from cswf_core.errors import CswfError, DataError, RunError, did_you_mean, excerpt
from cswf_core.numbers import whole_number
from cswf_core.plugins import Registry
from cswf_core.recipe import Recipe, load_recipe

DEFAULTS: dict[str, dict[str, Any]] = {
    "cuda": {"particles": 50_000, "data": 100_000, "directions": 10_000, "shape": (3, 32, 32)},
    "cpu": {"particles": 2_000, "data": 4_000, "directions": 500, "shape": (3, 16, 16)},
}
"""Sizes of random data on each type of device; those on a CPU take seconds."""

SIZES = {"particles": "particles.count", "data": "data.count", "directions": "schedule.directions"}
CHOICES = {
    "projection": "projection",
    "reuse": "projection.reuse",
    "cdf": "cdf",
    "precision": "particles.precision",
    "seed": "seed",
}
"""The keys of a recipe that the options change."""

RANDOM_ONLY = ("shape", "resolution", "patch", "classes")
"""Sizes that a recipe's data and stages have already."""


@attrs.frozen(kw_only=True)
class BenchRequest:
    """The options of a measurement; None is the default, or the recipe's own value."""

    recipe: str | None = None
    """A built-in name or a path; None is random data."""
    overrides: tuple[str, ...] = ()
    particles: int | None = None
    data: int | None = None
    directions: int | None = None
    shape: tuple[int, ...] | None = None
    resolution: tuple[int, int] | None = None
    patch: int | None = None
    classes: int | None = None
    projection: str | None = None
    cdf: str | None = None
    precision: str | None = None
    reuse: int | None = None
    seed: int | None = None

    def load(self, device: torch.device, registry: Registry) -> Recipe:
        """Return the recipe: the one that was named, or one for random data of these sizes."""
        if self.recipe is None:
            return self._random(device, registry)
        unfit = [option for option in RANDOM_ONLY if getattr(self, option) is not None]
        if unfit:
            raise RunError(f"--{unfit[0]} is for random data, and '{self.recipe}' has its own; leave one out")
        changes = self._changes({**SIZES, **CHOICES})
        return load_recipe(self.recipe, [*changes, *self.overrides], registry=registry)

    def note(self, device: torch.device) -> str:
        """Return a note about sizes that are smaller by default, if there are any."""
        if self.recipe is not None or device.type != "cpu":
            return ""
        smaller = {k: v for k, v in DEFAULTS[device.type].items() if getattr(self, k) is None}
        words = (f"{k} {times(v) if isinstance(v, tuple) else format(v, ',')}" for k, v in smaller.items())
        return f"smaller by default on a CPU: {', '.join(words)}" if smaller else ""

    def _random(self, device: torch.device, registry: Registry) -> Recipe:
        """Return a recipe for random data: a stage of a pyramid, if there are patches that one can set."""
        usual = {**DEFAULTS[device.type], "patch": 7, "classes": 0}
        sizes = {k: v if getattr(self, k) is None else getattr(self, k) for k, v in usual.items()}
        shape, grid = sizes["shape"], self.resolution
        if grid is not None and len(shape) == 1:
            raise RunError(f"points in {shape[0]} dimensions have no resolution; leave --resolution out")
        if grid is not None and any(k > side for k, side in zip(grid, shape[1:], strict=True)):
            raise RunError(f"a resolution of {times(grid)} is larger than the images, {times(shape)}")
        names: dict[str, Any] = {"cdf": "histogram", "precision": "auto"}
        names["projection"] = "uniform" if len(shape) == 1 else "conv-stack"
        named = attrs.evolve(self, **{k: v for k, v in names.items() if getattr(self, k) is None})

        def load(schedule: dict[str, Any]) -> Recipe:
            content = {
                "name": "random points" if len(shape) == 1 else "random images",
                "data": {
                    "use": "synthetic",
                    "count": sizes["data"],
                    "shape": shape,
                    "classes": sizes["classes"],
                },
                "particles": {"count": sizes["particles"]},
                "condition": "one-hot" if sizes["classes"] else "none",
                "schedule": {**schedule, "directions": sizes["directions"]},
            }
            return load_recipe(content, [*named._changes(CHOICES), *self.overrides], registry=registry)

        step_size = min(math.prod(shape), sizes["directions"] / 2)  # as in a pyramid
        constant = {"use": "constant", "steps": 1, "step_size": step_size}
        if len(shape) == 1:
            return load(constant)
        height, width = grid or shape[1:]
        recipe = load(constant)
        with suppress(DataError):  # a projection without patches
            recipe.projection.part.patched(sizes["patch"])
            return load({"use": "pyramid", "entries": [f"({height}×{width}) [{sizes['patch']}]"]})
        if (height, width) != shape[1:]:
            raise RunError(
                f"projection '{recipe.projection.name}' has no patches, so that it is timed at the images' own "
                f"resolution, {times(shape[1:])}; leave --resolution out"
            )
        return recipe

    def _changes(self, places: dict[str, str]) -> list[str]:
        """Return the options as `key=value` overrides of a recipe."""
        values = {place: getattr(self, option) for option, place in places.items()}
        return [f"{place}={value}" for place, value in values.items() if value is not None]


def parse_shape(text: str) -> tuple[int, ...]:
    """Return (C, H, W) of `3x32x32`, or (d,) of `64`."""
    return _numbers(
        text, (1, 3), f"shape '{excerpt(text)}' must be CxHxW as in 3x32x32, or one number for points"
    )


def parse_resolution(text: str) -> tuple[int, int]:
    """Return (k, k) of `16`, or (h, w) of `16x12`."""
    sizes = _numbers(
        text, (1, 2), f"resolution '{excerpt(text)}' must be one number as in 16, or HxW as in 16x12"
    )
    return sizes[0], sizes[-1]


def parse_count(text: str) -> int:
    """Return a whole number from 1 on."""
    return _numbers(text, (1,), f"'{excerpt(text)}' must be a whole number from 1 on")[0]


def _numbers(text: str, lengths: Sequence[int], fault: str) -> tuple[int, ...]:
    """Return the numbers of `3x32x32` or `3×32×32`, all from 1 on; raise `RunError` for anything else."""
    numbers = [whole_number(part) for part in re.split("[x×]", text)]
    if len(numbers) not in lengths or not all(numbers):
        raise RunError(fault)
    return tuple(number for number in numbers if number is not None)


VARIABLE: dict[str, Callable[[str], Any]] = {
    **dict.fromkeys(("particles", "data", "directions", "patch"), parse_count),
    "resolution": parse_resolution,
    "shape": parse_shape,
}
"""Options that a sweep can vary, each with the function that reads its values."""


def sweep(request: BenchRequest, text: str) -> tuple[str, dict[str, BenchRequest]]:
    """Return the key of `key=a,b,c`, and the request with each value in its place, by value as written."""
    key, equals, values = (part.strip() for part in text.partition("="))
    if not equals:
        raise RunError(f"--sweep '{excerpt(text)}' must be KEY=A,B,C as in particles=10000,50000")
    if key not in VARIABLE:
        raise RunError(f"--sweep cannot vary '{key}'{did_you_mean(key, VARIABLE)}")
    if getattr(request, key) is not None:
        raise RunError(f"--{key} and --sweep both say what '{key}' is; leave one out")
    requests: dict[str, BenchRequest] = {}
    for value in (part.strip() for part in values.split(",")):
        try:
            requests[value] = attrs.evolve(request, **{key: VARIABLE[key](value)})
        except CswfError as error:
            raise RunError(f"--sweep {key}: {error}") from None
    return key, requests


def times(sizes: Sequence[int]) -> str:
    """Return sizes as one writes them: 3×32×32."""
    return "×".join(map(str, sizes))
