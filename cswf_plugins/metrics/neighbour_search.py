"""The search for the training images nearest to samples and to control images, in one space after the other.

Control images are held out. Where nothing is, the training images are the control, each compared with all
others. A sample that completes an image is compared with all others too: it was given a part of that one.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import attrs
import torch
from torch import Tensor

from cswf_core.interfaces import BIN, Comparison, Dataset
from cswf_core.kernels.neighbours import nearest
from cswf_plugins.metrics.copies import Copies, relative_distances

SHOWN = 5
"""Neighbours of a sample that figures show."""

ToRows = Callable[[Dataset, Tensor | None], Tensor]
"""(images, which of them or None for all) → points of a space, n×D on the evaluation's device."""


@attrs.frozen(eq=False)
class ImageChoice:
    """Which images are looked at, and which training image each of them is not compared with."""

    samples: Tensor
    """n indices of generated images."""
    different: int
    """How many generated images differ, and could have been looked at."""
    control: Tensor
    """m indices: of held-out images, or of training images where nothing is held out."""
    k: int
    """How many of the nearest a relative distance is about."""
    own: tuple[Tensor, Tensor]
    """For samples (n) and control images (m) the training image left out of their search; −1: none."""
    own_mirrored: tuple[Tensor, Tensor]
    """The same among mirror images."""


@attrs.frozen(eq=False)
class Neighbours:
    """Distances of samples (n) and of control images (m) to training images, in one space."""

    where: str
    copies: Copies
    """By relative distances."""
    plain: tuple[Tensor, Tensor]
    """Distances of samples (n) and of control images (m) to the nearest other training image, as it is."""
    mirrored: tuple[Tensor, Tensor]
    """The same to mirror images that were added to the data; infinite where none were."""
    index: Tensor
    """n×SHOWN or fewer: the training images nearest to each sample, mirror images behind all others."""
    distances: Tensor
    """Their distances, of the same shape."""

    @property
    def samples(self) -> Tensor:
        """Distances of samples to training images, mirrored or not: n."""
        return torch.minimum(self.plain[0], self.mirrored[0])

    @property
    def real(self) -> Tensor:
        """The same of control images: m."""
        return torch.minimum(self.plain[1], self.mirrored[1])

    @property
    def limit(self) -> float:
        """The smallest distance of a control image that is not in the training data itself."""
        theirs = self.plain[1]
        apart = theirs[theirs > 0]
        return float(apart.min()) if len(apart) else 0.0

    @property
    def nearer(self) -> int:
        """How many samples are in the training data, or nearer to it than any control image beside it."""
        ours = self.plain[0]
        return int(((ours < self.limit) | (ours == 0)).sum())

    @property
    def closer(self) -> float:
        """Chance that a sample is nearer than a control image; one half for samples as far as those."""
        ordered = self.real.sort().values
        below, up_to = (torch.searchsorted(ordered, self.samples, right=right) for right in (False, True))
        return float((len(ordered) - (below + up_to) / 2).double().mean() / len(ordered))


def in_grey_levels(comparison: Comparison) -> Dataset:
    """Return the generated images in the grey levels of the training images, where these are fewer than 256.

    A flow fills grey levels with noise, and its samples have it; training and control images do not. A byte
    that two levels share belongs to the upper one, whose lowest byte it is.
    """
    generated = comparison.generated
    training = comparison.training
    assert training is not None
    width = training.bin_width
    if width <= BIN:
        return generated

    def rounded() -> Dataset:
        above = (comparison.bench.images(generated).flatten(1).T.double() + 1) * BIN
        levels = (above / width).floor().clamp_(max=round(2 / width) - 1)
        return attrs.evolve(generated, x=(levels * width - 1).to(training.x.dtype), bin_width=width)

    return comparison.bench.keep(("in grey levels", generated, width), rounded)


def choose_images(comparison: Comparison, neighbours: int, most_samples: int, most_control: int) -> ImageChoice:
    """Return which images to look at, at random where there are more, and k.

    Of several samples that are the same, or that complete one image, the first is taken.
    """
    training = comparison.training
    originals = comparison.originals
    assert training is not None
    real = training if comparison.held_out is None else comparison.held_out

    def some(candidates: Tensor, most: int) -> Tensor:
        chosen = torch.from_numpy(comparison.draw.host.permutation(len(candidates))[:most])
        return candidates if len(candidates) <= most else candidates[chosen]

    candidates = _different(comparison)
    samples = some(candidates, most_samples)
    control = some(torch.arange(len(real)), most_control)
    images = comparison.bench.images
    mirrored = comparison.mirrored
    nowhere = torch.full_like(samples, -1), torch.full_like(control, -1)
    own, own_mirrored = list(nowhere), list(nowhere)
    if originals is not None:
        completed = attrs.evolve(comparison.generated, x=originals).take(samples).images()
        own[0] = _places(completed, images(training), either_way=mirrored is not None)
        own_mirrored[0] = own[0] if mirrored is None else _places(completed, images(mirrored), either_way=True)
    if comparison.held_out is None:
        own[1] = control
        if mirrored is not None:
            own_mirrored[1] = _places(images(training)[control].flip(-1), images(mirrored))
    k = max(2, min(neighbours, len(training) // 2))
    return ImageChoice(
        samples, len(candidates), control, k, (own[0], own[1]), (own_mirrored[0], own_mirrored[1])
    )


def _different(comparison: Comparison) -> Tensor:
    """Return the first sample that completes each image, or the first of those that are the same, by index.

    Samples that are drawn on their own are as likely to be copies as the control is, but not their repetitions.
    """
    generated = in_grey_levels(comparison)
    origin = generated.conditions.origin
    keys = _hashes(comparison.bench.images(generated)) if origin is None else origin.tolist()
    first = {key: number for number, key in reversed(list(enumerate(keys)))}
    return torch.tensor(sorted(first.values()))


def _places(wanted: Tensor, images: Tensor, *, either_way: bool = False) -> Tensor:
    """Return where images stand among others, both as bytes: n indices, −1 for one that is not there.

    `either_way`: or its mirror image, if that is there.
    """
    place_of = {key: place for place, key in reversed(list(enumerate(_hashes(images))))}
    places = torch.tensor([place_of.get(key, -1) for key in _hashes(wanted)])
    if not either_way:
        return places
    return torch.where(places < 0, _places(wanted.flip(-1), images), places)


def _hashes(images: Tensor) -> list[int]:
    return [hash(image.tobytes()) for image in images.contiguous().numpy()]


def search(comparison: Comparison, choice: ImageChoice, where: str, to_rows: ToRows) -> Neighbours:
    """Return the neighbours of samples and of control images in one space."""
    training, mirrored = comparison.training, comparison.mirrored
    assert training is not None
    points = to_rows(training, None)
    real = training if comparison.held_out is None else comparison.held_out
    queries = to_rows(comparison.generated, choice.samples), to_rows(real, choice.control)
    ours, theirs = (_others(*each, points, choice.k) for each in zip(queries, choice.own, strict=True))
    plain = ours.first, theirs.first
    index = ours.index[:, :SHOWN]
    distances = ours.distances[:, :SHOWN]
    turned_ratios = None
    turned_first = torch.full_like(plain[0], math.inf), torch.full_like(plain[1], math.inf)
    if mirrored is not None:
        turned_points = to_rows(mirrored, None)
        turned, turned_real = (
            _others(*each, turned_points, choice.k) for each in zip(queries, choice.own_mirrored, strict=True)
        )
        turned_ratios = turned.ratios, turned_real.ratios
        turned_first = turned.first, turned_real.first
        distances = torch.cat([distances, turned.distances[:, :SHOWN]], dim=1)
        distances, order = distances.sort(dim=1, stable=True)
        index = torch.cat([index, turned.index[:, :SHOWN] + len(points)], dim=1).gather(1, order)
    copies = Copies(ours.ratios, theirs.ratios, turned_ratios, left_out=comparison.held_out is None)
    return Neighbours(where, copies, plain, turned_first, index[:, :SHOWN], distances[:, :SHOWN])


@attrs.frozen(eq=False)
class _Found:
    """The images nearest to some queries (n), nearest first."""

    distances: Tensor
    index: Tensor
    ratios: Tensor
    """Relative distances: n."""

    @property
    def first(self) -> Tensor:
        """The distance to the nearest: n."""
        return self.distances[:, 0].contiguous()


def _others(queries: Tensor, own: Tensor, points: Tensor, k: int) -> _Found:
    """Return the points (N×D) nearest to queries (n×D), but for one point of its own for each query."""
    count = min(max(k, SHOWN), len(points) - 1) + 1
    distances, index = nearest(queries, points, count)
    left_out = index == own.to(index.device)[:, None]
    left_out[:, -1] |= ~left_out.any(dim=1)  # its own is farther away than all of these, or there is none
    shape = len(queries), count - 1
    others = distances[~left_out].reshape(shape)
    return _Found(others, index[~left_out].reshape(shape), relative_distances(others[:, :k]))
