"""Tiny data for checks of plugins: images and points with labels, vectors and held-out samples."""

from __future__ import annotations

import attrs
import torch
from torch import Tensor

from cswf_core.interfaces import Conditions, Dataset, DatasetSource, Draw, Key, Space

COUNT = 48
"""Samples of each set."""

CLASSES = ("a", "b", "c")

HELD_OUT = 12

GREY, COLOUR, POINTS = Space((1, 8, 8)), Space((3, 8, 8)), Space((6,))
"""The spaces that most checks look at."""


def samples(space: Space, count: int = COUNT, seed: int = 0) -> Dataset:
    """Return samples with all that a condition may ask for: labels, vectors of length 2, held-out ones.

    Each class has a mean of its own, and x follows the vectors too. Values lie within (−1, 1).
    """
    held_out = _some(space, HELD_OUT, Key(seed, "held-out samples"), seed)
    return attrs.evolve(_some(space, count, Key(seed, "samples"), seed), held_out=held_out)


def _some(space: Space, count: int, key: Key, seed: int) -> Dataset:
    draw = key.open(dtype=torch.float64)
    patterns = Key(seed, "patterns").open(dtype=torch.float64).normal(space.dimension, len(CLASSES) + 2)
    labels = torch.arange(count) % len(CLASSES)
    vectors = draw.uniform(2, count) - 0.5
    mean = 0.25 * patterns[:, labels] + 0.25 * patterns[:, len(CLASSES) :] @ vectors
    x = (mean + 0.2 * draw.normal(space.dimension, count)).tanh().float()
    return Dataset(x, space, Conditions(labels, vectors.float(), torch.arange(count)), CLASSES)


def bare(data: Dataset) -> Dataset:
    """Return the samples without labels, vectors and held-out ones."""
    return attrs.evolve(data, conditions=Conditions(), classes=(), held_out=None)


@attrs.define(init=False, eq=False, slots=False)
class Held(DatasetSource):
    """A source of data that are there already."""

    def __init__(self, data: Dataset) -> None:
        self.data = data

    def load(self, draw: Draw) -> Dataset:
        """Return the data in the draw's numbers."""
        held_out = None if self.data.held_out is None else self._in(self.data.held_out, draw)
        return attrs.evolve(self._in(self.data, draw), held_out=held_out)

    @staticmethod
    def _in(data: Dataset, draw: Draw) -> Dataset:
        return attrs.evolve(data, x=data.x.to(draw.dtype))


LEVELS = 64
"""Quantiles that are compared along a direction."""

DIRECTIONS = 200


def distance(x: Tensor, y: Tensor) -> float:
    """Return the sliced distance SW₂ between two sets of samples (d×n and d×m), in float64."""
    theta = Key(0, "sliced distance").open(dtype=torch.float64).sphere(DIRECTIONS, len(x))
    levels = (torch.arange(LEVELS, dtype=torch.float64) + 0.5) / LEVELS
    p, q = (torch.quantile(theta @ each.double(), levels, dim=1) for each in (x, y))
    return float((p - q).square().mean().sqrt())


def distance_by_condition(generated: Dataset, real: Dataset) -> float:
    """Return SW₂ of samples beside their conditions, or the mean over classes where they have labels."""
    mine, theirs = generated.conditions, real.conditions
    if mine.labels is not None and theirs.labels is not None:
        each = [
            distance(generated.x[:, mine.labels == label], real.x[:, theirs.labels == label])
            for label in torch.unique(mine.labels).tolist()
        ]
        return sum(each) / len(each)
    if mine.vectors is not None and theirs.vectors is not None:
        joint = [torch.cat([s.x.double(), s.conditions.vectors.double()]) for s in (generated, real)]  # type: ignore[union-attr]
        return distance(*joint)
    return distance(generated.x, real.x)
