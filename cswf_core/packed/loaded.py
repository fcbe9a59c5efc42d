"""Images of a data set that is in memory as a whole, as bytes."""

from __future__ import annotations

import attrs
import torch
from torch import Tensor

from cswf_core.errors import DataError
from cswf_core.interfaces import Dataset, StoredImages

BLOCK = 4096
"""Images that are turned into bytes at a time."""


@attrs.frozen(eq=False, kw_only=True)
class LoadedImages(StoredImages):
    """The images of a `Dataset`, from which the same numbers can be made again to the bit."""

    levels: Tensor = attrs.field(repr=False)
    """n×C×H×W bytes."""

    @classmethod
    def of(cls, data: Dataset) -> LoadedImages:
        """Return the images without those made from others; raise `DataError` if they are not bytes."""
        if not data.space.is_image:
            raise DataError(
                f"samples in {data.space} dimensions are not images, and only images are stored as bytes"
            )
        if data.conditions.vectors is not None:
            raise DataError("the images have condition vectors, and only labels are stored beside images")
        genuine = data.genuine()
        return cls(
            count=len(genuine),
            space=data.space,
            labels=genuine.conditions.labels,
            classes=data.classes,
            bin_width=data.bin_width,
            split=data.split,
            held_out=None if data.held_out is None else cls.of(data.held_out),
            flips=data.augmented > 0,
            levels=_levels(genuine),
        )

    def fill(self, first: int, out: Tensor) -> None:
        """Copy the images from number `first` on into `out`."""
        out.copy_(self.levels[first : first + len(out)])

    def take(self, numbers: Tensor, out: Tensor) -> None:
        """Copy the images with these numbers into `out`; several threads do."""
        torch.index_select(self.levels, 0, numbers, out=out)


def _levels(data: Dataset) -> Tensor:
    """Return the bytes v of which the pixels are v·bin_width − 1, exactly: n×C×H×W."""
    fault = DataError(
        "the pixels are not 8-bit grey levels, and only those can be stored as bytes; images that are bytes "
        "stay so with dequantise: step"
    )
    if not data.bin_width:
        raise fault
    levels = torch.empty(len(data), data.space.dimension, dtype=torch.uint8)
    for first in range(0, len(data), BLOCK):
        x = data.x[:, first : first + BLOCK]
        v = ((x + 1) / data.bin_width).round().clamp(0, 255)
        if not torch.equal(v * data.bin_width - 1, x):
            raise fault
        levels[first : first + BLOCK] = v.T.to(torch.uint8)
    return levels.reshape(len(data), *data.space.shape)
