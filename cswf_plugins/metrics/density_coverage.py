"""Metric `density-coverage`: precision and recall that a few outliers cannot sway.

What it is: every real image's features get a ball that reaches to its k-th nearest real neighbour. Density
counts in how many balls a generated image lies, over k (real images get 1 on average); coverage is the share of
balls with a generated image in them.
Cost: the features (see `fid`) and a product of n×2,048×n; how sure it is takes a tenth more.
When not to use it: with sets of different sizes; of the larger, a random part as large as the smaller is taken.
"""

from __future__ import annotations

from typing import ClassVar

import attrs
from torch import Tensor

from cswf_core.interfaces import Meaning, parameter
from cswf_core.kernels.neighbours import nearest_other, within_any
from cswf_plugins.metrics.precision_recall import Balls
from cswf_plugins.references import bibtex


@attrs.frozen(kw_only=True)
class DensityCoverage(Balls):
    """Density and coverage by nearest neighbours."""

    NAME = "density-coverage"
    MEANINGS: ClassVar = {
        "density": Meaning(
            "How closely generated images lie where real ones are: 1 on average for real images themselves.",
            aspect="quality",
            expected=1.0,
        ),
        "coverage": Meaning(
            "Share of real images that have a generated one as near as their nearest neighbours among real "
            "ones.",
            aspect="coverage",
            share=True,
        ),
    }
    references = bibtex("naeem2020reliable", "parmar2022aliased")

    k: int = parameter("which neighbour a ball reaches to", default=5, at_least=1)

    def score(self, p: Tensor, q: Tensor) -> dict[str, float]:
        """Return density and coverage."""
        counts, held = within_any(p, q, nearest_other(q, self.k)[:, -1])
        return {
            "density": float(counts.double().mean()) / self.k,
            "coverage": float(held.double().mean()),
        }
