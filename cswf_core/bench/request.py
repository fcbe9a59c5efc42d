"""What is to be timed: sizes and names that were asked for, one measurement or several."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import attrs
import torch

from cswf_core.bench.random_data import RandomData, times
from cswf_core.errors import CswfError, RunError, did_you_mean
from cswf_core.plugins import Registry
from cswf_core.recipe import Recipe, load_recipe

DEFAULTS: dict[str, dict[str, Any]] = {
    "cuda": {"particles": 50_000, "data": 100_000, "directions": 10_000, "shape": (3, 32, 32)},
    "cpu": {"particles": 2_000, "data": 4_000, "directions": 500, "shape": (3, 16, 16)},
}
"""Sizes of random data on each type of device; those on a CPU take seconds."""

NAMES = {"cdf": "histogram", "precision": "auto"}
"""What random data are timed with unless something else is asked for."""

SIZES = {"particles": "particles.count", "data": "data.count", "directions": "schedule.directions"}
CHOICES = {
    "projection": "projection",
    "reuse": "projection.reuse",
    "cdf": "cdf",
    "precision": "particles.precision",
    "seed": "seed",
}
"""Where a recipe has what an option changes."""

RANDOM_ONLY = ("shape", "resolution", "patch", "classes")
"""Sizes that a recipe's data and stages have already."""


@attrs.frozen(kw_only=True)
class Request:
    """What somebody asked for; None leaves the choice to us, or to the recipe."""

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
        """Return what has to be said about sizes that nobody asked for, if anything."""
        if self.recipe is not None or device.type != "cpu":
            return ""
        smaller = {k: v for k, v in DEFAULTS[device.type].items() if getattr(self, k) is None}
        words = (f"{k} {times(v) if isinstance(v, tuple) else format(v, ',')}" for k, v in smaller.items())
        return f"smaller by default on a CPU: {', '.join(words)}" if smaller else ""

    def _random(self, device: torch.device, registry: Registry) -> Recipe:
        usual = {**DEFAULTS[device.type], "resolution": None, "patch": 7, "classes": 0}
        sizes = {k: v if getattr(self, k) is None else getattr(self, k) for k, v in usual.items()}
        projection = "uniform" if len(sizes["shape"]) == 1 else "conv-stack"
        names: dict[str, Any] = {"projection": projection, **NAMES}
        named = attrs.evolve(self, **{k: v for k, v in names.items() if getattr(self, k) is None})
        return RandomData(**sizes).load([*named._changes(CHOICES), *self.overrides], registry)

    def _changes(self, places: dict[str, str]) -> list[str]:
        """Return what was asked for as `key=value` overrides of a recipe."""
        given = {place: getattr(self, option) for option, place in places.items()}
        return [f"{place}={value}" for place, value in given.items() if value is not None]


def parse_shape(text: str) -> tuple[int, ...]:
    """Return (C, H, W) of `3x32x32`, or (d,) of `64`."""
    sizes = _numbers(text)
    if len(sizes) not in (1, 3):
        raise RunError(f"shape '{text}' must be CxHxW as in 3x32x32, or one number for points")
    return sizes


def parse_resolution(text: str) -> tuple[int, int]:
    """Return (k, k) of `16`, or (h, w) of `16x12`."""
    sizes = _numbers(text)
    if len(sizes) not in (1, 2):
        raise RunError(f"resolution '{text}' must be one number as in 16, or HxW as in 16x12")
    return sizes[0], sizes[-1]


def parse_count(text: str) -> int:
    """Return a whole number from 1 on."""
    sizes = _numbers(text)
    if len(sizes) != 1:
        raise RunError(f"'{text}' must be a whole number from 1 on")
    return sizes[0]


SWEPT: dict[str, Callable[[str], Any]] = {
    "particles": parse_count,
    "data": parse_count,
    "directions": parse_count,
    "resolution": parse_resolution,
    "patch": parse_count,
    "shape": parse_shape,
}
"""What a sweep can vary, and how its values are read."""


def sweep(request: Request, text: str) -> tuple[str, dict[str, Request]]:
    """Return the key of `key=a,b,c`, and the request with each value in its place, by value as written."""
    key, equals, values = (part.strip() for part in text.partition("="))
    if not equals:
        raise RunError(f"--sweep '{text}' must be KEY=A,B,C as in particles=10000,50000")
    if key not in SWEPT:
        raise RunError(f"--sweep cannot vary '{key}'{did_you_mean(key, SWEPT)}")
    if getattr(request, key) is not None:
        raise RunError(f"--{key} and --sweep both say what '{key}' is; leave one out")
    found: dict[str, Request] = {}
    for value in (part.strip() for part in values.split(",")):
        try:
            found[value] = attrs.evolve(request, **{key: SWEPT[key](value)})
        except CswfError as error:
            raise RunError(f"--sweep {key}: {error}") from None
    return key, found


def _numbers(text: str) -> tuple[int, ...]:
    """Return the numbers of `3x32x32` or `3×32×32`, all of 1 or more; none if the text is anything else."""
    parts = re.split("[x×]", text.strip())
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        return ()
    return tuple(int(part) for part in parts)
