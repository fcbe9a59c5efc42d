"""New particles through a model's saved steps: the flow without the data.

Directions are drawn again from their keys; along each, δ is looked up in the tables that moved the particles of
the run. Particles do not meet each other, so any number of them can be taken through, some at a time. They are
worked on in groups of a fixed size, the last one filled up: then a sample is the same to the bit however many
are asked for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

import attrs
import torch
from torch import Tensor

from cswf_core.flow import boundary
from cswf_core.flow.coordinates import Coordinates
from cswf_core.flow.directions import Directions, directions_of, step_key
from cswf_core.flow.particles import Particles
from cswf_core.flow.settings import Parts, Settings
from cswf_core.flow.start import INSIDE
from cswf_core.flow.step import Tile
from cswf_core.flow.tables import StepTables, TableRequest
from cswf_core.interfaces import Conditions, Key, Masked, Observation, Rows, Space, Stage
from cswf_core.kernels.tables import Lookup
from cswf_core.model.format import SavedStep

GROUP = {"cpu": 256, "cuda": 4096}
"""Particles of a group, by the type of device."""

BLOCK = 256
"""Particles whose noise shares a key."""

AT_ONCE = {"cpu": 1 << 28, "cuda": 1 << 31}
"""Bytes of particles that are taken through together; directions are drawn anew for the others."""


@attrs.frozen(eq=False)
class Seen:
    """Images of which new particles see a part."""

    images: Tensor
    """d×m, on the CPU."""
    origin: Tensor
    """The image of each particle: n."""
    observation: Observation
    """What is seen: the same of every image, or a mask with a column for each; on the device."""
    width: float = 0.0
    """The images' grey levels are filled with uniform noise of this width."""

    def observed(self, particles: Tensor) -> Observation:
        """Return what these particles see."""
        if self.observation.shared or not isinstance(self.observation, Masked):
            return self.observation
        mask = self.observation.mask
        return Masked(mask[:, self.origin[particles].to(mask.device)])


@attrs.frozen(eq=False)
class Wanted:
    """The particles that are asked for."""

    conditions: Conditions
    """Y of each, on the CPU."""
    count: int
    seed: int
    scale: float = 1.0
    """They begin as N(0, scale² I),"""
    start: Tensor | None = None
    """or here: d×n, on the CPU."""
    seen: Seen | None = None


@attrs.define(eq=False)
class Group:
    """Particles that are moved together."""

    particles: Particles
    first: int
    """The number of the first of them among all."""
    observation: Observation | None
    given: Tensor | None
    """What they see a part of: d×n."""
    strata: Tensor | None
    """The stratum of each."""


class Passage:
    """Takes groups through saved steps, on one device."""

    def __init__(
        self,
        space: Space,
        parts: Parts,
        settings: Settings,
        length: int,
        strata: Sequence[int] | None,
        like: Tensor,
    ) -> None:
        """`like` has the device and the numbers, and is the data (d×N) where a sampler looks at these."""
        self.space = space
        self.parts = parts
        self.settings = settings
        self.length = length
        self.strata = strata
        self.like = like
        assert settings.tables is not None
        self.request: TableRequest = settings.tables
        with boundary.calling(parts.owner("schedule"), "stages"):
            self.stages = boundary.check_stages(
                parts.schedule.stages(space, parts.projection), parts.owner("schedule")
            )
        self.size = GROUP[like.device.type]

    @property
    def at_once(self) -> int:
        """How many particles are taken through together: whole groups."""
        room = AT_ONCE[self.like.device.type] // (8 * self.space.dimension * self.like.element_size())
        return max(1, room // self.size) * self.size

    def group(self, wanted: Wanted, first: int) -> Group:
        """Return a group where it begins; what goes beyond those wanted repeats the last of them."""
        amplifier, like = self.parts.condition.amplifier, self.like
        index = torch.arange(first, first + self.size).clamp_(max=wanted.count - 1)
        x = self._noise(Key(wanted.seed, "offline start"), first, "normal").mul_(wanted.scale)
        if wanted.start is not None:
            x = wanted.start[:, index].to(like)
        own = wanted.conditions.take(index)
        given, observation = None, None
        if wanted.seen is not None:
            observation = wanted.seen.observed(index)
            given = wanted.seen.images[:, wanted.seen.origin[index]].to(like)
            if wanted.seen.width:
                noise = self._noise(Key(wanted.seed, "offline given"), first, "uniform")
                given = given + noise.mul_(wanted.seen.width * INSIDE)
            x = observation.free(x) + amplifier * observation.seen(given)
        particles = Particles(x.contiguous(), own.to(like.device, like.dtype))
        return Group(particles, first, observation, given, self._strata(own))

    def arrived(self, group: Group) -> Tensor:
        """Return a group's particles, with what is given as it was: d×n, on the CPU."""
        x = group.particles.x
        if group.observation is not None and group.given is not None and self.parts.condition.amplifier != 1:
            x = group.observation.free(x) + group.observation.seen(group.given)
        return x.cpu()

    def go(
        self, groups: Sequence[Group], steps: Iterable[SavedStep], seed: int, passed: Callable[[], None]
    ) -> None:
        """Take groups through all steps; `passed` is called after each, `seed` is for noise on the way."""
        stage, directions = -1, None
        tiles: list[Tile] = []
        drawn = -1
        for saved in steps:
            if saved.stage != stage or directions is None:
                if directions is not None:
                    _leave(groups)
                stage, drawn = saved.stage, -1
                directions = self._enter(groups, self.stages[stage])
            key = step_key(saved.number, self.settings.reuse, self.settings.sets)
            if key != drawn:
                tiles, drawn = self._tiles(directions, stage, key), key
            maps = [self._lookups(tile, first, saved.tables) for first, tile in _placed(tiles)]
            count = sum(tile.projection.shape[0] for tile in tiles)
            for group in groups:
                self._move(group, tiles, maps, saved.eta / count)
                self._shake(group, directions.stage, saved, seed)
            passed()
        _leave(groups)

    def _enter(self, groups: Sequence[Group], stage: Stage) -> Directions:
        """Bring groups into a stage's coordinates; return what draws its directions."""
        amplifier, like = self.parts.condition.amplifier, self.like

        @lru_cache(maxsize=1)
        def coordinates(observation: Observation | None) -> Coordinates:
            return Coordinates(stage, self.space, observation, amplifier, like)

        for group in groups:
            group.particles.enter(coordinates(group.observation))
        return directions_of(stage, coordinates(groups[0].observation), self.parts, self.length, like)

    def _tiles(self, directions: Directions, stage: int, key: int) -> list[Tile]:
        """Return those directions of a step that have tables."""
        drawn = directions.tiles(self.settings.seed, stage, key, values=False)
        return [
            directions.structured(tile.rows(0, self.request.kept(tile.projection.shape[0]))) for tile in drawn
        ]

    def _lookups(self, tile: Tile, first: int, tables: StepTables) -> list[Lookup]:
        """Return the maps along a tile's directions, of each stratum; the tile's first has row `first`."""
        rows = slice(first, first + tile.projection.shape[0])
        positions, displacements = (
            table[:, rows].to(self.like.device) for table in (tables.positions, tables.displacements)
        )
        if tile.drawn is not None:
            positions, displacements = positions[:, tile.drawn], displacements[:, tile.drawn]
        return [Lookup.of(p, d, self.like) for p, d in zip(positions, displacements, strict=True)]

    def _move(
        self, group: Group, tiles: Sequence[Tile], maps: Sequence[Sequence[Lookup]], factor: float
    ) -> None:
        """X ← X + factor Σ_h δ_h θ_h."""
        cloud = group.particles.cloud
        update = torch.zeros_like(cloud.z)
        for tile, lookups in zip(tiles, maps, strict=True):
            p = tile.project(cloud).contiguous()
            if p.untyped_storage().data_ptr() == cloud.z.untyped_storage().data_ptr():
                p = p.clone()  # an operator may hand the particles back; p is overwritten
            if group.strata is None:
                lookups[0].displace(Rows(p, lookups[0].low, lookups[0].high))
            else:
                for number, lookup in enumerate(lookups):
                    own = (group.strata == number).nonzero()[:, 0]
                    part = p[:, own]
                    lookup.displace(Rows(part, lookup.low, lookup.high))
                    p[:, own] = part
            update += tile.adjoint(p)
        group.particles.move(update.mul_(factor))

    def _shake(self, group: Group, stage: Stage, saved: SavedStep, seed: int) -> None:
        """Add √(2λη) ε, where the stage has λ > 0."""
        if stage.entropy > 0:
            key = Key(seed, "offline entropy", saved.stage, saved.number)
            noise = self._noise(key, group.first, "normal")
            group.particles.shake(noise.mul_(math.sqrt(2 * stage.entropy * saved.eta)))

    def _noise(self, key: Key, first: int, kind: str) -> Tensor:
        """Return noise for the group whose first particle has this number: d×n; each particle has its own."""
        blocks = range(first // BLOCK, (first + self.size) // BLOCK)
        opened = (attrs.evolve(key, index=i).open(self.like.device, self.like.dtype) for i in blocks)
        d = self.space.dimension
        return torch.cat([getattr(draw, kind)(BLOCK, d) for draw in opened]).T.contiguous()

    def _strata(self, conditions: Conditions) -> Tensor | None:
        """Return the stratum of each particle: that of its label."""
        if self.strata is None:
            return None
        assert conditions.labels is not None
        numbers = {label: number for number, label in enumerate(self.strata)}
        return torch.tensor([numbers[label] for label in conditions.labels.tolist()], device=self.like.device)


def _placed(tiles: Iterable[Tile]) -> Iterable[tuple[int, Tile]]:
    """Yield tiles with the number of their first direction among all that have tables."""
    first = 0
    for tile in tiles:
        yield first, tile
        first += tile.projection.shape[0]


def _leave(groups: Sequence[Group]) -> None:
    for group in groups:
        group.particles.leave()


def new_particles(
    wanted: Wanted,
    passage: Passage,
    steps: Callable[[], Iterable[SavedStep]],
    count: int,
    tell: Callable[[str, int, int], object] | None,
) -> Tensor:
    """Return the particles that are wanted, at their end: d×n, on the CPU; `count` is the number of steps."""
    batches = range(0, wanted.count, passage.at_once)
    done, total = 0, len(batches) * count
    x = torch.empty(passage.space.dimension, wanted.count, dtype=passage.like.dtype)

    def passed() -> None:
        nonlocal done
        done += 1
        if tell is not None:
            tell("sampling", done, total)

    for first in batches:
        last = min(first + passage.at_once, wanted.count)
        groups = [passage.group(wanted, at) for at in range(first, last, passage.size)]
        passage.go(groups, steps(), wanted.seed, passed)
        for group in groups:
            end = min(group.first + passage.size, wanted.count)
            x[:, group.first : end] = passage.arrived(group)[:, : end - group.first]
    return x
