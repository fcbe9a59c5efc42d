"""A two-sample test: are new samples of a model distributed as the particles of its run?

Maps fit the particles that they were made of better than others: with many steps and few particles, new
samples go outwards (docs/paper.md, *Offline samples drift*), and with very few they may stay too narrow.
docs/models.md, *Sampling*, has the measurements behind the thresholds.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import attrs
import numpy as np
import torch
from torch import Tensor

from cswf_core.arrays import Array, read_archive
from cswf_core.documents import Amount, Count, Fraction, parse_json, structured
from cswf_core.errors import DataError
from cswf_core.interfaces import BIN, Key

log = logging.getLogger("cswf")

NAME = "two_sample_test"
"""The name of the result in files: an array of an .npz file, a text of a PNG file, a key of JSON."""

LEAST_SAMPLES = 200
"""Fewer new samples are not compared."""

LEAST_PAIRS = 50
MOST_PAIRS = 2000
"""Pairs of a sample and a particle that are compared, at least and at most."""

MOST_NUMBERS = MOST_PAIRS * 3072
"""Numbers of the samples that are compared, at most: of large images there are fewer pairs."""

COMPARED = ("images", "points", "labels")
"""The arrays of an .npz file that are compared."""

DIRECTIONS = 200
PERMUTATIONS = 199

SMALL_P = 0.01
WIDER = 1.1
FARTHER = 0.07
"""The test fails with a p-value of at most SMALL_P, and a ratio of spreads or an excess beyond these."""


@attrs.frozen(kw_only=True)
class TwoSampleTest:
    """The result of comparing new samples with as many particles of their run, of the same classes."""

    open_ended: ClassVar[bool] = True
    particles: Count
    """Number of the run's particles."""
    compared: Count
    """Number of new samples that were compared with as many particles."""
    spread_ratio: Amount
    """Spread of the new samples, divided by that of the particles."""
    spread_p: Fraction
    """Share of permutations whose ratio of spreads is as far from 1, as a factor."""
    excess: Amount
    """Sliced Wasserstein-2 distance beyond chance, divided by the spread of the particles."""
    p: Fraction
    """Share of permutations whose sliced distance is as large."""
    passed: bool
    """Whether both differences are small, or as chance would have them."""

    def __str__(self) -> str:
        return (
            f"compared with the run's {self.particles:,} particles: spread {self.spread_ratio:.2f}, sliced "
            f"distance {self.excess:.3f} of their spread beyond chance (p = {self.p:.2g})"
            f"{'' if self.passed else ': they differ'}"
        )

    def warn(self) -> None:
        """Warn if the test failed."""
        if self.passed:
            return
        log.warning(
            "new samples differ from the run's particles: they spread %.2f times as wide, and their sliced "
            "distance is %.3f of the particles' spread beyond chance. Maps do not fit new particles as they "
            "fit their own. More particles help%s; see docs/paper.md, Offline samples drift",
            self.spread_ratio,
            self.excess,
            ", or fewer steps" if self.spread_ratio > 1 else "",
        )


def as_json(test: TwoSampleTest | None) -> str:
    """Return a result as files have it; null if nothing was compared."""
    return json.dumps(None if test is None else attrs.asdict(test))


def read_test(file: Path) -> TwoSampleTest | None:
    """Return the result in an .npz file; None if it has none."""
    text = read_archive(file, (NAME,)).get(NAME)
    value = None if text is None else parse_json(str(text))
    test: TwoSampleTest | None = None if value is None else structured(value, TwoSampleTest)
    return test


def compare_with(file: Path, samples: Mapping[str, Array], dimension: int) -> TwoSampleTest:
    """Compare samples with the particles in a run's `samples.npz`, as `compare` does.

    Where samples have no labels, those of the particles do not count.
    """
    compared = {name: samples[name] for name in COMPARED if name in samples}
    particles = read_archive(file, compared)
    mine, theirs = (
        {name: (array.dtype, array.shape[1:]) for name, array in arrays.items()}
        for arrays in (compared, particles)
    )
    counts = {array.shape[:1] for array in particles.values()}
    if mine != theirs or len(counts) != 1 or not all(np.isfinite(each).all() for each in particles.values()):
        raise DataError(f"{file} does not have samples of the same kind")
    return compare(compared, particles, dimension)


def compare(samples: Mapping[str, Array], particles: Mapping[str, Array], dimension: int) -> TwoSampleTest:
    """Compare new samples with particles; raise `DataError` with a reason if there are too few.

    Equally many of both are compared, in each class too, so that a sample and a particle make a pair. Whatever
    swaps the two in random pairs draws two halves of one set: the distribution of the differences under chance.

    Args:
        samples: `images` (n×C×H×W bytes) or `points` (n×d or more), and `labels` (n) if there are any.
        particles: The same of the run.
        dimension: d; what stands behind a point's own d coordinates, its condition, is left out.
    """
    most = MOST_NUMBERS // max(1, math.prod(_values(samples).shape[1:]))
    chosen = _pairs(_labels(samples), _labels(particles), max(LEAST_PAIRS, min(MOST_PAIRS, most)))
    n = chosen.shape[1]
    if len(_values(samples)) < LEAST_SAMPLES:
        raise DataError(f"that takes {LEAST_SAMPLES} samples or more")
    if n < LEAST_PAIRS:
        raise DataError(f"that takes {LEAST_PAIRS} particles of the samples' classes; there are {n}")
    x = _rows(samples, chosen[0], dimension)
    y = _rows(particles, chosen[1], dimension)
    usual = _spread(y)
    if not usual:
        raise DataError("the run's particles are all the same")
    pooled = torch.cat([x, y])
    pooled -= pooled.mean(dim=0)
    draw = Key(0, "two-sample test").open()
    swapped = draw.uniform(1 + PERMUTATIONS, n) < 0.5
    swapped[0] = False  # the sets as they are
    side = torch.cat([swapped, ~swapped], dim=1)
    ratios = _spreads(pooled, ~side) / _spreads(pooled, side)
    squares = _squared_distances(draw.sphere(DIRECTIONS, pooled.shape[1]) @ pooled.T, side)
    ratio = _spread(x) / usual
    spread_p = _p_value(ratios.log().abs())
    excess = math.sqrt(max(0.0, float(squares[0] - squares[1:].mean()))) / usual
    p = _p_value(squares)
    wider = spread_p <= SMALL_P and not 1 / WIDER <= ratio <= WIDER
    farther = p <= SMALL_P and excess > FARTHER
    return TwoSampleTest(
        particles=len(_values(particles)),
        compared=n,
        spread_ratio=ratio,
        spread_p=spread_p,
        excess=excess,
        p=p,
        passed=not wider and not farther,
    )


def _values(arrays: Mapping[str, Array]) -> Array:
    return arrays["images"] if "images" in arrays else arrays["points"]


def _labels(arrays: Mapping[str, Array]) -> Array:
    """Return the class of each sample; 0 for all where there are no classes."""
    return arrays["labels"] if "labels" in arrays else np.zeros(len(_values(arrays)), np.int64)


def _pairs(mine: Array, theirs: Array, most: int) -> Array:
    """Return the numbers of samples and of particles that make pairs, evenly chosen from each class: 2×n.

    There are at most `most`, and one of each class.
    """
    classes = np.intersect1d(mine, theirs)
    members = [[np.flatnonzero(labels == label) for labels in (mine, theirs)] for label in classes]
    counts = [min(map(len, both)) for both in members]
    share = min(1.0, most / max(1, sum(counts)))
    pairs = [np.zeros((2, 0), np.int64)]
    for both, count in zip(members, counts, strict=True):
        few = max(min(1, count), int(count * share))
        pairs.append(np.stack([own[np.arange(few) * len(own) // max(1, few)] for own in both]))
    return np.concatenate(pairs, axis=1)


def _rows(arrays: Mapping[str, Array], index: Array, dimension: int) -> Tensor:
    """Return some samples as rows of numbers, in the units of x: n×d."""
    rows = torch.from_numpy(_values(arrays)[index].reshape(len(index), -1)[:, :dimension]).float()
    return rows * BIN if "images" in arrays else rows


def _spread(rows: Tensor) -> float:
    """Return the root mean square deviation of a coordinate, of rows (n×d)."""
    return float(rows.var(dim=0, correction=0).mean().sqrt())


def _spreads(pooled: Tensor, side: Tensor) -> Tensor:
    """Return the same for each half (P×2n, true) of centred rows (2n×d), faster: P."""
    n = len(pooled) // 2
    weights = side.to(pooled) / n
    squares = torch.linalg.vector_norm(pooled, dim=1).square()
    variances: Tensor = weights @ squares - (weights @ pooled).square().sum(dim=1)
    return (variances / pooled.shape[1]).clamp_min(1e-12).sqrt()


def _squared_distances(projected: Tensor, side: Tensor) -> Tensor:
    """Return SW₂² between each half of projected values (H×2n) and the other: P.

    Values are sorted once, and each half (P×2n, true) keeps the order. NumPy selects in a seventh of PyTorch's
    time.
    """
    ordered, order = projected.sort(dim=1)
    values = ordered.numpy().ravel()
    squares = []
    for half in side.numpy():
        chosen = half[order.numpy()].ravel()
        differences = values[np.flatnonzero(chosen)] - values[np.flatnonzero(~chosen)]
        squares.append(float(np.square(differences).mean()))
    return torch.tensor(squares)


def _p_value(statistics: Tensor) -> float:
    """Return the share of statistics that are at least the first one, itself among them."""
    return float((statistics >= statistics[0]).double().mean())
