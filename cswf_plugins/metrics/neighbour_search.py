"""The search for the training images nearest to samples and to control images, in one space after the other.

Control images are held out. Where nothing is, the training images are cut into two halves at random, and each
half in turn is searched while images of the other are the control: an image is never its own neighbour, and
samples and control are treated alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import attrs
import torch
from torch import Tensor

from cswf_core.interfaces import Comparison, Dataset
from cswf_core.kernels.neighbours import nearest
from cswf_plugins.metrics.copies import NEAR, Copies, Fold, relative_distances

SHOWN = 5
"""Neighbours of a sample that figures show."""

ToRows = Callable[[Dataset, Tensor | None], Tensor]
"""(images, which of them or None for all) → points of a space, n×D on the evaluation's device."""


@attrs.frozen(eq=False)
class Choice:
    """Which images are looked at: samples, control images, and the half of each training image."""

    samples: Tensor
    """n indices of generated images."""
    control: Tensor
    """m indices: of held-out images, or of training images where nothing is held out."""
    halves: Tensor | None
    """0 or 1 for each training image where nothing is held out; None: images are held out."""
    k: int
    """How many of the nearest a relative distance is about."""

    @property
    def folds(self) -> int:
        """How often is searched: once, or once in each half."""
        return 1 if self.halves is None else 2


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
    def nearer(self) -> int:
        """How many samples are nearer to a training image than any control image is, by the distance itself.

        Control images that are in the training data themselves do not count; samples that are, always do.
        """
        ours, theirs = self.plain
        apart = theirs[theirs > 0]
        limit = float(apart.min()) if len(apart) else 0.0
        return int(((ours < limit) | (ours == 0)).sum())

    @property
    def closer(self) -> float:
        """Chance that a sample is nearer than a control image; one half for samples as far as those."""
        ordered = self.real.sort().values
        below, up_to = (torch.searchsorted(ordered, self.samples, right=right) for right in (False, True))
        return float((len(ordered) - (below + up_to) / 2).double().mean() / len(ordered))


def choose_images(comparison: Comparison, neighbours: int, most_samples: int, most_control: int) -> Choice:
    """Return which images to look at, at random where there are more, and k."""
    training, host = comparison.training, comparison.draw.host
    assert training is not None
    real = training if comparison.held_out is None else comparison.held_out

    def some(count: int, most: int) -> Tensor:
        chosen = torch.from_numpy(host.permutation(count)[:most])
        return torch.arange(count) if count <= most else chosen

    samples, control = some(len(comparison.generated), most_samples), some(len(real), most_control)
    if comparison.held_out is not None:
        return Choice(samples, control, None, max(1, min(neighbours, len(training) // 2)))
    halves = torch.from_numpy(host.permutation(len(training)) % 2)
    control = _of_both_halves(control, halves)
    return Choice(samples, control, halves, max(1, min(neighbours, len(training) // 4)))


def _of_both_halves(control: Tensor, halves: Tensor) -> Tensor:
    """Return control images of which each half has one at least: m or m + 1 indices."""
    for half in (0, 1):
        if not bool((halves[control] == half).any()):
            control = torch.cat([control, (halves == half).nonzero()[:1, 0]])
    return control


def search(comparison: Comparison, choice: Choice, where: str, to_rows: ToRows) -> Neighbours:
    """Return the neighbours of samples and of control images in one space."""
    training, mirrored = comparison.training, comparison.mirrored
    assert training is not None
    points = to_rows(training, None)
    ours = to_rows(comparison.generated, choice.samples)
    own = comparison.held_out is None
    theirs = (
        points[choice.control.to(points.device)]
        if comparison.held_out is None
        else to_rows(comparison.held_out, choice.control)
    )
    plain = _search(ours, theirs, points, choice, choice.halves)
    real = plain.real if not own else torch.minimum(plain.real, _nearest_in_own_half(theirs, points, choice))
    if mirrored is None:
        folds = _folds(choice, plain, None)
        infinite = torch.full_like(plain.samples, math.inf), torch.full_like(real, math.inf)
        return Neighbours(where, folds, (plain.samples, real), infinite, plain.index, plain.distances)
    turned_points, sides = to_rows(mirrored, None), _halves_of_mirror_images(comparison, choice)
    turned = _search(ours, theirs, turned_points, choice, sides)
    to_mirrored = turned.real
    if own:
        assert sides is not None
        inside = _nearest_mirrored_in_own_half(comparison, theirs, turned_points, choice, sides)
        to_mirrored = torch.minimum(to_mirrored, inside)
    distances, index = _merged([plain.distances, turned.distances], [plain.index, turned.index + len(points)])
    both = (plain.samples, real), (turned.samples, to_mirrored)
    return Neighbours(where, _folds(choice, plain, turned), *both, index, distances)


@attrs.frozen(eq=False)
class _Searched:
    """What a search among some images gives, fold by fold and for all folds together."""

    ratios: Sequence[tuple[Tensor, Tensor]]
    """For each fold, relative distances of samples (n) and of its control images."""
    samples: Tensor
    """Distances of samples to the nearest image: n."""
    real: Tensor
    """Of control images (m) to the nearest of those that were searched for them."""
    index: Tensor
    distances: Tensor
    """Of the SHOWN nearest to each sample, in all folds."""


def _search(ours: Tensor, theirs: Tensor, points: Tensor, choice: Choice, halves: Tensor | None) -> _Searched:
    """Search images (N×D), in halves or not, for samples (n×D) and control images (m×D)."""
    device, count = points.device, len(theirs)
    ratios, every_distance, every_index = [], [], []
    real = torch.full((count,), math.inf, device=device)
    for half in range(choice.folds):
        if choice.halves is None or halves is None:
            inside, among = torch.arange(len(points)), torch.arange(count)
        else:
            inside = (halves == half).nonzero()[:, 0]
            among = (choice.halves[choice.control] != half).nonzero()[:, 0]
        inside, among = inside.to(device), among.to(device)
        part = points if len(inside) == len(points) else points[inside]
        distances, index = _nearest(ours, part, max(choice.k, SHOWN))
        of_real, _ = _nearest(theirs[among], part, choice.k)
        ratios.append((relative_distances(distances[:, : choice.k]), relative_distances(of_real)))
        real[among] = of_real[:, 0]
        every_distance.append(distances[:, :SHOWN])
        every_index.append(inside[index[:, :SHOWN]] if len(inside) else index[:, :SHOWN])
    distances, index = _merged(every_distance, every_index)
    return _Searched(ratios, distances[:, 0].contiguous(), real, index, distances)


def _nearest(queries: Tensor, points: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the nearest points as `nearest` does, fewer than k if there are; infinitely far if none."""
    if not len(points):
        infinite = torch.full((len(queries), 1), math.inf, device=queries.device)
        return infinite, torch.zeros_like(infinite, dtype=torch.long)
    return nearest(queries, points, min(k, len(points)))


def _merged(distances: Sequence[Tensor], index: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Return the SHOWN nearest of several searches: n×SHOWN distances, rising, and the indices of them."""
    together = torch.cat(list(distances), dim=1)
    order = together.argsort(dim=1, stable=True)[:, :SHOWN]
    return together.gather(1, order), torch.cat(list(index), dim=1).gather(1, order)


def _folds(choice: Choice, plain: _Searched, turned: _Searched | None) -> Copies:
    mirrored = [None] * choice.folds if turned is None else turned.ratios
    each = zip(plain.ratios, mirrored, strict=True)
    return Copies([Fold(*ratios, mirrored=other, near_share=NEAR / choice.folds) for ratios, other in each])


def _nearest_in_own_half(theirs: Tensor, points: Tensor, choice: Choice) -> Tensor:
    """Return the distances of control images (m×D) to the nearest other training image of their half: m."""
    distances, _ = _within_halves(theirs, points, choice, choice.halves)
    # Each is its own nearest; the second is the nearest other, also if that is a twin.
    return distances[:, 1]


def _nearest_mirrored_in_own_half(
    comparison: Comparison, theirs: Tensor, mirrored: Tensor, choice: Choice, sides: Tensor
) -> Tensor:
    """Return the distances of control images (m×D) to mirror images of their half, but for their own: m."""
    assert comparison.training is not None
    assert comparison.mirrored is not None
    distances, index = _within_halves(theirs, mirrored, choice, sides)
    images = comparison.bench.images
    own = images(comparison.training)[choice.control].flip(-1)
    same = (images(comparison.mirrored)[index[:, 0].cpu()] == own).flatten(1).all(dim=1)
    return torch.where(same.to(distances.device), distances[:, 1], distances[:, 0])


def _within_halves(
    theirs: Tensor, points: Tensor, choice: Choice, sides: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return the two nearest points of their own half to control images: m×2 distances, and indices."""
    assert choice.halves is not None
    assert sides is not None
    distances = torch.full((len(theirs), 2), math.inf, device=points.device)
    index = torch.zeros((len(theirs), 2), dtype=torch.long, device=points.device)
    for half in (0, 1):
        inside = (sides == half).nonzero()[:, 0].to(points.device)
        among = (choice.halves[choice.control] == half).nonzero()[:, 0].to(points.device)
        near, which = _nearest(theirs[among], points[inside], 2)
        for column in range(near.shape[1] if len(inside) else 0):
            distances[among, column] = near[:, column]
            index[among, column] = inside[which[:, column]]
    return distances, index


def _halves_of_mirror_images(comparison: Comparison, choice: Choice) -> Tensor | None:
    """Return the half of each mirror image, that of the image it mirrors; None where there are no halves."""
    if choice.halves is None:
        return None
    assert comparison.training is not None
    assert comparison.mirrored is not None
    images = comparison.bench.images
    half_of = dict(zip(_hashes(images(comparison.training)), choice.halves.tolist(), strict=True))
    mirrored = _hashes(images(comparison.mirrored).flip(-1))
    return torch.tensor([half_of.get(key, number % 2) for number, key in enumerate(mirrored)])


def _hashes(images: Tensor) -> list[int]:
    return [hash(image.tobytes()) for image in images.contiguous().numpy()]
