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

from cswf_core.errors import DataError
from cswf_core.interfaces import Comparison, Dataset, Meaning, Metric, Result, Workbench
from cswf_plugins.metrics.inception import Numbers, image_spread


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
        scored = scored_completions(comparison, "psnr")
        bench = comparison.bench
        completed = bench.images(scored.completed)
        images = bench.images(scored.images)
        pairs = zip(torch.split(completed, 4096), torch.split(scored.which, 4096), strict=True)
        values = torch.cat([decibels(some, images[which]) for some, which in pairs])
        of_images = scored.by_image(values)
        best = scored.largest(values)
        numbers = Numbers()
        nearness = Meaning(
            "How near completions come to their originals, pixel by pixel, in decibels; 100 is perfect.",
            aspect="condition",
        )
        numbers.add("psnr", float(of_images.mean()), nearness, image_spread(of_images))
        of_best = Meaning(
            "The same of the best completion of each image; it grows with the number of completions.",
            aspect="condition",
        )
        numbers.add("psnr_best", float(best.mean()), of_best, image_spread(best))
        protocol = (
            f"peak signal-to-noise ratio over whole 8-bit images, mean over {scored.words}; "
            "psnr_best: the mean of each image's best"
        )
        return numbers.result(protocol, samples=len(scored.completed))


def decibels(p: Tensor, q: Tensor) -> Tensor:
    """Return the signal-to-noise ratio of n×C×H×W bytes and others, image by image: n."""
    error = (p.double() - q.double()).square().mean(dim=(1, 2, 3))
    return 10 * torch.log10(255**2 / error.clamp_min(255**2 / 10**10.0))  # 100 dB without a fault


@attrs.frozen(eq=False)
class Completions:
    """Generated samples beside the images that they complete."""

    completed: Dataset
    """n samples: those that complete held-out images; where there are none, all."""
    images: Dataset
    """The k images that they complete, each once."""
    which: Tensor
    """n whole numbers, the image that each sample completes."""
    held_out: bool
    """Whether the images are ones that the flow never saw."""

    @property
    def words(self) -> str:
        """How many completions of how many images these are, for a protocol."""
        kind = "held-out" if self.held_out else "training"
        plural = "image" if len(self.images) == 1 else "images"
        return f"{len(self.completed):,} completions of {len(self.images):,} {kind} {plural}"

    def by_image(self, values: Tensor) -> Tensor:
        """Return a number for each image (k) from values of completions (n), with the mean of the values.

        An image's number is the mean and what its completions add to it. Completions of one image are alike,
        so their mean is as sure as these numbers say, and not as n independent values would be.
        """
        mean = values.mean()
        count = len(self.images)
        added = torch.zeros(count, dtype=values.dtype, device=values.device)
        added.index_add_(0, self.which.to(values.device), values - mean)
        return mean + added * count / len(values)

    def largest(self, values: Tensor) -> Tensor:
        """Return the largest of the values (n, one for each completion) that each image has: k."""
        lowest = torch.full((len(self.images),), -torch.inf, dtype=values.dtype, device=values.device)
        return lowest.scatter_reduce(0, self.which.to(values.device), values, "amax")


def check_completions(samples: Dataset, metric: str) -> None:
    """Raise where samples like these complete nothing."""
    if samples.conditions.origin is None:
        raise DataError(f"metric '{metric}' scores completions, and these samples complete no images")


def scored_completions(comparison: Comparison, metric: str) -> Completions:
    """Return the completions to score, in the name of a metric; the same object for all that ask.

    Raises `DataError` where nothing was completed.
    """
    generated = comparison.generated
    originals = comparison.originals
    check_completions(generated, metric)
    origin = generated.conditions.origin
    if originals is None or origin is None:
        raise DataError(f"metric '{metric}' scores completions, and what these complete is not known")

    def choose() -> Completions:
        ours = origin.cpu()
        chosen = torch.arange(len(ours))
        held_out = bool((ours < 0).any())
        if held_out:
            chosen = chosen[ours < 0]
        completed = generated if len(chosen) == len(generated) else generated.take(chosen)
        _, which = torch.unique(ours[chosen], return_inverse=True)
        # The first sample of each image stands for it.
        firsts = torch.full((int(which.max()) + 1,), len(which))
        firsts = firsts.scatter_reduce(0, which, torch.arange(len(which)), "amin")
        x = originals.cpu()[:, chosen[firsts]].to(generated.x.dtype)
        return Completions(completed, attrs.evolve(completed.take(firsts), x=x), which, held_out)

    return comparison.bench.keep(("completions", generated), choose)
