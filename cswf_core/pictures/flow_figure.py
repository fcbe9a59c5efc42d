"""`flow.png`: the particles at chosen moments, from the start to the end."""

from __future__ import annotations

from collections.abc import Collection
from itertools import pairwise, zip_longest
from typing import TYPE_CHECKING

import torch
from PIL import Image
from torch import Tensor

from cswf_core.hookspecs import hookimpl
from cswf_core.pictures import grid as pictures
from cswf_core.pictures import scatter
from cswf_core.pictures.album import Album
from cswf_core.pictures.moments import evenly

if TYPE_CHECKING:
    from cswf_core.flow.flow import Flow, State
    from cswf_core.interfaces import Dataset

MOST_POINTS = 1500
ROWS = 10


class FlowFigure(Album):
    """Keeps a few particles at chosen steps and draws them side by side."""

    remembered = "flow-figure"

    def __init__(self, steps: Collection[int]) -> None:
        super().__init__()
        self.steps = set(steps)
        self._labels: Tensor | None = None
        """The class of each particle shown."""

    @hookimpl
    def before_stage(self, flow: Flow) -> None:
        """Keep the beginning."""
        if 0 in self.steps and not self.moments:
            self._keep(0, flow)

    @hookimpl
    def after_step(self, flow: Flow, state: State) -> None:
        """Keep the particles of a step that was asked for."""
        if state.total_step in self.steps:
            self._keep(state.total_step, flow)

    @hookimpl
    def after_run(self, flow: Flow) -> None:
        """Note which classes are shown."""
        labels = flow.particles.conditions.labels
        self._labels = None if labels is None else labels.cpu()[_some(flow)]

    def draw(self, target: Dataset) -> Image.Image | None:
        """Return the figure, or None if no moment was kept."""
        if not self.moments:
            return None
        if not target.space.is_image:
            titles = [(f"step {step}", kept.numpy()) for step, kept in self.moments]
            numbers = None if self._labels is None else self._labels.numpy()
            return scatter.panels(titles, numbers, target.points().numpy())
        columns = [[pictures.tile(image) for image in kept] for _, kept in self.moments]
        blank = Image.new("RGB", columns[-1][0].size, pictures.BACKGROUND)  # of a class that is still to come
        rows = [list(row) for row in zip_longest(*columns, fillvalue=blank)]
        return pictures.table(rows, top=[str(step) for step, _ in self.moments])

    def _keep(self, step: int, flow: Flow) -> None:
        kept = flow.samples(_some(flow))
        self.moments.append((step, kept.images() if kept.space.is_image else kept.points().contiguous()))


def _some(flow: Flow) -> Tensor:
    """Choose particles to show: of images the first of each class, of points as many as can be told apart."""
    count, labels = len(flow.particles), flow.particles.conditions.labels
    if not flow.data.space.is_image:
        cohorts = (0, *flow.cohorts)
        each = [first + evenly(last - first, MOST_POINTS // flow.rounds) for first, last in pairwise(cohorts)]
        return torch.cat(each)
    if labels is None:
        return torch.arange(min(count, ROWS))
    firsts = [(labels == c).nonzero()[:1, 0] for c in range(len(flow.data.classes))]
    return torch.cat(firsts)[:ROWS].cpu()
