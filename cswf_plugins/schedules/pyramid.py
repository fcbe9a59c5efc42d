"""Schedule `pyramid`: coarse grids first, then finer ones, each with patches from large to small.

What it is: the paper's section 5.2. Each entry is written as in its appendix's table, `(8×8) [8, 7, 5, 3]`: the
filters of this stage live on a grid of 8×8, patches of 8, 7, 5 and 3 pixels one after the other, and are
enlarged to the images' size. Steps run in the coarse grid's coordinates, which is exact. `dense` in place of a
patch size, as in `(7×7) [dense, 7, 5, 3]`, is a stage with uniform directions of the whole grid, whatever the
projection.
Cost: products of C·k²·H·(M + N) per step at resolution k; coarse stages are nearly free.
When not to use it: for points, or for images so small that one grid is enough.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import attrs
import torch
from torch import Tensor

from cswf_core.errors import DataError, KeyedError, excerpt
from cswf_core.interfaces import (
    ProjectionSampler,
    Schedule,
    Space,
    Stage,
    Upsampling,
    Written,
    parameter,
)
from cswf_core.kernels.resizing import resizing
from cswf_core.numbers import LARGEST, whole_number
from cswf_plugins.projections.uniform import Uniform
from cswf_plugins.schedules.constant import MOST, scaled

_ENTRY = re.compile(r"\(\s*(\d+)\s*[x×]\s*(\d+)\s*\)\s*\[([\w,\s]*)\]((?:\s+\w+\s*=\s*\w+)*)\s*")

Patch = int | Literal["dense"]
"""The side of a patch, or the whole grid with uniform directions."""


@attrs.frozen
class Entry(Written):
    """A line of the paper's table: a grid, and the patch sizes used on it one after the other."""

    form: ClassVar[str] = (
        "an entry such as '(8×8) [8, 7, 5, 3]', perhaps with 'dense' among the patch sizes for uniform "
        "directions, and with 'steps=20' or 'dilation=2' behind"
    )

    height: int
    width: int
    patches: tuple[Patch, ...]
    steps: int | None = None
    dilation: int = 1

    @classmethod
    def from_text(cls, text: str) -> Entry:
        """Read `(H×W) [S₁, S₂, …]`, where an S may be `dense`, with `steps=…` or `dilation=…` behind it."""
        match = _ENTRY.fullmatch(text.strip())
        if match is None:
            raise ValueError(f"must be {cls.form}, got '{excerpt(text)}'")
        sizes = match[3]
        behind = match[4]
        got = f"got '{excerpt(text)}'"
        height, width = (_size(side, got) for side in match.group(1, 2))
        patches: list[Patch] = []
        for size in map(str.strip, sizes.split(",")):
            if size != "dense" and not size.isdecimal():
                raise ValueError(
                    f"needs patch sizes, as in '({height}×{width}) [{height}]', or 'dense' for uniform "
                    f"directions, {got}"
                )
            patches.append("dense" if size == "dense" else _size(size, got))
        options: dict[str, int] = {}
        for name, value in re.findall(r"(\w+)\s*=\s*(\w+)", behind):
            if name not in ("steps", "dilation") or name in options or not value.isdecimal():
                raise ValueError(f"takes steps=N and dilation=N, each once, behind the patches, {got}")
            options[name] = _size(value, got)
        if "dilation" in options and set(patches) == {"dense"}:
            raise ValueError(f"takes dilation=N only with patches, and 'dense' has none, {got}")
        return cls(height, width, tuple(patches), **options)

    def __str__(self) -> str:
        sizes = ", ".join(map(str, self.patches))
        steps = "" if self.steps is None else f" steps={self.steps}"
        return f"({self.height}×{self.width}) [{sizes}]{steps}" + (
            "" if self.dilation == 1 else f" dilation={self.dilation}"
        )

    def stage_name(self, patch: Patch) -> str:
        """Return the name of the stage of one of the patches: `(8×8) [7]`, or `(8×8) [5] dilation=2`."""
        dilated = "" if self.dilation == 1 or patch == "dense" else f" dilation={self.dilation}"
        return f"({self.height}×{self.width}) [{patch}]{dilated}"


def _size(digits: str, got: str) -> int:
    """Return a number of an entry, all of which are 1 or more; `got` is the end of a sentence on any other."""
    number = whole_number(digits)
    if not number:
        limit = "of 1 or more" if number == 0 else f"of at most {LARGEST:,}"
        raise ValueError(f"must have numbers {limit}, {got}")
    return number


@attrs.frozen(kw_only=True)
class PerDimension:
    """H = c·C·k², within bounds."""

    per_dimension: float = parameter("c: directions for each of the C·k² dimensions of a stage", above=0)
    at_least: int = parameter("smallest H", default=1000, at_least=1, at_most=MOST)
    at_most: int = parameter("largest H", default=10000, at_least=1, at_most=MOST)

    def __attrs_post_init__(self) -> None:
        """Refuse bounds that contradict each other."""
        if self.at_least > self.at_most:
            raise ValueError(f"at_least ({self.at_least:,}) must not be above at_most ({self.at_most:,})")

    def count(self, dimension: int) -> int:
        """Return H for a stage of C·k² dimensions."""
        return round(max(1, min(max(self.per_dimension * dimension, self.at_least), self.at_most)))


@attrs.frozen(eq=False)
class FadingStage(Stage):
    """A stage of a plan whose step size falls to 0 over its last steps."""

    before: int = 0
    """Steps planned before this stage."""
    planned: int = 1
    """Steps of the whole plan."""
    fading: int = 0
    """Steps at the end over which η falls."""

    def eta(self, step: int) -> float:
        """Return η, and from `fading` steps before the end less and less of it."""
        left = self.planned - self.before - step
        return self.step_size * (min(1.0, left / self.fading) if self.fading else 1.0)


def _not_empty(_instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    if not value:
        raise ValueError(f"{attribute.name} must have at least one entry")


@attrs.frozen(kw_only=True)
class Pyramid(Schedule):
    """Coarse grids first, then finer ones."""

    entries: tuple[Entry, ...] = parameter(
        "the stages as in the paper's table, in order: (8×8) [8, 7, 5, 3], or (7×7) [dense]",
        validator=_not_empty,
    )
    steps: int = parameter(
        "K for each patch size of an entry that does not say", default=200, at_least=1, at_most=MOST
    )
    directions: int | PerDimension = parameter(
        "H, or {per_dimension: c, at_least: …, at_most: …} for H = c·C·k²",
        default=10000,
        at_least=1,
        at_most=MOST,
    )
    step_size: float | Literal["stage", "released", "dimension"] = parameter(
        "η: 'stage' for C·k² at resolution k but at most H/2, 'released' for C·k² but at most H, as in the "
        "released code, 'dimension' for η = d, or a number",
        default="stage",
        above=0,
    )
    factor: float = parameter("η is multiplied by this", default=1.0, above=0)
    decay: float = parameter(
        "share of all steps, at the end, over which η falls to 0", default=0.0, at_least=0, at_most=1
    )
    upsample: Literal["lanczos5", "lanczos3", "bicubic", "nearest"] = parameter(
        "how filters are enlarged to the images' size", default="lanczos5"
    )
    scale: float = parameter(
        "shortens (or lengthens) every entry: steps are multiplied by this", default=1.0, above=0
    )

    def stages(self, space: Space, projection: ProjectionSampler) -> Sequence[Stage]:
        """Return a stage for every patch size of every entry."""
        channels, height, width = space.grid("schedule 'pyramid'")
        plan = [
            (entry, patch, scaled(entry.steps or self.steps, self.scale))
            for entry in self.entries
            for patch in entry.patches
        ]
        planned = sum(steps for _, _, steps in plan)
        stages: list[Stage] = []
        before = 0
        for entry, patch, steps in plan:
            if entry.height > height or entry.width > width:
                raise DataError(f"entry '{entry}' of the schedule is larger than the images, {height}×{width}")
            grid = Space((channels, entry.height, entry.width))
            directions = self.directions
            if isinstance(directions, PerDimension):
                directions = directions.count(grid.dimension)
            stage = FadingStage(
                name=entry.stage_name(patch),
                steps=steps,
                directions=directions,
                step_size=self._eta(grid, space, directions) * self.factor,
                sampler=Uniform() if patch == "dense" else projection.patched(patch, entry.dilation),
                upsampling=None if grid == space else Enlarged(grid, space, self.upsample),
                tempered=self._is_uneven(grid, space),
                before=before,
                planned=planned,
                fading=round(self.decay * planned),
            )
            stages.append(stage)
            before += steps
        return stages

    def check(self, projection: ProjectionSampler) -> None:
        """Refuse a projection that cannot have the entries' patches."""
        placing: Any = projection
        while hasattr(placing, "of"):
            placing = placing.of
        placed = getattr(placing, "covering", "whole") == "placed"
        for index, entry in enumerate(self.entries):
            side = max(entry.height, entry.width)
            largest = 2 * side - 1 if placed else side  # more is cut off wherever a patch is placed
            for patch in entry.patches:
                if patch != "dense":
                    projection.patched(patch, entry.dilation)
                if patch != "dense" and patch > largest:
                    fault = f"the patch {patch} of '{entry}' is larger than its grid"
                    raise KeyedError(f"{fault}; write {largest} or less, or dense", f"entries.{index}")

    def _is_uneven(self, grid: Space, space: Space) -> bool:
        """Return whether enlarged filters weigh some pixels several times more than others.

        They do where whole pixels are repeated, some more often than others: at 21 of 28, twice or once.
        """
        divides = all(fine % coarse == 0 for coarse, fine in zip(grid.shape, space.shape, strict=True))
        return self.upsample == "nearest" and not divides

    def _eta(self, grid: Space, space: Space, directions: int) -> float:
        if self.step_size == "stage":
            return min(float(grid.dimension), directions / 2)
        if self.step_size == "released":
            return float(min(grid.dimension, directions))
        return float(space.dimension if self.step_size == "dimension" else self.step_size)


class Enlarged(Upsampling):
    """U = A_rows ⊗ A_columns for each channel, scaled so that G = UᵀU is near the identity."""

    def __init__(self, coarse: Space, fine: Space, kernel: str) -> None:
        self.space = coarse
        self.fine = fine
        sides = zip(coarse.shape[1:], fine.shape[1:], strict=True)
        lines = [resizing(k, size, kernel) * math.sqrt(k / size) for k, size in sides]
        self._lines = [torch.from_numpy(line) for line in lines]
        self._grams = [line.T @ line for line in self._lines]
        self._placed: dict[tuple[torch.device, torch.dtype], tuple[list[Tensor], list[Tensor]]] = {}

    def up(self, t: Tensor) -> Tensor:
        """Return U t: C·k·k×n → C·H·W×n."""
        (rows, columns), _ = self._on(t)
        return self._both(t, self.space, rows, columns)

    def down(self, x: Tensor) -> Tensor:
        """Return Uᵀ x: C·H·W×n → C·k·k×n."""
        (rows, columns), _ = self._on(x)
        return self._both(x, self.fine, rows.T, columns.T)

    def gram(self, t: Tensor) -> Tensor:
        """Return UᵀU t by the small matrices AᵀA: C·k·k×n → C·k·k×n."""
        _, (rows, columns) = self._on(t)
        return self._both(t, self.space, rows, columns)

    def _on(self, like: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        place = like.device, like.dtype
        if place not in self._placed:
            self._placed[place] = [m.to(*place) for m in self._lines], [m.to(*place) for m in self._grams]
        return self._placed[place]

    @staticmethod
    def _both(x: Tensor, space: Space, rows: Tensor, columns: Tensor) -> Tensor:
        """Apply one matrix along the rows' axis and another along the columns' axis."""
        channels, height, width = space.shape
        n = x.shape[1]
        tall = torch.matmul(rows, x.reshape(channels, height, width * n))
        wide = torch.matmul(columns, tall.reshape(channels * rows.shape[0], width, n))
        return wide.reshape(channels * rows.shape[0] * columns.shape[0], n)
