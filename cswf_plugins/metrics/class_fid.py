"""Metric `class-fid`: FID for each class by itself.

What it is: the generated images that were asked to be of a class against the real ones of that class, and the
mean over classes. It sees what FID does not, samples that are good but of another class than was asked for.
Cost: the features (see `fid`), which it shares with `fid`, and two eigenvalue problems for each class.
When not to use it: beside a FID of whole sets. A class has fewer images, which alone makes the number larger.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import torch
from torch import Tensor

from cswf_core.errors import DataError
from cswf_core.interfaces import Comparison, Dataset, Meaning, Result, Spread, Workbench
from cswf_core.kernels.frechet import Frechet, moments
from cswf_plugins.metrics.inception import (
    InceptionMetric,
    Numbers,
    frechet_spread,
    labels_of,
    mean_of_spreads,
)
from cswf_plugins.references import bibtex


@attrs.frozen(kw_only=True)
class ClassFid(InceptionMetric):
    """Fréchet Inception distance for each class."""

    NAME = "class-fid"
    references = bibtex("heusel2017gans", "parmar2022aliased")
    better = "lower"

    def check(self, data: Dataset, bench: Workbench) -> None:
        """Look for labels and for the network's file."""
        labels_of(data, "class-fid", "the data")
        super().check(data, bench)

    def compute(self, comparison: Comparison) -> Result:
        """Return `class_fid`, the mean, and `class_fid.NAME` for each class that was asked for."""
        wanted = labels_of(comparison.generated, "class-fid", "the generated samples")
        labelled = labels_of(comparison.real, "class-fid", "the real samples")
        p, q = self.features_of_both(comparison)
        name = self.named("class_fid")
        numbers = Numbers()
        of_class = Meaning("FID of the images of this class alone.", aspect="quality")
        present = torch.unique(wanted).tolist()
        for done, c in enumerate(present):
            called, theirs = _same_class(c, comparison.generated.classes, comparison.real.classes)
            chosen = ((p, wanted == c), (q, labelled == theirs))
            parts = [rows[which.to(rows.device)] for rows, which in chosen]
            score, spread = _scored(called, *parts)
            numbers.add(f"{name}.{called}", score, of_class, spread, detail=True)
            comparison.bench.tell("FID by class", done + 1, len(present))
        protocol = (
            f"Fréchet distance for each of {len(present)} classes by itself, {len(p):,} generated and "
            f"{len(q):,} real images in all, {self.resized}"
        )
        mean = sum(numbers.details.values()) / len(present)
        spreads = list(numbers.spreads.values())
        meaning = Meaning(
            "FID of each class by itself, on average; it also sees good images that are of another class than "
            "was asked for.",
            aspect="quality",
        )
        numbers.add(name, mean, meaning, mean_of_spreads(spreads) if len(spreads) == len(present) else None)
        return numbers.result(protocol)


def _scored(called: str, generated: Tensor, real: Tensor) -> tuple[float, Spread | None]:
    """Return the FID of a class from its features (n×D, m×D), and how sure it is."""
    if min(len(generated), len(real)) < 2:
        counts = f"there are {len(generated)} generated and {len(real)} real"
        raise DataError(f"metric 'class-fid' needs two images of each class; of '{called}' {counts}")
    frechet = Frechet.between(moments(generated), moments(real))
    return frechet.distance, frechet_spread(frechet, generated, real)


def _same_class(number: int, ours: Sequence[str], theirs: Sequence[str]) -> tuple[str, int]:
    """Return the name of one of our classes, and the number that the real samples have it by."""
    if number >= len(ours) or not theirs:
        return str(number), number
    if ours[number] not in theirs:
        raise DataError(f"metric 'class-fid': the real samples have no class '{ours[number]}'")
    return ours[number], list(theirs).index(ours[number])
