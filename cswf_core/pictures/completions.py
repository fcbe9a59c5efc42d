"""`completions.png`: what was seen of an image, what the flow made of it, and the original."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import torch
from PIL import Image
from torch import Tensor

from cswf_core.pictures import grid as pictures

if TYPE_CHECKING:
    from cswf_core.interfaces import Dataset, Observation

MOST_COMPLETIONS = 8


def seen_images(samples: Dataset, observation: Observation) -> Tensor:
    """Return what is seen of the samples as bytes, and black elsewhere: n×C×H×W."""
    return attrs.evolve(samples, x=observation.shown(samples.x)).images()


def figure(samples: Dataset, data: Dataset, observation: Observation, rows: int) -> Image.Image:
    """Draw a row for each image: what is seen of it, several completions, the original.

    `data` are what the originals come from. Held-out images are shown; without them, the data's.
    """
    origin = samples.conditions.origin
    assert origin is not None
    seen = seen_images(samples, observation)
    shown = []
    for image in _first(origin, rows):
        particles = (origin == image).nonzero()[:MOST_COMPLETIONS, 0]
        completed = samples.take(particles)
        original = attrs.evolve(completed, x=data.originals(completed.conditions)).images()[0]
        shown.append([seen[particles[0]], *completed.images(), original])
    width = max(len(row) for row in shown)
    blank = torch.full_like(shown[0][0], 255)
    filled = [[*row[:-1], *[blank] * (width - len(row)), row[-1]] for row in shown]
    tiles = [[pictures.tile(image) for image in row] for row in filled]
    middle = ["completions" if c == (width - 2 + 1) // 2 else "" for c in range(1, width - 1)]
    return pictures.table(tiles, top=["seen", *middle, "original"])


def _first(origin: Tensor, rows: int) -> list[int]:
    """Return the images to show: held-out ones in order; where there are none, those of the first particles."""
    held_out: list[int] = torch.unique(origin[origin < 0]).flip(0)[:rows].tolist()
    return held_out or list(dict.fromkeys(origin[:rows].tolist()))
