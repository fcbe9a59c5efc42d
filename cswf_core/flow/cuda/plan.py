"""The steps of a stage on CUDA: half precision with float32 sums, and values touched as few times as can be.

Directions become blocks in half precision, sorted by where they look. Projecting writes the values once, in
half precision, and finds their ends on the way; counting reads them, looking up replaces them by δ, and the
back-projection reads that and moves the particles. Data come into half precision once per stage: the noise in
their bins has its mean added there, and its width when they are counted. Particles themselves stay in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import attrs
import torch
from torch import Tensor

from cswf_core.flow.clock import Clock
from cswf_core.flow.counts import SetCounts
from cswf_core.flow.cuda.graph import StepGraph, recorded
from cswf_core.flow.cuda.layout import (
    HalfCloud,
    Slab,
    cut,
    halved,
    moving,
    packing,
    project,
    refuse_too_many,
    spread,
    work,
)
from cswf_core.flow.estimate import Fits
from cswf_core.flow.memory import SHARE, is_out_of_memory, total_memory
from cswf_core.flow.plan import Plan, Scene, Stepped
from cswf_core.flow.step import Tile, noise_widths
from cswf_core.flow.structured import places
from cswf_core.flow.tables import StepTables, TableKeeper
from cswf_core.interfaces import Conditions
from cswf_core.kernels.blocks import TILE, Places, padded
from cswf_core.kernels.gpu import products

SORTED_BELOW = 0.9
"""Share of blocks that are not zero up to which directions are sorted by where they look."""

WORTHWHILE = 6
"""Steps that a stage must have left for a recording to pay."""

MEASURED = 1024
"""Particles whose moves are measured, for the log."""


class HalfPlan(Plan):
    """Float16 products with float32 sums, on a CUDA device."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        scene.directions.coordinates.hurry(scene.data_x)
        self._places: Places | None = None
        self._sorted: bool | None = None
        """Whether directions are sorted by where they look; None until the stage's first are there."""
        self._mine: HalfCloud | None = None
        self._data: HalfCloud | None = None
        self._counts: SetCounts | None = None
        self._sets: dict[int, list[Slab]] = {}
        self._stale = False
        self._graph: StepGraph[list[Slab]] | None = None
        self._tried = False
        self._drawn = -1
        self._slabs: list[Slab] = []
        self._begun = False
        device, M = scene.data_x.device, len(scene.particles)
        self._sums: Tensor | None = None
        """Σ_h δ_h θ_h of all slabs but the last: d'×M'."""
        self._factor = torch.empty(1, device=device)
        refuse_too_many(max(M, scene.data_x.shape[1]))
        row = 2 * (padded(M) + padded(scene.data_x.shape[1]))
        most = total_memory(device) // SHARE // row if scene.estimate.lean else scene.chunks.rows
        self._most = min(max(TILE, most // TILE * TILE), padded(scene.directions.stage.directions))

    def move(self, step: int, eta: float) -> Stepped:
        """X ← X − η v̂."""
        first = self.first(step)
        self._factor.fill_(eta / self.scene.directions.stage.directions)
        if self._graph is None and self._recordable(step):
            self._record(step)
        if self._graph is not None and self._untimed and self._drawn == step:
            result = self._graph.replay(step + 1)
            self._slabs, self._drawn = self._graph.ready, step + 1
            return self._stepped(result, step)
        moved = self._attempt(first)
        while moved is None:
            moved = self._attempt(first)
        self._stale = self.scene.directions.stage.entropy > 0
        return self._stepped(moved, step)

    def _stepped(self, result: tuple[Tensor, ...], step: int) -> Stepped:
        request = self.scene.settings.tables
        tables = StepTables(*result[2:]) if request is not None and request.wants(step) else None
        return Stepped(result[0], result[1], tables)

    def habits(self) -> dict[str, int]:
        """Return also whether directions are sorted, and how many are worked on at once."""
        return {**super().habits(), "sorted": int(self._places is not None), "most": self._most}

    def adopt(self, habits: Mapping[str, int]) -> None:
        """Sort directions, and cut them, as before."""
        super().adopt(habits)
        self._sorted, self._most = bool(habits["sorted"]), habits["most"]

    def _recordable(self, step: int) -> bool:
        """Say whether it pays to record the steps from here on, and can be done: they must all be alike."""
        stage, estimate = self.scene.directions.stage, self.scene.estimate
        fresh = self.scene.settings.reuse == 1 and self.scene.settings.sets is None
        alike = fresh and stage.entropy == 0 and estimate.lean and estimate.cdf.compact
        known = step > 0 and len(self._slabs) == 1 and self._factor.is_cuda
        return (
            alike
            and known
            and not self._tried
            and self.scene.chunks.recordable
            and stage.steps - step >= WORTHWHILE
            and self._untimed
        )

    @property
    def _untimed(self) -> bool:
        return type(self.clock) is Clock

    def _record(self, step: int) -> None:
        """Record a step along the directions of this one, which prepares the next."""
        self._tried = True
        if self._attempted(lambda: self._draw(step)):
            self._graph = recorded(step + 1, lambda: self._fresh(step + 1), self._slabs, self._moved)
            self.scene.chunks.recordable = self._graph is not None

    def _draw(self, step: int) -> None:
        """Have the directions of a step at hand."""
        if step != self._drawn:
            self._slabs = []  # those of the last step may take much memory
            self._slabs, self._drawn = self._fresh(step), step
            if self._graph is not None:  # it works on the others
                self._graph, self._tried = None, False

    def _moved(self, slabs: list[Slab]) -> tuple[Tensor, ...]:
        """Move along some directions; return the mean length of the move, SW₂² and, if wanted, the tables."""
        target = self._target()
        before = spread(target, MEASURED).clone()
        keeper = self.keeper()
        squares = self._transport(slabs, target, keeper)
        with self.clock.part("move", partial(moving, self.scene.particles, self._observed)):
            moved = self._arrived(target, before)
        if keeper is None:
            return moved, squares
        return moved, squares, *keeper.found()

    def ready(self, tile: Tile) -> Tile:
        """Return the tile as it was drawn."""
        return tile

    def _attempt(self, first: int) -> tuple[Tensor, ...] | None:
        """Move along the directions of step `first`; None if memory was short, and slabs were halved."""
        found: list[tuple[Tensor, ...]] = []

        def move() -> None:
            self._draw(first)
            found.append(self._moved(self._slabs))

        return found[0] if self._attempted(move) else None

    def _attempted(self, work: Callable[[], None]) -> bool:
        """Do something; if memory is short before particles have moved, halve the slabs and return False."""
        self._begun = False
        try:
            work()
            return True
        except Exception as error:
            if not is_out_of_memory(error) or self._begun or self._most == TILE:
                raise
        self._drawn, self._slabs, self._sets = -1, [], {}
        self._most = max(TILE, self._most // 2 // TILE * TILE)
        self.scene.chunks.tell(f"{self._most} directions at a time; results may differ in the last digits")
        return False

    def _fresh(self, step: int) -> list[Slab]:
        """Draw the directions of a step and, where fits are small, fit the data's distributions along them."""
        if step in self._sets:
            return self._sets[step]
        slabs: list[Slab] = []
        counts = self.scene.counts
        self._counts = None if counts is None else counts.of(step)
        for number, tile in enumerate(self.tiles(step)):
            with self.clock.part("draw", partial(packing, tile)):
                slabs += self._cut(tile, number)
        if self.scene.estimate.cdf.compact or counts is not None:
            for slab in slabs:
                slab.fits = self._fitted(slab)
        if self.keeps_sets:
            self._sets[step] = slabs
        return slabs

    def _transport(self, slabs: list[Slab], target: Tensor, keeper: TableKeeper | None) -> Tensor:
        """Add η/H Σ_h δ_h θ_h to the target and return SW₂²."""
        M, mine = len(self.scene.particles), self._particles()
        squares = torch.zeros((), dtype=torch.float64, device=target.device)
        for number, slab in enumerate(slabs):
            with self.clock.part("project", partial(work, slab, M, 2)):
                rows, values = project(slab, mine, None)
            fits = slab.fits if slab.fits is not None else self._fitted(slab)
            if keeper is None:
                each = self.scene.estimate.displace(rows, fits, self.clock)
            else:
                order = slab.directions.order
                each = keeper.displace(slab.tile, slab.first, order, rows, fits, self.clock)
            squares += each.double().sum()
            if rows.values.dtype != values.dtype:
                values[: rows.values.shape[0], :M] = rows.values
            if number + 1 < len(slabs):
                if self._sums is None:
                    self._sums = torch.empty(len(mine.z), mine.z.shape[1], device=mine.z.device)
                with self.clock.part("back-project", partial(work, slab, M, 8 if number else 4)):
                    products.back_project(slab.directions, values, self._sums, add=number > 0)
                continue
            half, sums = mine.z if self._direct else None, self._sums if number else None
            moved = 8 + (2 if self._direct else 0) + (4 if number else 0)
            with self.clock.part("back-project", partial(work, slab, M, moved)):
                self._begun = True
                products.move(slab.directions, values, sums, target, self._factor, self._places, half)
        return squares / (M * self.scene.directions.stage.directions)

    def _target(self) -> Tensor:
        """Return what updates are added to: x, the sum S, or where a part is observed an empty update."""
        particles = self.scene.particles
        if self._observed:
            return torch.zeros_like(particles.cloud.z)
        return particles.x if particles.sum is None else particles.sum

    def _cut(self, tile: Tile, number: int) -> list[Slab]:
        """Turn a tile into slabs of at most so many directions."""
        if self._mine is None:
            self._place(tile.projection.dense())
        noise = noise_widths(tile, self.scene.directions.coordinates, self.scene.data.bin_width)
        return cut(attrs.evolve(tile, noise=noise), self._places, self._most, number)

    def _place(self, theta: Tensor) -> None:
        """Decide on an order of coordinates, from a stage's first directions, and bring the data there."""
        scene = self.scene
        where = places(scene.directions.coordinates.space, theta.device)
        if self._sorted is None:
            self._sorted = where is not None and products.arrange(theta, None, where).share() <= SORTED_BELOW
        self._places = where if self._sorted else None
        if scene.counts is None:
            middle = scene.data_x + scene.data.bin_width / 2 if scene.data.bin_width else scene.data_x
            self._data = self._cloud(scene.directions.coordinates.enter_data(middle), scene.conditions)
        self._mine = self._cloud(scene.particles.cloud.z, scene.particles.conditions)
        self._stale = scene.particles.sum is not None  # a flow may come back in the middle of a stage

    def _cloud(self, z: Tensor, conditions: Conditions) -> HalfCloud:
        return halved(z, self._places, conditions, self.scene.directions.groups(conditions))

    def _particles(self) -> HalfCloud:
        """Return the particles in half precision, brought up to date if noise was added to them."""
        assert self._mine is not None
        if self._stale:
            self._refresh(self._mine)
            self._stale = False
        return self._mine

    def _refresh(self, mine: HalfCloud) -> None:
        """Bring the particles into half precision: z = z₀ + G S, or z itself."""
        particles = self.scene.particles
        change = None if particles.sum is None or self._observed else self._gram(particles.sum).contiguous()
        products.halve(particles.cloud.z.contiguous(), self._places, mine.z, change)

    def _gram(self, u: Tensor) -> Tensor:
        """Return G u: d_k×n → d_k×n."""
        coordinates = self.scene.directions.coordinates
        return coordinates.gram(u) if coordinates.quick is None else coordinates.quick.times(u)

    @property
    def _observed(self) -> bool:
        return self.scene.directions.coordinates.observation is not None

    @property
    def _direct(self) -> bool:
        """Whether x itself is what moves, and what is projected."""
        return self.scene.particles.sum is None and not self._observed

    def _fitted(self, slab: Slab) -> Fits:
        if self._counts is not None:
            return self._counts.fits(slab.tile, slab.first, slab.directions.shape[0], slab.directions.order)
        assert self._data is not None
        with self.clock.part("project", partial(work, slab, self._data.count, 2)):
            rows, _ = project(slab, self._data, slab.noise)
        return self.scene.estimate.fit_data(rows, self.clock)

    def _arrived(self, target: Tensor, before: Tensor) -> Tensor:
        """Let half precision know what has moved, and return the mean length of the move."""
        mine = self._particles()
        if self._observed:
            moved = self.scene.particles.move(target)
            self._refresh(mine)
            return moved
        change = (spread(target, MEASURED) - before).flatten(1)
        if self._direct:
            lengths: Tensor = torch.linalg.vector_norm(change, dim=0)
            return lengths.mean()
        self._refresh(mine)
        return (change * self._gram(change)).sum(dim=0).clamp_min(0).sqrt().mean()
