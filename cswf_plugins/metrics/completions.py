"""The completions that metrics score, beside the images that they complete."""

from __future__ import annotations

import attrs
import torch
from torch import Tensor

from cswf_core.errors import DataError
from cswf_core.interfaces import Comparison, Dataset


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
        mean, count = values.mean(), len(self.images)
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
    generated, originals = comparison.generated, comparison.originals
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
