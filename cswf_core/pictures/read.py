"""Pictures from a disk: the one place where a picture is opened, and refused in a sentence if it is none."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from cswf_core.errors import DataError
from cswf_core.interfaces import Space

HALF = 128
"""Grey levels below this one are black, in a mask."""

GREY_MODES = ("1", "L", "LA")
"""Pillow's names for pictures without colours."""


def read_picture(path: Path, mode: Literal["L", "RGB"] | None = None) -> Image.Image:
    """Return a picture, turned upright, in grey (L) or in colour (RGB); without a mode, as the file has it.

    Raise `DataError` if it cannot be decoded, or has more than 8 bits per value.
    """
    try:
        with Image.open(path) as opened:
            deep = opened.mode.startswith(("I", "F"))
            wanted = mode or ("L" if opened.mode in GREY_MODES else "RGB")
            picture = None if deep else ImageOps.exif_transpose(opened).convert(wanted)
    except Exception as error:  # Pillow's decoders raise many kinds for damaged files
        reason = " ".join(str(error).split())
        raise DataError(f"{path} cannot be read as an image ({reason}); replace or remove it") from None
    if picture is None:
        raise DataError(f"{path} has more than 8 bits per value; convert it to an 8-bit image")
    return picture


def read_images(paths: Sequence[Path], space: Space, *, resize: bool) -> Tensor:
    """Return pictures as a model's images, grey or in colour as it has them: m×C×H×W bytes.

    With `resize`, pictures of another size are cut to the model's proportions, about their middle, and resized.
    """
    channels, height, width = space.grid("a model that completes images")
    if channels not in (1, 3):
        raise DataError(f"the model's images have {channels} channels, and pictures have 1 or 3")
    mode: Literal["L", "RGB"] = "RGB" if channels == 3 else "L"
    size, cubic = (width, height), Image.Resampling.BICUBIC
    pictures = [_fitted(path, mode, size, cubic, resize=resize) for path in paths]
    pixels = np.stack([np.asarray(picture, np.uint8).reshape(height, width, channels) for picture in pictures])
    return torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous()


def read_mask(path: Path, space: Space, *, resize: bool) -> Tensor:
    """Return which pixels are known: H×W, true where the picture is not black; black is to be filled in."""
    _, height, width = space.grid("a mask")
    picture = _fitted(path, "L", (width, height), Image.Resampling.NEAREST, resize=resize)
    return torch.from_numpy(np.asarray(picture, np.uint8) >= HALF)


def _fitted(
    path: Path, mode: Literal["L", "RGB"], size: tuple[int, int], method: Image.Resampling, *, resize: bool
) -> Image.Image:
    """Return a picture in the model's size; raise `DataError` if it has another one that may not change."""
    picture = read_picture(path, mode)
    if picture.size == size:
        return picture
    if not resize:
        sizes = f"{picture.width}×{picture.height} pixels, and the model's images have {size[0]}×{size[1]}"
        raise DataError(f"{path} has {sizes}; --resize brings it to that size")
    return ImageOps.fit(picture, size, method)
