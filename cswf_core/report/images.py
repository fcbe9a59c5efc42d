"""Pictures for a page: samples and frames in their own few pixels, enlarged by the browser."""

from __future__ import annotations

import base64
import math
from typing import Literal

import attrs
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from cswf_core.pictures.frames import GIF_PIXELS, Frames
from cswf_core.pictures.grid import Bytes, arrangement, mosaic, png
from cswf_core.report.read import Run

TILE = 64
"""Pixels on the screen that the longer side of an image should have about."""

SAMPLE_BYTES = 600_000
FRAME_BYTES = 3_000_000
GIF_BYTES = 1_900_000
"""Bytes of what a page shows, before they are packed: samples; all frames; an animation to save."""

COLUMNS, ROWS = 12, 20
"""Samples that are shown at most: in a row; rows, which are classes if there are any."""


@attrs.frozen
class Picture:
    """A picture within a page; its place is kept before it is decoded."""

    src: str = attrs.field(repr=False)
    alt: str
    width: int
    height: int
    kind: Literal["pixels", "drawing"] = "drawing"
    """`pixels` are enlarged with sharp edges, a `drawing` is shown as it is, on white."""


@attrs.frozen
class Gallery:
    """Samples of a run: one picture of all, or a line for each class, with its name."""

    whole: Picture | None = None
    lines: tuple[tuple[str, Picture], ...] = ()
    note: str = ""


@attrs.frozen
class Film:
    """The frames of a run, with their steps; a script shows one at a time."""

    label: str
    frames: tuple[tuple[int, Picture], ...]


@attrs.frozen
class Download:
    """A file to save, held within the page."""

    name: str
    href: str = attrs.field(repr=False)


def samples(run: Run, budget: int = SAMPLE_BYTES, columns: int = COLUMNS) -> Gallery | None:
    """Return a run's samples: images by class if their names are known, else the picture it has drawn."""
    loaded = run.samples
    if loaded is None or (loaded.labels is not None and not run.classes):
        drawn = drawing(run, "samples.png", f"Samples of {run.label}")
        if drawn is not None or loaded is None:
            return None if drawn is None else Gallery(drawn)
    images = loaded.images
    if loaded.labels is not None:
        return _by_class(images, loaded.labels, run, budget, columns)
    count = max(1, min(len(images), columns * 6, budget // images[0].size))
    whole = mosaic(images[:count], arrangement(None, count))
    return Gallery(_enlarged(whole, max(images.shape[-2:]), f"{count} samples of {run.label}"))


def drawing(run: Run, name: str, alt: str) -> Picture | None:
    """Return a PNG of the run's folder as it is; None if there is none."""
    content = run.picture(name)
    return None if content is None else Picture(_uri(content[0], "image/png"), alt, *content[1])


def film(run: Run, budget: int = FRAME_BYTES) -> Film | None:
    """Return a run's frames, of as few images as the budget allows; None if it has none."""
    frames = run.frames
    if frames is None:
        return None
    if frames.images is not None:
        frames = frames.fewer(budget // (len(frames.steps) * frames.images[0, 0].size))
    return Film(
        run.label,
        tuple(
            (step, _framed(picture, frames, f"{run.label} after {step:,} steps"))
            for step, picture in zip(frames.steps, frames.pictures(), strict=True)
        ),
    )


def animation(run: Run) -> Download | None:
    """Return the flow as an animation to save, of fewer images if flow.gif is too large."""
    content, frames = run.file("flow.gif"), run.frames
    if frames is not None and (content is None or len(content) > GIF_BYTES):
        content = frames.gif()
        if len(content) > GIF_BYTES and frames.images is not None:
            most = math.ceil(GIF_PIXELS / math.prod(side + 1 for side in frames.images.shape[-2:]))
            content = frames.fewer(most * GIF_BYTES // (len(content) * 5 // 4)).gif()
    if content is None or len(content) > GIF_BYTES:
        return None
    name = "".join(c if c.isalnum() or c in "-_." else "-" for c in run.label)
    return Download(f"{name}-flow.gif", _uri(content, "image/gif"))


def _framed(picture: Image.Image, frames: Frames, alt: str) -> Picture:
    if frames.images is None:
        return Picture(_uri(png(picture.quantize(64)), "image/png"), alt, *picture.size)
    return _enlarged(picture, max(frames.images.shape[-2:]), alt)


def _by_class(images: Bytes, labels: NDArray[np.int64], run: Run, budget: int, columns: int) -> Gallery:
    """Return a line of images for each class."""
    present = np.unique(labels)
    chosen = present[:ROWS]
    each = max(1, min(columns, budget // (len(chosen) * images[0].size)))
    side = max(images.shape[-2:])
    lines = []
    for c in chosen:
        some = images[labels == c][:each]
        row = mosaic(some, np.array([[i if i < len(some) else -1 for i in range(each)]]))
        name = run.classes[c] if 0 <= c < len(run.classes) else str(c)
        lines.append((name, _enlarged(row, side, f"Samples of class {name}")))
    rest = f"{len(chosen)} of {len(present)} classes are shown." if len(present) > len(chosen) else ""
    return Gallery(lines=tuple(lines), note=rest)


def _enlarged(picture: Image.Image, side: int, alt: str) -> Picture:
    """Return a picture of few pixels, enlarged by a whole factor where there is room."""
    factor = max(1, math.floor(TILE / side))
    address = _uri(png(picture), "image/png")
    return Picture(address, alt, picture.width * factor, picture.height * factor, "pixels")


def _uri(content: bytes, kind: str) -> str:
    """Return a file's content as an address of its own."""
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"
