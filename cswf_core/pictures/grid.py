"""Pictures of images, pixel for pixel: grids with a row per class, and mosaics, drawn with Pillow."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from PIL.PngImagePlugin import PngInfo
from torch import Tensor

Bytes = NDArray[np.uint8]

GAP = 2
HEADER = 16
"""Pixels between images, and above columns that have a text."""
CAPTION = 14
"""Pixels under images that have a text there."""

MOST_ROWS = 50
"""Classes shown at most."""

BACKGROUND = (255, 255, 255)
INK = (40, 40, 40)


def png(picture: Image.Image, **texts: str) -> bytes:
    """Return a picture as PNG, with texts about it."""
    buffer = io.BytesIO()
    about = PngInfo()
    for name, text in texts.items():
        about.add_text(name, text)
    picture.save(buffer, format="PNG", pnginfo=about)  # optimizing takes eight times as long and saves nothing
    return buffer.getvalue()


@cache
def font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    """Return Pillow's own font."""
    return ImageFont.load_default(size)


def tile(image: Tensor) -> Image.Image:
    """Return a C×H×W image of bytes as a picture, enlarged if small; unless C = 3, its first channel."""
    channels, height, width = image.shape
    pixels = image.permute(1, 2, 0).numpy()
    picture = Image.fromarray(pixels) if channels == 3 else Image.fromarray(pixels[:, :, 0]).convert("RGB")
    factor = max(1, math.ceil(40 / max(height, width)))  # to 40 pixels at least
    return picture.resize((width * factor, height * factor), Image.Resampling.NEAREST)


def table(
    rows: Sequence[Sequence[Image.Image]],
    left: Sequence[str] = (),
    top: Sequence[str] = (),
    captions: Sequence[Sequence[str]] = (),
) -> Image.Image:
    """Lay pictures of one size out in rows, with texts before rows, above columns and under pictures."""
    width, height = next((picture.size for row in rows for picture in row), (1, 1))
    letters = font(max(11, height // 3)) if left else font(11)
    margin = math.ceil(max((letters.getlength(text) for text in left), default=-8)) + 8
    header = HEADER if top else 0
    columns = max((len(row) for row in rows), default=1)
    step = height + GAP + (CAPTION if captions else 0)
    size = (margin + columns * (width + GAP) + GAP, header + len(rows) * step + GAP)
    canvas = Image.new("RGB", size, BACKGROUND)
    pen = ImageDraw.Draw(canvas)
    for c, text in enumerate(top):
        pen.text((margin + GAP + c * (width + GAP) + width // 2, header // 2), text, INK, font(11), anchor="mm")
    for r, row in enumerate(rows):
        y = header + GAP + r * step
        if r < len(left):
            pen.text((margin // 2, y + height // 2), left[r], INK, letters, anchor="mm")
        for c, picture in enumerate(row):
            x = margin + GAP + c * (width + GAP)
            canvas.paste(picture, (x, y))
            if r < len(captions) and c < len(captions[r]):
                under = (x + width // 2, y + height + CAPTION // 2)
                pen.text(under, captions[r][c], INK, font(10), anchor="mm")
    return canvas


def grid(images: Tensor, labels: Tensor | None, classes: Sequence[str], columns: int) -> Image.Image:
    """Draw n×C×H×W images: a row for each class, of the first MOST_ROWS; a square without classes."""
    if labels is None:
        tiles = [tile(image) for image in images[: columns * columns]]
        return table([tiles[i : i + columns] for i in range(0, len(tiles), columns)])
    present = [c for c in torch.unique(labels).tolist() if c < len(classes)][:MOST_ROWS]
    rows = [[tile(image) for image in images[labels == c][:columns]] for c in present]
    return table(rows, left=[classes[c] for c in present])


def arrangement(labels: NDArray[np.int64] | None, count: int) -> NDArray[np.int64]:
    """Return where n images go, as rows × columns of their numbers, −1 for a gap; classes have their own lines.

    A class is a column if there are more classes than images of one, else a row.
    """
    if labels is None:
        side = math.isqrt(max(1, count - 1)) + 1
        widths = range(min(count, side), min(count, 2 * side) + 1)
        columns = min(widths, key=lambda c: (-count % c, abs(c / math.ceil(count / c) - 1.6)))
        filled = np.full(math.ceil(count / columns) * columns, -1)
        filled[:count] = np.arange(count)
        return filled.reshape(-1, columns)
    lines = [np.flatnonzero(labels == c) for c in np.unique(labels)]
    longest = max(len(line) for line in lines)
    rows = np.array([np.pad(line, (0, longest - len(line)), constant_values=-1) for line in lines])
    return rows.T if len(lines) > longest else rows


def mosaic(images: Bytes, places: NDArray[np.int64]) -> Image.Image:
    """Lay n×C×H×W images out as `arrangement` says, pixel for pixel, with clear gaps of a pixel.

    Unless C = 3, the first channel is shown, in grey.
    """
    channels, height, width = images.shape[1:]
    colours = 3 if channels == 3 else 1
    rows, columns = places.shape
    canvas = np.zeros((rows * (height + 1) - 1, columns * (width + 1) - 1, colours + 1), dtype=np.uint8)
    for (r, c), number in np.ndenumerate(places):
        if number >= 0:
            y = r * (height + 1)
            x = c * (width + 1)
            canvas[y : y + height, x : x + width, :colours] = images[number, :colours].transpose(1, 2, 0)
            canvas[y : y + height, x : x + width, colours] = 255
    return Image.fromarray(canvas)
