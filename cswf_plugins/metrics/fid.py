"""Metric `fid`: the Fréchet distance between Inception features of generated and real images.

What it is: both sets of features are taken as Gaussians, and FID = |μ − μ'|² + tr(Σ + Σ' − 2 (Σ Σ')^½), in
float64. `legacy_tensorflow` resizes as the classic FID of most papers does, `clean` as clean-fid proposes;
numbers of the two are not to be compared.
Cost: the features, some 2,000 images a second on a fast GPU and 10 on a CPU; those of real images are cached.
When not to use it: with few samples. FID falls as their number grows, so compare only equal numbers; 50,000
are customary.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from cswf_core.interfaces import Comparison, Dataset, Metric, Result, Workbench, parameter
from cswf_core.kernels.frechet import frechet_distance
from cswf_plugins.inception.features import feature_moments
from cswf_plugins.inception.network import MODE_HELP, Mode
from cswf_plugins.metrics.checks import check_count, check_images

RESIZED: Mapping[Mode, str] = {
    "legacy_tensorflow": "resized to 299 by TensorFlow 1's bilinear rule (clean-fid's mode legacy_tensorflow)",
    "clean": "resized to 299 by Pillow's bicubic filter (clean-fid's mode clean)",
}


def named(score: str, mode: Mode) -> str:
    """Return a score's name: plain for the classic mode, with the mode behind for the other."""
    return score if mode == "legacy_tensorflow" else f"{score}_{mode}"


@attrs.frozen(kw_only=True)
class Fid(Metric):
    """Fréchet Inception distance."""

    better = "lower"
    customary = 50_000

    mode: Mode = parameter(MODE_HELP, default="legacy_tensorflow")

    def check(self, data: Dataset, bench: Workbench) -> None:
        """Look for the network's file."""
        check_images(data, bench, "fid")

    def compute(self, comparison: Comparison) -> Result:
        """Return `fid`, or `fid_clean`."""
        generated, real = comparison.generated, comparison.real
        check_count(generated, "fid", "generated")
        check_count(real, "fid", "real")
        p, q = (feature_moments(comparison, samples, self.mode) for samples in (generated, real))
        protocol = (
            f"Fréchet distance between Inception pool features of {len(generated):,} generated and "
            f"{len(real):,} real images, {RESIZED[self.mode]}, in float64 by eigenvalues"
        )
        return Result({named("fid", self.mode): frechet_distance(p, q)}, protocol)
