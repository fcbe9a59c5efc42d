"""New particles through a model's saved steps: the flow without the data.

Directions are drawn again from their keys; along each, δ is looked up in the tables that moved the particles of
the run. New particles do not depend on each other, so any number of them can flow, some at a time. They flow in
groups of a fixed size, the last one filled up: then a sample is the same to the bit however many there are.
"""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import lru_cache, partial
from itertools import groupby
from operator import attrgetter
from pathlib import Path

import attrs
import torch
from torch import Tensor

from cswf_core.errors import NotFiniteError
from cswf_core.flow.coordinates import StageCoordinates, free_moves
from cswf_core.flow.directions import DirectionSampler, Draws, recognise
from cswf_core.flow.finite import located, too_large
from cswf_core.flow.gaussian import regression_of
from cswf_core.flow.memory import Budget, retried
from cswf_core.flow.particles import ParticleBlock
from cswf_core.flow.setup import INSIDE
from cswf_core.flow.state import Position
from cswf_core.interfaces import Key, Observation, Space
from cswf_core.interfaces.metric import Tell
from cswf_core.kernels import gpu
from cswf_core.kernels.columns import COLUMNS_AT_A_TIME, is_finite
from cswf_core.kernels.memory import total_memory
from cswf_core.model.format import Fitted, ModelHeader, SavedStep, read_filters, saved_steps
from cswf_core.model.requests import SampleRequest, of_columns
from cswf_core.model.stage import SavedStage, exact_steps
from cswf_core.ranks import Ranks, Share
from cswf_core.recipe import Recipe
from cswf_core.recipe.build import parts_of, settings_of

log = logging.getLogger("cswf")

BYTES_AT_ONCE = {"cpu": 1 << 28, "cuda": 1 << 31}
"""Bytes of particles that flow side by side, with their copies; directions are drawn anew for the others."""


@attrs.frozen(eq=False)
class ParticleGroup:
    """Particles whose noise and products do not depend on other groups."""

    particles: ParticleBlock
    observation: Observation | None
    seen: Tensor | None
    """What they see of images: d×n."""


class SavedFlow:
    """The steps of a saved model on one device, without its data."""

    def __init__(self, folder: Path, header: ModelHeader, recipe: Recipe, device: torch.device) -> None:
        self.folder = folder
        self.header = header
        self.space = Space(header.data.shape)
        self.parts = parts_of(recipe)
        own = settings_of(recipe, header.particles)
        self.settings = attrs.evolve(own, count=header.particles, offline=0, turn=None, tables=None, names={})
        self.draws = Draws(self.settings.reuse, None if recipe.online is None else recipe.online.sets)
        self.like = torch.empty(self.space.dimension, 0, dtype=header.dtype, device=device)
        """No samples, on the device and in the numbers of the flow: d×0."""
        self.fitted = Fitted()
        if header.fitted is not None:
            self.fitted = Fitted.read(folder / header.fitted.file, self.parts, self.space, self.like)
        self.stages = self.parts.schedule.stages(self.space, self.parts.projection)
        self.half = self.settings.half and header.dtype == torch.float32 and gpu.usable(device)
        """Whether products are in half precision, on CUDA."""
        self.size = COLUMNS_AT_A_TIME[device.type]
        """Number of particles in a group: that of a run, whose products then have the same bits."""
        # With more groups in half precision, drawing directions hardly counts
        self._most_groups = 16 if self.half else sys.maxsize
        self._budget = Budget.whole(device)
        self._forms: dict[int, set[tuple[bool, bool]]] = {}
        """`DirectionSampler.forms` of each stage whose directions have been compared with those of the run."""
        self._amplifier = self.parts.condition.amplifier
        self._free = lru_cache(1)(lambda seen: free_moves(self.fitted.W, seen, len(self.like), self.like))
        self._regression = lru_cache(1)(lambda seen: regression_of(self.fitted.gaussian, seen, self._amplifier))

    @property
    def at_once(self) -> int:
        """How many particles flow side by side: whole groups."""
        device = self.like.device
        room = total_memory(device) // 8 if self.half else BYTES_AT_ONCE[device.type]
        # A particle on its way takes several times the memory of its numbers
        groups = room // (8 * self.space.dimension * self.like.element_size()) // self.size
        return max(1, min(groups, self._most_groups)) * self.size

    def steps(self) -> Iterator[SavedStep]:
        """Yield the saved steps, with their tables on the device."""
        return saved_steps(self.folder, self.header, self.like.device)

    def drawn(
        self, request: SampleRequest, firsts: Sequence[int], tell: Tell | None = None
    ) -> Iterator[tuple[int, Tensor]]:
        """Yield groups of a request's particles at their end: the number of the first, and d×n, on the CPU.

        `firsts` are the numbers of the first particles of these groups: multiples of `size`.
        """
        done = before = 0

        def after_step() -> None:
            nonlocal done
            done += 1
            if tell is not None:
                rounds_left = -(-len(firsts) * self.size // self.at_once)
                tell("sampling", done, before + rounds_left * self.header.steps)

        def at_end() -> list[ParticleGroup]:
            nonlocal done
            done = before
            groups = [self.group(request, first) for first in firsts[: self.at_once // self.size]]
            self.run(groups, request.seed, after_step)
            return groups

        with torch.cuda.device(self.like.device) if self.like.is_cuda else nullcontext():
            while firsts:
                groups = retried(at_end, partial(self._halve, len(firsts)))
                before = done
                firsts = firsts[len(groups) :]
                for group in groups:
                    first = group.particles.share.first
                    last = min(first + self.size, request.count)
                    x = self._sample(group)[:, : last - first]
                    if not is_finite(x):
                        raise self._fault(first, last)
                    yield first, x
                del groups, group  # before others take memory

    def _halve(self, most: int) -> bool:
        """Halve the number of groups that flow side by side, `most` being left; False: it cannot be less."""
        groups = min(most, self.at_once // self.size)
        if not self.half or groups == 1:
            return False
        self._most_groups = groups // 2
        torch.cuda.empty_cache()
        log.warning("out of memory: going on with %s particles at a time", f"{self.at_once:,}")
        return True

    def group(self, request: SampleRequest, first: int) -> ParticleGroup:
        """Return a group where it begins; beyond the last particle of the request, that one is repeated."""
        like = self.like
        gaussian = self.fitted.gaussian
        index = torch.arange(first, first + self.size).clamp_(max=request.count - 1)
        own = request.conditions(index)
        if request.start is not None:
            x = request.start[:, index].to(like)
        else:
            noise = self._noise(Key(request.seed, "offline start"), first, "normal")
            labels = None if own.labels is None else own.labels.to(like.device)
            x = noise.mul_(self.settings.scale) if gaussian is None else gaussian.of_noise(noise, labels)
        observation = None
        seen = None
        originals = request.originals
        if originals is not None:
            observation = of_columns(originals.observation, originals.origin[index])
            images = originals.images[:, originals.origin[index]].to(like)
            if originals.width:
                noise = self._noise(Key(request.seed, "offline given"), first, "uniform")
                images = images + noise.mul_(originals.width * INSIDE)
            seen = observation.seen(images)
            regression = self._regression(observation)
            if regression is not None and request.start is None:
                x = regression(x, seen)
            x = observation.free(x) + self._amplifier * seen
        share = Share(first, first + self.size, first + self.size)
        conditions = own.to(like.device, like.dtype)
        particles = ParticleBlock({"x": x.contiguous()}, conditions, share, self.settings.clip)
        return ParticleGroup(particles, observation, seen)

    def _sample(self, group: ParticleGroup) -> Tensor:
        """Return a group's particles, with what is observed as it was: d×n, on the CPU."""
        x = group.particles.x
        if group.observation is not None and group.seen is not None and self._amplifier != 1:
            x = group.observation.free(x) + group.seen
        return x.cpu()

    def run(self, groups: Sequence[ParticleGroup], seed: int, after_step: Callable[[], None]) -> None:
        """Take groups through all steps; `after_step` is called after each, `seed` is for noise on the way."""
        particles = [group.particles for group in groups]
        for number, own in groupby(self.steps(), attrgetter("stage")):
            stage = self._enter(number, groups)
            if self.half and stage.sampler.plain:
                from cswf_core.model.half import HalfStage  # needs Triton

                taken = HalfStage(stage, particles).take(own)
            else:
                taken = exact_steps(stage, particles, own)
            for saved in taken:
                self._add_noise(groups, saved, seed)
                after_step()
            for each in particles:
                each.leave()

    def _add_noise(self, groups: Sequence[ParticleGroup], saved: SavedStep, seed: int) -> None:
        """Add √(2λη) ε, where the stage has λ > 0."""
        entropy = self.stages[saved.stage].entropy
        if entropy > 0:
            key = Key(seed, "offline entropy", saved.stage, saved.number)
            for group in groups:
                noise = self._noise(key, group.particles.share.first, "normal")
                group.particles.add_noise(noise.mul_(math.sqrt(2 * entropy * saved.eta)))

    def _noise(self, key: Key, first: int, kind: str) -> Tensor:
        """Return noise for the group whose first particle has this number: d×n; each particle has its own."""
        together = 256  # particles whose noise shares a key
        indices = range(first // together, (first + self.size) // together)
        opened = (attrs.evolve(key, index=i).open(self.like.device, self.like.dtype) for i in indices)
        d = self.space.dimension
        return torch.cat([getattr(draw, kind)(together, d) for draw in opened]).T.contiguous()

    def _enter(self, number: int, groups: Sequence[ParticleGroup] = ()) -> SavedStage:
        """Bring groups into a stage's coordinates; return the stage.

        Raise `RunError` if its directions, which are compared once, are not those that its maps belong to.
        """
        stage = self.stages[number]

        @lru_cache(1)
        def coordinates(observation: Observation | None) -> StageCoordinates:
            return StageCoordinates(
                self.space,
                observation,
                self._amplifier,
                self.like,
                upsampling=stage.upsampling,
                W=self.fitted.W,
                free=self._free(observation),
            )

        for group in groups:
            group.particles.enter(coordinates(group.observation))
        own = coordinates(groups[0].observation if groups else None)
        facts = self.header.condition
        sampler = DirectionSampler.of_stage(stage, own, self.parts, facts.length, self.like)
        if sampler.sampler.sees_data:
            sampler = sampler.restored(read_filters(self.folder, self.header, number))
        if number not in self._forms:
            recognise(sampler, self.settings.seed, number, self.header.stages[number].fingerprint, Ranks())
            self._forms[number] = sampler.forms
        sampler.forms = self._forms[number]
        knots = self.header.tables.knots
        return SavedStage(number, sampler, self.settings, knots, self.draws, self._budget, facts.tables)

    def recognise(self) -> None:
        """Raise `RunError` if directions of any stage are not those that its maps belong to."""
        for number in range(len(self.stages)):
            self._enter(number)

    def _fault(self, first: int, last: int) -> NotFiniteError:
        """Return the error for samples that are not finite; raise `PluginError` if directions are at fault."""
        for saved in self.steps():
            with located(self.stages[saved.stage], Position(saved.stage, saved.number)):
                stage = self._enter(saved.stage)
                draw = stage.draws.number(saved.number)
                for _ in stage.sampler.batches(self.settings.seed, saved.stage, draw, check=True):
                    pass
        return NotFiniteError(
            f"samples {first:,} to {last - 1:,} are not finite: {too_large(self.settings, half=self.half)}"
        )
