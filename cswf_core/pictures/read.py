"""Pictures from a disk: the one place where a picture is opened, and refused in a sentence if it is none."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from cswf_core.errors import DataError, OutOfMemoryError, printable
from cswf_core.files import open_file, refuse_irregular
from cswf_core.interfaces import Space
from cswf_core.kernels.memory import is_out_of_memory

# Pillow warns of large pictures, which is a sentence here, and of faults in what a file says about its picture.
warnings.filterwarnings("ignore", module=r"PIL\.")

FORMATS = ("PNG", "JPEG", "BMP", "WEBP")
"""Formats of pictures that are read, whatever a file's name says: Pillow calls programs for others."""

MOST_PIXELS = 89_478_485
"""Pixels of a picture at most, a quarter of a GB as bytes of three colours: where Pillow begins to warn."""

ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".webp")
"""Endings of the files that are taken for pictures, in small letters."""

KINDS = ", ".join(ending[1:] for ending in ENDINGS)

ODD = 0.01
"""Share of images that are constant, or repeat others, from which on a note says so: in CIFAR-10, MNIST and
Fashion-MNIST none does."""


def read_picture(path: Path, mode: Literal["L", "RGB"] | None = None) -> Image.Image:
    """Return a picture, turned upright, in grey (L) or in colour (RGB); without a mode, as the file has it.

    Raise `DataError` if it is no picture of `FORMATS` that can be decoded, has more than 8 bits per value,
    moves, or has too many pixels, which is known before these are decoded.
    """
    with open_file(path) as file:
        try:
            with Image.open(file, formats=FORMATS) as opened:
                _refuse_unusual(path, opened)
                wanted = mode or ("L" if opened.mode in ("1", "L", "LA") else "RGB")
                return ImageOps.exif_transpose(opened).convert(wanted)
        except DataError:
            raise
        except UnidentifiedImageError:
            reason = f"it is none of {', '.join(FORMATS)}"
        except Exception as error:  # Pillow's decoders raise many kinds for damaged files
            if is_out_of_memory(error):
                raise OutOfMemoryError(f"{path} does not fit into this machine's memory") from None
            reason = " ".join(str(error).split()) or type(error).__name__
    raise DataError(f"{path} cannot be read as an image ({reason}); replace or remove it")


def _refuse_unusual(path: Path, picture: Image.Image) -> None:
    """Raise `DataError` for a picture that is not to be decoded."""
    width, height = picture.size
    if width * height > MOST_PIXELS:
        raise DataError(
            f"{path} has {width:,}×{height:,} pixels, and {MOST_PIXELS:,} is the most; make it smaller"
        )
    if picture.mode.startswith(("I", "F")):
        raise DataError(f"{path} has more than 8 bits per value; convert it to an 8-bit image")
    # A JPEG file may have several pictures although it does not move: its own preview.
    frames = getattr(picture, "n_frames", 1) if picture.format in ("PNG", "WEBP") else 1
    if frames > 1:
        raise DataError(f"{path} is animated, with {frames:,} frames; save those that you want as pictures")


def find_pictures(folder: Path) -> tuple[list[Path], NDArray[np.int64], tuple[str, ...]]:
    """Return a folder's pictures, the class of each, and the names of the classes.

    Each folder within is a class, with the pictures of all folders below it; without any, there are no names,
    and the class of each picture is 0.
    """
    names = [name for name in _names(folder) if (folder / name).is_dir()]
    below = {name: _files_below(folder / name, folder) for name in names}
    within = {name: files for name, files in below.items() if files}
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
    return [file for files in groups for file in files], labels, _class_names(folder, within)


def _files_below(folder: Path, top: Path) -> list[Path]:
    """Return the pictures in a folder and in all folders below it, which is below `top`.

    Links are followed, but no folder is read twice, nor `top` again: links may lead in circles.
    """
    files = []
    seen = {top.resolve()}
    folders = [folder]
    for current in folders:  # which grows meanwhile
        if current.resolve() not in seen:
            seen.add(current.resolve())
            files += files_in(current)
            folders += [current / name for name in _names(current) if (current / name).is_dir()]
    return files


def picture_notes(folder: Path, files: Sequence[Path]) -> list[str]:
    """Return a sentence for each thing about a folder's pictures (`files`) that a score may depend on."""
    notes = []
    folders = dict.fromkeys(file.parent for file in files)
    others = (".tif", ".tiff", ".gif", ".avif", ".heic", ".jp2", ".ppm", ".pgm", ".jxl", ".tga")
    unread = [path for parent in folders for path in files_in(parent, others)]
    if unread:
        kinds = ", ".join(sorted({path.suffix.lower()[1:] for path in unread}))
        count = "1 picture" if len(unread) == 1 else f"{len(unread):,} pictures"
        such = f"{count} ({printable(unread[0].name)})"
        notes.append(f"{folder}: skipped {such}; {kinds} is not supported, only {KINDS}")
    clear = [file for file in files if is_transparent(file)]
    if clear:
        such = f"{len(clear):,} of {len(files):,} pictures, such as {printable(clear[0].name)}"
        notes.append(
            f"{folder}: {such}, are transparent in part; the alpha channel is ignored, so transparent pixels "
            "count with the colour that is stored below them"
        )
    return notes


def image_notes(path: Path, pixels: NDArray[np.uint8]) -> list[str]:
    """Return a sentence for each thing about images (n×C×H×W) that is probably a mistake."""
    count = len(pixels)
    notes = []
    if pixels.max() <= 1:
        notes.append(
            f"{path}: all values are 0 or 1 of 255, so the images are almost black; multiply images in [0, 1] "
            "by 255 before you convert them to uint8"
        )
    constant = int((pixels.max(axis=(2, 3)) == pixels.min(axis=(2, 3))).all(axis=1).sum())
    if constant >= ODD * count:
        notes.append(f"{path}: {constant:,} of {count:,} images are constant, of one colour each")
    repeated = count - len({hash(image.tobytes()) for image in pixels})
    if repeated >= ODD * count:
        notes.append(f"{path}: only {count - repeated:,} of {count:,} images are distinct; others repeat these")
    return notes


def is_transparent(path: Path) -> bool:
    """Say whether a picture, one that `read_picture` accepts, has a pixel that is not opaque."""
    with open_file(path) as file, suppress(Exception), Image.open(file, formats=FORMATS) as opened:
        if "A" in opened.getbands() or "transparency" in opened.info:  # others need not be decoded
            return opened.convert("RGBA").getchannel("A").getextrema() != (255, 255)
    return False  # what cannot be read is told by whoever reads it


def _class_names(folder: Path, names: Iterable[str]) -> tuple[str, ...]:
    """Return names of folders as text that can be printed; raise `DataError` if two become the same."""
    classes: dict[str, str] = {}
    for name in names:
        other = classes.setdefault(printable(name), name)
        if other != name:
            raise DataError(
                f"{folder} has two folders that are written as {printable(name)}, one of them with bytes that "
                "are no text; rename one, as each folder is a class"
            )
    return tuple(classes)


def files_in(folder: Path, endings: tuple[str, ...] = ENDINGS) -> list[Path]:
    """Return the files of a folder with one of these endings (in small letters), sorted by name.

    Raise `DataError` for a name that leads to no file, such as a pipe's, which would be waited for.
    """
    paths = [folder / name for name in _names(folder) if name.lower().endswith(endings)]
    files = [path for path in paths if not path.is_dir()]
    for path in files:
        refuse_irregular(path)
    return files


def _names(folder: Path) -> list[str]:
    """Return the sorted names in a folder but hidden ones."""
    try:
        return sorted(name for name in os.listdir(folder) if not name.startswith("."))
    except OSError as error:
        raise DataError(f"{folder} cannot be read ({error.strerror or error})") from None


def read_images(paths: Sequence[Path], space: Space, *, resize: bool) -> Tensor:
    """Return pictures as a model's images, grey or in colour as it has them: m×C×H×W bytes.

    With `resize`, pictures of another size are cut to the model's proportions, about their middle, and resized.
    """
    channels, height, width = space.grid("a model that completes images")
    if channels not in (1, 3):
        raise DataError(f"the model's images have {channels} channels, and pictures have 1 or 3")
    mode: Literal["L", "RGB"] = "RGB" if channels == 3 else "L"
    size = (width, height)
    cubic = Image.Resampling.BICUBIC
    pictures = [_fitted(path, mode, size, cubic, resize=resize) for path in paths]
    pixels = np.stack([np.asarray(picture, np.uint8).reshape(height, width, channels) for picture in pictures])
    return torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous()


def read_mask(path: Path, space: Space, *, resize: bool) -> Tensor:
    """Return which pixels are known: H×W, true where the picture is not black; black is to be filled in."""
    _, height, width = space.grid("a mask")
    picture = _fitted(path, "L", (width, height), Image.Resampling.NEAREST, resize=resize)
    return torch.from_numpy(np.asarray(picture, np.uint8) >= 128)


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
