"""Metric `precision-recall`: how many samples look real, and how much of what is real they reach.

What it is: every real image's features get a ball that reaches to its k-th nearest real neighbour. Precision is
the share of generated images in any of these balls; recall is the same the other way round.
Cost: the features (see `fid`) and a product of n×2,048×n.
When not to use it: with sets of different sizes, or of other sizes than those of the numbers to compare with;
of the larger set, a random part as large as the smaller is taken.
"""

from __future__ import annotations

import attrs
import torch
from torch import Tensor

from cswf_core.errors import DataError
from cswf_core.interfaces import Comparison, Result, parameter
from cswf_core.kernels.neighbours import nearest_other, within_any
from cswf_plugins.metrics.inception import InceptionMetric
from cswf_plugins.references import KYNKAANNIEMI_2019, PARMAR_2022


def equal_parts(metric: InceptionMetric, comparison: Comparison, k: int) -> tuple[Tensor, Tensor]:
    """Return the features of as many generated as real images, chosen at random from the more: n×D each."""
    whole = metric.features(comparison)
    size = min(map(len, whole))
    if size <= k:
        raise DataError(
            f"metric '{metric.NAME}' looks at {k} neighbours and needs more images than that, got {size}"
        )

    def part(rows: Tensor) -> Tensor:
        chosen = comparison.draw.host.permutation(len(rows))[:size]
        return rows if len(rows) == size else rows[torch.from_numpy(chosen).to(rows.device)]

    return part(whole[0]), part(whole[1])


@attrs.frozen(kw_only=True)
class PrecisionRecall(InceptionMetric):
    """Precision and recall by nearest neighbours."""

    NAME = "precision-recall"
    references = (KYNKAANNIEMI_2019, PARMAR_2022)
    better = "higher"
    customary = 50_000

    k: int = parameter("which neighbour a ball reaches to", default=3, at_least=1)

    def compute(self, comparison: Comparison) -> Result:
        """Return `precision` and `recall`."""
        p, q = equal_parts(self, comparison, self.k)
        inside, _ = within_any(p, q, nearest_other(q, self.k)[:, -1])
        reached, _ = within_any(q, p, nearest_other(p, self.k)[:, -1])
        scores = {
            self.named("precision"): float((inside > 0).double().mean()),
            self.named("recall"): float((reached > 0).double().mean()),
        }
        protocol = (
            f"balls to the {self.k} nearest neighbours among Inception features of {len(p):,} generated and "
            f"{len(q):,} real images, {self.resized}"
        )
        return Result(scores, self.stated(protocol, comparison), samples=len(p))
