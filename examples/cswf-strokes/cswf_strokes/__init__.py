"""Projection `strokes`: directions made of a few strokes of a brush, light and dark.

What it is: a direction is a sum of strokes. A stroke is a bar of random place, angle, length and width, down to
a single pixel, in one random colour; its sign changes along it at a random pace. By these changes no direction
of pixel space is preferred much: λ·d of E[θθᵀ] goes from about 0.6 to 1.6, so that steps are as long as those
of `uniform`.
Cost: eight strokes on the whole grid take about four times as long to draw as `uniform` directions of grey
images, and 1.5 times as long for colours; patches take less, as they are smaller. Products cost as ever.
When not to use it: for points, which it refuses. With `strokes: 1` a direction sees a line, and nothing of what
far pixels do together: the flow then stays farther from the data.
"""

from __future__ import annotations

import math

import attrs
import torch
from torch import Tensor

from cswf_core import hookimpl
from cswf_core.hookspecs import Register, RegisterRecipes
from cswf_core.interfaces import Draw, PatchProjection, Projection, ProjectionSampler, Space, parameter


@attrs.frozen(kw_only=True)
class Strokes(ProjectionSampler):
    """A few random strokes, light and dark."""

    strokes: int = parameter("strokes of a direction", default=8, at_least=1)
    width: float = parameter("the largest width of a stroke, in pixels", default=2.0, at_least=1)
    patch: int = parameter(
        "S, the side of the square that a direction's strokes lie in; a pyramid sets it, and one as large as "
        "the grid is the whole grid",
        default=32,
        at_least=1,
    )
    dilation: int = parameter("distance between neighbouring pixels of the square", default=1, at_least=1)

    def sample(self, space: Space, count: int, draw: Draw) -> Tensor | Projection:
        """Return directions of unit length: count × C·H·W."""
        channels, height, width = space.grid("projection 'strokes'")
        if self.patch >= max(height, width):
            theta = self._drawn(draw.uniform(7, count, self.strokes, 1, 1), channels, height, width, draw)
            return theta.flatten(1) / torch.linalg.vector_norm(theta.flatten(1), dim=1, keepdim=True)
        numbers = draw.uniform(7, count, self.strokes, 1, 1)
        numbers[:2, :, 0] = 0.5  # one stroke in the middle, which is never cut off
        filters = self._drawn(numbers, channels, self.patch, self.patch, draw)
        row, column = draw.integers(height, count), draw.integers(width, count)
        return PatchProjection(filters, space, self.dilation, row, column)

    def _drawn(self, numbers: Tensor, channels: int, height: int, width: int, draw: Draw) -> Tensor:
        """Return sums of strokes, from seven numbers in [0, 1) for each: count × C × height × width."""
        row, column, turn, length, girth, pace, phase = numbers
        y = torch.arange(height, device=draw.device)[:, None] - (row * height).floor()
        x = torch.arange(width, device=draw.device) - (column * width).floor()
        angle = math.pi * turn
        along, across = x * angle.cos() + y * angle.sin(), y * angle.cos() - x * angle.sin()
        beyond = (along.abs() - length * (max(height, width) - 1) / 2).clamp_min(0)
        beside = (across.abs() - girth * (self.width - 1) / 2).clamp_min(0)
        ink = (1 - torch.hypot(beyond, beside)).clamp_min(0)  # fades within a pixel of the bar's rim
        wave = (math.tau * (pace * along + phase)).cos()
        ink = torch.where(wave < 0, -ink, ink)
        colour = draw.normal(len(ink), channels, self.strokes)
        return (colour @ ink.flatten(2)).unflatten(2, (height, width))


@hookimpl
def register_projections(register: Register) -> None:
    """Offer `strokes`."""
    register("strokes", Strokes)


@hookimpl
def register_recipes(register: RegisterRecipes) -> None:
    """Offer `cswf-strokes:strokes-digits`."""
    register("recipes")
