"""Metric `completion-fid`: FID between completions and the images they complete.

What it is: the Fréchet distance of `fid`, of completions of held-out images (of all, where nothing is held out)
against those very images, which have the same parts that were given. It is what `psnr` cannot be, a distance
between sets: completions may differ from their originals as long as they look like such images.
Cost: the features (see `fid`).
When not to use it: with a few completions; ask for more with `condition.held_out`.
"""

from __future__ import annotations

import attrs

from cswf_core.interfaces import Comparison, Dataset, Metric, Result, Workbench, parameter
from cswf_core.kernels.frechet import frechet_distance
from cswf_plugins.inception.features import feature_moments
from cswf_plugins.inception.network import MODE_HELP, Mode
from cswf_plugins.metrics.checks import check_count, check_images
from cswf_plugins.metrics.completions import check_completions, scored_completions
from cswf_plugins.metrics.fid import RESIZED, named


@attrs.frozen(kw_only=True)
class CompletionFid(Metric):
    """Fréchet Inception distance of completions to their originals."""

    better = "lower"
    once = True

    mode: Mode = parameter(MODE_HELP, default="legacy_tensorflow")

    def check(self, data: Dataset, bench: Workbench) -> None:
        """Look for completions and for the network's file."""
        check_completions(data, "completion-fid")
        check_images(data, bench, "completion-fid")

    def compute(self, comparison: Comparison) -> Result:
        """Return `completion_fid`, or `completion_fid_clean`."""
        scored = scored_completions(comparison, "completion-fid")
        check_count(scored.completed, "completion-fid", "completed")
        check_count(scored.images, "completion-fid", "original")
        p, q = (
            feature_moments(comparison, samples, self.mode) for samples in (scored.completed, scored.images)
        )
        protocol = f"Fréchet distance of {scored.words} to those images, {RESIZED[self.mode]}, in float64"
        scores = {named("completion_fid", self.mode): frechet_distance(p, q)}
        return Result(scores, protocol, samples=len(scored.completed))
