"""How sure scores are: standard errors of means, of shares and of Fréchet distances, for the metrics here."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from cswf_core.interfaces import Spread
from cswf_core.kernels.frechet import Frechet

JACKKNIFE = "infinitesimal jackknife over generated and real images"
GENERATED_ONLY = "infinitesimal jackknife over generated images only, as the real ones' features are not kept"
TOGETHER = "infinitesimal jackknife over images, each with its completions"
OVER_IMAGES = "standard deviation over images, over the root of their number"
BINOMIAL = "binomial standard error"


def frechet_spread(frechet: Frechet, generated: Tensor, real: Tensor | None) -> Spread | None:
    """Return how sure a Fréchet distance is, from the features of both sets (n×D, m×D).

    Without the real ones' features, the error is the generated images' part alone, and its method says so. None
    where it is infinite or not a number, as the features are.
    """
    own = standard_error(frechet.influences_of_p(generated))
    if real is None:
        return _finite(Spread(GENERATED_ONLY, own))
    replicates = frechet.influences_of_q(real).cpu()
    return _finite(Spread(JACKKNIFE, own, replicates, 1 / math.sqrt(len(real))))


def mean_of_spreads(parts: list[Spread]) -> Spread:
    """Return how sure the mean of independent Fréchet distances is, such as those of classes.

    Its replicates are those of all parts, each with the weight that it has in the mean.
    """
    own = math.hypot(*(part.own for part in parts)) / len(parts)
    influences = [part.replicates for part in parts if part.replicates is not None]
    if len(influences) < len(parts):
        return Spread(parts[0].method, own)
    total = sum(map(len, influences))
    weighted = [each * total / (len(each) * len(parts)) for each in influences]
    return Spread(parts[0].method, own, torch.cat(weighted), 1 / math.sqrt(total))


def image_spread(values: Tensor, method: str = OVER_IMAGES) -> Spread | None:
    """Return how sure a mean over real images is, of a value for each (k): None for one image alone.

    The values are replicates, so that two scores of the same images are compared image by image.
    """
    count = len(values)
    if count < 2:
        return None
    return _finite(Spread(method, replicates=values.double().cpu(), scale=1 / math.sqrt(count)))


def share_spread(share: float, count: int) -> Spread:
    """Return how sure a share of `count` independent images is.

    One image more of either kind is counted, so that a share of 0 or 1 is not taken for certain.
    """
    smoothed = (share * count + 1) / (count + 2)
    return Spread(BINOMIAL, math.sqrt(smoothed * (1 - smoothed) / count))


def standard_error(values: Tensor) -> float:
    """Return the standard error of the mean of n values."""
    return float(values.double().std()) / math.sqrt(len(values))


def _finite(spread: Spread) -> Spread | None:
    return spread if math.isfinite(spread.error) else None
