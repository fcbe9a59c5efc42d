"""`frames.npz` and `flow.gif`: a few particles at many moments, from the start to the end of a flow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from cswf_core.hookspecs import hookimpl
from cswf_core.pictures import scatter
from cswf_core.pictures.album import Album
from cswf_core.pictures.moments import Moments, evenly

if TYPE_CHECKING:
    from cswf_core.flow.flow import Flow, State

FRAMES = 24
"""Moments that are kept if not said otherwise."""

PER_CLASS = 5
CLASSES = 20
IMAGES = 48
"""Images that are kept: of a class; classes of which there are some; altogether where there are no classes."""

MOST_BYTES = 600_000
"""Bytes of a moment's images; where they are large, fewer are kept."""

POINTS = 1500
TARGET = 4000
"""Points that are kept: particles at each moment, and data."""


class Frames:
    """Keeps a few fixed particles at about `count` moments, more of them early on; with 0, none.

    The moments are chosen before the first step and only the particles to be shown leave the device, so a
    flow of fast steps is hardly held up. When particles arrive, some of them are shown from then on, and
    each round has as many moments.
    """

    remembered = "frames"

    def __init__(self, count: int = FRAMES) -> None:
        self.count = count
        self._steps: frozenset[int] = frozenset()
        self._chosen: Tensor | None = None
        self._seen = 0
        """Arrivals of which some were chosen."""
        self._album = Album()
        self._done = 0
        self._flow: Flow | None = None

    @hookimpl
    def before_stage(self, flow: Flow) -> None:
        """Choose steps and particles, and keep the beginning."""
        self._prepare(flow)
        if self._chosen is not None and not self._album.moments:
            self._keep(flow)

    def _prepare(self, flow: Flow) -> None:
        self._flow = flow
        if not self.count:
            return
        self._steps = frozenset(_moments(flow, self.count))
        self._choose(flow)

    def _choose(self, flow: Flow) -> None:
        """Choose some of the particles that have come."""
        cohorts = (0, *flow.cohorts)
        for first, last in pairwise(cohorts[self._seen :]):
            new = choose(flow, first, last)
            self._chosen = new if self._chosen is None else torch.cat([self._chosen, new])
        self._seen = len(flow.cohorts)

    @hookimpl
    def after_step(self, flow: Flow, state: State) -> None:
        """Keep the particles if this is one of the steps."""
        self._done = state.total_step
        if self._done in self._steps:
            self._keep(flow)

    @hookimpl
    def after_run(self, flow: Flow) -> None:
        """Keep the end, also if a schedule has come to it early."""
        self._prepare(flow)  # a run may go on after its last stage
        if self._chosen is not None and self._album.moments[-1][0] != self._done:
            self._keep(flow)

    def keep(self) -> dict[str, Tensor]:
        """Return the moments kept so far."""
        return self._album.keep()

    def recall(self, kept: Mapping[str, Tensor], total_step: int) -> None:
        """Go back to what had been kept."""
        self._done = total_step
        self._album.recall(kept, total_step)

    @property
    def moments(self) -> Moments | None:
        """What has been kept so far; None if nothing has."""
        if not self._album.moments or self._flow is None or self._chosen is None:
            return None
        steps = tuple(step for step, _ in self._album.moments)
        shown, since = self._album.filled()
        come = since.numpy() if int(since.max()) else None
        labels = self._flow.particles.conditions.labels
        numbers = None if labels is None else labels[self._chosen[: len(since)]].cpu().numpy()
        data, images = self._flow.target, shown.numpy()
        if data.space.is_image:
            return Moments(steps, images=images, labels=numbers, classes=data.classes, since=come)
        target = scatter.plane(data.take(evenly(len(data), TARGET)).points().cpu().numpy()).astype(np.float32)
        return Moments(steps, points=images, labels=numbers, classes=data.classes, target=target, since=come)

    def _keep(self, flow: Flow) -> None:
        self._choose(flow)
        kept = flow.samples(self._chosen)
        if kept.space.is_image:
            self._album.moments.append((self._done, kept.images()))
        else:
            points = scatter.plane(kept.points().numpy()).astype(np.float32)
            self._album.moments.append((self._done, torch.from_numpy(points)))


def spread(total: int, count: int) -> list[int]:
    """Return about `count` of the steps 0 … total: the first, the last, and others that thin out."""
    count = max(2, min(count, total + 1))
    steps = [0]
    for i in range(1, count):
        steps.append(max(steps[-1] + 1, round(total * (i / (count - 1)) ** 2)))
    return sorted({min(step, total) for step in steps})


def _moments(flow: Flow, count: int) -> Iterator[int]:
    """Yield about `count` of a flow's steps, as many of each round."""
    size, done = len(flow.stages) // flow.rounds, 0
    for first in range(0, len(flow.stages), size):
        total = sum(stage.steps for stage in flow.stages[first : first + size])
        yield from (done + step for step in spread(total, count // flow.rounds))
        done += total


def choose(flow: Flow, first: int, last: int) -> Tensor:
    """Return which of the particles from `first` up to `last`, an arrival, to keep, on the flow's device.

    Of images some of each class in order, or some of all.
    """
    count, labels = last - first, flow.particles.conditions.labels
    if not flow.data.space.is_image:
        return (first + evenly(count, POINTS // flow.rounds)).to(flow.device)
    most = max(1, MOST_BYTES // flow.data.space.dimension // flow.rounds)
    if labels is None:
        wanted = max(PER_CLASS, IMAGES // flow.rounds)
        return (first + evenly(count, min(wanted, most))).to(flow.device)
    labels = labels[first:last]
    present = torch.unique(labels)[: min(CLASSES, most)]
    each = max(1, min(PER_CLASS, most // max(1, len(present))))
    found = [(labels == c).nonzero()[:each, 0] for c in present]
    return first + torch.cat([torch.arange(0, device=flow.device), *found]).to(flow.device)
