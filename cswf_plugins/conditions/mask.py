"""Condition `mask`: some pixels are given, the others are to be filled in.

What it is: inpainting as in the paper's section 6.2.2. x is the whole image; the given pixels never move, and
directions see them along with the rest.
Cost: next to nothing with one mask for all particles. With a mask for each, every step goes up to the full
resolution and back.
When not to use it: where what is given is not made of whole pixels; see `super-resolution` and `colorize`.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Literal

import attrs
import numpy as np
import torch
from torch import Tensor

from cswf_core.errors import DataError
from cswf_core.interfaces import Conditions, Dataset, Draw, Masked, Observation, parameter
from cswf_core.pictures.read import read_picture
from cswf_plugins.conditions.none import WithoutVector


@attrs.frozen(kw_only=True)
class Observing(WithoutVector):
    """A condition that sees a part of each image, which is projected with x.

    Y₀ comes from the data, as in the paper. Some particles can be given held-out images instead, several to
    each, to see how the flow completes what it has never seen.
    """

    amplifier: float = parameter("ξ: how much what is seen is stretched; 0 ignores it", default=1.0, at_least=0)
    held_out: int = parameter("held-out images that some of the particles complete", default=0, at_least=0)
    completions: int = parameter("particles for each of them", default=5, at_least=1)
    carried: bool = parameter(
        "whether these particles are carried along, and take no part in F_p: the paper's offline samples",
        default=False,
    )

    @property
    def carries_held_out(self) -> bool:  # type: ignore[override]
        """Whether particles that see held-out images take no part in F_p."""
        return self.carried

    def draw(self, data: Dataset, count: int, draw: Draw) -> Conditions:
        """Return the image that each particle completes: held-out ones first, then random ones of the data."""
        completing = self.held_out * self.completions
        available = 0 if data.held_out is None else len(data.held_out)
        if self.held_out > available:
            raise DataError(
                f"condition.held_out asks for {self.held_out:,} images, and only {available:,} are held out"
            )
        if completing > count:
            raise DataError(
                f"{self.held_out:,} held-out images with {self.completions:,} completions each need "
                f"{completing:,} particles, and there are {count:,}; raise particles.count, or lower "
                "condition.held_out"
            )
        if self.carried and completing == count:
            raise DataError(
                f"all {count:,} particles complete held-out images and are carried along, and none is left for "
                "F_p; raise particles.count, or lower condition.held_out"
            )
        held_out = torch.repeat_interleave(-1 - torch.arange(self.held_out), self.completions)
        return Conditions(origin=torch.cat([held_out, draw.integers(len(data), count - completing)]))


@attrs.frozen(kw_only=True)
class Mask(Observing):
    """Inpainting: some pixels are given."""

    hidden: Literal["bottom", "top", "left", "right", "centre", "boxes", "pixels", "picture"] = parameter(
        "what is to be filled in: a half, a box in the centre, random boxes or pixels, or what a picture says",
        default="bottom",
    )
    share: float = parameter(
        "how much: of the image's side for halves and boxes, of all pixels for random pixels",
        default=0.5,
        above=0,
        at_most=1,
    )
    boxes: int = parameter("how many random boxes; they may overlap", default=1, at_least=1, at_most=1000)
    masks: Literal["one", "each"] = parameter(
        "random boxes or pixels: one mask for all particles, or one for each", default="one"
    )
    picture: Path | None = parameter(
        "for hidden: picture, an image of the data's size, black where pixels are to be filled in", default=None
    )

    def length(self, data: Dataset) -> int:
        """l = 0; refuse a mask that contradicts itself."""
        data.space.grid("condition 'mask'")
        if (self.hidden == "picture") != (self.picture is not None):
            raise DataError("condition 'mask': `hidden: picture` and `picture: FILE` go together")
        if self.masks == "each" and self.hidden not in ("boxes", "pixels"):
            raise DataError("condition 'mask': `masks: each` needs hidden to be random: boxes or pixels")
        return super().length(data)

    def observation(self, data: Dataset, conditions: Conditions, draw: Draw) -> Observation:
        """Return the mask of given pixels, the same in all channels."""
        assert conditions.origin is not None
        count = len(conditions.origin) if self.masks == "each" else 1
        channels, height, width = data.space.grid("condition 'mask'")
        hidden = self._hidden(height, width, count, draw)
        if bool(hidden.all(dim=0).any()) or not bool(hidden.any()):
            extent = "everything" if bool(hidden.any()) else "nothing"
            raise DataError(
                f"condition 'mask' hides {extent} of a {height}×{width} image; change share or picture"
            )
        seen = ~hidden.to(draw.device)
        if count > 1:  # completions of one held-out image all fill in the same pixels
            first = torch.arange(count, device=draw.device)
            first[conditions.origin < 0] -= first[conditions.origin < 0] % self.completions
            seen = seen[:, first]
        return Masked(seen.expand(channels, *seen.shape).reshape(data.space.dimension, count))

    def _hidden(self, height: int, width: int, count: int, draw: Draw) -> Tensor:
        """Return which pixels are to be filled in: H·W × count."""
        if self.picture is not None:
            return _from_picture(self.picture, height, width)
        if self.hidden == "pixels":
            ranks = draw.uniform(height * width, count).argsort(dim=0).argsort(dim=0)
            return ranks < round(self.share * height * width)
        if self.hidden == "boxes":
            return self._boxes(height, width, count, draw)
        hidden = torch.zeros(height, width, dtype=torch.bool)
        rows = max(1, round(self.share * height))
        columns = max(1, round(self.share * width))
        top = (height - rows) // 2
        left = (width - columns) // 2
        parts: dict[str, tuple[slice, slice]] = {
            "top": (slice(0, rows), slice(None)),
            "bottom": (slice(height - rows, None), slice(None)),
            "left": (slice(None), slice(0, columns)),
            "right": (slice(None), slice(width - columns, None)),
            "centre": (slice(top, top + rows), slice(left, left + columns)),
        }
        hidden[parts[self.hidden]] = True
        return hidden.reshape(-1, 1)

    def _boxes(self, height: int, width: int, count: int, draw: Draw) -> Tensor:
        rows = max(1, round(self.share * height))
        columns = max(1, round(self.share * width))
        hidden = torch.zeros(height, width, count, dtype=torch.bool, device=draw.device)
        row, column = (torch.arange(n, device=draw.device)[:, None] for n in (height, width))
        for _ in range(self.boxes):
            top = draw.integers(height - rows + 1, count)
            left = draw.integers(width - columns + 1, count)
            inside = (row >= top) & (row < top + rows), (column >= left) & (column < left + columns)
            hidden |= inside[0][:, None] & inside[1][None]
        return hidden.reshape(height * width, count)


def _from_picture(path: Path, height: int, width: int) -> Tensor:
    """Return the pixels of a picture that are darker than half grey, which are hidden: H·W × 1."""
    try:
        grey = read_picture(path, "L")
    except DataError as error:
        raise DataError(f"condition 'mask': {error}") from None
    if grey.size != (width, height):
        raise DataError(
            f"condition 'mask': {path} has {grey.size[0]}×{grey.size[1]} pixels, and the images have "
            f"{width}×{height}"
        )
    return torch.from_numpy(np.asarray(grey) < math.ceil(255 / 2)).reshape(-1, 1)
