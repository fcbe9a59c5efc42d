"""Metric `precision-recall`: how many samples look real, and how much of what is real they reach.

What it is: every real image's features get a ball that reaches to its k-th nearest real neighbour. Precision is
the share of generated images in any of these balls; recall is the same the other way round.
Cost: the features (see `fid`) and a product of n×2,048×n; how sure it is takes a tenth more.
When not to use it: with sets of different sizes, or of other sizes than those of the numbers to compare with;
of the larger set, a random part as large as the smaller is taken.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Mapping
from typing import ClassVar

import attrs
import torch
from torch import Tensor

from cswf_core.errors import DataError
from cswf_core.interfaces import Comparison, Meaning, Result, Spread, parameter
from cswf_core.kernels.neighbours import nearest_other, within_any
from cswf_plugins.metrics.inception import InceptionMetric, Numbers, choices, disjoint_parts
from cswf_plugins.references import bibtex

PARTS = 10
"""Parts that both sets are cut into, to see how much a score varies."""


@attrs.frozen(kw_only=True)
class Balls(InceptionMetric):
    """Scores by balls around the features of images; each ball reaches to the k-th neighbour."""

    MEANINGS: ClassVar[Mapping[str, Meaning]]
    better = "higher"
    customary = 50_000

    k: int = parameter("which neighbour a ball reaches to", default=3, at_least=1)

    def compute(self, comparison: Comparison) -> Result:
        """Return the scores of as many generated as real images."""
        p, q = self._equal_parts(comparison)
        spreads = self._spreads_over_parts(comparison, p, q)
        numbers = Numbers()
        for name, value in self.score(p, q).items():
            numbers.add(self.named(name), value, self.MEANINGS[name], spreads.get(name))
        protocol = (
            f"balls to the {self.k} nearest neighbours among Inception features of {len(p):,} generated and "
            f"{len(q):,} real images, {self.resized}"
        )
        return numbers.result(protocol, samples=len(p))

    @abc.abstractmethod
    def score(self, p: Tensor, q: Tensor) -> dict[str, float]:
        """Return the scores of features of generated and of real images, n×D each."""

    def _equal_parts(self, comparison: Comparison) -> tuple[Tensor, Tensor]:
        """Return the features of as many generated as real images, chosen at random from the more: n×D each."""
        p, q = self.features_of_both(comparison)
        size = min(len(p), len(q))
        if size <= self.k:
            raise DataError(
                f"metric '{self.NAME}' looks at {self.k} neighbours and needs more images than that, got {size}"
            )

        def part(rows: Tensor, kind: str) -> Tensor:
            chosen = choices(comparison, kind).permutation(len(rows))[:size]
            return rows if len(rows) == size else rows[torch.from_numpy(chosen).to(rows.device)]

        return part(p, "generated"), part(q, "real")

    def _spreads_over_parts(self, comparison: Comparison, p: Tensor, q: Tensor) -> dict[str, Spread]:
        """Return how sure scores of n generated and n real images are, from disjoint parts of both (n×D).

        The scores within each part vary more than those of the whole, by the root of the number of parts. The
        parts of real images are the same for all evaluations of as many images with one seed. Few give none.
        """
        parts = min(PARTS, len(p) // (10 * self.k + 1))  # else balls to the k-th neighbour are no small ones
        if parts < 5:
            return {}
        pairs = disjoint_parts(comparison, len(p), len(q), parts)
        each = [self.score(p[ours], q[theirs]) for ours, theirs in pairs]
        kind = "tenths" if parts == PARTS else "parts"
        method = f"standard deviation over {parts} disjoint {kind} of both sets, over √{parts}"
        spreads = {}
        for name in each[0]:
            values = torch.tensor([scores[name] for scores in each], dtype=torch.float64)
            spreads[name] = Spread(method, replicates=values, scale=1 / math.sqrt(parts))
        return spreads


@attrs.frozen(kw_only=True)
class PrecisionRecall(Balls):
    """Precision and recall by nearest neighbours."""

    NAME = "precision-recall"
    MEANINGS: ClassVar = {
        "precision": Meaning(
            "Share of generated images that lie as near to a real one as its nearest neighbours among real "
            "ones.",
            aspect="quality",
            share=True,
        ),
        "recall": Meaning(
            "Share of real images that lie as near to a generated one as its nearest neighbours among these.",
            aspect="coverage",
            share=True,
        ),
    }
    references = bibtex("kynkaanniemi2019improved", "parmar2022aliased")

    def score(self, p: Tensor, q: Tensor) -> dict[str, float]:
        """Return precision and recall."""
        inside, _ = within_any(p, q, nearest_other(q, self.k)[:, -1])
        reached, _ = within_any(q, p, nearest_other(p, self.k)[:, -1])
        return {
            "precision": float((inside > 0).double().mean()),
            "recall": float((reached > 0).double().mean()),
        }
