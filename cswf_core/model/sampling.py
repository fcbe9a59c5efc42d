"""New particles through a model's saved steps: the flow without the data.

Directions are drawn again from their keys; along each, δ is looked up in the tables that moved the particles of
the run. New particles do not depend on each other, so any number of them can flow, some at a time. They flow in
groups of a fixed size, the last one filled up: then a sample is the same to the bit however many there are.
On CUDA, steps of a run in half precision are taken in half precision, too (`half`).
"""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache, partial
from itertools import groupby
from operator import attrgetter

import attrs
import torch
from torch import Tensor

from cswf_core.errors import NotFiniteError, RunError
from cswf_core.flow.coordinates import Cloud, StageCoordinates, free_moves
from cswf_core.flow.directions import Directions, DirectionSampler, Draws
from cswf_core.flow.fingerprint import recognise
from cswf_core.flow.finite import located, too_large
from cswf_core.flow.gaussian import Regression
from cswf_core.flow.memory import Budget, attempted, batches
from cswf_core.flow.particles import Particles
from cswf_core.flow.settings import Parts, Settings
from cswf_core.flow.setup import INSIDE
from cswf_core.flow.state import Position
from cswf_core.flow.step import Tools, step
from cswf_core.flow.tables import SavedMaps, lookups_of
from cswf_core.flow.transport import Maps
from cswf_core.interfaces import Conditions, Key, Observation, Space, Stage
from cswf_core.kernels import gpu
from cswf_core.kernels.columns import COLUMNS_AT_A_TIME
from cswf_core.kernels.finite import is_finite
from cswf_core.kernels.memory import is_out_of_memory, total_memory
from cswf_core.model.fitted import Fitted
from cswf_core.model.format import SavedStep
from cswf_core.model.requests import ParticleGroup, SampleRequest
from cswf_core.ranks import Ranks

log = logging.getLogger("cswf")

HALF_GROUP = 1024
"""Particles of a group in half precision, where many groups move side by side."""

MOST_GROUPS = 64
"""Groups that move side by side in half precision, at most: with more, drawing directions hardly counts."""

KEYED = 256
"""Particles whose noise shares a key."""

AT_ONCE = {"cpu": 1 << 28, "cuda": 1 << 31}
"""Bytes of particles that flow side by side; directions are drawn anew for the others."""

HALF_SHARE = 8
"""In half precision they may take one part in so many of the device's memory."""


class SavedFlow:
    """The steps of a saved model on one device, without its data."""

    def __init__(
        self,
        space: Space,
        parts: Parts,
        settings: Settings,
        length: int,
        sets: int | None,
        strata: Sequence[int] | None,
        like: Tensor,
        fitted: Fitted,
        fingerprints: Sequence[str],
    ) -> None:
        """`length` is l; `sets` of directions were used in turn, if any; `strata` has the label of each.

        `like` has the device and the numbers, and is the data (d×N) where a sampler looks at these. Directions
        have to be those of the stages' `fingerprints`; an empty one is not compared.
        """
        self.space = space
        self.parts = parts
        self.settings = settings
        self.length = length
        self.strata = strata
        self.like = like
        self.fitted = fitted
        self.fingerprints = fingerprints
        self.draws = Draws(settings.reuse, sets)
        self.stages = parts.schedule.stages(space, parts.projection)
        self.half = settings.half and like.dtype == torch.float32 and gpu.usable(like.device)
        """Whether products are in half precision, on CUDA."""
        self.size = HALF_GROUP if self.half else COLUMNS_AT_A_TIME[like.device.type]
        self._most = MOST_GROUPS if self.half else sys.maxsize
        """Groups that flow side by side, at most."""
        self._recordable = True
        self._recognised: dict[int, set[tuple[bool, bool]]] = {}
        """Stages whose directions are known to be those of the run, and the form that these have."""
        self._budget = Budget.whole(like.device)
        self._free = lru_cache(maxsize=1)(self._free_part)
        """How x may move in W, by what is observed."""
        self._regression = lru_cache(maxsize=1)(
            partial(Regression.of, fitted.gaussian, amplifier=parts.condition.amplifier)
        )
        """How the rest of a Gaussian follows what is observed."""

    @property
    def at_once(self) -> int:
        """How many particles flow side by side: whole groups."""
        device = self.like.device
        room = total_memory(device) // HALF_SHARE if self.half else AT_ONCE[device.type]
        groups = room // (8 * self.space.dimension * self.like.element_size()) // self.size
        return max(1, min(groups, self._most)) * self.size

    def halve(self, groups: int) -> bool:
        """Let half as many groups flow side by side, as memory was short; False: it was only one."""
        self._most = max(1, groups // 2)
        return self.half and groups > 1

    def group(self, request: SampleRequest, first: int) -> ParticleGroup:
        """Return a group where it begins; beyond the last particle of the request, that one is repeated."""
        amplifier, like = self.parts.condition.amplifier, self.like
        index = torch.arange(first, first + self.size).clamp_(max=request.count - 1)
        own = request.conditions(index)
        if request.start is not None:
            x = request.start[:, index].to(like)
        else:
            noise = self._noise(Key(request.seed, "offline start"), first, "normal")
            gaussian, labels = self.fitted.gaussian, None if own.labels is None else own.labels.to(like.device)
            x = noise.mul_(request.scale) if gaussian is None else gaussian.of_noise(noise, labels)
        images, observation = None, None
        if request.originals is not None:
            observation = request.originals.observed(index)
            images = request.originals.images[:, request.originals.origin[index]].to(like)
            if request.originals.width:
                noise = self._noise(Key(request.seed, "offline given"), first, "uniform")
                images = images + noise.mul_(request.originals.width * INSIDE)
            seen = observation.seen(images)
            regression = self._regression(observation)
            if regression is not None and request.start is None:
                x = regression.conditioned(x, seen)
            x = observation.free(x) + amplifier * seen
        particles = Particles(x.contiguous(), own.to(like.device, like.dtype), self.settings.clip)
        return ParticleGroup(particles, first, observation, images, self._strata(own))

    def samples(self, group: ParticleGroup) -> Tensor:
        """Return a group's particles, with what is observed as it was: d×n, on the CPU."""
        x = group.particles.x
        stretched = self.parts.condition.amplifier != 1
        if group.observation is not None and group.originals is not None and stretched:
            x = group.observation.free(x) + group.observation.seen(group.originals)
        return x.cpu()

    def run(
        self,
        groups: Sequence[ParticleGroup],
        steps: Iterable[SavedStep],
        seed: int,
        after_step: Callable[[], None],
    ) -> None:
        """Take groups through all steps; `after_step` is called after each, `seed` is for noise on the way."""
        for stage, own in groupby(steps, attrgetter("stage")):
            sampler = self._enter(groups, self.stages[stage])
            self._recognise(sampler, stage)
            take = self._half if self.half and sampler.plain else self._exact
            for _ in take(groups, sampler, stage, self._fitting(sampler, own), seed):
                after_step()
            for group in groups:
                group.particles.leave()

    def _fitting(self, sampler: DirectionSampler, steps: Iterable[SavedStep]) -> Iterator[SavedStep]:
        """Yield steps; raise `RunError` for one whose tables are of more or fewer directions than it should."""
        assert self.settings.tables is not None
        drawn = batches(sampler.stage.directions, sampler.together)
        rows = sum(self.settings.tables.tabulated(count) for _, count in drawn)
        for saved in steps:
            there = saved.tables.positions.shape[1]
            if there != rows:
                raise RunError(
                    f"the model is damaged: step {saved.number} of stage {saved.stage} has tables of {there} "
                    f"directions and should have {rows}"
                )
            yield saved

    def _exact(
        self,
        groups: Sequence[ParticleGroup],
        sampler: DirectionSampler,
        stage: int,
        steps: Iterable[SavedStep],
        seed: int,
    ) -> Iterator[None]:
        """Take a stage's steps in float32 or float64; yield after each."""
        key = -1
        directions: list[Directions] = []
        for saved in steps:
            own = self.draws.number(saved.number)
            if own != key:
                directions = self._directions(sampler, stage, own)
                key = own
            lookups = lookups_of(directions, saved.tables, self.like)
            for group in groups:
                maps: SavedMaps[Cloud] = SavedMaps(lookups, group.strata, self._budget)
                self._move(group.particles, directions, maps, saved.eta)
                self._add_noise(group, sampler.stage, saved, seed)
            yield

    def _move(
        self, particles: Particles, directions: Sequence[Directions], maps: Maps[Cloud], eta: float
    ) -> None:
        """Move a group; if memory is too short, with fewer directions at a time."""
        moving = False

        def scale(update: Tensor, H: int) -> Tensor:
            nonlocal moving
            moving = True
            return update.mul_(eta / H)

        tools = Tools(self._budget)
        work = partial(step, particles, directions, maps, scale, tools)
        most = max(theta.count for theta in directions)
        while attempted(work, lambda: not moving and self._budget.halve(most)) is None:
            pass

    def _half(
        self,
        groups: Sequence[ParticleGroup],
        sampler: DirectionSampler,
        stage: int,
        steps: Iterable[SavedStep],
        seed: int,
    ) -> Iterator[None]:
        """Take a stage's steps in half precision; yield after each."""
        from cswf_core.model.half import HalfStage  # needs Triton

        own = HalfStage(groups, sampler, stage, self.settings, self.draws, recordable=self._recordable)
        yield from own.take(steps, lambda group, saved: self._add_noise(group, sampler.stage, saved, seed))
        self._recordable = self._recordable and not own.failed

    def _enter(self, groups: Sequence[ParticleGroup], stage: Stage) -> DirectionSampler:
        """Bring groups into a stage's coordinates; return what draws its directions."""
        amplifier, like = self.parts.condition.amplifier, self.like

        @lru_cache(maxsize=1)
        def coordinates(observation: Observation | None) -> StageCoordinates:
            W, free = self.fitted.W, self._free(observation)
            return StageCoordinates(
                self.space, observation, amplifier, like, upsampling=stage.upsampling, W=W, free=free
            )

        for group in groups:
            group.particles.enter(coordinates(group.observation))
        own = coordinates(groups[0].observation if groups else None)
        return DirectionSampler.of_stage(stage, own, self.parts, self.length, lambda: like, like)

    def recognise(self) -> None:
        """Raise `RunError` if directions of any stage are not those that its maps belong to."""
        for number, stage in enumerate(self.stages):
            self._recognise(self._enter((), stage), number)

    def _recognise(self, sampler: DirectionSampler, stage: int) -> None:
        """Raise `RunError` if directions are not those that the stage's maps belong to; asked once a stage."""
        if stage not in self._recognised:
            recognise(sampler, self.settings.seed, stage, self.fingerprints[stage], Ranks())
            self._recognised[stage] = sampler.forms
        sampler.forms = self._recognised[stage]

    def fault(self, steps: Iterable[SavedStep], first: int, last: int) -> NotFiniteError:
        """Return the error for samples that are not finite; raise `PluginError` if directions are at fault."""
        for saved in steps:
            key = self.draws.number(saved.number)
            with located(self.stages[saved.stage], Position(saved.stage, saved.number)):
                for _ in self._enter((), self.stages[saved.stage]).batches(
                    self.settings.seed, saved.stage, key, check=True
                ):
                    pass
        return NotFiniteError(
            f"samples {first:,} to {last - 1:,} are not finite: {too_large(self.settings, half=self.half)}"
        )

    def _free_part(self, observation: Observation | None) -> Tensor | None:
        return free_moves(self.fitted.W, observation, self.space.dimension, self.like)

    def _directions(self, sampler: DirectionSampler, stage: int, key: int) -> list[Directions]:
        """Return those directions of a step that have tables."""
        assert self.settings.tables is not None
        tabulated = self.settings.tables.tabulated
        drawn = sampler.batches(self.settings.seed, stage, key, check=False)
        return [sampler.in_blocks(theta.rows(slice(0, tabulated(theta.count)))) for theta in drawn]

    def _add_noise(self, group: ParticleGroup, stage: Stage, saved: SavedStep, seed: int) -> None:
        """Add √(2λη) ε, where the stage has λ > 0."""
        if stage.entropy > 0:
            key = Key(seed, "offline entropy", saved.stage, saved.number)
            noise = self._noise(key, group.first, "normal")
            group.particles.add_noise(noise.mul_(math.sqrt(2 * stage.entropy * saved.eta)))

    def _noise(self, key: Key, first: int, kind: str) -> Tensor:
        """Return noise for the group whose first particle has this number: d×n; each particle has its own."""
        indices = range(first // KEYED, (first + self.size) // KEYED)
        opened = (attrs.evolve(key, index=i).open(self.like.device, self.like.dtype) for i in indices)
        d = self.space.dimension
        return torch.cat([getattr(draw, kind)(KEYED, d) for draw in opened]).T.contiguous()

    def _strata(self, conditions: Conditions) -> list[Tensor] | None:
        """Return the particles of each stratum: those of its label."""
        if self.strata is None:
            return None
        labels = conditions.labels
        assert labels is not None
        return [(labels == label).nonzero()[:, 0].to(self.like.device) for label in self.strata]


def particles_at_end(
    request: SampleRequest,
    flow: SavedFlow,
    steps: Callable[[], Iterable[SavedStep]],
    firsts: Sequence[int],
    count: int,
    tell: Callable[[str, int, int], object] | None,
) -> Iterator[tuple[int, Tensor]]:
    """Yield groups of a request's particles at their end: the number of the first, and d×n, on the CPU.

    `firsts` are the groups that are wanted, by their first particles: multiples of `flow.size`. `count` is the
    number of steps.
    """
    done = 0

    def after_step() -> None:
        nonlocal done
        done += 1
        if tell is not None:
            left = -(-len(firsts) * flow.size // flow.at_once) * count
            tell("sampling", done, before + left)

    while firsts:
        before, batch = done, firsts[: flow.at_once // flow.size]
        groups = _attempt(request, flow, steps, batch, after_step)
        if groups is None:
            done = before
            log.warning("out of memory: going on with %s particles at a time", f"{flow.at_once:,}")
            continue
        firsts = firsts[len(batch) :]
        for group in groups:
            last = min(group.first + flow.size, request.count)
            x = flow.samples(group)[:, : last - group.first]
            if not is_finite(x):
                raise flow.fault(steps(), group.first, last)
            yield group.first, x
        del groups, group  # before others take memory


def _attempt(
    request: SampleRequest,
    flow: SavedFlow,
    steps: Callable[[], Iterable[SavedStep]],
    firsts: Sequence[int],
    after_step: Callable[[], None],
) -> list[ParticleGroup] | None:
    """Return groups at their end; None if memory was short, and fewer are to flow side by side.

    When this returns, the error is gone, and with it the tensors that its frames held.
    """
    try:
        groups = [flow.group(request, first) for first in firsts]
        flow.run(groups, steps(), request.seed, after_step)
        return groups
    except Exception as error:
        if not is_out_of_memory(error) or not flow.halve(len(firsts)):
            raise
    torch.cuda.empty_cache()
    return None
