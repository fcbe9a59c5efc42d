"""Requests to a model: for classes by name or number, for vectors, or in the data's proportions."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import attrs
import torch
from torch import Tensor

from cswf_core.errors import RunError, excerpt, nearest
from cswf_core.interfaces import BIN, Conditions, Key, Masked, Observation
from cswf_core.model.format import ModelHeader
from cswf_core.numbers import whole_number
from cswf_core.online.flow import native

log = logging.getLogger("cswf")

Label: TypeAlias = int | str
Labels: TypeAlias = Label | Sequence[Label] | Mapping[Label, int] | Tensor
"""One label for all, one for each, or how many of each; NumPy's and PyTorch's numbers count as such."""
Vectors: TypeAlias = Sequence[float] | Sequence[Sequence[float]] | Tensor
"""One vector for all, or one for each."""

ByNumber: TypeAlias = Callable[[Tensor], Tensor]
"""Returns what is requested for samples by their numbers, from 0, so that memory need not hold it for all."""

GOLDEN_RATIO = (math.sqrt(5) - 1) / 2
"""The golden ratio's fractional part: its multiples modulo 1 are spread evenly, however many there are."""


@attrs.frozen(eq=False)
class Originals:
    """Images of which new particles see a part."""

    images: Tensor
    """Images in [−1, 1): d×m, on the CPU."""
    origin: Tensor
    """Number of the image of each particle: n."""
    observation: Observation
    """The part that is seen: the same of every image, or a mask with a column for each; on the device."""
    width: float = 0.0
    """Width of the noise that fills the images' grey levels."""


@attrs.frozen(eq=False)
class SampleRequest:
    """A request for new particles."""

    conditions: Callable[[Tensor], Conditions]
    """Returns Y of particles by their numbers, on the CPU."""
    count: int
    seed: int
    start: Tensor | None = None
    """Where particles begin: d×n, on the CPU; None: in noise, or as the Gaussian that the model has."""
    originals: Originals | None = None


def pixels_of(images: Tensor, dtype: torch.dtype) -> Tensor:
    """Return images, m×C×H×W bytes, as numbers in [−1, 1): d×m."""
    return images.reshape(len(images), -1).T.to(dtype).mul_(BIN).sub_(1)


def of_columns(observation: Observation, index: Tensor) -> Observation:
    """Return what is seen of some of the images that a mask has columns for; all images share anything else."""
    if observation.shared or not isinstance(observation, Masked):
        return observation
    return Masked(observation.mask[:, index.to(observation.mask.device)])


def labels_by_number(header: ModelHeader, count: int, labels: Labels | None, seed: int) -> ByNumber:
    """Return the classes of `count` samples by number; raise `RunError` for one the model cannot make.

    Without labels, they are in the data's proportions, as even as possible, in an order by the seed.
    """
    if "labels" not in header.condition.asks:
        raise RunError(f"the model is not conditioned on classes{_instead(header)}: it takes no labels")
    if labels is None:
        return _in_proportion(header, seed)
    plain: Any = native(labels)
    if isinstance(plain, str) or not isinstance(plain, Iterable):
        plain = {plain: count}
    if isinstance(plain, Mapping):
        ends = torch.tensor(_shares(plain, count)).cumsum(0)
        numbers = torch.tensor([class_number(header, label) for label in plain])
        return lambda index: numbers[torch.searchsorted(ends, index, right=True)]
    each = [native(label) for label in plain]
    if len(each) != count:
        raise RunError(f"{len(each):,} labels are given, and {count:,} samples are asked for")
    for strange in (label for label in each if type(label) not in (int, str)):
        class_number(header, strange)  # raises; as a key, True would be 1
    known = {label: class_number(header, label) for label in dict.fromkeys(each)}
    return torch.tensor([known[label] for label in each]).__getitem__


def _shares(labels: Mapping[Label, int], count: int) -> list[int]:
    """Return the number of samples of each label; raise `RunError` if these are not `count` together."""
    shares: list[int] = [native(share) for share in labels.values()]
    for label, share in zip(labels, shares, strict=True):
        if type(share) is not int or share < 1:
            raise RunError(f"labels must say how many of each class, 1 or more; got {share!r} of {label!r}")
    if sum(shares) != count:
        raise RunError(f"labels for {sum(shares):,} samples are given, and {count:,} are asked for")
    return shares


def class_number(header: ModelHeader, label: Label) -> int:
    """Return the number of a class, given by name or number; raise `RunError` if the model has none of it."""
    classes = header.data.classes
    condition = header.condition
    label = native(label)
    digits = whole_number(label) if isinstance(label, str) else None
    if isinstance(label, str) and label in classes:
        number = classes.index(label)
    elif isinstance(label, int) and not isinstance(label, bool):
        number = label
    elif digits is not None and (digits >= len(classes) or not all(name.isdecimal() for name in classes)):
        number = digits
    else:
        label = excerpt(label) if isinstance(label, str) else label
        raise RunError(f"there is no class {label!r}{nearest(str(label), classes) or _names(classes)}")
    there = range(len(classes)) if condition.tables is None else condition.tables
    if number not in there:
        raise RunError(f"there is no class {label!r}{_names([classes[own] for own in there])}")
    return number


def vectors_by_number(header: ModelHeader, count: int, vectors: Vectors) -> ByNumber:
    """Return the vectors Y of `count` samples by number: n → l×n."""
    length = header.condition.length
    if "vectors" not in header.condition.asks:
        raise RunError(f"the model is not conditioned on vectors{_instead(header)}: it takes none")
    try:
        rows = torch.as_tensor(vectors, dtype=header.dtype).cpu()
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise RunError(f"vectors must be numbers ({' '.join(str(error).split())})") from None
    rows = rows.expand(count, -1) if rows.ndim == 1 else rows
    if rows.shape != (count, length):
        got = "×".join(map(str, rows.shape)) or "one number"
        raise RunError(f"vectors have {length} numbers each, for {count:,} samples; got {got}")
    if not bool(torch.isfinite(rows).all()):
        raise RunError("vectors must be finite numbers")
    _warn_outside(header, rows)
    return lambda index: rows[index].T.contiguous()


def _warn_outside(header: ModelHeader, rows: Tensor) -> None:
    """Warn if vectors (n×l) lie outside of what the data had: there, maps were fitted to nothing."""
    for number, (low, high) in enumerate(zip(header.condition.low, header.condition.high, strict=True)):
        values = rows[:, number]
        outside = values[(values < low) | (values > high)]
        if len(outside):
            has = f"number {number + 1} of a vector is {float(outside[0]):.4g}"
            had = f"the data had {low:.4g} … {high:.4g}"
            log.warning("%s, and %s: what samples show there was never in the data", has, had)


def _in_proportion(header: ModelHeader, seed: int) -> ByNumber:
    """Return labels whose first n, for every n, have nearly the data's shares: a golden-ratio sequence."""
    if not any(header.data.counts):
        raise RunError("the model does not say in which proportions classes come: say which ones you want")
    counts = torch.tensor(header.data.counts, dtype=torch.float64)
    if header.condition.tables is not None:
        others = sorted(set(range(len(counts))) - set(header.condition.tables))
        counts[others] = 0
    start = Key(seed, "offline labels").open(dtype=torch.float64).uniform(1)
    edges = (counts / counts.sum()).cumsum(0)
    last = int(counts.nonzero().max())

    def chosen(index: Tensor) -> Tensor:
        level = (start + GOLDEN_RATIO * index.double()).remainder(1)
        return torch.searchsorted(edges, level, right=True).clamp_(max=last)

    return chosen


def _instead(header: ModelHeader) -> str:
    """Return what a model is conditioned on instead, for a sentence."""
    asks = header.condition.asks
    if "image" in asks:
        return ", it completes images"
    return f", but on {' and '.join(asks)}" if asks else ""


def _names(classes: Sequence[str]) -> str:
    """Return the names of a few classes, for the end of a sentence."""
    return f"; the classes are {', '.join(classes)}" if classes and len(classes) <= 20 else ""
