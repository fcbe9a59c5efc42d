"""Requests of `cswf bench`: a recipe, or random data of some sizes, and the values of a sweep."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import torch

from cswf_core.errors import CswfError, DataError, RunError, did_you_mean
from cswf_core.interfaces import ProjectionSampler
from cswf_core.plugins import Registry
from cswf_core.recipe import Recipe, load_recipe

DEFAULTS: dict[str, dict[str, Any]] = {
    "cuda": {"particles": 50_000, "data": 100_000, "directions": 10_000, "shape": (3, 32, 32)},
    "cpu": {"particles": 2_000, "data": 4_000, "directions": 500, "shape": (3, 16, 16)},
}
"""Sizes of random data on each type of device; those on a CPU take seconds."""

NAMES = {"cdf": "histogram", "precision": "auto"}
"""Plugins and precision that random data are timed with by default."""

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
class RandomData:
    """The sizes of random data and of the stage that they are used in."""

    particles: int
    data: int
    directions: int
    shape: tuple[int, ...]
    """(C, H, W), or (d,) for points."""
    resolution: tuple[int, int] | None
    """The grid of the stage; None is that of the images."""
    patch: int
    classes: int

    def __attrs_post_init__(self) -> None:
        """Refuse a grid that the data cannot have."""
        if self.resolution is None:
            return
        if len(self.shape) == 1:
            raise RunError(f"points in {self.shape[0]} dimensions have no resolution; leave --resolution out")
        if any(k > side for k, side in zip(self.resolution, self.shape[1:], strict=True)):
            raise RunError(
                f"a resolution of {times(self.resolution)} is larger than the images, {times(self.shape)}"
            )

    def load(self, overrides: Sequence[str], registry: Registry) -> Recipe:
        """Return the recipe, changed by `key=value` overrides, of which one names the projection."""
        recipe = self._read(self._constant() if len(self.shape) == 1 else self._pyramid(), overrides, registry)
        if len(self.shape) == 1 or has_patches(recipe.projection.part, self.patch):
            return recipe
        if self.resolution not in (None, self.shape[1:]):
            raise RunError(
                f"projection '{recipe.projection.name}' has no patches, so that it is timed at the images' own "
                f"resolution, {times(self.shape[1:])}; leave --resolution out"
            )
        return self._read(self._constant(), overrides, registry)

    def _read(self, schedule: dict[str, Any], overrides: Sequence[str], registry: Registry) -> Recipe:
        """Return the recipe with a schedule and overrides."""
        data = {"use": "synthetic", "count": self.data, "shape": list(self.shape), "classes": self.classes}
        content = {
            "name": "random points" if len(self.shape) == 1 else "random images",
            "data": data,
            "particles": {"count": self.particles},
            "condition": "one-hot" if self.classes else "none",
            "schedule": {**schedule, "directions": self.directions},
        }
        return load_recipe(content, overrides, registry=registry)

    def _pyramid(self) -> dict[str, Any]:
        height, width = self.resolution or self.shape[1:]
        return {"use": "pyramid", "entries": [f"({height}×{width}) [{self.patch}]"]}

    def _constant(self) -> dict[str, Any]:
        """Return a schedule for points, or for a projection that sees whole images; η as in a pyramid."""
        step_size = min(math.prod(self.shape), self.directions / 2)
        return {"use": "constant", "steps": 1, "step_size": step_size}


@attrs.frozen(kw_only=True)
class Request:
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
        usual = {**DEFAULTS[device.type], "resolution": None, "patch": 7, "classes": 0}
        sizes = {k: v if getattr(self, k) is None else getattr(self, k) for k, v in usual.items()}
        projection = "uniform" if len(sizes["shape"]) == 1 else "conv-stack"
        names: dict[str, Any] = {"projection": projection, **NAMES}
        named = attrs.evolve(self, **{k: v for k, v in names.items() if getattr(self, k) is None})
        return RandomData(**sizes).load([*named._changes(CHOICES), *self.overrides], registry)

    def _changes(self, places: dict[str, str]) -> list[str]:
        """Return the options as `key=value` overrides of a recipe."""
        values = {place: getattr(self, option) for option, place in places.items()}
        return [f"{place}={value}" for place, value in values.items() if value is not None]


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


VARIABLE: dict[str, Callable[[str], Any]] = {
    "particles": parse_count,
    "data": parse_count,
    "directions": parse_count,
    "resolution": parse_resolution,
    "patch": parse_count,
    "shape": parse_shape,
}
"""Options that a sweep can vary, each with the function that reads its values."""


def sweep(request: Request, text: str) -> tuple[str, dict[str, Request]]:
    """Return the key of `key=a,b,c`, and the request with each value in its place, by value as written."""
    key, equals, values = (part.strip() for part in text.partition("="))
    if not equals:
        raise RunError(f"--sweep '{text}' must be KEY=A,B,C as in particles=10000,50000")
    if key not in VARIABLE:
        raise RunError(f"--sweep cannot vary '{key}'{did_you_mean(key, VARIABLE)}")
    if getattr(request, key) is not None:
        raise RunError(f"--{key} and --sweep both say what '{key}' is; leave one out")
    requests: dict[str, Request] = {}
    for value in (part.strip() for part in values.split(",")):
        try:
            requests[value] = attrs.evolve(request, **{key: VARIABLE[key](value)})
        except CswfError as error:
            raise RunError(f"--sweep {key}: {error}") from None
    return key, requests


def _numbers(text: str) -> tuple[int, ...]:
    """Return the numbers of `3x32x32` or `3×32×32`, all of 1 or more; none if the text is anything else."""
    parts = re.split("[x×]", text.strip())
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        return ()
    return tuple(int(part) for part in parts)


def has_patches(projection: ProjectionSampler, patch: int) -> bool:
    """Say whether a schedule can set the patches of a projection."""
    try:
        projection.patched(patch)
    except DataError:
        return False
    return True


def times(sizes: Sequence[int]) -> str:
    """Return sizes as one writes them: 3×32×32."""
    return "×".join(map(str, sizes))
