"""Metric `psnr`: how near completions come to their originals, pixel by pixel, in decibels.

What it is: 10·log₁₀(255²/MSE) over all 8-bit values of an image, what was given included, and at most 100 dB,
which a perfect completion gets. `psnr` is the mean over completions of held-out images (of all, where nothing
is held out); `psnr_best` takes the best completion of each image, and the mean over images.
Cost: nothing.
When not to use it: to tell which completions look better. An image has many good ones that are far from the
original, and the blurred mean of them all gets a higher number than any. `psnr_best` grows with the number of
completions of an image, so compare only equal numbers.
"""

from __future__ import annotations

import attrs
import torch
from torch import Tensor

from cswf_core.interfaces import Comparison, Dataset, Meaning, Metric, Result, Workbench
from cswf_plugins.metrics.completions import check_completions, scored_completions
from cswf_plugins.metrics.spreads import image_spread


@attrs.frozen(kw_only=True)
class Psnr(Metric):
    """Peak signal-to-noise ratio of completions."""

    better = "higher"
    once = True

    def check(self, data: Dataset, bench: Workbench) -> None:
        """Look for completions of images."""
        del bench
        data.space.grid("metric 'psnr'")
        check_completions(data, "psnr")

    def compute(self, comparison: Comparison) -> Result:
        """Return `psnr` and `psnr_best`."""
        scored, bench = scored_completions(comparison, "psnr"), comparison.bench
        completed, images = bench.images(scored.completed), bench.images(scored.images)
        pairs = zip(torch.split(completed, 4096), torch.split(scored.which, 4096), strict=True)
        values = torch.cat([decibels(some, images[which]) for some, which in pairs])
        each = {"psnr": scored.by_image(values), "psnr_best": scored.largest(values)}
        scores = {name: float(numbers.mean()) for name, numbers in each.items()}
        spreads = {name: image_spread(numbers) for name, numbers in each.items()}
        protocol = (
            f"peak signal-to-noise ratio over whole 8-bit images, mean over {scored.words}; "
            "psnr_best: the mean of each image's best"
        )
        return Result(
            scores,
            protocol,
            samples=len(scored.completed),
            spreads={name: spread for name, spread in spreads.items() if spread is not None},
            meanings={
                "psnr": Meaning(
                    "How near completions come to their originals, pixel by pixel, in decibels; 100 is "
                    "perfect.",
                    aspect="condition",
                ),
                "psnr_best": Meaning(
                    "The same of the best completion of each image; it grows with the number of completions.",
                    aspect="condition",
                ),
            },
        )


def decibels(p: Tensor, q: Tensor) -> Tensor:
    """Return the signal-to-noise ratio of n×C×H×W bytes and others, image by image: n."""
    error = (p.double() - q.double()).square().mean(dim=(1, 2, 3))
    return 10 * torch.log10(255**2 / error.clamp_min(255**2 / 10**10.0))  # 100 dB without a fault
