"""Metric `perceptual-distance`: how near completions come to their originals, as Inception sees it.

What it is: the Euclidean distance between the 2,048 features of a completion and those of its original.
`perceptual_distance` is the mean over completions of held-out images (of all, where nothing is held out),
`perceptual_distance_best` takes the nearest completion of each image, and `perceptual_distance_unrelated` is
the distance from one original to another, a scale to read the others by.
Cost: the features of the completions and of their originals (see `fid`).
When not to use it: beside distances of another network, such as LPIPS; or for variety, which it punishes.
"""

from __future__ import annotations

import attrs
import torch
from torch import Tensor

from cswf_core.interfaces import Comparison, Dataset, Meaning, Result, Workbench
from cswf_plugins.metrics.inception import InceptionMetric, Numbers, image_spread
from cswf_plugins.metrics.psnr import check_completions, scored_completions


@attrs.frozen(kw_only=True)
class PerceptualDistance(InceptionMetric):
    """Distance of completions from their originals, in features."""

    NAME = "perceptual-distance"
    better = "lower"
    once = True

    def check(self, data: Dataset, bench: Workbench) -> None:
        """Look for the network's file."""
        super().check(data, bench)
        check_completions(data, "perceptual-distance")

    def compute(self, comparison: Comparison) -> Result:
        """Return `perceptual_distance`, `…_best` and, where there are two images, `…_unrelated`."""
        scored = scored_completions(comparison, "perceptual-distance")
        features = self.features(comparison)
        p = features.of(scored.completed)
        q = features.of(scored.images)
        distances = torch.linalg.vector_norm(p - q[scored.which.to(q.device)], dim=1).double()
        numbers = Numbers()

        def add(name: str, values: Tensor, sentence: str, of_samples: bool = True) -> None:
            meaning = Meaning(sentence, aspect="condition", of_samples=of_samples)
            numbers.add(self.named(name), float(values.mean()), meaning, image_spread(values))

        add(
            "perceptual_distance",
            scored.by_image(distances),
            "Distance between the Inception features of a completion and of its original; 0 is perfect.",
        )
        add(
            "perceptual_distance_best",
            -scored.largest(-distances),
            "The same of the nearest completion of each image; it falls with the number of completions.",
        )
        protocol = (
            "Euclidean distance between Inception pool features of a completion and of its original, "
            f"mean over {scored.words}, {self.resized}; perceptual_distance_best: the mean of each "
            "image's nearest"
        )
        if len(q) > 1:
            between = torch.linalg.vector_norm(q - q.roll(1, dims=0), dim=1).double()
            scale = "The same from one original to another, a scale to read the others by."
            add("perceptual_distance_unrelated", between, scale, of_samples=False)
            protocol += "; perceptual_distance_unrelated: from one original to another"
        return numbers.result(protocol, samples=len(scored.completed))
