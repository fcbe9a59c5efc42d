"""`samples.png` and `completions.png`: what a run or a saved model has generated."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import torch
from PIL import Image
from torch import Tensor

from cswf_core.pictures import grid, scatter

if TYPE_CHECKING:
    from cswf_core.interfaces import Dataset, Observation

MOST_COMPLETIONS = 8


def samples_picture(samples: Dataset, target: Dataset, columns: int) -> Image.Image:
    """Draw samples: a grid of images, or points on the contours of their target."""
    labels = samples.conditions.labels
    if samples.space.is_image:
        return grid.grid(samples.images(), labels, samples.classes, columns)
    numbers = None if labels is None else labels.numpy()
    points, data = samples.points().numpy(), target.points().numpy()
    return scatter.panels([("samples", points)], numbers, data, points.shape[1])


def completions_picture(samples: Dataset, data: Dataset, observation: Observation, rows: int) -> Image.Image:
    """Draw a row for each image: what is seen of it, several completions, the original.

    `data` are what the originals come from. Held-out images are shown; without them, the data's.
    """
    origin = samples.conditions.origin
    assert origin is not None
    seen = seen_images(samples, observation)
    lines = []
    for image in _origins(origin, rows):
        particles = (origin == image).nonzero()[:MOST_COMPLETIONS, 0]
        completed = samples.take(particles)
        original = attrs.evolve(completed, x=data.originals(completed.conditions)).images()[0]
        lines.append([seen[particles[0]], *completed.images(), original])
    width = max(len(line) for line in lines)
    blank = torch.full_like(lines[0][0], 255)
    filled = [[*line[:-1], *[blank] * (width - len(line)), line[-1]] for line in lines]
    tiles = [[grid.tile(image) for image in line] for line in filled]
    middle = ["completions" if c == (width - 2 + 1) // 2 else "" for c in range(1, width - 1)]
    return grid.table(tiles, top=["seen", *middle, "original"])


def seen_images(samples: Dataset, observation: Observation) -> Tensor:
    """Return what is seen of the samples as bytes, and black elsewhere: n×C×H×W."""
    return attrs.evolve(samples, x=observation.shown(samples.x)).images()


def _origins(origin: Tensor, rows: int) -> list[int]:
    """Return the images to show: held-out ones in order; where there are none, those of the first particles."""
    held_out: list[int] = torch.unique(origin[origin < 0]).flip(0)[:rows].tolist()
    return held_out or list(dict.fromkeys(origin[:rows].tolist()))
