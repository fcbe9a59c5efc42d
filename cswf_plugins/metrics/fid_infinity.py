"""Metric `fid-infinity`: what FID would be of infinitely many generated images.

What it is: FID falls with the number n of generated images, nearly as a line in 1/n. So it is computed of
several random parts of them, of sizes from a tenth to all, and the line through these is followed to 1/n = 0.
The parts are drawn independently, as in the paper, and not one within the next. The real images are always
all, and their number has the influence on the score that it has on `fid`.
Cost: the features (see `fid`); then for each part its moments and eigenvalues, seconds on a CPU core.
When not to use it: with few samples, less than twice as many as features (4,096): below, FID is no line in 1/n,
and a note says so. Fewer samples than features are refused.
"""

from __future__ import annotations

import math

import attrs
import torch
from torch import Tensor

from cswf_core.errors import DataError
from cswf_core.interfaces import Comparison, Meaning, Result, Spread, parameter
from cswf_core.kernels.frechet import Frechet, Moments, distance_of_few, frechet_distance, moments, root_of
from cswf_plugins.metrics.inception import InceptionMetric, Numbers, choices, frechet_spread
from cswf_plugins.references import bibtex

STRAIGHT = 2
"""Images for each feature from which on FID is nearly a line in 1/n."""


def line_through(x: Tensor, y: Tensor) -> tuple[float, float, float]:
    """Return the intercept of the line through three points or more by least squares (x, y: n), and its fit.

    These are the intercept's standard error, from the points' distances to the line, and R², the share of the
    variance of y that the line explains.
    """
    centred = x - x.mean()
    mean = y.mean()
    squares = float(centred.square().sum())
    slope = float((centred * (y - mean)).sum()) / squares
    residuals = y - mean - slope * centred
    left = float(residuals.square().sum())
    total = float((y - mean).square().sum())
    variance = left / (len(x) - 2) * (1 / len(x) + float(x.mean()) ** 2 / squares)
    return float(mean - slope * x.mean()), math.sqrt(variance), 1 - left / total if total else 1.0


@attrs.frozen(kw_only=True)
class FidInfinity(InceptionMetric):
    """Fréchet Inception distance, followed to infinitely many samples."""

    NAME = "fid-infinity"
    references = bibtex("chong2020effectively", "parmar2022aliased")
    better = "lower"
    real_features = False

    points: int = parameter("numbers of samples at which FID is computed", default=15, at_least=3)

    def compute(self, comparison: Comparison) -> Result:
        """Return `fid_infinity`, or `fid_infinity_clean`, and `fid_at.5000`, … as details."""
        generated = comparison.generated
        real = comparison.real
        self.check_count(real, "real")
        features = self.features(comparison)
        p = features.of(generated)
        counts = self._counts(*p.shape)
        q = features.moments(real)
        distances = self._distances(comparison, p, q, counts)
        inverse = 1 / torch.tensor(counts, dtype=torch.float64)
        intercept, error, explained = line_through(inverse, torch.tensor(distances).double())
        spread = frechet_spread(Frechet.between(moments(p), q), p, features.known(real))
        protocol = (
            f"FID of {len(counts)} random parts of {counts[0]:,} to {counts[-1]:,} generated images against "
            f"{len(real):,} real ones, {self.resized}; the intercept of the line through them in 1/n"
        )
        name = self.named("fid_infinity")
        meaning = Meaning(
            "FID as it would be of infinitely many generated images, so that scores of different numbers "
            "compare; 0 is the best.",
            aspect="quality",
        )
        numbers = Numbers()
        numbers.add(name, intercept, meaning, _spread(error, spread))
        point = "FID of a random part of the generated images, a point of the line."
        for count, value in zip(counts, distances, strict=True):
            at = f"{self.named('fid_at')}.{count}"
            numbers.add(at, value, Meaning(point, aspect="quality"), detail=True)
        return numbers.result(self.stated(protocol, comparison), _notes(name, explained, counts, p.shape[1]))

    def _counts(self, available: int, width: int) -> list[int]:
        """Return how many images the parts have, evenly spaced, the last all of them; each number once."""
        if available < 2 * self.points:
            raise DataError(
                f"metric '{self.NAME}' needs at least two generated images for each of its points, "
                f"{2 * self.points:,}, and there are {available:,}; 'fid' takes fewer"
            )
        least = max(available // 10, min(available // 2, STRAIGHT * width), 2)
        spaced = torch.linspace(least, available, self.points, dtype=torch.float64).round().long()
        return sorted(set(spaced.tolist()))

    def _distances(self, comparison: Comparison, p: Tensor, q: Moments, counts: list[int]) -> list[float]:
        """Return the FIDs of random parts of features (n×D) against the real ones' moments."""
        stream = choices(comparison, "generated")
        distances = []
        root = root_of(q) if counts[-1] > p.shape[1] else None
        p = p[p.double().sum(dim=1).argsort()]  # so that the parts do not depend on the order of the images
        for done, count in enumerate(counts):
            chosen = torch.from_numpy(stream.permutation(len(p))[:count]).to(p.device)
            few = count <= p.shape[1]
            some = p[chosen]
            distances.append(distance_of_few(some, q) if few else frechet_distance(q, moments(some), root))
            comparison.bench.tell("FID of parts", done + 1, len(counts))
        return distances


def _spread(error: float, whole: Spread | None) -> Spread | None:
    """Return how sure the intercept is: by the line's own error, and as FID of all images is."""
    if whole is None or not math.isfinite(error):
        return None
    method = f"error of the intercept, with the {whole.method}"
    return attrs.evolve(whole, method=method, own=math.hypot(whole.own, error))


def _notes(name: str, explained: float, counts: list[int], width: int) -> list[str]:
    notes = []
    if counts[0] < STRAIGHT * width:
        notes.append(
            f"{name}: the smallest part has {counts[0]:,} images, and below {STRAIGHT * width:,}, "
            f"{STRAIGHT} for each feature, FID is no line in 1/n: not to be published, nor compared"
        )
    if explained < 0.95:
        notes.append(
            f"{name}: the line through {len(counts)} points explains only {explained:.0%} of their "
            "variance; see the points, fid_at"
        )
    return notes
