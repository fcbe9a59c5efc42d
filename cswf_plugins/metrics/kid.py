"""Metric `kid`: the kernel distance between Inception features of generated and real images.

What it is: the unbiased estimate of the squared maximum mean discrepancy with the kernel (a·b/D + 1)³, averaged
over random subsets, as clean-fid has it. Unlike FID, it does not depend on the number of samples.
Cost: the features (see `fid`); the rest is nothing.
When not to use it: to compare with numbers of another subset size.
"""

from __future__ import annotations

import attrs
import torch
from torch import Tensor

from cswf_core.interfaces import Comparison, Result, parameter
from cswf_plugins.metrics.inception import InceptionMetric
from cswf_plugins.references import BINKOWSKI_2018, PARMAR_2022


@attrs.frozen(kw_only=True)
class Kid(InceptionMetric):
    """Kernel Inception distance."""

    NAME = "kid"
    references = (BINKOWSKI_2018, PARMAR_2022)
    better = "lower"

    subsets: int = parameter("how many random subsets are averaged over", default=100, at_least=1)
    subset_size: int = parameter("images of each set in a subset, at most", default=1000, at_least=2)

    def compute(self, comparison: Comparison) -> Result:
        """Return `kid`, or `kid_clean`."""
        self.check_count(comparison.generated, "generated")
        self.check_count(comparison.real, "real")
        p, q = self.features(comparison)
        size = min(len(p), len(q), self.subset_size)
        host = comparison.draw.host
        total = 0.0
        for _ in range(self.subsets):
            chosen = [torch.from_numpy(host.permutation(len(rows))[:size]).to(rows.device) for rows in (p, q)]
            total += kernel_distance(p[chosen[0]].double(), q[chosen[1]].double())
        protocol = (
            f"kernel distance, cubic kernel, mean over {self.subsets} subsets of {size:,} Inception features "
            f"of each set, images {self.resized}"
        )
        return Result({self.named("kid"): total / self.subsets}, self.stated(protocol, comparison))


def kernel_distance(p: Tensor, q: Tensor) -> float:
    """Return the unbiased squared discrepancy of two sets of features, m×D each."""
    size, width = p.shape
    within = (p @ p.T / width + 1) ** 3 + (q @ q.T / width + 1) ** 3
    between = (p @ q.T / width + 1) ** 3
    apart = (within.sum() - within.trace()) / (size * (size - 1))
    return float(apart - 2 * between.mean())
