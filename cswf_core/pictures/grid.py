"""Pictures of images: a grid with a row per class, drawn with Pillow."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence

import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

GAP = 2
SMALLEST_TILE = 40
"""Pixels that an image's longer side has at least; smaller images are enlarged by a whole factor."""

MOST_ROWS = 50
"""Classes shown at most."""

BACKGROUND = (255, 255, 255)
INK = (40, 40, 40)


def png(picture: Image.Image) -> bytes:
    """Return a picture as PNG."""
    buffer = io.BytesIO()
    picture.save(buffer, format="PNG")  # optimizing takes eight times as long and saves nothing
    return buffer.getvalue()


def font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    """Return Pillow's own font."""
    return ImageFont.load_default(size)


def tile(image: Tensor) -> Image.Image:
    """Return a C×H×W image of bytes as a picture, enlarged if small; unless C = 3, its first channel."""
    channels, height, width = image.shape
    pixels = image.permute(1, 2, 0).numpy()
    picture = Image.fromarray(pixels) if channels == 3 else Image.fromarray(pixels[:, :, 0]).convert("RGB")
    factor = max(1, math.ceil(SMALLEST_TILE / max(height, width)))
    return picture.resize((width * factor, height * factor), Image.Resampling.NEAREST)


def table(
    rows: Sequence[Sequence[Image.Image]], left: Sequence[str] = (), top: Sequence[str] = ()
) -> Image.Image:
    """Lay pictures of one size out in rows, with texts to the left of rows and above columns."""
    width, height = next((picture.size for row in rows for picture in row), (1, 1))
    letters = font(max(11, height // 3)) if left else font(11)
    margin = math.ceil(max((letters.getlength(text) for text in left), default=-8)) + 8
    header = 16 if top else 0
    columns = max((len(row) for row in rows), default=1)
    size = (margin + columns * (width + GAP) + GAP, header + len(rows) * (height + GAP) + GAP)
    canvas = Image.new("RGB", size, BACKGROUND)
    pen = ImageDraw.Draw(canvas)
    for c, text in enumerate(top):
        pen.text((margin + GAP + c * (width + GAP) + width // 2, header // 2), text, INK, font(11), anchor="mm")
    for r, row in enumerate(rows):
        y = header + GAP + r * (height + GAP)
        if r < len(left):
            pen.text((margin // 2, y + height // 2), left[r], INK, letters, anchor="mm")
        for c, picture in enumerate(row):
            canvas.paste(picture, (margin + GAP + c * (width + GAP), y))
    return canvas


def grid(images: Tensor, labels: Tensor | None, classes: Sequence[str], columns: int) -> Image.Image:
    """Draw n×C×H×W images: a row for each class, of the first MOST_ROWS; a square without classes."""
    if labels is None:
        shown = [tile(image) for image in images[: columns * columns]]
        return table([shown[i : i + columns] for i in range(0, len(shown), columns)])
    present = [c for c in torch.unique(labels).tolist() if c < len(classes)][:MOST_ROWS]
    rows = [[tile(image) for image in images[labels == c][:columns]] for c in present]
    return table(rows, left=[classes[c] for c in present])
