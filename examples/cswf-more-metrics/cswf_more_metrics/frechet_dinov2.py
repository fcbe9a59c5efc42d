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
from functools import partial
from pathlib import Path
from typing import Any

import attrs
from torch import Tensor

from cswf_core.errors import DataError
from cswf_core.interfaces import Comparison, Dataset, Meaning, Metric, NeededFiles, Result, Workbench, parameter
from cswf_core.kernels.frechet import Frechet
from cswf_more_metrics import dinov2
from cswf_more_metrics.dinov2 import BATCH, FOLDER, NAME, SIDE, DinoNetwork, DinoWeights, part_features
from cswf_plugins.cache import NetworkFeatures
from cswf_plugins.metrics.inception import Numbers, frechet_spread

NETWORK = "dinov2"
"""How its features are called in the names of files."""
ENDINGS: Mapping[int, str] = {384: "_vits14", 768: "_vitb14", 1024: ""}
"""The width of a network's features → what is put behind the score's name."""
OQUAB_2023 = r"""@misc{oquab2023dinov2,
  author = {Oquab, Maxime and Darcet, Timoth{\'e}e and Moutakanni, Th{\'e}o and others},
  title = {{DINOv2}: Learning Robust Visual Features without Supervision},
  howpublished = {arXiv:2304.07193},
  year = {2023}
}"""
"""The vision transformer whose features are used."""
STEIN_2023 = r"""@inproceedings{stein2023exposing,
  author = {Stein, George and Cresswell, Jesse C. and Hosseinzadeh, Rasa and Sui, Yi and Ross, Brendan Leigh and
            Villecroze, Valentin and Liu, Zhaoyan and Caterini, Anthony L. and Taylor, J. Eric T. and
            Loaiza-Ganem, Gabriel},
  title = {Exposing Flaws of Generative Model Evaluation Metrics and Their Unfair Treatment of Diffusion
           Models},
  booktitle = {Advances in Neural Information Processing Systems},
  year = {2023}
}"""
"""Fréchet distances of DINOv2's features, and how images are prepared for them."""


@attrs.frozen(kw_only=True)
class FrechetDinov2(Metric):
    """Fréchet distance of DINOv2 features."""

    references = (OQUAB_2023, STEIN_2023)
    better = "lower"
    real_features = False
    customary = 50_000

    weights: Path | None = parameter(
        f"the network's file; {FOLDER}/{NAME} under the data's root if left out", default=None
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
        dinov2.find(bench, self.weights).read()

    def needed_files(self) -> NeededFiles | None:
        """Return the network's file."""
        return dinov2.needed_files()

    def compute(self, comparison: Comparison) -> Result:
        """Return `fd_dinov2`."""
        generated, real = comparison.generated, comparison.real
        for samples, kind in ((generated, "generated"), (real, "real")):
            if len(samples) < 2:
                reason = f"needs at least two {kind} images, and there is {len(samples)}"
                raise DataError(f"metric 'frechet-dinov2' {reason}")
        file = dinov2.find(comparison.bench, self.weights)
        features = DinoFeatures(comparison, file)
        p, q = features.moments(generated), features.moments(real)
        width = len(p.mean)
        name = f"fd_dinov2{ENDINGS.get(width, f'_{width}')}"
        protocol = (
            f"Fréchet distance between DINOv2 class tokens ({width:,} features, weights of SHA-256 "
            f"{file.sha256[:12]}…) of {len(generated):,} generated and {len(real):,} real images, "
            f"resized to {SIDE} by Pillow's bicubic filter, in float64 by eigenvalues"
        )
        frechet = Frechet.between(p, q)
        spread = frechet_spread(frechet, features.of(generated), features.known(real))
        meaning = Meaning(
            "How far generated images are from real ones as a network sees them that learnt without labels.",
            aspect="quality",
        )
        numbers = Numbers()
        numbers.add(name, frechet.distance, meaning, spread)
        return numbers.result(protocol)


class DinoFeatures(NetworkFeatures):
    """DINOv2's features of an evaluation's images: D of each."""

    def __init__(self, comparison: Comparison, weights: DinoWeights) -> None:
        super().__init__(comparison, weights, NETWORK, NETWORK)
        self.weights = weights

    def begin(self, samples: Dataset) -> None:
        """Write down that scores depend on the network's file."""
        del samples
        file = {"file": self.weights.path.name, "sha256": self.weights.sha256}
        self.comparison.bench.used[NETWORK] = file

    def compute(self, samples: Dataset) -> Tensor:
        """Return the features of a set by the network, on all devices there are: n×D."""
        bench, device = self.comparison.bench, self.comparison.draw.device
        images = bench.images(samples)
        title = f"DINOv2 features of {bench.names.get(samples, 'generated')}"
        if bench.share_out is not None and len(images) > BATCH[device.type]:
            work = partial(part_features, self.weights, title)
            return bench.share_out(work, images, BATCH[device.type], bench.tell).to(device)
        network = bench.keep((NETWORK, self.weights), lambda: DinoNetwork(self.weights, device))
        return network.features(images, title, bench.tell)

    def facts(self) -> dict[str, Any]:
        """Return the network's name, and the SHA-256 of its file."""
        return {"network": NETWORK, "weights": self.weights.sha256}
