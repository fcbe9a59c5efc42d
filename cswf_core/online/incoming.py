"""New samples as a data set: read from what a person gives, with classes matched by name, joined to others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any

import attrs
import torch
from torch import Tensor

from cswf_core.errors import DataError
from cswf_core.flow import boundary
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
    rows = values.reshape(len(values), -1).T
    whole = values.dtype == torch.uint8
    x = rows.to(like.x.dtype) * BIN - 1 if whole and like.space.is_image else rows.to(like.x.dtype)
    numbers, classes = _labelled(labels, len(values), like.classes)
    return Dataset(
        x=x.contiguous(),
        space=Space(like.space.shape),
        conditions=Conditions(labels=numbers),
        classes=classes,
        bin_width=BIN if whole and like.space.is_image else like.bin_width,
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
        raise DataError(f"new data must be n×{space} numbers, got {boundary.short(values.dtype)}")
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
        given = [native(label) for label in native(labels)]
    except TypeError:
        raise DataError(f"labels must be a list with one for each new sample, got {labels!r}") from None
    if len(given) != count:
        raise DataError(f"there are {count} new samples and {len(given)} labels")
    if all(isinstance(label, str) for label in given):
        names = tuple(dict.fromkeys(given))
        return torch.tensor([names.index(label) for label in given]), names
    numbers = range(len(classes))
    wrong = [label for label in given if type(label) is not int or label not in numbers]
    if wrong:
        raise DataError(
            f"label {wrong[0]!r} is neither the number of a class, of which there are {len(classes)}, nor the "
            "name of one; a new class needs its name, a text"
        )
    return torch.tensor(given), classes


def matched(new: Dataset, classes: tuple[str, ...]) -> Dataset:
    """Return new data with labels that number the classes known, by name, and after them those that are new."""
    if new.conditions.labels is None:
        return new
    names = (*classes, *(name for name in new.classes if name not in classes))
    numbers = torch.tensor([names.index(name) for name in new.classes])
    own = attrs.evolve(new.conditions, labels=numbers[new.conditions.labels])
    return attrs.evolve(new, conditions=own, classes=names, held_out=_held_out(new, classes))


def _held_out(new: Dataset, classes: tuple[str, ...]) -> Dataset | None:
    return None if new.held_out is None else matched(new.held_out, classes)


def joined(known: Dataset, new: Dataset) -> Dataset:
    """Return both data sets as one; the classes of `new` are those of `known` and perhaps more (`matched`).

    Samples made from others stay last. Where bins have two widths, x is the middle of each, and the width is 0.
    """
    if known.bin_width != new.bin_width:
        known, new = (attrs.evolve(part, x=part.x + part.bin_width / 2, bin_width=0.0) for part in (known, new))
    parts = [known.genuine(), new.genuine()]
    for part in (known, new):
        made = torch.arange(len(part) - part.augmented, len(part))
        parts += [part.take(made)] if part.augmented else []
    held_out = None
    if known.held_out is not None and new.held_out is not None:
        held_out = joined(known.held_out, new.held_out)
    return attrs.evolve(
        known,
        x=torch.cat([part.x.to(known.x) for part in parts], dim=1),
        conditions=together([part.conditions for part in parts]),
        classes=new.classes if new.conditions.labels is not None else known.classes,
        augmented=known.augmented + new.augmented,
        held_out=held_out,
    )


def together(parts: Sequence[Conditions]) -> Conditions:
    """Return the conditions of several sets of samples, one after the other; what one lacks is left out."""
    found = {}
    for name in ("labels", "vectors", "origin"):
        each = [getattr(part, name) for part in parts]
        if all(tensor is not None for tensor in each):
            found[name] = torch.cat(each, dim=-1)
    return Conditions(**found)
