"""Checks of data, where they enter, and the adapter of data sources."""

from __future__ import annotations

from functools import partial

import attrs
import torch
from torch import Tensor

from cswf_core.checks.adapter import Adapter, calling, faulty, not_finite, short, sizes
from cswf_core.errors import DataError, PluginError
from cswf_core.interfaces import Conditions, Dataset, DatasetSource, Draw, Owner, StoredImages

GIVEN = Owner("dataset", "data", "given", "")
"""The owner of data that came through no plugin."""


class CheckedSource(Adapter, DatasetSource):
    """A data source whose samples are finite, of one shape, and labelled as they say."""

    def load(self, draw: Draw) -> Dataset:
        """Return the data, on the CPU."""
        return check_loaded(self._call("load", draw), self.owner)

    def open(self, draw: Draw) -> StoredImages:
        """Return the images, to be read a block at a time."""
        return check_stored(self._call("open", draw), self.owner)

    def start(self, data: Dataset, count: int, draw: Draw) -> Dataset | None:
        """Return where particles begin; None: in noise."""
        return check_start(self._call("start", data, count, draw), data, self.owner) if self.starts else None


def check_loaded(data: object, owner: Owner) -> Dataset:
    """Return data that a source or a reader of files has loaded, if they are as all data must be.

    Besides, pixels lie in [−1, 1), and their bins do not reach beyond.
    """
    samples = check_dataset(data, owner)
    if not samples.space.is_image or samples.stored is not None:
        return samples
    fits, low, high = pixel_range(samples)
    if not fits:
        width = samples.bin_width
        bins = f", and with bins of {width:g} at most {1 - width:g}" if width else ""
        raise PluginError(
            f"{owner}: load must return pixels in [−1, 1){bins}, got {low:.4g} … {high:.4g}: a byte v is "
            "v/128 − 1, with a bin_width of 1/128"
        )
    return samples


def check_dataset(data: object, owner: Owner = GIVEN) -> Dataset:
    """Return a data set if it is not empty, finite, and has fitting labels."""

    def fault(expected: str, got: str) -> PluginError:
        if owner is GIVEN:
            return PluginError(f"data must be {expected}, got {got}")
        return faulty(owner, "load", expected, got)

    if not isinstance(data, Dataset):
        raise fault("a Dataset", type(data).__name__)
    if data.stored is not None:  # they were checked when they were opened
        return data
    d = data.space.dimension
    x = data.x
    if not isinstance(x, Tensor) or x.ndim != 2 or x.shape[0] != d or not x.is_floating_point():
        got = f"{sizes(x.shape)} of {short(x.dtype)}" if isinstance(x, Tensor) else repr(type(x))
        raise fault(f"x with d = {d} rows of floating-point numbers", got)
    if len(data) == 0:
        raise DataError(f"{owner}: the data set is empty")
    if not bool(torch.isfinite(x).all()):
        raise DataError(
            f"{owner}: {not_finite(x, dim=0):,} of {len(data):,} samples have NaN or infinite values"
        )
    check_conditions(data.conditions, owner, "load", len(data), len(data.classes))
    if data.held_out is not None:
        held_out = check_dataset(data.held_out, owner)
        if (held_out.space, held_out.classes) != (data.space, data.classes) or held_out.held_out is not None:
            expected = f"held-out samples of the same kind, {data.space} with {len(data.classes)} classes"
            raise fault(expected, f"{held_out.space} with {len(held_out.classes)}")
    return data


def pixel_range(data: Dataset) -> tuple[bool, float, float]:
    """Return whether pixels and their bins lie in [−1, 1), but for rounding; the least and greatest pixel."""
    low = float(data.x.min())
    high = float(data.x.max())
    return low >= -1 - 1e-5 and high <= 1 - data.bin_width + 1e-5, low, high


@attrs.frozen(eq=False, kw_only=True)
class CheckedImages(StoredImages):
    """Images of a plugin; what its code raises while it reads names the plugin."""

    plugin: StoredImages
    owner: Owner

    def fill(self, first: int, out: Tensor) -> None:
        """Read the images from number `first` on into `out`."""
        with calling(self.owner, "fill"):
            self.plugin.fill(first, out)

    def take(self, numbers: Tensor, out: Tensor) -> None:
        """Read the images with these numbers into `out`."""
        with calling(self.owner, "take"):
            self.plugin.take(numbers, out)


def check_stored(images: object, owner: Owner = GIVEN) -> StoredImages:
    """Return stored images behind their checks, if they are images, not none, and have fitting labels."""

    fault = partial(faulty, owner, "open")
    if not isinstance(images, StoredImages):
        raise fault("StoredImages", type(images).__name__)
    if not images.space.is_image:
        raise fault("images of C×H×W", f"points in {images.space} dimensions")
    if len(images) == 0:
        raise DataError(f"{owner}: the data set is empty")
    if not images.bin_width > 0:
        raise fault("a bin_width above 0", f"{images.bin_width}")
    check_conditions(Conditions(images.labels), owner, "open", len(images), len(images.classes))
    held_out = None
    if images.held_out is not None:
        held_out = check_stored(images.held_out, owner)
        kinds = [(each.space, each.classes, each.bin_width) for each in (images, held_out)]
        if kinds[0] != kinds[1] or held_out.held_out is not None:
            raise fault("held-out images of the same kind", f"{kinds[1]} beside {kinds[0]}")
    facts = {field.name: getattr(images, field.name) for field in attrs.fields(StoredImages)}
    return CheckedImages(**{**facts, "held_out": held_out}, plugin=images, owner=owner)


def check_start(start: object, data: Dataset, owner: Owner = GIVEN) -> Dataset | None:
    """Return the samples that particles begin with, if they are samples of the data's own space."""
    if start is None:
        return None
    if not isinstance(start, Dataset):
        raise faulty(owner, "start", "None or a Dataset", type(start).__name__)
    d = data.space.dimension
    x = start.x
    if x.ndim != 2 or x.shape[0] != d or not x.is_floating_point() or not bool(torch.isfinite(x).all()):
        expected = f"x with d = {d} rows of finite floating-point numbers"
        raise faulty(owner, "start", expected, f"{sizes(x.shape)} of {short(x.dtype)}")
    check_conditions(start.conditions, owner, "start", len(start), len(data.classes))
    return start


def check_conditions(value: object, owner: Owner, method: str, count: int, classes: int) -> Conditions:
    """Return conditions if there is one per sample and every label names a class."""

    fault = partial(faulty, owner, method)
    if not isinstance(value, Conditions):
        raise fault("Conditions", type(value).__name__)
    labels = value.labels
    vectors = value.vectors
    if labels is not None:
        if labels.dtype != torch.int64 or tuple(labels.shape) != (count,):
            raise fault(f"{count} labels of int64", f"{sizes(labels.shape)} of {short(labels.dtype)}")
        if not classes:
            raise fault("the names of its classes beside labels: classes=('cat', 'dog', …)", "none")
        if count and not (int(labels.min()) >= 0 and int(labels.max()) < classes):
            got = f"{int(labels.min())} … {int(labels.max())}"
            raise fault(f"labels from 0 to {classes - 1}, one per class", got)
    if vectors is not None:
        if vectors.ndim != 2 or vectors.shape[1] != count:
            raise fault(f"condition vectors of shape l×{count}", sizes(vectors.shape))
        bad = not_finite(vectors)
        if bad:
            raise fault("finite numbers", f"{bad} of {vectors.numel()} that are NaN or infinite")
    return value
