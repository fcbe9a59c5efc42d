"""Checks of data sources."""

from __future__ import annotations

from functools import cached_property

import torch

from cswf_core.checks import CheckedSource
from cswf_core.checks.data import pixel_range
from cswf_core.errors import DataError
from cswf_core.interfaces import Dataset, Draw, Key, StoredImages, StoredPixels
from cswf_core.recipe import Recipe
from cswf_core.testing.flows import FlowSubject, a_short_flow_comes_nearer_to_the_data, recipe_with
from cswf_core.testing.outcome import SkipError, require

FEW = 48
"""Samples of a short flow, and those that are read one by one."""


def draw(role: str = "data") -> Draw:
    """Return the draw that a run's data come from, or where its particles begin."""
    return Key(3, role).open()


class SourceSubject(FlowSubject[CheckedSource]):
    """A data source."""

    kind = "dataset"
    in_flows = (a_short_flow_comes_nearer_to_the_data,)

    @cached_property
    def _loaded(self) -> Dataset | DataError:
        try:
            return self.checked.load(draw())
        except DataError as error:
            return error

    @property
    def data(self) -> Dataset:
        """The data, loaded once; raises `SkipError` with the source's own sentence where they cannot be had."""
        if isinstance(self._loaded, DataError):
            raise SkipError(str(self._loaded))
        return self._loaded

    def start(self) -> Dataset | None:
        """Return where a few particles begin; None: in noise."""
        return self.checked.start(self.data, FEW, draw("start"))

    def answers(self) -> list[str | None]:
        """Return the digests of the data, loaded anew, and of where particles begin."""
        start = self.start()
        return [self.checked.load(draw()).digest(), None if start is None else start.digest()]

    def images(self) -> Dataset:
        """Return the data if they are images."""
        if not self.data.space.is_image:
            raise SkipError("these are points")
        return self.data

    def stored(self) -> StoredImages:
        """Return the images as they are read a block at a time."""
        data = self.data
        if not self.checked.opens:
            raise SkipError("it does not declare `opens`: data are loaded as a whole")
        images = self.checked.open(draw())
        same = len(images) * (2 if images.flips else 1) == len(data)
        require(same, f"as many images from `open` as from `load`, {len(data):,}", f"{len(images):,}")
        return images

    def recipe(self) -> Recipe:
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
        return recipe_with("", None, data, schedule=schedule)


def data_are_finite_and_labels_fit_their_classes(subject: SourceSubject) -> str:
    """Samples are d×N finite numbers, labels number the classes, and held-out samples are of the same kind.

    They are on the CPU. Pixels of images lie in [−1, 1), with room for the bin that each stands for.
    """
    data = subject.data
    y = data.conditions
    for name, tensor in (("x", data.x), ("labels", y.labels), ("vectors", y.vectors)):
        if tensor is not None:  # the engine brings them to its device
            require(tensor.device.type == "cpu", f"{name} on the CPU", tensor.device)
    if data.held_out is not None and data.space.is_image:  # those of the data have been looked at on loading
        fits, low, high = pixel_range(data.held_out)
        require(fits, "held-out pixels in [−1, 1), a byte v as v/128 − 1", f"{low:.4g} … {high:.4g}")
    held_out = "" if data.held_out is None else f", {len(data.held_out):,} held out"
    return f"{len(data):,} samples of {data.space}, {len(data.classes)} classes{held_out}"


def pixels_are_grey_levels(subject: SourceSubject) -> None:
    """With a `bin_width`, every pixel is −1 and a whole number of bins: noise then fills the bins exactly."""
    data = subject.images()
    if data.bin_width == 0:
        raise SkipError("bin_width is 0: pixels are any numbers")
    level = (data.spread(FEW).x.double() + 1) / data.bin_width
    gap = float((level - level.round()).abs().max())
    expected = f"pixels of −1 + k·{data.bin_width:.4g}"
    require(gap <= 1e-3, expected, f"some {gap:.3g} of a bin apart from these")


def classes_have_names_of_their_own(subject: SourceSubject) -> str:
    """No two classes have one name; says so where a class has no samples."""
    data = subject.data
    labels = data.conditions.labels
    if labels is None:
        raise SkipError("there are no labels")
    different = len(set(data.classes)) == len(data.classes)
    require(different, "different names of classes", ", ".join(data.classes))
    counts = torch.bincount(labels, minlength=len(data.classes)).tolist()
    empty = [name for name, count in zip(data.classes, counts, strict=True) if not count]
    return f"no samples of {', '.join(empty)}" if empty else ""


def opened_images_are_the_loaded_ones(subject: SourceSubject) -> None:
    """`open` gives the images of `load`, in the same order, with the same labels and held-out images."""
    data = subject.images()
    images = subject.stored()
    same = images.classes == data.classes and (images.held_out is None) == (data.held_out is None)
    require(same, "the classes and held-out images of `load`", "others")
    if images.dequantise == "once":
        raise SkipError("noise is added once when it loads, so that pixels differ")
    some = torch.arange(len(data))[:: max(1, len(data) // FEW)]
    gap = float((StoredPixels(images, data.x.dtype).columns(some) - data.columns(some)).abs().max())
    require(gap <= 1e-5, "the pixels of `load`", f"values up to {gap:.3g} apart")
    labels = data.conditions.labels
    if labels is not None:
        same = images.labels is not None and torch.equal(images.labels, labels[: len(images)])
        require(same, "the labels of `load`", "others")


def single_images_are_those_of_blocks(subject: SourceSubject) -> None:
    """`take` reads the images that `fill` reads, by any numbers in any order."""
    images = subject.stored()
    n = min(len(images), 8)
    block = images.block(0, n)
    order = torch.arange(n - 1, -1, -2)
    out = torch.empty(len(order), *images.space.shape, dtype=torch.uint8)
    images.take(order, out)
    require(torch.equal(out, block[order]), "the same images by `take` as by `fill`", "others")


def particles_begin_where_it_says(subject: SourceSubject) -> None:
    """`start` returns as many samples as there are particles."""
    if not subject.checked.starts:
        raise SkipError("it does not declare `starts`: particles begin in noise")
    start = subject.start()
    if start is None:
        raise SkipError("with these parameters particles begin in noise")
    require(len(start) == FEW, f"{FEW} samples for {FEW} particles", len(start))
