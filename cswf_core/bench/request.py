"""Requests of `cswf bench`: a recipe, or random data of some sizes."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import attrs
import torch

from cswf_core.errors import DataError, RunError, excerpt
from cswf_core.numbers import whole_number
from cswf_core.plugins import Registry
from cswf_core.recipe import Recipe, load_recipe

DEFAULTS: dict[str, dict[str, Any]] = {
    "cuda": {"particles": 50_000, "data": 100_000, "directions": 10_000, "shape": (3, 32, 32)},
    "cpu": {"particles": 2_000, "data": 4_000, "directions": 500, "shape": (3, 16, 16)},
}
"""Sizes of random data on each type of device; those on a CPU take seconds."""

CHOICES = {
    "projection": "projection",
    "reuse": "projection.reuse",
    "cdf": "cdf",
    "precision": "particles.precision",
    "seed": "seed",
}
"""The keys of a recipe that options change, also of one for random data."""


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
    stage: int | None = None
    """Counted from 1; None is the last."""
    steps: int = 10
    warmup: int = 3
    naive: bool = True
    """Whether a naive PyTorch step is timed too."""

    def load(self, device: torch.device, registry: Registry) -> Recipe:
        """Return the recipe: the one that was named, or one for random data of these sizes."""
        if self.recipe is None:
            return self._random(device, registry)
        for option in ("shape", "resolution", "patch", "classes"):
            if getattr(self, option) is not None:
                raise RunError(f"--{option} is for random data, and '{self.recipe}' has its own; leave one out")
        sizes = {"particles": "particles.count", "data": "data.count", "directions": "schedule.directions"}
        return load_recipe(self.recipe, self._overrides({**sizes, **CHOICES}), registry=registry)

    def note(self, device: torch.device) -> str:
        """Return a note about sizes that are smaller by default, if there are any."""
        if self.recipe is not None or device.type != "cpu":
            return ""
        smaller = {k: v for k, v in DEFAULTS["cpu"].items() if getattr(self, k) is None}
        words = (f"{k} {times(v) if isinstance(v, tuple) else format(v, ',')}" for k, v in smaller.items())
        return f"smaller by default on a CPU: {', '.join(words)}" if smaller else ""

    def _random(self, device: torch.device, registry: Registry) -> Recipe:
        """Return a recipe for random data: a stage of a pyramid, if there are patches that one can set."""
        points = len(self.shape or DEFAULTS[device.type]["shape"]) == 1
        usual = {
            **DEFAULTS[device.type],
            "patch": 7,
            "classes": 0,
            "projection": "uniform" if points else "conv-stack",
            "cdf": "histogram",
            "precision": "auto",
        }
        whole = attrs.evolve(self, **{k: v for k, v in usual.items() if getattr(self, k) is None})
        shape: tuple[int, ...] = whole.shape or ()
        step_size = min(math.prod(shape), (whole.directions or 0) / 2)  # as in a pyramid
        constant = {"use": "constant", "steps": 1, "step_size": step_size}
        if points:
            if self.resolution is not None:
                raise RunError(f"points in {shape[0]} dimensions have no resolution; leave --resolution out")
            return whole._with_schedule(constant, registry)
        grid = self.resolution or shape[1:]
        if any(k > side for k, side in zip(grid, shape[1:], strict=True)):
            raise RunError(f"a resolution of {times(grid)} is larger than the images, {times(shape)}")
        recipe = whole._with_schedule(constant, registry)
        with suppress(DataError):  # a projection without patches
            recipe.projection.part.patched(whole.patch)
            entries = [f"({times(grid)}) [{whole.patch}]"]
            return whole._with_schedule({"use": "pyramid", "entries": entries}, registry)
        if grid != shape[1:]:
            raise RunError(
                f"projection '{recipe.projection.name}' has no patches, so that it is timed at the images' own "
                f"resolution, {times(shape[1:])}; leave --resolution out"
            )
        return recipe

    def _with_schedule(self, schedule: dict[str, Any], registry: Registry) -> Recipe:
        """Return a recipe for random data, with all sizes given, that has such a schedule."""
        content = {
            "name": "random points" if len(self.shape or ()) == 1 else "random images",
            "data": {"use": "synthetic", "count": self.data, "shape": self.shape, "classes": self.classes},
            "particles": {"count": self.particles},
            "condition": "one-hot" if self.classes else "none",
            "schedule": {**schedule, "directions": self.directions},
        }
        return load_recipe(content, self._overrides(CHOICES), registry=registry)

    def _overrides(self, places: dict[str, str]) -> list[str]:
        """Return the options, and then KEY=VALUE of the command, as overrides of a recipe."""
        values = {place: getattr(self, option) for option, place in places.items()}
        changes = [f"{place}={value}" for place, value in values.items() if value is not None]
        return [*changes, *self.overrides]


def parse_shape(text: str) -> tuple[int, ...]:
    """Return (C, H, W) of `3x32x32`, or (d,) of `64`."""
    sizes = _numbers(text)
    if len(sizes) not in (1, 3):
        raise RunError(f"shape '{excerpt(text)}' must be CxHxW as in 3x32x32, or one number for points")
    return sizes


def parse_resolution(text: str) -> tuple[int, int]:
    """Return (k, k) of `16`, or (h, w) of `16x12`."""
    sizes = _numbers(text)
    if len(sizes) not in (1, 2):
        raise RunError(f"resolution '{excerpt(text)}' must be one number as in 16, or HxW as in 16x12")
    return sizes[0], sizes[-1]


def _numbers(text: str) -> tuple[int, ...]:
    """Return the numbers of `3x32x32` or `3×32×32`; none unless all are 1 or more."""
    numbers = [whole_number(part) or 0 for part in re.split("[x×]", text)]
    return tuple(numbers) if all(numbers) else ()


def times(sizes: Sequence[int]) -> str:
    """Return sizes as one writes them: 3×32×32."""
    return "×".join(map(str, sizes))
