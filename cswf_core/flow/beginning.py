"""Where particles begin: in noise, as a Gaussian fitted to the data, or where the data's source says."""

from __future__ import annotations

import attrs
import torch
from torch import Tensor

from cswf_core.checks import check_start
from cswf_core.errors import RunError
from cswf_core.flow.coordinates import StageCoordinates
from cswf_core.flow.data import FlowData
from cswf_core.flow.particles import Particles, dequantised, normal
from cswf_core.flow.settings import Parts, Settings
from cswf_core.flow.start import Gaussian, Regression
from cswf_core.flow.streaming import Placement
from cswf_core.interfaces import Conditions, Dataset, Key, LinearMap, Masked, Observation
from cswf_core.ranks import Ranks, Share

INSIDE = 1 - 2**-10
"""Observed pixels stay clear of their bin's upper edge, so that rounding never shows the next grey level."""


@attrs.frozen(eq=False)
class Beginning:
    """The particles as a flow begins, and what belongs to them."""

    particles: Particles
    """Those of this rank."""
    conditions: Conditions
    """Y of all ranks' particles, on the CPU."""
    observation: Observation | None
    """What is seen of this rank's particles."""
    of_all: Observation | None
    """What is seen of all ranks' particles."""
    W: LinearMap | None = None
    """The coordinates w = W x that steps are taken in; None: the data's own."""
    gaussian: Gaussian | None = None
    """What particles begin as, if that is fitted to the data; None: noise, or where the data's source says."""


def begin(
    mine: FlowData, data: Dataset, parts: Parts, settings: Settings, start: Dataset | None, ranks: Ranks
) -> Beginning:
    """Fit to the data whatever is fitted to them before the flow, and return the first particles."""
    looking = parts.coordinates is not None and parts.coordinates.sees_data
    all_x = mine.sample_x() if looking or settings.gaussian else mine.like
    W = None if parts.coordinates is None else parts.coordinates.fit(data.space, all_x)
    gaussian = fit_gaussian(mine.sample, parts, settings, all_x, W) if settings.gaussian else None
    del all_x
    device = mine.like.device
    first = first_particles(data, parts, settings, start, device, gaussian, ranks, mine.memory)
    return attrs.evolve(first, W=W, gaussian=gaussian)


def first_particles(
    data: Dataset,
    parts: Parts,
    settings: Settings,
    start: Dataset | None,
    device: torch.device,
    gaussian: Gaussian | None = None,
    ranks: Ranks | None = None,
    memory: int | None = None,
) -> Beginning:
    """Return this rank's particles where they begin, their observed part in place, and what is observed.

    X₀ ~ N(0, scale² I), or a Gaussian fitted to the data, and Y₀ ~ q(y); or both from `start`. Those that are
    carried along come last. Particles for which `memory` bytes are too few stay in the host's memory.
    """
    start = check_start(start, data)
    wanted = (settings.count if settings.count is not None else len(data)) + settings.offline
    size = 1 if ranks is None else ranks.size
    settings.require_particles(data.space.dimension, -(-wanted // size))
    if start is not None and gaussian is not None:
        raise RunError(
            "the data's source says where particles begin, and they cannot begin as a Gaussian too: leave "
            f"out the {settings.called('start')}"
        )
    conditions = _drawn(data, parts, settings) if start is None else start.conditions
    conditions = conditions.to(torch.device("cpu"), settings.dtype)
    count = settings.count if settings.count is not None else len(data)
    total = count + settings.offline if start is None else len(start)
    share = (Ranks() if ranks is None else ranks).share(total, device)
    draw = Key(settings.seed, "observation").open(device, settings.dtype)
    of_all = parts.condition.observation(data, conditions.to(device, settings.dtype), draw)
    if of_all is not None:
        _refuse_unobservable(of_all, settings)
    like = torch.empty(data.space.dimension, 0, dtype=settings.dtype, device=device)
    placement = Placement.of(like, total, ranks, memory)
    placement.require_support(parts, of_all, settings)
    source = _Source(data, parts, settings, start, device, gaussian, conditions, of_all)
    own = conditions.take(share.cut).to(device, settings.dtype)
    observation = None if of_all is None else _own_part(of_all, share)
    particles = placement.particles(source.x, own, settings.clip, share, like)
    return Beginning(particles, conditions, observation, of_all)


@attrs.frozen(eq=False)
class _Source:
    """Where particles begin."""

    data: Dataset
    parts: Parts
    settings: Settings
    start: Dataset | None
    device: torch.device
    gaussian: Gaussian | None
    conditions: Conditions
    """Those of all particles, on the CPU."""
    of_all: Observation | None

    def x(self, share: Share) -> Tensor:
        """Return a share of the particles: d×n, on the device."""
        settings, device = self.settings, self.device
        like = torch.empty(0, dtype=settings.dtype, device=device)
        own = self.conditions.take(share.cut).to(device, settings.dtype)
        if self.start is not None:
            x = self.start.x[:, share.cut].to(like, copy=True)
        else:
            noise = normal(Key(settings.seed, "start"), self.data.space.dimension, share, like)
            x = noise * settings.scale if self.gaussian is None else self.gaussian.of_noise(noise, own.labels)
        if not bool(torch.isfinite(x).all()):
            remedy = f"lower the {settings.called('scale')}, which is {settings.scale:g}"
            if self.gaussian is not None:
                remedy = f"leave out the {settings.called('start')}"
            raise RunError(f"particles do not begin with finite numbers: {remedy}")
        if self.of_all is None:
            return x
        observation = _own_part(self.of_all, share)
        seen = observation.seen(originals(self.data, settings, own, x, share.first))
        amplifier = self.parts.condition.amplifier
        regression = Regression.of(self.gaussian, observation, amplifier)
        if regression is not None:
            x = regression.conditioned(x, seen)
        return observation.free(x) + amplifier * seen


def _drawn(data: Dataset, parts: Parts, settings: Settings) -> Conditions:
    """Return Y₀ ~ q(y) of all particles, and then of those that are carried along."""
    count = settings.count if settings.count is not None else len(data)
    conditions = parts.condition.draw(data, count, Key(settings.seed, "labels").open())
    if not settings.offline:
        return conditions
    draw = Key(settings.seed, "offline labels").open()
    return Conditions.joined([conditions, parts.condition.draw(data, settings.offline, draw)])


def _refuse_unobservable(observation: Observation, settings: Settings) -> None:
    """Raise `RunError` for wishes that particles of which a part is seen cannot have."""
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


def _own_part(observation: Observation, share: Share) -> Observation:
    """Return what is seen of a share of the particles."""
    if observation.shared or share.whole:
        return observation
    if not isinstance(observation, Masked):
        raise RunError(
            f"{type(observation).__name__} sees another part of each particle, not made of whole pixels: it "
            "works on one device only"
        )
    return Masked(observation.mask[:, share.cut])


def fit_gaussian(data: Dataset, parts: Parts, settings: Settings, x: Tensor, W: LinearMap | None) -> Gaussian:
    """Return the Gaussian that particles begin as, fitted to the data and to x, which are theirs: d×N.

    It has a mean for each class where particles have labels.
    """
    count = settings.count if settings.count is not None else len(data)
    drawn = parts.condition.draw(data, count, Key(settings.seed, "labels").open())
    labels = None if drawn.labels is None else data.conditions.labels
    labels = None if labels is None else labels.to(x.device)
    return Gaussian.of_data(x, data.bin_width, W, settings, labels)


def originals(
    data: Dataset, settings: Settings, conditions: Conditions, like: Tensor, first: int = 0
) -> Tensor:
    """Return the samples of which particles see a part (d×n), noise in their bins; always the same.

    `first` is the number of the first particle among all.
    """
    plain = StageCoordinates(data.space)
    x = data.originals(conditions).to(like)
    key = Key(settings.seed, "given")
    return dequantised(x, data.bin_width * INSIDE, data.space.dimension, plain, key, first)
