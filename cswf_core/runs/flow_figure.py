"""`flow.png`: the particles at chosen moments, from the start to the end."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import torch
from PIL import Image
from torch import Tensor

from cswf_core.hookspecs import hookimpl
from cswf_core.runs import pictures, scatter

if TYPE_CHECKING:
    from cswf_core.flow.flow import Flow, State
    from cswf_core.interfaces import Dataset

MOST_POINTS = 1500
ROWS = 10


class FlowFigure:
    """Keeps a few particles at chosen steps and draws them side by side."""

    def __init__(self, steps: Collection[int]) -> None:
        self.steps = set(steps)
        self.moments: list[tuple[int, Dataset]] = []

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

    def draw(self, target: Dataset) -> Image.Image | None:
        """Return the figure, or None if no moment was kept."""
        if not self.moments:
            return None
        if not target.space.is_image:
            labels = self.moments[0][1].conditions.labels
            titles = [(f"step {step}", kept.points().numpy()) for step, kept in self.moments]
            return scatter.panels(titles, None if labels is None else labels.numpy(), target.points().numpy())
        columns = [[pictures.tile(image) for image in kept.images()] for _, kept in self.moments]
        rows = [list(row) for row in zip(*columns, strict=True)]
        return pictures.table(rows, top=[str(step) for step, _ in self.moments])

    def _keep(self, step: int, flow: Flow) -> None:
        chosen = _some(flow)
        self.moments.append((step, flow.samples().take(chosen)))


def _some(flow: Flow) -> Tensor:
    """Choose particles to show: of images the first of each class, of points as many as can be told apart."""
    count, labels = len(flow.particles), flow.particles.conditions.labels
    if not flow.data.space.is_image:
        return torch.linspace(0, count - 1, min(count, MOST_POINTS)).round().long()
    if labels is None:
        return torch.arange(min(count, ROWS))
    firsts = [(labels == c).nonzero()[:1, 0] for c in range(len(flow.data.classes))]
    return torch.cat(firsts)[:ROWS].cpu()
