"""Metric `fid`: the Fréchet distance between Inception features of generated and real images.

What it is: both sets of features are taken as Gaussians, and FID = |μ − μ'|² + tr(Σ + Σ' − 2 (Σ Σ')^½), in
float64. `legacy_tensorflow` resizes as the classic FID of most papers does, `clean` as clean-fid proposes;
numbers of the two are not to be compared.
Cost: the features, some 8,900 images a second on an H200 and 8 on a CPU core; those of real images are cached.
How sure it is takes a product of n×2,048×2,048 more for each set.
When not to use it: with few samples. FID falls as their number grows, so compare only equal numbers; 50,000
are customary.
"""

from __future__ import annotations

import attrs

from cswf_core.interfaces import Comparison, Meaning, Result
from cswf_core.kernels.frechet import Frechet
from cswf_plugins.metrics.inception import InceptionMetric, Numbers, frechet_spread
from cswf_plugins.references import bibtex


@attrs.frozen(kw_only=True)
class Fid(InceptionMetric):
    """Fréchet Inception distance."""

    NAME = "fid"
    references = bibtex("heusel2017gans", "parmar2022aliased")
    better = "lower"
    customary = 50_000
    real_features = False

    def compute(self, comparison: Comparison) -> Result:
        """Return `fid`, or `fid_clean`."""
        generated = comparison.generated
        real = comparison.real
        self.check_count(generated, "generated")
        self.check_count(real, "real")
        features = self.features(comparison)
        frechet = Frechet.between(features.moments(generated), features.moments(real))
        meaning = Meaning(
            "Distance between the Inception features of generated and real images, both taken as Gaussians; 0 "
            "is the best, and fewer samples make it larger.",
            aspect="quality",
        )
        spread = frechet_spread(frechet, features.of(generated), features.known(real))
        numbers = Numbers()
        numbers.add(self.named("fid"), frechet.distance, meaning, spread)
        protocol = f"Fréchet distance between Inception features of images {self.resized}"
        return numbers.result(self.stated(protocol, comparison))
