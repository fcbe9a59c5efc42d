"""Everything that happens before the first step of a flow.

The data are brought to the device, coordinates and a Gaussian are fitted to them, the particles are put where
they begin, and plugins and settings that cannot work together are refused. `FlowSetup` has the results.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import attrs
import torch
from torch import Tensor

from cswf_core.checks import check_start
from cswf_core.errors import RunError
from cswf_core.flow.coordinates import StageCoordinates, free_moves
from cswf_core.flow.data import FlowData
from cswf_core.flow.directions import DirectionSampler
from cswf_core.flow.gaussian import Gaussian, regression_of
from cswf_core.flow.particles import (
    Particles,
    dequantised,
    eligible_particles,
    mean_length,
    normal,
    placement_of,
    require_blocks_suffice,
    require_both_halves_used,
    require_every_sample_counts,
)
from cswf_core.flow.settings import Parts, Settings
from cswf_core.flow.stability import VECTORS, spread
from cswf_core.flow.stage import Division, Strata
from cswf_core.flow.state import Snapshot
from cswf_core.interfaces import Conditions, Dataset, Key, LinearMap, Masked, Observation, Stage, Stratum
from cswf_core.kernels.memory import total_memory
from cswf_core.ranks import Ranks, Share

INSIDE = 1 - 2**-10
"""Observed pixels stay clear of their bin's upper edge, so that rounding never shows the next grey level."""


@attrs.frozen(eq=False)
class Beginning:
    """Where particles begin: in noise, as a Gaussian fitted to the data, or where the data's source says."""

    data: Dataset
    parts: Parts
    settings: Settings
    like: Tensor
    """No samples, on the flow's device and in its numbers: d×0."""
    start: Dataset | None = None
    gaussian: Gaussian | None = None

    def first_particles(
        self, ranks: Ranks, memory: int | None = None
    ) -> tuple[Particles, Conditions, Observation | None]:
        """Return this rank's particles; Y of all ranks' particles, on the CPU; and what is observed of all.

        X₀ ~ N(0, scale² I), or the Gaussian, and Y₀ ~ q(y); or both from `start`. Offline particles come last.
        Particles for which `memory` bytes are too few stay in the host's memory.
        """
        settings = self.settings
        like = self.like
        start = check_start(self.start, self.data)
        total = settings.count_for(len(self.data)) + settings.offline
        settings.require_particles(len(like), -(-total // ranks.size))
        if start is None:
            conditions = self._drawn_conditions()
        elif self.gaussian is None:
            conditions = start.conditions
            total = len(start)
        else:
            raise RunError(
                "the data's source says where particles begin, and they cannot begin as a Gaussian too: leave "
                f"out the {settings.called('start')}"
            )
        conditions = conditions.to(torch.device("cpu"), like.dtype)
        draw = Key(settings.seed, "observation").open(like.device, like.dtype)
        observation = self.parts.condition.observation(self.data, conditions.to(like.device, like.dtype), draw)
        if observation is not None:
            self._refuse_unobservable(observation)
        placement = placement_of(like, total, ranks, memory)
        if placement.in_blocks:
            require_blocks_suffice(total, self.parts, observation, settings)
        share = ranks.share(total, like.device)
        own = conditions.take(share.cut).to(like.device, like.dtype)
        x = partial(self._x, conditions, observation)
        return Particles(x, own, settings.clip, share, placement), conditions, observation

    def _x(self, conditions: Conditions, observation: Observation | None, share: Share) -> Tensor:
        """Return a share of the particles (d×n), given the conditions and the observation of all."""
        settings = self.settings
        like = self.like
        own = conditions.take(share.cut).to(like.device, like.dtype)
        if self.start is not None:
            x = self.start.x[:, share.cut].to(like, copy=True)
        else:
            noise = normal(Key(settings.seed, "start"), share, like)
            x = noise * settings.scale if self.gaussian is None else self.gaussian.of_noise(noise, own.labels)
        if not bool(torch.isfinite(x).all()):
            remedy = f"lower the {settings.called('scale')}, which is {settings.scale:g}"
            if self.gaussian is not None:
                remedy = f"leave out the {settings.called('start')}"
            raise RunError(f"particles do not begin with finite numbers: {remedy}")
        observation = own_part(observation, share)
        if observation is None:
            return x
        seen = observation.seen(originals(self.data, settings, own, x, share.first))
        amplifier = self.parts.condition.amplifier
        regression = regression_of(self.gaussian, observation, amplifier)
        if regression is not None:
            x = regression(x, seen)
        return observation.free(x) + amplifier * seen

    def _drawn_conditions(self) -> Conditions:
        """Return Y₀ ~ q(y) of all particles, offline particles last."""
        settings = self.settings
        draw = self.parts.condition.draw
        count = settings.count_for(len(self.data))
        conditions = draw(self.data, count, Key(settings.seed, "labels").open())
        if not settings.offline:
            return conditions
        offline = draw(self.data, settings.offline, Key(settings.seed, "offline labels").open())
        return Conditions.joined([conditions, offline])

    def _refuse_unobservable(self, observation: Observation) -> None:
        """Raise `RunError` for settings that particles of which a part is observed cannot have."""
        settings = self.settings
        if settings.clip is not None and not isinstance(observation, Masked):
            raise RunError(
                "particles are clipped coordinate by coordinate, and what is observed here is not made of "
                f"whole pixels: leave out {settings.called('clip')}"
            )
        if settings.offline:
            raise RunError(
                f"{settings.called('offline')} particles cannot be carried along where a part of the image is "
                "seen: complete new images from a saved model"
            )


def own_part(observation: Observation | None, share: Share) -> Observation | None:
    """Return what is observed of a share of the particles; None: nothing."""
    if observation is None or observation.shared or share.whole:
        return observation
    if not isinstance(observation, Masked):
        raise RunError(
            f"{type(observation).__name__} sees another part of each particle, not made of whole pixels: it "
            "works on one device only"
        )
    return Masked(observation.mask[:, share.cut])


def originals(
    data: Dataset, settings: Settings, conditions: Conditions, like: Tensor, first: int = 0
) -> Tensor:
    """Return the samples of which particles see a part (d×n), with noise in their bins; always the same.

    `conditions` are those of the particles, of which the first has the number `first` among all.
    """
    x = data.originals(conditions).to(like)
    key = Key(settings.seed, "given")
    plain = StageCoordinates(data.space)
    return dequantised(x, data.bin_width * INSIDE, plain, key, first)


@attrs.frozen(eq=False)
class Retimed(Stage):
    """A stage with another number of steps, over which the curve of its step size is stretched."""

    of: Stage = attrs.field(kw_only=True)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.of, name)  # attributes that a schedule's own stages have

    def eta(self, step: int) -> float:
        """Return η at the same fraction of the other stage."""
        return self.of.eta(step * self.of.steps // self.steps)


Steps = int | Sequence[int] | None
"""K of all stages of a round, or of each of them; None: as many as the schedule says."""


def with_steps(stages: Sequence[Stage], steps: Steps) -> list[Stage]:
    """Return the stages of a round with other numbers of steps; with 0, a stage is passed over."""
    each = [steps] * len(stages) if isinstance(steps, int) else steps
    if each is None:
        return list(stages)
    if len(each) != len(stages) or min(each) < 0 or max(each) < 1:
        raise RunError(
            f"a round has {len(stages)} stages, and the steps given are {list(each)}: give one number for all, "
            "or one for each, of which some may be 0"
        )
    names = [field.name for field in attrs.fields(Stage) if field.name != "steps"]
    return [
        Retimed(steps=count, of=stage, **{name: getattr(stage, name) for name in names})
        for stage, count in zip(stages, each, strict=True)
    ]


class FlowSetup:
    """Everything that is decided before a flow's first step: by the constructor, and by `begin`."""

    def __init__(
        self, data: Dataset, parts: Parts, settings: Settings, device: torch.device, ranks: Ranks
    ) -> None:
        """Bring the data, whose conditions are encoded, to the device, and fit to them what is to be fitted."""
        self.parts = parts
        self.settings = settings
        self.ranks = ranks
        self.round = parts.schedule.stages(data.space, parts.projection)
        """The stages that the schedule plans."""
        self.condition_length = parts.condition.length(data)
        """l."""
        self.data = FlowData(data, parts, settings, device, ranks, ranks.least(total_memory(device)))
        """The data that particles flow to, as the condition wants them."""
        self.like = self.data.like
        """No samples, on the flow's device and in its numbers: d×0."""
        self.W, self.gaussian = _fit(self.data, parts, settings)
        """The coordinates w = W x of the steps, and what particles begin as; None: x, and nothing fitted."""
        typical = self.data.typical()
        self.few_data = spread(typical, VECTORS)
        """Some of the data, evenly spread: d×n."""
        self.size = mean_length(typical, self.W, ranks)
        """The mean length in W, of the data or the first particles, whichever are longer."""
        self.observation: Observation | None = None
        """What is observed of all ranks' particles; None: nothing."""
        self.own_observation: Observation | None = None
        """What is observed of this rank's particles."""
        self.free: Tensor | None = None
        """How particles may move in W where a part of them is observed."""
        self.division = Division()
        """How particles and data are divided into strata."""
        self.table_labels: tuple[int, ...] | None = None
        """The label of each table of a direction, where a model is saved; None: one serves all particles."""

    def begin(self, data: Dataset, start: Dataset | None) -> tuple[Particles, Conditions]:
        """Return this rank's particles where they begin, and Y of all ranks' particles, on the CPU."""
        like = self.like
        condition = self.parts.condition
        beginning = Beginning(data, self.parts, self.settings, like, start, self.gaussian)
        particles, conditions, self.observation = beginning.first_particles(self.ranks, self.data.memory)
        self.own_observation = own_part(self.observation, particles.share)
        self.free = free_moves(self.W, self.observation, data.space.dimension, like)
        M = particles.share.total
        Y = [y.to(like.device, like.dtype) for y in (conditions, self.data.all.conditions)]
        strata = condition.strata(*Y, sizes=(M, len(self.data.all)))
        if strata is not None:
            require_every_sample_counts(self.parts, self.settings)
            self.division = Strata.of(strata, particles.share, self.data.share)
        labelled = conditions.labels is not None and conditions.vectors is None and self.condition_length > 0
        if self.settings.tables is not None and (strata is not None or labelled):
            self.table_labels = labels_of_tables(conditions.labels, strata)
            if strata is None and particles.in_blocks:
                raise RunError(
                    "a model by class needs all particles in the device's memory at once: take fewer "
                    f"{self.settings.called('particles')}, or a larger device"
                )
        self.size = max(self.size, mean_length(next(particles.blocks()).x, self.W, self.ranks))
        counted = eligible_particles(conditions, M, condition, self.settings)
        require_both_halves_used(counted, M, sum(stage.steps for stage in self.round), self.settings)
        return particles, conditions

    def sampler(self, stage: Stage, fitted: Mapping[str, Tensor] | None = None) -> DirectionSampler:
        """Return what draws a stage's directions, in coordinates of its own.

        `fitted` is what the projection has fitted to the data before; None: it is fitted now.
        """
        coordinates = StageCoordinates(
            self.data.all.space,
            self.own_observation,
            self.parts.condition.amplifier,
            self.like,
            upsampling=stage.upsampling,
            W=self.W,
            free=self.free,
        )
        sampler = DirectionSampler.of_stage(stage, coordinates, self.parts, self.condition_length, self.like)
        return sampler.fitted(self.data.sample_x) if fitted is None else sampler.restored(fitted)

    def restored(self, snapshot: Snapshot, share: Share, conditions: Conditions) -> Particles:
        """Return this rank's share of the particles, of which the snapshot is; `conditions` are Y of all."""
        like = self.like

        def x(part: Share) -> Tensor:
            return snapshot.x[:, part.first - share.first : part.stop - share.first].clone()

        own = conditions.take(share.cut).to(like.device, like.dtype)
        placement = placement_of(like, share.total, self.ranks, self.data.memory)
        return Particles(x, own, self.settings.clip, share, placement)


def labels_of_tables(labels: Tensor | None, strata: Sequence[Stratum] | None) -> tuple[int, ...]:
    """Return the label of each table of a direction: those of the particles, or that of each stratum."""
    if strata is None:
        assert labels is not None
        return tuple(torch.unique(labels).tolist())
    of_strata = [] if labels is None else [torch.unique(labels[own.cpu()]).tolist() for own, _ in strata]
    if labels is None or any(len(own) != 1 for own in of_strata):
        raise RunError("a model needs strata that are classes, and the condition has others")
    return tuple(own[0] for own in of_strata)


def _fit(own: FlowData, parts: Parts, settings: Settings) -> tuple[LinearMap | None, Gaussian | None]:
    """Return the coordinates, and the Gaussian that particles begin as, if they are wanted."""
    looks = parts.coordinates is not None and parts.coordinates.sees_data
    x = own.sample_x() if looks or settings.gaussian else own.like
    W = None if parts.coordinates is None else parts.coordinates.fit(own.all.space, x)
    if not settings.gaussian:
        return W, None
    data = own.sample
    draw = Key(settings.seed, "labels").open()
    drawn = parts.condition.draw(data, settings.count_for(len(data)), draw)
    labels = None if drawn.labels is None else data.conditions.labels
    return W, Gaussian.of_data(x, data.bin_width, W, settings, labels)
