"""Metric `kid`: the kernel distance between Inception features of generated and real images.

What it is: the unbiased estimate of the squared maximum mean discrepancy with the kernel (a·b/D + 1)³, averaged
over random subsets, as clean-fid has it. Unlike FID, it does not depend on the number of samples.
Cost: the features (see `fid`); the rest is nothing.
When not to use it: to compare with numbers of another subset size.
"""

from __future__ import annotations

import math

import attrs
import torch
from torch import Tensor

from cswf_core.interfaces import Comparison, Meaning, Result, Spread, parameter
from cswf_plugins.metrics.inception import InceptionMetric, Numbers, choices, finite, standard_error
from cswf_plugins.references import bibtex

LEAST = 4
"""Images of a subset that an error can be told from: each half of it has another one beside the one at hand."""


@attrs.frozen(kw_only=True)
class Kid(InceptionMetric):
    """Kernel Inception distance."""

    NAME = "kid"
    references = bibtex("binkowski2018demystifying", "parmar2022aliased")
    better = "lower"

    subsets: int = parameter("how many random subsets are averaged over", default=100, at_least=1)
    subset_size: int = parameter("images of each set in a subset, at most", default=1000, at_least=2)

    def compute(self, comparison: Comparison) -> Result:
        """Return `kid`, or `kid_clean`."""
        self.check_count(comparison.generated, "generated")
        self.check_count(comparison.real, "real")
        p, q = self.features_of_both(comparison)
        size = min(len(p), len(q), self.subset_size)
        streams = [choices(comparison, kind) for kind in ("generated", "real")]
        values = []
        zeros = [torch.zeros(2, len(rows), dtype=torch.float64, device=rows.device) for rows in (p, q)]
        influences = [Influences(*both) for both in zeros]
        for _ in range(self.subsets):
            chosen = [
                torch.from_numpy(stream.permutation(len(rows))[:size]).to(rows.device)
                for stream, rows in zip(streams, (p, q), strict=True)
            ]
            kernels = Kernels.of(p[chosen[0]].double(), q[chosen[1]].double())
            values.append(kernels.distance)
            if size >= LEAST:
                for each, which, halves in zip(influences, chosen, kernels.influences(), strict=True):
                    each.add(which, halves)
        protocol = (
            f"kernel distance, cubic kernel, mean over {self.subsets} subsets of {size:,} Inception features "
            f"of each set, images {self.resized}"
        )
        meaning = Meaning(
            "Distance between the Inception features of generated and real images by a kernel; 0 on average "
            "where both have one distribution, whatever their number.",
            aspect="quality",
        )
        spread = _spread(torch.tensor(values, dtype=torch.float64), influences[0], influences[1], size)
        numbers = Numbers()
        numbers.add(self.named("kid"), sum(values) / self.subsets, meaning, spread)
        return numbers.result(protocol)


@attrs.frozen(eq=False)
class Kernels:
    """The kernel's values within two subsets of m features each, and between them: m×m."""

    of_p: Tensor
    of_q: Tensor
    between: Tensor

    @classmethod
    def of(cls, p: Tensor, q: Tensor) -> Kernels:
        """Return those of features, m×D each; a feature vector and itself count as 0."""
        of_p, of_q = (_cubic(rows, rows).fill_diagonal_(0) for rows in (p, q))
        return cls(of_p, of_q, _cubic(p, q))

    @property
    def distance(self) -> float:
        """The unbiased squared discrepancy."""
        size = len(self.of_p)
        apart = (self.of_p.sum() + self.of_q.sum()) / (size * (size - 1))
        return float(apart - 2 * self.between.mean())

    def influences(self) -> tuple[Tensor, Tensor]:
        """Return what each feature vector of p, and of q, does to the distance: m×2 each.

        It is twice the mean kernel with its own set less that with the other. Each half of the subset, the even
        ones and the odd ones, gives an estimate of it, and the errors of the two are independent.
        """
        return _halves(self.of_p, self.between), _halves(self.of_q, self.between.T)


@attrs.define(eq=False)
class Influences:
    """What each feature vector of a set does to the distance, on average over the subsets that it is in."""

    sums: Tensor
    """n, over subsets so far; within each they have mean 0."""
    times: Tensor
    """n, the number of subsets that each is in."""
    variances: list[float] = attrs.field(factory=list)
    """For each subset, the variance of the estimates."""
    agreements: list[float] = attrs.field(factory=list)
    """For each subset, the covariance of the two estimates of each: the variance without their errors."""

    def add(self, which: Tensor, halves: Tensor) -> None:
        """Take a subset's m vectors into account: their numbers, and two estimates of each (m×2)."""
        halves = halves - halves.mean(dim=0)
        self.sums.index_add_(0, which, halves.mean(dim=1))
        self.times.index_add_(0, which, torch.ones_like(halves[:, 0]))
        self.variances.append(float(halves.mean(dim=1).var()))
        self.agreements.append(float((halves[:, 0] * halves[:, 1]).sum()) / (len(which) - 1))

    def values(self, size: int) -> Tensor:
        """Return the influence of each vector that was in a subset, on the CPU, with the variance that is due.

        The estimates vary also by their errors, which are of subsets of `size`. In the distance of whole sets
        the error is that of n vectors, and counts half, as a pair of vectors belongs to both of them.
        """
        seen = self.times > 0
        each = (self.sums[seen] / self.times[seen]).cpu()
        variance, agreement = (sum(many) / len(many) for many in (self.variances, self.agreements))
        agreement = min(max(agreement, 0.0), variance)
        wanted = agreement + (variance - agreement) * size / (2 * len(self.times))
        each = each - each.mean()
        deviation = float(each.std())
        return each * math.sqrt(wanted) / deviation if deviation > 0 else each


def _spread(values: Tensor, p: Influences, q: Influences, size: int) -> Spread | None:
    """Return how sure the mean of subsets' distances is: by the two sets, and by the choice of subsets."""
    if size < LEAST or len(values) < 2:
        return None
    generated = p.values(size)
    real = q.values(size)
    own = math.hypot(float(generated.std()) / math.sqrt(len(p.sums)), standard_error(values))
    method = f"jackknife over generated and real images, and the error of {len(values)} random subsets"
    return finite(Spread(method, own, real, 1 / math.sqrt(len(q.sums))))


def _cubic(a: Tensor, b: Tensor) -> Tensor:
    """Return the kernel between features (m×D and l×D): m×l."""
    return (a @ b.T / a.shape[1] + 1) ** 3


def _halves(within: Tensor, between: Tensor) -> Tensor:
    """Return the two estimates of rows' influences, from even and from odd columns: m×2."""
    size = len(within)
    estimates = []
    for half in (0, 1):
        columns = slice(half, None, 2)
        is_in = (torch.arange(size, device=within.device) % 2 == half).double()
        others = within[:, columns].shape[1] - is_in  # the vector itself is none of them
        estimates.append(2 * (within[:, columns].sum(dim=1) / others - between[:, columns].mean(dim=1)))
    return torch.stack(estimates, dim=1)
