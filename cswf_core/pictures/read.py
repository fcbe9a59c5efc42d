"""Pictures from a disk: the one place where a picture is opened, and refused in a sentence if it is none."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps
from torch import Tensor

from cswf_core.errors import DataError
from cswf_core.interfaces import Space

HALF = 128
"""Grey levels below this one are black, in a mask."""

FORMATS = ("PNG", "JPEG", "BMP", "WEBP")
"""Formats of pictures that are read, whatever a file's name says: Pillow calls programs for others."""

ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".webp")
"""Endings of the files that are taken for pictures, in small letters."""

KINDS = ", ".join(ending[1:] for ending in ENDINGS)

GREY_MODES = ("1", "L", "LA")
"""Pillow's names for pictures without colours."""


def read_picture(path: Path, mode: Literal["L", "RGB"] | None = None) -> Image.Image:
    """Return a picture, turned upright, in grey (L) or in colour (RGB); without a mode, as the file has it.

    Raise `DataError` if it cannot be decoded, or has more than 8 bits per value.
    """
    try:
        with Image.open(path, formats=FORMATS) as opened:
            deep = opened.mode.startswith(("I", "F"))
            wanted = mode or ("L" if opened.mode in GREY_MODES else "RGB")
            picture = None if deep else ImageOps.exif_transpose(opened).convert(wanted)
    except Exception as error:  # Pillow's decoders raise many kinds for damaged files
        reason = " ".join(str(error).split())
        raise DataError(f"{path} cannot be read as an image ({reason}); replace or remove it") from None
    if picture is None:
        raise DataError(f"{path} has more than 8 bits per value; convert it to an 8-bit image")
    return picture


def find_pictures(folder: Path) -> tuple[list[Path], NDArray[np.int64], tuple[str, ...]]:
    """Return a folder's pictures, the class of each, and the names of the classes.

    The folders within are classes; without any, there are no names, and the class of each picture is 0.
    """
    with os.scandir(folder) as entries:
        names = sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))
    within = {name: files for name in names if (files := files_in(folder / name))}
    beside = files_in(folder)
    if within and beside:
        raise DataError(
            f"{folder} has pictures of its own, such as {beside[0].name}, beside folders of them, such as "
            f"{next(iter(within))}; keep either, as each folder is a class"
        )
    if not within and not beside:
        raise DataError(f"{folder} has no pictures ({KINDS}), neither in it nor in its folders")
    groups = [*within.values()] or [beside]
    labels = np.repeat(np.arange(len(groups)), [len(files) for files in groups]).astype(np.int64)
    return [file for files in groups for file in files], labels, tuple(within)


def files_in(folder: Path, endings: tuple[str, ...] = ENDINGS) -> list[Path]:
    """Return the files of a folder with one of these endings (in small letters), sorted by name."""
    with os.scandir(folder) as entries:
        names = [e.name for e in entries if not e.name.startswith(".") and e.is_file()]
    return [folder / name for name in sorted(names) if name.lower().endswith(endings)]


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
