"""Contract of images that are read a block at a time: from files, from memory, or decoded when asked for."""

from __future__ import annotations

import abc
from typing import Literal

import attrs
import torch
from torch import Tensor

from cswf_core.interfaces.space import Space

Dequantise = Literal["step", "once", "middle", "none"]
"""How grey levels become numbers: with fresh noise at every step, with noise added once, or without noise."""


@attrs.frozen(eq=False, kw_only=True)
class StoredImages(abc.ABC):
    """n images of 8 bits per value, of which only labels are in memory.

    A byte v is the pixel x = v·bin_width − 1. Mirror images and noise are not among the bytes: `flips` and
    `dequantise` say whether `DatasetSource.load` adds them.
    """

    count: int
    """n."""
    space: Space
    """C×H×W."""
    labels: Tensor | None = attrs.field(default=None, repr=False)
    """n whole numbers (int64), the index of each image's class; None if there are no classes."""
    classes: tuple[str, ...] = ()
    bin_width: float
    """Distance between two grey levels."""
    split: str = "train"
    """Which part of published data these are."""
    held_out: StoredImages | None = attrs.field(default=None, repr=False)
    """Images of the same kind that the flow never sees."""
    flips: bool = False
    """Whether the mirror image of each belongs to the data too, behind all the others."""
    dequantise: Dequantise = "step"

    def __len__(self) -> int:
        return self.count

    @abc.abstractmethod
    def fill(self, first: int, out: Tensor) -> None:
        """Read the images from number `first` on into `out`: m×C×H×W bytes on the CPU, pinned or not.

        Nothing else is read. `first` + m is at most n.
        """

    def block(self, first: int, stop: int) -> Tensor:
        """Return the images from number `first` to before `stop`: m×C×H×W bytes on the CPU."""
        if not 0 <= first <= stop <= len(self):
            raise IndexError(f"there are no images from {first} to {stop} among {len(self)}")
        out = torch.empty(stop - first, *self.space.shape, dtype=torch.uint8)
        self.fill(first, out)
        return out
