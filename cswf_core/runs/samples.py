"""What a run or a saved model has generated: `samples.npz`, `samples.png` and `completions.png`."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np
import torch
from PIL import Image
from torch import Tensor

from cswf_core.interfaces import Masked
from cswf_core.pictures import grid, scatter

if TYPE_CHECKING:
    from cswf_core.interfaces import Dataset, Observation


def arrays_of(samples: Dataset, observation: Observation | None) -> dict[str, Any]:
    """Return samples as arrays: `images` (n×C×H×W bytes) or `points` (n×d), and `labels` if there are any.

    Condition vectors are behind a point's own coordinates; images have them as `vectors` (n×l).

    Where part of an image was given, also `observed`, the images with everything else black, `origin` (n
    whole numbers, the sample seen: i ≥ 0 of the data, −1−i of the held-out ones), and if whole pixels were
    given `mask` (n×C×H×W, or 1×C×H×W if all have one; true where observed).
    """
    arrays: dict[str, Any] = {}
    if samples.space.is_image:
        arrays["images"] = samples.images().numpy()
        if observation is not None:
            arrays["observed"] = seen_images(samples, observation).numpy()
        if isinstance(observation, Masked):
            arrays["mask"] = observation.mask.T.reshape(-1, *samples.space.shape).cpu().numpy()
    else:
        arrays["points"] = samples.points().numpy()
    if samples.space.is_image and samples.conditions.vectors is not None:
        arrays["vectors"] = samples.conditions.vectors.T.numpy()
    if samples.conditions.origin is not None:
        arrays["origin"] = samples.conditions.origin.numpy()
    if samples.conditions.labels is not None:
        arrays["labels"] = samples.conditions.labels.numpy()
    return arrays


def archive(samples: Dataset, observation: Observation | None, **texts: str) -> bytes:
    """Return samples as .npz, with the arrays of `arrays_of` and some texts about them."""
    arrays = {**arrays_of(samples, observation), **texts}
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # photographs hardly compress, and trying takes seconds
    return buffer.getvalue()


def spread(samples: Dataset) -> float:
    """Return how wide samples lie around their mean: the root mean square deviation of a coordinate."""
    return float(samples.x.var(dim=1, correction=0).mean().sqrt())


def samples_picture(samples: Dataset, target: Dataset, columns: int) -> Image.Image:
    """Draw samples: a grid of images, or points on the contours of their target."""
    labels = samples.conditions.labels
    if samples.space.is_image:
        return grid.grid(samples.images(), labels, samples.classes, columns)
    numbers = None if labels is None else labels.numpy()
    points = samples.points().numpy()
    data = target.points().numpy()
    return scatter.panels([("samples", points)], numbers, data, points.shape[1])


def completions_picture(samples: Dataset, data: Dataset, observation: Observation, rows: int) -> Image.Image:
    """Draw a row for each image: what is seen of it, several completions, the original.

    `data` are what the originals come from. Held-out images are shown; without them, the data's.
    """
    origin = samples.conditions.origin
    assert origin is not None
    seen = seen_images(samples, observation)
    lines = []
    held_out: list[int] = torch.unique(origin[origin < 0]).flip(0)[:rows].tolist()
    for image in held_out or list(dict.fromkeys(origin[:rows].tolist())):
        particles = (origin == image).nonzero()[:8, 0]
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
