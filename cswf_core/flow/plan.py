"""How the steps of a stage are computed. There are two plans, for one and the same step.

`ExactPlan`, here, works in float32 or float64 on any device. `HalfPlan`, in `half`, has half precision with
float32 sums on CUDA.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache

import attrs
import torch
from torch import Tensor

from cswf_core.flow.clock import Clock
from cswf_core.flow.counts import StageCounts
from cswf_core.flow.directions import Directions, step_key
from cswf_core.flow.estimate import Estimate
from cswf_core.flow.memory import Chunks, total_memory
from cswf_core.flow.noise import dequantised, gaussian
from cswf_core.flow.particles import Particles
from cswf_core.flow.settings import Settings
from cswf_core.flow.step import Cloud, Kept, Tile, Workbench, noise_widths, velocity
from cswf_core.flow.tables import StepTables, TableKeeper
from cswf_core.interfaces import Conditions, Dataset, Key
from cswf_core.kernels import gpu

SETS_SHARE = 16
"""Directions that come again may take this part of a device's memory."""


@attrs.frozen(eq=False)
class Stepped:
    """What a step has done."""

    moved: Tensor
    """The mean length of the move, a scalar."""
    squares: Tensor
    """SW₂² before it, a scalar."""
    tables: StepTables | None = None
    """Its transport maps, where they are wanted."""


@attrs.frozen(eq=False)
class Scene:
    """What the steps of a stage work on and with."""

    index: int
    """The number of the stage."""
    drawn_as: int
    """The number of the stage whose directions these are: its own, unless stages are run through again."""
    settings: Settings
    particles: Particles
    data: Dataset
    """The data that particles flow to, as they were loaded."""
    data_x: Tensor
    """Their d×N numbers on the flow's device."""
    conditions: Conditions
    """Their conditions, there too."""
    directions: Directions
    estimate: Estimate
    chunks: Chunks
    counts: StageCounts | None = None
    """The data's counts along the stage's directions, in place of the data, of which there are none then."""


class Plan(abc.ABC):
    """The steps of one stage."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.check_values = True
        self.clock = Clock()

    @abc.abstractmethod
    def move(self, step: int, eta: float) -> Stepped:
        """X ← X − η v̂."""

    def habits(self) -> dict[str, int]:
        """Return what was decided on the way and decides about last digits; see `adopt`."""
        chunks = self.scene.chunks
        return {"slab": chunks.slab, "rows": chunks.rows, "dense": int(self.scene.directions.dense)}

    def adopt(self, habits: Mapping[str, int]) -> None:
        """Decide as a plan of the same stage has before, so that a flow goes on with the same bits."""
        self.scene.chunks.slab, self.scene.chunks.rows = habits["slab"], habits["rows"]
        self.scene.directions.dense = bool(habits["dense"])

    def step(self, step: int, eta: float) -> Stepped:
        """Take a step: move and, with λ > 0, add √(2λη) ε to the particles."""
        scene = self.scene
        # Shapes are checked at every step; numbers, which takes time, at each stage's first.
        self.check_values = step == 0
        scene.estimate.check_values = self.check_values
        result = self.move(step, eta)
        entropy = scene.directions.stage.entropy
        if entropy > 0:
            key = Key(scene.settings.seed, "entropy", scene.index, step)
            noise = gaussian(key, (scene.data.space.dimension, len(scene.particles)), scene.data_x)
            scene.particles.shake(noise.mul_(math.sqrt(2 * entropy * eta)))
        return result

    def tiles(self, step: int) -> Iterator[Tile]:
        """Draw the directions of a step, tile by tile."""
        scene = self.scene
        values = self.check_values or scene.data_x.device.type == "cpu"
        drawn = scene.directions.tiles(scene.settings.seed, scene.drawn_as, step, values=values)
        size = scene.data_x.element_size()
        tile: Tile | None = None

        def written() -> tuple[float, float]:
            return (0.0 if tile is None else float(math.prod(tile.projection.shape) * size)), 0.0

        while True:
            with self.clock.part("draw", written):
                tile = next(drawn, None)
            if tile is None:
                return
            yield self.ready(tile)

    def examine(self, step: int) -> None:
        """Check the numbers of a step's directions, as most steps do not; raise if they are at fault."""
        scene = self.scene
        for _ in scene.directions.tiles(scene.settings.seed, scene.drawn_as, self.first(step), values=True):
            pass

    def first(self, step: int) -> int:
        """Return the step whose directions a step uses."""
        settings = self.scene.settings
        return step_key(step, settings.reuse, settings.sets)

    def keeper(self) -> TableKeeper | None:
        """Return what moves particles by tables, and collects these; None if they are not wanted."""
        scene, request = self.scene, self.scene.settings.tables
        if request is None:
            return None
        directions = scene.directions
        return TableKeeper(request, directions.stage.directions, directions.together, scene.estimate)

    @property
    def keeps_sets(self) -> bool:
        """Whether directions that come again are kept: if all sets of a stage take little of the memory."""
        sets, stage, like = self.scene.settings.sets, self.scene.directions.stage, self.scene.data_x
        size = stage.directions * self.scene.directions.coordinates.space.dimension * like.element_size()
        return sets is not None and sets * size <= total_memory(like.device) // SETS_SHARE

    def ready(self, tile: Tile) -> Tile:
        """Return a tile as the plan's products want it."""
        return self.scene.directions.structured(tile)


def plan_class(settings: Settings, device: torch.device) -> type[Plan]:
    """Return the plan in half precision if that is wanted and can be had; float64 stays what it is."""
    if not (settings.half and settings.dtype == torch.float32 and gpu.usable(device)):
        return ExactPlan
    from cswf_core.flow.cuda.plan import HalfPlan  # needs Triton

    return HalfPlan


class ExactPlan(Plan):
    """Float32 or float64; noise in the data's bins is drawn at every step, or added when they are counted."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        width = scene.data.bin_width
        self._binned = scene.settings.half and scene.estimate.lean and width > 0
        """Whether noise in the data's bins is added when they are counted: quicker than drawing it."""
        middle = scene.data_x + width / 2 if self._binned else scene.data_x
        self.data_z = scene.directions.coordinates.enter_data(middle)
        self._drawn = -1
        self._tiles: list[Tile] | None = None
        self._kept: Kept = {}
        self._sets: dict[int, list[Tile]] = {}
        """The directions of each set, where sets come again."""

    def move(self, step: int, eta: float) -> Stepped:
        """X ← X − η v̂."""
        scene = self.scene
        first = self.first(step)
        if first != self._drawn:
            self._tiles, self._kept, self._drawn = self._sets.get(first), {}, first
        tiles: Iterable[Tile] = self.tiles(first) if self._tiles is None else self._tiles
        if self._tiles is None and (scene.settings.reuse != 1 or self.keeps_sets):
            tiles = self._tiles = list(tiles)
        if self.keeps_sets and self._tiles is not None:
            self._sets[first] = self._tiles
        counts = None if scene.counts is None else scene.counts.of(first)
        kept = None if scene.settings.reuse == 1 or counts is not None else self._kept
        # What is kept was fitted with the noise of the first step; a flow that goes on later does the same.
        noise = first if kept is not None and scene.estimate.cdf.compact else step
        data = lru_cache(lambda: Cloud(self._noisy(noise), scene.conditions))  # drawn only if it is needed
        keeper = self.keeper()
        bench = Workbench(scene.estimate, scene.chunks, kept, self.clock, keeper, counts)
        update, squares = velocity(tiles, scene.particles.cloud, data, bench)
        kept_up = 1 if scene.particles.sum is None else 2  # x, or z and S: read and written
        with self.clock.part("move", lambda: (float((1 + 2 * kept_up) * update.nbytes), 0.0)):
            moved = scene.particles.move(update.mul_(eta))
        return Stepped(moved, squares, None if keeper is None else keeper.tables(step))

    def ready(self, tile: Tile) -> Tile:
        """Return a tile in blocks where that pays, and with the width of the noise in the data's bins."""
        scene, tile = self.scene, super().ready(tile)
        if not self._binned:
            return tile
        widths = noise_widths(tile, scene.directions.coordinates, scene.data.bin_width)
        return attrs.evolve(tile, noise=widths)

    def _noisy(self, step: int) -> Tensor:
        """Return the data in the stage's coordinates, with the noise of a step in their bins."""
        scene = self.scene
        if self._binned:
            return self.data_z
        key = Key(scene.settings.seed, "dequantise", scene.index, step)
        drawn = float(self.data_z.nbytes) if scene.data.bin_width else 0.0
        with self.clock.part("draw", lambda: (drawn, 0.0)):
            return dequantised(
                self.data_z,
                scene.data.bin_width,
                scene.data.space.dimension,
                scene.directions.coordinates,
                key,
            )
