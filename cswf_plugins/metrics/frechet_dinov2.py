"""Metric `frechet-dinov2`: the Fréchet distance between DINOv2 features of generated and real images.

What it is: the distance of `fid`, of other features: the class token of DINOv2's vision transformer ViT-L/14,
1,024 numbers, of images resized to 224 by Pillow's bicubic filter. The network has learnt without labels, on
many more images than Inception; Stein et al. propose it as the distance agrees better with what people see. The
score is `fd_dinov2`; with the smaller ViT-S/14 or ViT-B/14 its name says so.
Cost: the features; a CPU core takes seconds for an image, so this is for a GPU. Those of real images are kept.
The network's file has 1.2 GB and is not downloaded.
When not to use it: beside a FID, which is of another scale; with few samples, as it falls with their number.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import attrs

from cswf_core.errors import DataError
from cswf_core.interfaces import Comparison, Dataset, Meaning, Metric, NeededFiles, Result, Workbench, parameter
from cswf_core.kernels.frechet import Frechet
from cswf_plugins.dinov2 import weights
from cswf_plugins.dinov2.features import feature_moments, features, known_features
from cswf_plugins.dinov2.network import SIDE, read
from cswf_plugins.metrics.spreads import frechet_spread
from cswf_plugins.references import OQUAB_2023, STEIN_2023

ENDINGS: Mapping[int, str] = {384: "_vits14", 768: "_vitb14", 1024: ""}
"""The width of a network's features → what is put behind the score's name."""
MEANING = Meaning(
    sentence="How far generated images are from real ones as a network sees them that learnt without labels.",
    aspect="quality",
)


@attrs.frozen(kw_only=True)
class FrechetDinov2(Metric):
    """Fréchet distance of DINOv2 features."""

    references = (OQUAB_2023, STEIN_2023)
    better = "lower"
    real_features = False
    customary = 50_000

    weights: Path | None = parameter(
        f"the network's file; {weights.FOLDER}/{weights.NAME} under the data's root if left out", default=None
    )

    @property
    def network(self) -> str:
        """DINOv2."""
        return "dinov2"

    def check(self, data: Dataset, bench: Workbench) -> None:
        """Look for images, and for a file with such a network in it."""
        if not data.space.is_image:
            kind = f"these are samples in {data.space} dimensions"
            raise DataError(f"metric 'frechet-dinov2' compares images; {kind}")
        read(weights.find(bench, self.weights))

    def needed_files(self) -> NeededFiles | None:
        """Return the network's file."""
        return weights.needed_files()

    def compute(self, comparison: Comparison) -> Result:
        """Return `fd_dinov2`."""
        generated, real = comparison.generated, comparison.real
        for samples, kind in ((generated, "generated"), (real, "real")):
            if len(samples) < 2:
                reason = f"needs at least two {kind} images, and there is {len(samples)}"
                raise DataError(f"metric 'frechet-dinov2' {reason}")
        file = weights.find(comparison.bench, self.weights)
        comparison.bench.used["dinov2"] = {"file": file.path.name, "sha256": file.sha256}
        p, q = (feature_moments(comparison, samples, file) for samples in (generated, real))
        width = len(p.mean)
        name = f"fd_dinov2{ENDINGS.get(width, f'_{width}')}"
        protocol = (
            f"Fréchet distance between DINOv2 class tokens ({width:,} features, weights of SHA-256 "
            f"{file.sha256[:12]}…) of {len(generated):,} generated and {len(real):,} real images, "
            f"resized to {SIDE} by Pillow's bicubic filter, in float64 by eigenvalues"
        )
        frechet = Frechet.between(p, q)
        rows = features(comparison, generated, file)
        spread = frechet_spread(frechet, rows, known_features(comparison, real, file))
        return Result(
            {name: frechet.distance},
            protocol,
            spreads={} if spread is None else {name: spread},
            meanings={name: MEANING},
        )
