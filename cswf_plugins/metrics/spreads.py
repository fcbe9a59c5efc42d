"""How sure scores are: standard errors of means, of shares and of Fréchet distances, for the metrics here."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from cswf_core.interfaces import Spread
from cswf_core.kernels.frechet import Frechet


def frechet_spread(frechet: Frechet, generated: Tensor, real: Tensor | None) -> Spread | None:
    """Return how sure a Fréchet distance is, from the features of both sets (n×D, m×D).

    Without the real ones' features, the error is the generated images' part alone, and its method says so. None
    where it is infinite or not a number, as the features are.
    """
    own = standard_error(frechet.influences_of_p(generated))
    if real is None:
        method = "infinitesimal jackknife over generated images only, as the real ones' features are not kept"
        return _finite(Spread(method, own))
    method = "infinitesimal jackknife over generated and real images"
    replicates = frechet.influences_of_q(real).cpu()
    return _finite(Spread(method, own, replicates, 1 / math.sqrt(len(real))))


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


def image_spread(
    values: Tensor, method: str = "standard deviation over images, over the root of their number"
) -> Spread | None:
    """Return how sure a mean over real images is, of a value for each (k): None for one image alone.

    The values are replicates, so that two scores of the same images are compared image by image.
    """
    count = len(values)
    if count < 2:
        return None
    return _finite(Spread(method, replicates=values.double().cpu(), scale=1 / math.sqrt(count)))


def share_spread(share: float, count: int, more: float = 0.0) -> Spread:
    """Return how sure a share of `count` independent images is.

    One image more of either kind is counted, so that a share of 0 or 1 is not taken for certain. `more` is the
    standard error that comes from elsewhere, such as that of `limit_error`.
    """
    smoothed = (share * count + 1) / (count + 2)
    binomial = math.sqrt(smoothed * (1 - smoothed) / count)
    method = "binomial standard error"
    if more:
        method += ", and bootstrap of the control images"
    return Spread(method, math.hypot(binomial, more))


def limit_error(samples: Tensor, control: Tensor, rank: int = 1) -> float:
    """Return the standard error of a share of samples (n), those below a limit, from the limit alone.

    The limit is the `rank`-th smallest of the control (m), but for zeros. A bootstrap sample of the control has
    it at its j-th smallest with binomial chances.
    """
    from scipy.special import bdtrc  # only now: it takes a while to import

    ordered = control[control > 0].double().sort().values.cpu()
    m = len(ordered)
    if not m:
        return 0.0
    within = torch.from_numpy(bdtrc(min(rank, m) - 1, m, torch.arange(m + 1).double().numpy() / m))
    chances = within.diff()
    shares = torch.searchsorted(samples.double().sort().values.cpu(), ordered) / len(samples)
    mean = (chances * shares).sum()
    return math.sqrt(float((chances * (shares - mean).square()).sum()))


def standard_error(values: Tensor) -> float:
    """Return the standard error of the mean of n values."""
    return float(values.double().std()) / math.sqrt(len(values))


def _finite(spread: Spread) -> Spread | None:
    return spread if math.isfinite(spread.error) else None
