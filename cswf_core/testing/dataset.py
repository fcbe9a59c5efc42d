"""Checks of data sources."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from cswf_core.checks import CheckedSource
from cswf_core.errors import DataError
from cswf_core.interfaces import Dataset, DatasetSource, Draw, Key, StoredImages, StoredPixels
from cswf_core.recipe import Recipe
from cswf_core.testing.flows import SHARED, a_short_flow_comes_nearer_to_the_data, recipe_with
from cswf_core.testing.generators import require_untouched
from cswf_core.testing.outcome import FaultError, Kit, SkipError, Subject

FEW = 48
"""Samples of a short flow, and those that are read one by one."""

ROUNDING = 1e-5
"""How far a pixel may be from a grey level, in parts of the distance between two."""


def draw(role: str = "data") -> Draw:
    """Return the draw that a run's data come from, or where its particles begin."""
    return Key(3, role).open()


class SourceSubject(Subject):
    """A data source."""

    kind = "dataset"

    def __init__(self, plugin: DatasetSource) -> None:
        super().__init__(plugin)

    @cached_property
    def source(self) -> CheckedSource:
        """The source behind its checks."""
        source: CheckedSource = self.checked
        return source

    @cached_property
    def _loaded(self) -> Dataset | DataError:
        try:
            return self.source.load(draw())
        except DataError as error:
            return error

    @property
    def data(self) -> Dataset:
        """The data, loaded once; raises `SkipError` with the source's own sentence where they cannot be had."""
        if isinstance(self._loaded, DataError):
            raise SkipError(str(self._loaded))
        return self._loaded

    def images(self) -> Dataset:
        """Return the data if they are images."""
        if not self.data.space.is_image:
            raise SkipError("these are points")
        return self.data

    def stored(self) -> StoredImages:
        """Return the images as they are read a block at a time."""
        data = self.data
        if not self.source.opens:
            raise SkipError("it does not declare `opens`: data are loaded as a whole")
        images = self.source.open(draw())
        if len(images) * (2 if images.flips else 1) != len(data):
            raise FaultError(f"as many images from `open` as from `load`, {len(data):,}", f"{len(images):,}")
        return images

    def recipe(self, **sections: Any) -> Recipe:
        """Return the recipe of a short flow to some of the data."""
        data = self.data.spread(FEW)
        d = data.space.dimension
        directions = max(192, min(4 * d, 1024))
        schedule = {
            "use": "constant",
            "steps": 6,
            "directions": directions,
            "step_size": min(d, directions / 4),
        }
        return recipe_with("", None, data, **{"schedule": schedule, **sections})


def data_are_finite_and_labels_fit_their_classes(subject: SourceSubject) -> str:
    """Samples are d×N finite numbers, labels number the classes, and held-out samples are of the same kind."""
    data = subject.data
    held_out = "" if data.held_out is None else f", {len(data.held_out):,} held out"
    return f"{len(data):,} samples of {data.space}, {len(data.classes)} classes{held_out}"


def data_are_on_the_cpu(subject: SourceSubject) -> None:
    """Samples, labels and vectors are on the CPU: the engine brings them to its device."""
    y = subject.data.conditions
    for name, tensor in (("x", subject.data.x), ("labels", y.labels), ("vectors", y.vectors)):
        if tensor is not None and tensor.device.type != "cpu":
            raise FaultError(f"{name} on the CPU", f"{tensor.device}")


def data_follow_from_their_key(subject: SourceSubject) -> None:
    """Loaded twice with the same key, data are the same to the bit: a resumed run compares their checksum."""
    own = subject.data.digest()
    if subject.source.load(draw()).digest() != own:
        raise FaultError("the same data from the same key", "others")


def global_seeds_change_nothing(subject: SourceSubject) -> None:
    """Loading draws from `draw` only, and leaves the generators of `random`, NumPy and PyTorch alone."""
    own = subject.data.digest()
    if require_untouched(lambda: subject.source.load(draw())).digest() != own:
        raise FaultError("the same data under other global seeds", "others: only `draw` is repeatable")


def pixels_lie_in_their_range(subject: SourceSubject) -> None:
    """Pixels of images lie in [−1, 1), with room for the bin that each stands for."""
    data = subject.images()
    for samples in (data, data.held_out):
        if samples is not None:
            low, high = float(samples.x.min()), float(samples.x.max()) + samples.bin_width
            if not (low >= -1 - ROUNDING and high <= 1 + ROUNDING):
                raise FaultError("pixels in [−1, 1), a byte v as v/128 − 1", f"{low:.4g} … {high:.4g}")


def pixels_are_grey_levels(subject: SourceSubject) -> None:
    """With a `bin_width`, every pixel is −1 and a whole number of bins: noise then fills the bins exactly."""
    data = subject.images()
    if data.bin_width == 0:
        raise SkipError("bin_width is 0: pixels are any numbers")
    level = (data.spread(FEW).x.double() + 1) / data.bin_width
    gap = float((level - level.round()).abs().max())
    if not gap <= 1e-3:
        raise FaultError(f"pixels of −1 + k·{data.bin_width:.4g}", f"some {gap:.3g} of a bin apart from these")


def classes_have_names_of_their_own(subject: SourceSubject) -> str:
    """No two classes have one name; says so where a class has no samples."""
    data = subject.data
    labels = data.conditions.labels
    if labels is None:
        raise SkipError("there are no labels")
    if len(set(data.classes)) != len(data.classes):
        raise FaultError("different names of classes", f"{', '.join(data.classes)}")
    empty = [name for name, n in zip(data.classes, _counts(labels, len(data.classes)), strict=True) if not n]
    return f"no samples of {', '.join(empty)}" if empty else ""


def _counts(labels: Tensor, classes: int) -> list[int]:
    counts: list[int] = torch.bincount(labels, minlength=classes).tolist()
    return counts


def opened_images_are_the_loaded_ones(subject: SourceSubject) -> None:
    """`open` gives the images of `load`, in the same order, with the same labels and held-out images."""
    data, images = subject.images(), subject.stored()
    if images.classes != data.classes or (images.held_out is None) != (data.held_out is None):
        raise FaultError("the classes and held-out images of `load`", "others")
    if images.dequantise == "once":
        raise SkipError("noise is added once when it loads, so that pixels differ")
    some = torch.arange(len(data))[:: max(1, len(data) // FEW)]
    apart = StoredPixels(images, data.x.dtype).columns(some) - data.columns(some)
    if not float(apart.abs().max()) <= ROUNDING:
        raise FaultError("the pixels of `load`", f"values up to {float(apart.abs().max()):.3g} apart")
    labels = data.conditions.labels
    if labels is not None and not torch.equal(_labels(images), labels[: len(images)]):
        raise FaultError("the labels of `load`", "others")


def _labels(images: StoredImages) -> Tensor:
    return torch.empty(0, dtype=torch.int64) if images.labels is None else images.labels


def single_images_are_those_of_blocks(subject: SourceSubject) -> None:
    """`take` reads the images that `fill` reads, by any numbers in any order."""
    images = subject.stored()
    n = min(len(images), 8)
    block = images.block(0, n)
    order = torch.arange(n - 1, -1, -2)
    out = torch.empty(len(order), *images.space.shape, dtype=torch.uint8)
    images.take(order, out)
    if not torch.equal(out, block[order]):
        raise FaultError("the same images by `take` as by `fill`", "others")


def particles_begin_where_it_says(subject: SourceSubject) -> None:
    """`start` returns as many samples as there are particles, the same ones from the same key."""
    data = subject.data
    if not subject.source.starts:
        raise SkipError("it does not declare `starts`: particles begin in noise")
    first, second = (subject.source.start(data, FEW, draw("start")) for _ in range(2))
    if first is None:
        raise SkipError("with these parameters particles begin in noise")
    if len(first) != FEW:
        raise FaultError(f"{FEW} samples for {FEW} particles", f"{len(first)}")
    if second is None or first.digest() != second.digest():
        raise FaultError("the same samples from the same key", "others")


KIT = Kit(
    SourceSubject,
    (
        *SHARED,
        data_are_finite_and_labels_fit_their_classes,
        data_are_on_the_cpu,
        data_follow_from_their_key,
        global_seeds_change_nothing,
        pixels_lie_in_their_range,
        pixels_are_grey_levels,
        classes_have_names_of_their_own,
        opened_images_are_the_loaded_ones,
        single_images_are_those_of_blocks,
        particles_begin_where_it_says,
        a_short_flow_comes_nearer_to_the_data,
    ),
)
