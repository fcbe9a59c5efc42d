"""Metric `nearest-neighbours`: how near samples are to the training images, and whether some are copies.

What it is: the distance from each sample to the nearest training image, beside the same for held-out images,
which cannot be copies: in pixels (L2, in [−1, 1]) and in Inception features. Where nothing is held out,
training images and their nearest others stand in. Figures show samples and neighbours: any, and the nearest.
Cost: a product of n×d×N; for features, those of `fid`.
When not to use it: as a measure of quality. Blurred images are near to many.
"""

from __future__ import annotations

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


@attrs.frozen
class Distances:
    """Distances of samples and of real images to their nearest training images, in one space."""

    where: Where
    samples: Tensor
    """n, nearest first in each."""
    real: Tensor
    """m."""
    neighbours: Tensor
    """n×NEIGHBOURS or fewer: which training images are nearest to each sample."""

    @property
    def copied(self) -> int:
        """How many samples are nearer to a training image than any of the real images is.

        Real images that are in the training data themselves do not count; samples that are, always do.
        """
        apart = self.real[self.real > 0]
        limit = float(apart.min()) if len(apart) else 0.0
        return int(((self.samples < limit) | (self.samples == 0)).sum())

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
        if (n / (n + m)) ** self.copied < CHANCE:  # the k smallest of n + m numbers in any order, all of the n
            sentences.append(
                f"copying: {self.copied:,} of {n:,} samples are nearer to a training image, in {self.where}, "
                f"than any of {m:,} {control} images is"
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
        training = comparison.training
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
            notes += distances.warnings(control)
        images = comparison.bench.images
        closest = spaces[0].samples.argsort()
        figures = {
            name: _figure(images(comparison.generated)[queries], images(training), spaces, rows[:ROWS].cpu())
            for name, rows in (("nearest-neighbours", torch.arange(len(queries))), ("nearest-of-all", closest))
        }
        protocol = (
            f"nearest of {len(training):,} training images to {len(queries):,} samples and to "
            f"{len(controls):,} {control} images; copied: nearer than any of the latter; near: as near as "
            f"their nearest {NEAR:.0%}; closer: chance to be nearer than one of them"
        )
        if "features" in self.spaces:
            protocol = self.stated(protocol, comparison)
        return Result(scores, protocol, notes, figures, samples=len(queries), details=details)

    def _distances(self, comparison: Comparison, where: Where, queries: Tensor, controls: Tensor) -> Distances:
        training = comparison.training
        assert training is not None
        points = self._rows(comparison, training, where, None)
        k = min(NEIGHBOURS, len(training))
        samples, index = nearest(self._rows(comparison, comparison.generated, where, queries), points, k)
        if comparison.held_out is not None:
            real, _ = nearest(self._rows(comparison, comparison.held_out, where, controls), points, 1)
            return Distances(where, samples[:, 0].contiguous(), real[:, 0], index)
        # Each is its own nearest; the second is the nearest other, also if that is a twin.
        others, _ = nearest(points[controls.to(points.device)], points, 2)
        return Distances(where, samples[:, 0].contiguous(), others[:, 1], index)

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
