"""Data `digits`: 1,797 handwritten digits of 8×8 pixels, bundled with scikit-learn.

What it is: the embedded data set; 17 grey levels, ten classes of about 180 images.
Cost: nothing to download.
When not to use it: for any number you want to compare with a paper.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import attrs
import torch
from torch import Tensor

from cswf_core.interfaces import Conditions, Dataset, DatasetSource, Draw, Space, parameter
from cswf_plugins.references import bibtex


def _digits_only(_instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    unknown = [c for c in value if not 0 <= c <= 9]
    if unknown:
        raise ValueError(f"{attribute.name} must be digits from 0 to 9, got {unknown[0]}")


@cache
def _bundled() -> tuple[Tensor, Tensor]:
    """Return the images (1797×64, float64) and their labels, parsed once; whoever changes them copies them."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    return torch.from_numpy(bunch.data), torch.from_numpy(bunch.target).long()


@attrs.frozen(kw_only=True)
class Digits(DatasetSource):
    """Small handwritten digits that need no download."""

    references = bibtex("alpaydin1998optical")
    licence = "The digits are those of the UCI Machine Learning Repository, under CC BY 4.0."

    classes: tuple[int, ...] = parameter(
        "which digits to take; all of them if left out", default=(), validator=_digits_only
    )

    def load(self, draw: Draw) -> Dataset:
        """Return grey level v as x = 2v/17 − 1 with bins of 2/17."""
        bin_width = 2 / 17
        images, target = _bundled()
        wanted = sorted(set(self.classes)) or list(range(10))
        keep = torch.isin(target, torch.tensor(wanted))
        x = images.to(draw.dtype)[keep].T.contiguous() * bin_width - 1
        labels = torch.searchsorted(torch.tensor(wanted), target[keep])
        return Dataset(
            x=x,
            space=Space((1, 8, 8)),
            conditions=Conditions(labels=labels),
            classes=tuple(str(c) for c in wanted),
            bin_width=bin_width,
        )
