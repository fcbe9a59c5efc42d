"""Pictures for a page: samples and frames in their own few pixels, enlarged by the browser."""

from __future__ import annotations

import math
from typing import Literal

import attrs
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from cswf_core.pictures.frames import GIF_PIXELS, Frames
from cswf_core.pictures.grid import Bytes, arrangement, mosaic, png
from cswf_core.report.embedding import Download, address, download, safe_name
from cswf_core.report.read import ReportedRun

TILE = 64
"""Pixels on the screen that the longer side of an image should have about."""

OVERVIEW_BYTES = 600_000
FRAME_BYTES = 3_000_000
GIF_BYTES = 1_900_000
"""Bytes of what a page shows, before they are packed: an overview; all frames; an animation to save."""

COLUMNS, ROWS = 12, 20
"""Samples of an overview at most: in a row; rows, which are classes if there are any."""

MOST_TOGETHER = COLUMNS * 6
"""Samples of an overview at most, where there are no classes."""

BESIDE = (8, 3)
"""Samples and real images in a row of a class, where there are real images."""

SHEET_COLUMNS = 10
SHEET_WIDTH = 640
"""Images in a row of a sheet at most, which has as many rows; pixels that they take on the screen together."""


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
class ClassRow:
    """Samples of one class, with real images of it where there are some."""

    name: str
    samples: Picture
    real: Picture | None = None


@attrs.frozen
class Gallery:
    """An overview of a run's samples: one picture of all, or a line for each class."""

    whole: Picture | None = None
    real: Picture | None = None
    """Real images beside the one picture of samples."""
    lines: tuple[ClassRow, ...] = ()
    note: str = ""


@attrs.frozen
class Sheet:
    """Some of all samples, of one class if there are classes."""

    name: str
    """Which they are, in words."""
    picture: Picture


@attrs.frozen
class Film:
    """The frames of a run, with their steps; a script shows one at a time."""

    label: str
    frames: tuple[tuple[int, Picture], ...]


def samples(run: ReportedRun, budget: int = OVERVIEW_BYTES, columns: int = COLUMNS) -> Gallery | None:
    """Return an overview of a run's samples: by class if these have names, else what the run has drawn."""
    loaded = run.samples
    if loaded is None or (loaded.labels is not None and not run.classes):
        drawn = drawing(run, "samples.png", f"Samples of {run.label}")
        if drawn is not None or loaded is None:
            return None if drawn is None else Gallery(drawn, _real(run, budget))
    if loaded.labels is not None:
        return _by_class(loaded.images, loaded.labels, run, budget, columns)
    whole = _together(loaded.images, budget, min(columns * 6, MOST_TOGETHER), f"samples of {run.label}")
    return Gallery(whole, _real(run, budget))


def _real(run: ReportedRun, budget: int) -> Picture | None:
    """Return real images as one picture; None if the run has kept none."""
    if run.real is None:
        return None
    return _together(run.real.images, budget // 2, COLUMNS * 3, "real images")


def _together(images: Bytes, budget: int, most: int, alt: str) -> Picture:
    """Return the first of n×C×H×W images as one picture, as many as the budget of bytes allows."""
    count = max(1, min(len(images), most, budget // images[0].size))
    whole = mosaic(images[:count], arrangement(None, count))
    return _enlarged(whole, max(images.shape[-2:]), f"{count} {alt}")


def sheets(run: ReportedRun) -> tuple[Sheet, ...]:
    """Return all samples that were read, sheet by sheet; with a few classes, each sheet is of one."""
    loaded = run.samples
    if loaded is None:
        return ()
    columns = max(2, min(SHEET_COLUMNS, SHEET_WIDTH // max(TILE, *loaded.images.shape[-2:])))
    present = () if loaded.labels is None else tuple(np.unique(loaded.labels))
    if not 1 < len(present) <= ROWS:
        return _sheets(loaded.images, columns, "samples")
    return tuple(
        sheet
        for c in present
        for sheet in _sheets(loaded.images[loaded.labels == c], columns, f"{_class_name(run, c)}:")
    )


def _sheets(images: Bytes, columns: int, name: str) -> tuple[Sheet, ...]:
    """Return n×C×H×W images as sheets of about one size."""
    parts = np.array_split(np.arange(len(images)), math.ceil(len(images) / columns**2))
    made = []
    for numbers in parts:
        places = np.full((math.ceil(len(numbers) / columns), columns), -1)
        places.flat[: len(numbers)] = numbers
        title = f"{name} {numbers[0] + 1:,} to {numbers[-1] + 1:,}"
        made.append(Sheet(title, _enlarged(mosaic(images, places), max(images.shape[-2:]), title)))
    return tuple(made)


def _class_name(run: ReportedRun, number: int) -> str:
    return run.classes[number] if 0 <= number < len(run.classes) else f"class {number}"


def drawing(run: ReportedRun, name: str, alt: str) -> Picture | None:
    """Return a PNG of the run's folder as it is; None if there is none."""
    content = run.picture(name)
    return None if content is None else Picture(address(content[0], "image/png"), alt, *content[1])


def film(run: ReportedRun, budget: int = FRAME_BYTES) -> Film | None:
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


def animation(run: ReportedRun) -> Download | None:
    """Return the flow as an animation to save, of fewer images if flow.gif is too large."""
    content, frames = run.file("flow.gif"), run.frames
    if frames is not None and (content is None or len(content) > GIF_BYTES):
        content = frames.gif()
        if len(content) > GIF_BYTES and frames.images is not None:
            most = math.ceil(GIF_PIXELS / math.prod(side + 1 for side in frames.images.shape[-2:]))
            content = frames.fewer(most * GIF_BYTES // (len(content) * 5 // 4)).gif()
    if content is None or len(content) > GIF_BYTES:
        return None
    return download(f"{safe_name(run.label)}-flow.gif", content, "image/gif")


def _framed(picture: Image.Image, frames: Frames, alt: str) -> Picture:
    if frames.images is None:
        return Picture(address(png(picture.quantize(64)), "image/png"), alt, *picture.size)
    return _enlarged(picture, max(frames.images.shape[-2:]), alt)


def _by_class(images: Bytes, labels: NDArray[np.int64], run: ReportedRun, budget: int, columns: int) -> Gallery:
    """Return a line of images for each class, with real ones beside them where there are some."""
    present = np.unique(labels)
    chosen = present[:ROWS]
    real = run.real if run.real is not None and run.real.labels is not None else None
    wanted, few = (min(columns, BESIDE[0]), BESIDE[1]) if real is not None else (columns, 0)
    room = budget // (len(chosen) * images[0].size)
    lines = []
    for c in chosen:
        name = _class_name(run, c)
        row = _row(images[labels == c], max(1, min(wanted, room - few)), f"samples of class {name}")
        assert row is not None
        beside = None if real is None else _row(real.images[real.labels == c], few, f"real images of {name}")
        lines.append(ClassRow(name, row, beside))
    rest = f"{len(chosen)} of {len(present)} classes are shown." if len(present) > len(chosen) else ""
    return Gallery(lines=tuple(lines), note=rest)


def _row(images: Bytes, columns: int, alt: str) -> Picture | None:
    """Return the first of n×C×H×W images in a row of so many places; None if there is none."""
    if not len(images):
        return None
    numbers = np.array([[i if i < len(images) else -1 for i in range(columns)]])
    return _enlarged(mosaic(images, numbers), max(images.shape[-2:]), alt)


def _enlarged(picture: Image.Image, side: int, alt: str) -> Picture:
    """Return a picture of few pixels, enlarged by a whole factor where there is room."""
    factor = max(1, math.floor(TILE / side))
    width, height = picture.width * factor, picture.height * factor
    return Picture(address(png(picture), "image/png"), alt, width, height, "pixels")
