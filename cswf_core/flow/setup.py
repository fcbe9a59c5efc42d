"""Everything that happens before the first step of a flow.

The data are brought to the device, coordinates and a Gaussian are fitted to them, the particles are put where
they begin, and plugins and settings that cannot work together are refused. `FlowSetup` is what comes of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial

import attrs
import torch
from torch import Tensor

from cswf_core.checks import check_start
from cswf_core.errors import RunError
from cswf_core.flow.coordinates import FreePart, StageCoordinates
from cswf_core.flow.data import FlowData
from cswf_core.flow.directions import DirectionSampler
from cswf_core.flow.gaussian import Gaussian, Regression
from cswf_core.flow.memory import explain_out_of_memory
from cswf_core.flow.particles import (
    Particles,
    dequantised,
    mean_length,
    normal,
    require_both_halves_used,
    require_every_sample_counts,
    taking_part,
)
from cswf_core.flow.settings import Parts, Settings
from cswf_core.flow.stability import VECTORS, spread
from cswf_core.flow.stage import Groups, OneGroup, Strata
from cswf_core.flow.state import Snapshot
from cswf_core.flow.streaming import Placement
from cswf_core.interfaces import Conditions, Dataset, Key, LinearMap, Masked, Observation, Stage
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
    """Where the data's source says that particles begin."""
    gaussian: Gaussian | None = None

    def first_particles(
        self, ranks: Ranks, memory: int | None = None
    ) -> tuple[Particles, Conditions, Observation | None]:
        """Return this rank's particles; Y of all ranks' particles, on the CPU; and what is observed of all.

        X₀ ~ N(0, scale² I), or the Gaussian, and Y₀ ~ q(y); or both from `start`. Those that are carried along
        come last. Particles for which `memory` bytes are too few stay in the host's memory.
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
        placement = Placement.of(like, total, ranks, memory)
        placement.require_support(self.parts, observation, settings)
        share = ranks.share(total, like.device)
        own = conditions.take(share.cut).to(like.device, like.dtype)
        x = partial(self._x, conditions, observation)
        return placement.particles(x, own, settings.clip, share), conditions, observation

    def _x(self, conditions: Conditions, observation: Observation | None, share: Share) -> Tensor:
        """Return a share of the particles (d×n); their conditions and observation are those of all."""
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
        if observation is None:
            return x
        observation = own_part(observation, share)
        seen = observation.seen(originals(self.data, settings, own, x, share.first))
        amplifier = self.parts.condition.amplifier
        regression = Regression.of(self.gaussian, observation, amplifier)
        if regression is not None:
            x = regression.conditioned(x, seen)
        return observation.free(x) + amplifier * seen

    def _drawn_conditions(self) -> Conditions:
        """Return Y₀ ~ q(y) of all particles, and then of those that are carried along."""
        settings = self.settings
        draw = self.parts.condition.draw
        count = settings.count_for(len(self.data))
        conditions = draw(self.data, count, Key(settings.seed, "labels").open())
        if not settings.offline:
            return conditions
        carried = draw(self.data, settings.offline, Key(settings.seed, "offline labels").open())
        return Conditions.joined([conditions, carried])

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


def own_part(observation: Observation, share: Share) -> Observation:
    """Return what is observed of a share of the particles."""
    if observation.shared or share.whole:
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
    """Return the samples of which particles see a part (d×n), noise in their bins; always the same.

    Args:
        data: The samples, or what they are completions of.
        settings: Has the seed of the noise.
        conditions: Y of the particles, which name their samples.
        like: Any tensor on the device and in the numbers that are wanted.
        first: The number of the first particle among all.
    """
    x = data.originals(conditions).to(like)
    key = Key(settings.seed, "given")
    plain = StageCoordinates(data.space)
    return dequantised(x, data.bin_width * INSIDE, plain, key, first)


@attrs.frozen(eq=False)
class FlowSetup:
    """Everything that is decided before a flow's first step and stays as it is."""

    parts: Parts
    settings: Settings
    ranks: Ranks
    round: tuple[Stage, ...]
    """The stages that the schedule plans."""
    data: FlowData
    """The data that particles flow to, as the condition wants them."""
    condition_length: int
    """l."""
    W: LinearMap | None
    """The coordinates w = W x that steps are taken in; None: the data's own."""
    gaussian: Gaussian | None
    """What particles begin as, if that is fitted to the data; None: noise, or where the data's source says."""
    observation: Observation | None
    """What is observed of all ranks' particles."""
    free: FreePart | None
    """How particles may move in W where a part of them is observed."""
    size: float
    """The mean length of data and particles in W."""
    few_data: Tensor
    """Some of the data, evenly spread: d×n."""
    groups: Groups
    """Groups that flow apart from each other; None: there are none."""
    share: Share
    """Which of the first particles this rank has."""

    @property
    def own_observation(self) -> Observation | None:
        """What is observed of this rank's particles."""
        return None if self.observation is None else own_part(self.observation, self.share)

    @property
    def like(self) -> Tensor:
        """No samples, on the flow's device and in its numbers: d×0."""
        return self.data.like

    def sampler(self, stage: Stage) -> DirectionSampler:
        """Return what draws a stage's directions, in coordinates of its own."""
        coordinates = StageCoordinates(
            self.data.all.space,
            self.own_observation,
            self.parts.condition.amplifier,
            self.like,
            upsampling=stage.upsampling,
            W=self.W,
            free=self.free,
        )
        return DirectionSampler.of_stage(
            stage, coordinates, self.parts, self.condition_length, self.data.sample_x, self.like
        )

    def restored(self, snapshot: Snapshot, conditions: Conditions) -> Particles:
        """Return this rank's particles as a snapshot has them; `conditions` are Y of all, on the CPU."""
        like = self.like
        share = self.ranks.share(snapshot.total, like.device)

        def x(part: Share) -> Tensor:
            return snapshot.x[:, part.first - share.first : part.stop - share.first].clone()

        own = conditions.take(share.cut).to(like.device, like.dtype)
        placement = Placement.of(like, snapshot.total, self.ranks, self.data.memory)
        return placement.particles(x, own, self.settings.clip, share)


def set_up(
    data: Dataset, parts: Parts, settings: Settings, start: Dataset | None, device: torch.device, ranks: Ranks
) -> tuple[FlowSetup, Particles, Conditions]:
    """Do everything that comes before the first step; return this rank's particles, and Y of all ranks', too.

    Args:
        data: The data, their conditions encoded.
        parts: The plugins.
        settings: The numbers that are no plugin's.
        start: Where particles begin, if the data's source says so.
        device: Where to compute.
        ranks: The processes that share particles and data.
    """
    stages = parts.schedule.stages(data.space, parts.projection)
    length = parts.condition.length(data)
    memory = ranks.least(total_memory(device))
    own = FlowData(data, parts, settings, device, ranks, memory)
    own.load_to_device()
    W, gaussian = _fit(own, parts, settings)
    beginning = Beginning(data, parts, settings, own.like, start, gaussian)
    particles, conditions, observation = beginning.first_particles(ranks, memory)
    M = particles.share.total
    Y = [y.to(device, settings.dtype) for y in (conditions, own.all.conditions)]
    strata = parts.condition.strata(*Y, sizes=(M, len(own.all)))
    groups: Groups = OneGroup()
    if strata is not None:
        require_every_sample_counts(parts, settings)
        groups = Strata.of(strata, particles.share, own.share)
    typical = own.typical()
    size = max(mean_length(x, W, ranks) for x in (typical, next(particles.blocks()).x))
    setup = FlowSetup(
        parts=parts,
        settings=settings,
        ranks=ranks,
        round=stages,
        data=own,
        condition_length=length,
        W=W,
        gaussian=gaussian,
        observation=observation,
        free=FreePart.of(W, observation, data.space.dimension, own.like),
        size=size,
        few_data=spread(typical, VECTORS),
        groups=groups,
        share=particles.share,
    )
    counted = taking_part(conditions, M, parts.condition, settings)
    require_both_halves_used(counted, M, sum(stage.steps for stage in stages), settings)
    return setup, particles, conditions


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


@contextmanager
def on_device(device: torch.device, data: Dataset, settings: Settings) -> Iterator[None]:
    """Work on a flow's device inside; raise `OutOfMemoryError` with the sizes if they do not fit there."""
    sizes = data.space.dimension, settings.count_for(len(data)), len(data)
    remedy = f"{settings.remedy(*sizes)}, or use a larger device"
    here = torch.cuda.device(device) if device.type == "cuda" else nullcontext()
    with explain_out_of_memory(device, *sizes, remedy), here:
        yield
