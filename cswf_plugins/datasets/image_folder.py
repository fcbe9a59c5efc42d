"""Data `image-folder`: your own pictures; each subfolder is a class, with all folders below it.

What it is: PNG, JPEG, BMP and WebP files, cut to a square in the middle and resized with Pillow's bicubic
filter, as 8-bit numbers; a tenth of each class is held out by default.
Cost: about a millisecond per picture, once; the result is cached.
When not to use it: for pictures that must not be cropped, or with more than 8 bits per value; see `npz`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import attrs
import numpy as np

from cswf_core.errors import DataError
from cswf_core.interfaces import Draw, parameter
from cswf_core.pictures.read import KINDS, find_pictures
from cswf_plugins.datasets.folders import LARGEST, Cut, FolderPixels, FolderSource
from cswf_plugins.datasets.images import CLASSES_HELP, Pictures, Whole, class_numbers


def _a_share(_instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    if not 0 <= value < 1:
        raise ValueError(f"{attribute.name} must be at least 0 and below 1, got {value!r}")


@attrs.frozen(kw_only=True)
class ImageFolder(FolderSource):
    """Your own pictures from a folder."""

    NAME = "image-folder"

    path: Path = parameter("the folder; a relative path counts from the recipe that names it")
    size: int = parameter("side of the images, in pixels", at_least=1, at_most=LARGEST)
    crop: int | None = parameter(
        "side of the square cut out of the middle, in pixels; the largest there is if left out",
        default=None,
        at_least=1,
    )
    channels: Literal[1, 3] = parameter("1 for grey, 3 for colour", default=3)
    classes: tuple[str, ...] = parameter(CLASSES_HELP, default=())
    held_out: float = parameter(
        "share of each class that the flow does not see, from 0 to below 1", default=0.1, validator=_a_share
    )

    def _pictures(self, draw: Draw) -> tuple[Pictures, Pictures | None]:
        folder = self.path.expanduser().absolute()
        if not folder.is_dir():
            reason = "is not a folder" if folder.exists() else "does not exist"
            raise DataError(f"{folder} {reason}; path must name a folder of pictures ({KINDS})")
        files, labels, classes = find_pictures(folder)
        if classes:
            class_numbers(self.classes, classes)  # a wrong name is said before decoding, not after
        # Chosen before classes are, so that a class's share is the same whichever others are taken.
        held = self._held_out(labels, draw)
        pixels = FolderPixels(folder, files, Cut(self.size, self.channels, self.crop))
        every = Pictures(pixels, np.arange(len(files)), labels if classes else None, classes)
        seen, rest = (every.take(np.flatnonzero(held == part)) for part in (False, True))
        return seen.of_classes(self.classes), rest.of_classes(self.classes)

    def _held_out(self, labels: Whole, draw: Draw) -> np.typing.NDArray[np.bool_]:
        """Return which images to hold out: a share of each class, but never all of it."""
        held = np.zeros(len(labels), np.bool_)
        for c in np.unique(labels) if self.held_out else ():
            members = np.flatnonzero(labels == c)
            share = min(round(self.held_out * len(members)), len(members) - 1)
            held[draw.host.permutation(members)[:share]] = True
        return held
