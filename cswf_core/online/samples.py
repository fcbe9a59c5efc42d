"""New samples in any form: a data set, or images or points with labels."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

import torch
from torch import Tensor

from cswf_core.checks import short
from cswf_core.errors import DataError
from cswf_core.interfaces import BIN, Conditions, Dataset, Space


def as_dataset(samples: Any, labels: Any, like: Dataset) -> Dataset:
    """Return new samples as a data set of the kind of `like`.

    `samples` may be one; or images, n×C×H×W or n×H×W, as bytes or as numbers in [−1, 1]; or points, n×d. Labels
    are the names of classes, or their numbers in `like`.
    """
    if isinstance(samples, Dataset):
        if labels is not None:
            raise DataError("a data set has its labels in it; give labels with images or points only")
        return samples
    values = _values(samples, like.space)
    x = values.reshape(len(values), -1).T.to(like.x.dtype)
    grey_levels = values.dtype == torch.uint8 and like.space.is_image
    numbers, classes = _labelled(labels, len(values), like.classes)
    return Dataset(
        x=(x * BIN - 1 if grey_levels else x).contiguous(),
        space=Space(like.space.shape),
        conditions=Conditions(labels=numbers),
        classes=classes,
        bin_width=BIN if grey_levels else like.bin_width,
    )


def _values(samples: Any, space: Space) -> Tensor:
    """Return samples as numbers, with a row or an image for each; raise `DataError` if they are none."""
    try:
        values = torch.as_tensor(samples).detach().cpu()
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        reason = " ".join(str(error).split())
        raise DataError(
            f"new data must be n×{space} numbers, got {type(samples).__name__} ({reason})"
        ) from None
    if values.ndim and not len(values):
        raise DataError("there are no new samples: give one or more")
    if values.is_complex() or values.dtype == torch.bool:
        raise DataError(f"new data must be n×{space} numbers, got {short(values.dtype)}")
    shapes = {space.shape, (space.dimension,)} | ({space.shape[1:]} if space.shape[0] == 1 else set())
    if values.ndim < 2 or tuple(values.shape[1:]) not in shapes:
        raise DataError(f"new data must be n×{space}, got {'×'.join(map(str, values.shape)) or 'one number'}")
    return values


def native(value: Any) -> Any:
    """Return arrays and tensors as lists, and their scalars as Python's own; anything else as it is."""
    return value.tolist() if hasattr(value, "tolist") else value


def _labelled(labels: Any, count: int, classes: tuple[str, ...]) -> tuple[Tensor | None, tuple[str, ...]]:
    """Return the number of each label, and the names of classes."""
    if labels is None:
        return None, ()
    try:
        if isinstance(native(labels), (str, bytes, Mapping, Set)):
            raise TypeError
        listed = [native(label) for label in native(labels)]
    except TypeError:
        raise DataError(f"labels must be a list with one for each new sample, got {labels!r}") from None
    if len(listed) != count:
        raise DataError(f"there are {count} new samples and {len(listed)} labels")
    if all(isinstance(label, str) for label in listed):
        names = tuple(dict.fromkeys(listed))
        return torch.tensor([names.index(label) for label in listed]), names
    numbers = range(len(classes))
    wrong = [label for label in listed if type(label) is not int or label not in numbers]
    if wrong:
        raise DataError(
            f"label {wrong[0]!r} is neither the number of a class, of which there are {len(classes)}, nor the "
            "name of one; a new class needs its name, a text"
        )
    return torch.tensor(listed), classes
