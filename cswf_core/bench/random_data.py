"""A recipe for random data of given sizes, with one stage."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import attrs

from cswf_core.errors import DataError, RunError
from cswf_core.interfaces import ProjectionSampler
from cswf_core.plugins import Registry
from cswf_core.recipe import Recipe, load_recipe


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
