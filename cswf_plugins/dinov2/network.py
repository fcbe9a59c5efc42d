"""DINOv2's network on any device, with images resized as Stein et al. do it, by Pillow's bicubic filter."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from cswf_core.errors import DataError
from cswf_core.interfaces.metric import Tell
from cswf_core.kernels.resizing import resizing
from cswf_plugins.dinov2.transformer import VisionTransformer, refuse_others
from cswf_plugins.dinov2.weights import DinoWeights

SIDE = 224
"""Pixels of the images that the network takes."""
BATCH = {"cuda": 128, "cpu": 8}
"""Images of a batch, by the type of device."""
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Of the red, green and blue of ImageNet's photographs, from 0 to 1."""
FRACTION = 2.0**22
"""Pillow rounds the weights of its filter to whole parts of this."""


class DinoNetwork:
    """The features of images, D each."""

    def __init__(self, weights: DinoWeights, device: torch.device) -> None:
        tensors = {name: tensor.to(device) for name, tensor in read(weights).items()}
        self.device = device
        self.batch = BATCH[device.type]
        self._transformer = VisionTransformer(tensors, SIDE)

    def features(self, images: Tensor, title: str, tell: Tell, *, part: bool = False) -> Tensor:
        """Return the features of images (n×C×H×W bytes; C = 1 is repeated) on the device: n×D, float32.

        Batches have one size, and the last is filled up, so that it does not matter which batch of a large set
        an image is in. A set of less than a batch is filled up if it is a part of a larger one.
        """
        rows = torch.empty(len(images), self._transformer.width, device=self.device)
        for first in range(0, len(images), self.batch):
            batch = images[first : first + self.batch]
            count = len(batch)
            if first or part:
                batch = torch.cat([batch, batch[:1].expand(self.batch - count, -1, -1, -1)])
            with torch.no_grad():
                rows[first : first + count] = self._transformer(prepare(batch.to(self.device)))[:count]
            tell(title, first + count, len(images))
        return rows


def part_features(weights: DinoWeights, title: str, images: Tensor, device: torch.device, tell: Tell) -> Tensor:
    """Return the features of some images of a set that several devices share: n×D."""
    return DinoNetwork(weights, device).features(images, title, tell, part=True)


def read(weights: DinoWeights) -> dict[str, Tensor]:
    """Return a file's tensors by name, on the CPU; raise `DataError` where they are not of such a network."""
    tensors = weights.read()
    try:
        refuse_others(tensors)
    except DataError as error:
        raise DataError(f"{weights.path} {error}") from None
    return tensors


def prepare(images: Tensor) -> Tensor:
    """Return images (n×C×H×W bytes) as the network takes them: n×3×224×224, normalised by ImageNet's colours.

    They are resized as by Pillow, to the bit: first along rows, then along columns, rounded to bytes each time.
    (Pillow 13 begins with the columns of some images that are not square; published numbers are older.) Sums of
    bytes times whole parts of 2²² are exact in float64, so every device has the same.
    """
    _, channels, height, width = images.shape
    if channels not in (1, 3):
        raise DataError(f"DINOv2 takes images of 1 or 3 channels, got {channels}")
    rows, columns = (_matrix(size, images.device) for size in (height, width))
    resized = _bytes(rows @ _bytes(images.double() @ columns.T)).float() / 255
    mean, deviation = (torch.tensor(x, device=images.device).view(3, 1, 1) for x in (MEAN, DEVIATION))
    return (resized - mean) / deviation


def _bytes(values: Tensor) -> Tensor:
    """Return the nearest whole numbers from 0 to 255; of a half, that above."""
    return (values + 0.5).floor().clamp(0, 255)


def _matrix(size: int, device: torch.device) -> Tensor:
    """Return the matrix that resizes a line of pixels to the network's size: 224 × size, float64."""
    weights = resizing(size, SIDE, "bicubic") * FRACTION
    rounded = np.trunc(weights + np.copysign(0.5, weights)) / FRACTION
    return torch.from_numpy(rounded).to(device)
