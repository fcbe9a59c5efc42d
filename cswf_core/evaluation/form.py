"""Samples brought into the form of others, so that they can be compared: channels, classes, conditions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs
import torch

from cswf_core.errors import DataError
from cswf_core.interfaces import Dataset, Space


def like(samples: Dataset, real: Dataset, what: str) -> Dataset:
    """Return samples in the form of the real ones they are compared with: same channels, same classes.

    Grey pictures are repeated where the real ones have colours, and colour ones made grey where all their
    channels are the same; names of classes become the real ones' numbers; what stands behind a point's own
    coordinates, its condition.
    """
    if real.space.is_image != samples.space.is_image:
        kinds = ("images", "points") if samples.space.is_image else ("points", "images")
        raise DataError(f"{what} are {kinds[0]}, and what they are compared with are {kinds[1]}")
    if not real.space.is_image:
        return _points_like(samples, real, what)
    samples = _channels_like(samples, real.space.shape[0])
    if samples.space != real.space:
        ours, theirs = ("×".join(map(str, space.shape)) for space in (samples.space, real.space))
        raise DataError(f"{what} are images of {ours}, and what they are compared with are of {theirs}")
    return _classes_like(samples, real, what)


def _points_like(samples: Dataset, real: Dataset, what: str) -> Dataset:
    d = real.space.dimension
    vectors = real.conditions.vectors
    expected = d + (0 if vectors is None else vectors.shape[0])
    if samples.space.dimension != expected:
        raise DataError(f"{what} are points of {samples.space.dimension} numbers, and {expected} are expected")
    behind = None if vectors is None else samples.x[d:]
    conditions = attrs.evolve(samples.conditions, vectors=behind)
    return attrs.evolve(samples, x=samples.x[:d], space=real.space, conditions=conditions, classes=real.classes)


def _channels_like(samples: Dataset, channels: int) -> Dataset:
    ours, *grid = samples.space.shape
    planes = samples.x.view(ours, -1, len(samples))
    if ours == 1 and channels == 3:
        planes = planes.expand(3, -1, -1)
    elif ours == 3 and channels == 1 and bool((planes == planes[:1]).all()):
        planes = planes[:1]
    else:
        return samples
    x = planes.reshape(-1, len(samples))
    return attrs.evolve(samples, x=x, space=Space((channels, *grid)))


def _classes_like(samples: Dataset, real: Dataset, what: str) -> Dataset:
    labels = samples.conditions.labels
    if labels is None or not real.classes:
        return attrs.evolve(samples, classes=real.classes)
    if samples.classes:  # names of folders
        numbers = _numbers(samples.classes, real.classes)
        if numbers is None:  # they are not classes of these data
            return attrs.evolve(
                samples, classes=real.classes, conditions=attrs.evolve(samples.conditions, labels=None)
            )
        labels = torch.tensor(numbers)[labels]
    if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < len(real.classes):
        beyond = int(labels.max()) if int(labels.min()) >= 0 else int(labels.min())
        raise DataError(f"{what} have the label {beyond}, and there are {len(real.classes)} classes")
    return attrs.evolve(
        samples, classes=real.classes, conditions=attrs.evolve(samples.conditions, labels=labels)
    )


def _numbers(names: Sequence[str], classes: Sequence[str]) -> list[int] | None:
    """Return the number of each class by its name, or by a number as its name; None if one is unknown."""
    rules: tuple[Callable[[str], int], ...] = (list(classes).index, int)
    for rule in rules:
        try:
            found = [rule(name) for name in names]
        except ValueError:
            continue
        if all(0 <= number < len(classes) for number in found):
            return found
    return None
