"""Metric `completion-fid`: FID between completions and the images they complete.

What it is: the Fréchet distance of `fid`, of completions of held-out images (of all, where nothing is held out)
against those very images, which have the same parts that were given. It is what `psnr` cannot be, a distance
between sets: completions may differ from their originals as long as they look like such images.
Cost: the features (see `fid`).
When not to use it: with a few completions; ask for more with `condition.held_out`.
"""

from __future__ import annotations

import attrs

from cswf_core.interfaces import Comparison, Dataset, Meaning, Result, Workbench
from cswf_core.kernels.frechet import Frechet
from cswf_plugins.metrics.inception import InceptionMetric, Numbers, image_spread
from cswf_plugins.metrics.psnr import check_completions, scored_completions
from cswf_plugins.references import bibtex


@attrs.frozen(kw_only=True)
class CompletionFid(InceptionMetric):
    """Fréchet Inception distance of completions to their originals."""

    NAME = "completion-fid"
    references = bibtex("heusel2017gans", "parmar2022aliased")
    better = "lower"
    once = True

    def check(self, data: Dataset, bench: Workbench) -> None:
        """Look for completions and for the network's file."""
        check_completions(data, "completion-fid")
        super().check(data, bench)

    def compute(self, comparison: Comparison) -> Result:
        """Return `completion_fid`, or `completion_fid_clean`."""
        scored = scored_completions(comparison, "completion-fid")
        self.check_count(scored.completed, "completed")
        self.check_count(scored.images, "original")
        features = self.features(comparison)
        frechet = Frechet.between(features.moments(scored.completed), features.moments(scored.images))
        # An image and its completions come together, and so do their influences.
        of_completions = scored.by_image(frechet.influences_of_p(features.of(scored.completed)))
        influences = of_completions + frechet.influences_of_q(features.of(scored.images))
        meaning = Meaning(
            "Distance between the Inception features of completions and of the images they complete, both "
            "taken as Gaussians; 0 is the best.",
            aspect="quality",
        )
        spread = image_spread(influences, "infinitesimal jackknife over images, each with its completions")
        numbers = Numbers()
        numbers.add(self.named("completion_fid"), frechet.distance, meaning, spread)
        protocol = f"Fréchet distance of {scored.words} to those images, {self.resized}, in float64"
        return numbers.result(protocol, samples=len(scored.completed))
