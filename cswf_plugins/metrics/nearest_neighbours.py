"""Metric `nearest-neighbours`: how near samples are to the training images, and whether some are copies.

What it is: the distance from each sample to the nearest training image, beside the same for held-out images,
which cannot be copies: in pixels (L2, in [−1, 1]) and in Inception features. Where nothing is held out,
training images and their nearest others stand in. Figures show samples and neighbours: any, and the nearest.
Where the data have mirror images, copies of these are counted apart: held-out images that are like one of them
(12 of CIFAR-10's nearly are) would hide copies.
Cost: a product of n×d×N; for features, those of `fid`.
When not to use it: as a measure of quality. Blurred images are near to many.
"""

from __future__ import annotations

import math
from typing import Literal

import attrs
import torch
from torch import Tensor

from cswf_core.errors import DataError
from cswf_core.interfaces import BIN, Comparison, Dataset, Figure, Result, Workbench, parameter
from cswf_core.kernels.neighbours import nearest
from cswf_plugins.inception.features import some_features
from cswf_plugins.metrics.inception import InceptionMetric

Where = Literal["pixels", "features"]

NEAR = 0.01
"""Share of held-out images, the nearest to training images; a sample as near as these may be a copy."""
FLAGGED = 0.05
"""Share of such samples that is too many, beyond chance."""
CHANCE = 1e-3
"""How rarely samples that are as far as held-out images are should be called copies."""
ROWS = 10
NEIGHBOURS = 5
"""Rows of a figure, and training images in each."""


def chance(ours: int, theirs: int, n: int, m: int) -> float:
    """Return the probability that so many of the nearest are ours, or more, if n and m are drawn alike.

    The nearest ours + theirs of all n + m are ours with probability n / (n + m) each.
    """
    both, share = ours + theirs, n / (n + m)
    ways = (
        math.lgamma(both + 1) - math.lgamma(k + 1) - math.lgamma(both - k + 1) for k in range(ours, both + 1)
    )
    return sum(
        math.exp(way + k * math.log(share) + (both - k) * math.log1p(-share))
        for k, way in enumerate(ways, start=ours)
    )


@attrs.frozen
class Distances:
    """Distances of samples and of real images to their nearest training images, in one space."""

    where: Where
    plain: tuple[Tensor, Tensor]
    """Of samples (n) and of real images (m), to training images as they are."""
    mirrored: tuple[Tensor, Tensor]
    """The same to mirror images that were added to the data; infinite where none were."""
    neighbours: Tensor
    """n×NEIGHBOURS or fewer: the training images nearest to each sample, mirrored or not."""

    @property
    def samples(self) -> Tensor:
        """Of samples to training images, mirrored or not: n."""
        return torch.minimum(self.plain[0], self.mirrored[0])

    @property
    def real(self) -> Tensor:
        """The same of real images: m."""
        return torch.minimum(self.plain[1], self.mirrored[1])

    @property
    def copied(self) -> int:
        """How many samples are nearer to a training image than any of the real images is.

        Real images that are in the training data themselves do not count; samples that are, always do.
        """
        return int(self._within(self.plain[0]).sum())

    @property
    def copied_mirrored(self) -> tuple[int, int]:
        """How many samples, and how many real images, are as near as that to a mirror image only."""
        ours, theirs = (
            int((self._within(mirrored) & ~self._within(plain)).sum())
            for plain, mirrored in zip(self.plain, self.mirrored, strict=True)
        )
        return ours, theirs

    def _within(self, distances: Tensor) -> Tensor:
        apart = self.plain[1][self.plain[1] > 0]
        limit = float(apart.min()) if len(apart) else 0.0
        return (distances < limit) | (distances == 0)

    @property
    def near(self) -> float:
        """Share of samples as near as the nearest hundredth of the real images, which have 0.01."""
        return float((self.samples <= torch.quantile(self.real, NEAR)).double().mean())

    @property
    def closer(self) -> float:
        """Chance that a sample is nearer than a real image; one half for samples that are as far as those."""
        ordered = self.real.sort().values
        below, up_to = (torch.searchsorted(ordered, self.samples, right=right) for right in (False, True))
        return float((len(ordered) - (below + up_to) / 2).double().mean() / len(ordered))

    def warnings(self, control: str) -> list[str]:
        """Return a sentence for each sign of copying that cannot be chance: too many samples too near."""
        n, m = len(self.samples), len(self.real)
        spread = (FLAGGED * (1 - FLAGGED) / n) ** 0.5
        sentences = []
        if chance(self.copied, 0, n, m) < CHANCE:
            sentences.append(
                f"copying: {self.copied:,} of {n:,} samples are nearer to a training image, in {self.where}, "
                f"than any of {m:,} {control} images is"
            )
        ours, theirs = self.copied_mirrored
        if chance(ours, theirs, n, m) < CHANCE:
            sentences.append(
                f"copying: {ours:,} of {n:,} samples, and {theirs:,} of {m:,} {control} images, are nearer to "
                f"the mirror image of a training image, in {self.where}, than any of the latter is to a "
                "training image itself"
            )
        if self.near > FLAGGED + 3 * spread:
            sentences.append(
                f"copying: {self.near:.1%} of the samples are as near to a training image, in {self.where}, as "
                f"{NEAR:.0%} of {control} images are"
            )
        return sentences

    @property
    def ending(self) -> str:
        """The end of the names of scores in this space."""
        return "l2" if self.where == "pixels" else "features"

    def details(self) -> dict[str, float]:
        """Return the numbers by name, but for the copies."""
        return {
            f"near_{self.ending}": self.near,
            f"closer_{self.ending}": self.closer,
            f"nearest_{self.ending}": float(self.samples.median()),
            f"nearest_{self.ending}_of_real": float(self.real.median()),
            f"smallest_{self.ending}": float(self.samples.min()),
        }

    def mirrored_details(self) -> dict[str, float]:
        """Return the copies of mirror images, by name."""
        ours, theirs = self.copied_mirrored
        return {
            f"copied_mirrored_{self.ending}": ours / len(self.samples),
            f"copied_mirrored_{self.ending}_of_real": theirs / len(self.real),
        }


@attrs.frozen(kw_only=True)
class NearestNeighbours(InceptionMetric):
    """Distances to the nearest training images, and a warning of copies."""

    NAME = "nearest-neighbours"
    once = True

    spaces: tuple[Where, ...] = parameter(
        "where distances are taken: in 'pixels', in 'features', or both", default=("pixels", "features")
    )
    samples: int = parameter(
        "how many samples and held-out images are looked at, at most", default=10_000, at_least=1
    )

    def check(self, data: Dataset, bench: Workbench) -> None:
        """Look for the network's file if features are wanted."""
        if "features" in self.spaces:
            super().check(data, bench)
        elif not data.space.is_image:
            raise DataError("metric 'nearest-neighbours' compares images, and these are points")

    def compute(self, comparison: Comparison) -> Result:
        """Return `copied`, `near`, `closer`, `nearest`, `nearest_…_of_real` and `smallest`, for every space."""
        training, mirrored = comparison.training, comparison.mirrored
        if training is None or len(training) < 2:
            raise DataError("metric 'nearest-neighbours' needs the training images, and there are none")
        queries = _some(len(comparison.generated), self.samples, comparison)
        held_out = comparison.held_out
        control, real = ("other training", training) if held_out is None else ("held-out", held_out)
        controls = _some(len(real), self.samples, comparison)
        scores: dict[str, float] = {}
        details: dict[str, float] = {}
        notes: list[str] = []
        spaces: list[Distances] = []
        for where in dict.fromkeys(self.spaces):
            comparison.bench.tell(f"nearest training images, in {where}", len(spaces), len(self.spaces))
            distances = self._distances(comparison, where, queries, controls)
            spaces.append(distances)
            scores[f"copied_{distances.ending}"] = distances.copied / len(queries)
            details |= distances.details()
            details |= {} if mirrored is None else distances.mirrored_details()
            notes += distances.warnings(control)
        images = comparison.bench.images
        known = images(training) if mirrored is None else torch.cat([images(training), images(mirrored)])
        closest = spaces[0].samples.argsort()
        figures = {
            name: _figure(images(comparison.generated)[queries], known, spaces, rows[:ROWS].cpu())
            for name, rows in (("nearest-neighbours", torch.arange(len(queries))), ("nearest-of-all", closest))
        }
        protocol = (
            f"nearest of {len(known):,} training images to {len(queries):,} samples and to "
            f"{len(controls):,} {control} images; copied: nearer than any of the latter; near: as near as "
            f"their nearest {NEAR:.0%}; closer: chance to be nearer than one of them"
        )
        if mirrored is not None:
            protocol += (
                f"; {len(mirrored):,} of the training images are mirror images, copies of which count as "
                "copied_mirrored"
            )
        if "features" in self.spaces:
            protocol = self.stated(protocol, comparison)
        return Result(scores, protocol, notes, figures, samples=len(queries), details=details)

    def _distances(self, comparison: Comparison, where: Where, queries: Tensor, controls: Tensor) -> Distances:
        assert comparison.training is not None
        points = self._rows(comparison, comparison.training, where, None)
        ours = self._rows(comparison, comparison.generated, where, queries)
        if comparison.held_out is not None:
            theirs = self._rows(comparison, comparison.held_out, where, controls)
            real, _ = nearest(theirs, points, 1)
        else:  # each is its own nearest; the second is the nearest other, also if that is a twin
            theirs = points[controls.to(points.device)]
            real, _ = nearest(theirs, points, 2)
        samples, index = nearest(ours, points, min(NEIGHBOURS, len(points)))
        plain = samples[:, 0].contiguous(), real[:, -1].contiguous()
        if comparison.mirrored is None:
            infinite = torch.full_like(plain[0], math.inf), torch.full_like(plain[1], math.inf)
            return Distances(where, plain, infinite, index)
        mirrored = self._rows(comparison, comparison.mirrored, where, None)
        turned, turned_index = nearest(ours, mirrored, min(NEIGHBOURS, len(mirrored)))
        order = torch.cat([samples, turned], dim=1).argsort(dim=1, stable=True)[:, :NEIGHBOURS]
        neighbours = torch.cat([index, turned_index + len(points)], dim=1).gather(1, order)
        to_mirrored = self._to_mirror_images(comparison, theirs, mirrored, controls)
        return Distances(where, plain, (turned[:, 0].contiguous(), to_mirrored), neighbours)

    def _to_mirror_images(
        self, comparison: Comparison, theirs: Tensor, mirrored: Tensor, controls: Tensor
    ) -> Tensor:
        """Return the distances of real images (m×D) to mirror images; an image's own is no other: m."""
        distances, index = nearest(theirs, mirrored, min(2, len(mirrored)))
        if comparison.held_out is not None:
            return distances[:, 0].contiguous()
        assert comparison.training is not None
        assert comparison.mirrored is not None
        images = comparison.bench.images
        own = images(comparison.training)[controls].flip(-1)
        same = (images(comparison.mirrored)[index[:, 0].cpu()] == own).flatten(1).all(dim=1)
        return torch.where(same.to(distances.device), distances[:, -1], distances[:, 0])

    def _rows(self, comparison: Comparison, samples: Dataset, where: Where, index: Tensor | None) -> Tensor:
        """Return some samples, or all, as points of a space: n×D on the evaluation's device."""
        device = comparison.draw.device
        if where == "features":
            every = torch.arange(len(samples)) if index is None else index
            return some_features(comparison, samples, self.mode, every)
        images = comparison.bench.images(samples)
        chosen = images if index is None else images[index]
        return chosen.to(device).reshape(len(chosen), -1).float() * BIN - 1


def _some(count: int, most: int, comparison: Comparison) -> Tensor:
    """Return the indices of at most `most` of `count` samples, at random where there are more."""
    chosen = torch.from_numpy(comparison.draw.host.permutation(count)[:most])
    return torch.arange(count) if count <= most else chosen


def _figure(samples: Tensor, training: Tensor, spaces: list[Distances], rows: Tensor) -> Figure:
    """Return rows of a sample and its nearest training images, in each space."""
    nearest_of = [distances.neighbours.cpu() for distances in spaces]
    images = [
        torch.cat([samples[r, None], *(training[index[r]] for index in nearest_of)]) for r in rows.tolist()
    ]
    top = ["sample"]
    for distances, index in zip(spaces, nearest_of, strict=True):
        width = index.shape[1]
        top += [f"by {distances.where}" if c == width // 2 else "" for c in range(width)]
    return Figure(images, top)
