"""Pictures of several runs: their samples side by side, their flows one below the other.

They are drawn from `samples.npz` and `frames.npz` in the runs' folders; a run without frames is shown by its
own samples.png and flow.png.
"""

from __future__ import annotations

import functools
import math
import textwrap
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import attrs
import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont

from cswf_core.arrays import Array, read_archive
from cswf_core.errors import CswfError, RunError
from cswf_core.pictures import grid, scatter
from cswf_core.pictures.frames import Frames
from cswf_core.pictures.grid import BACKGROUND, HEADER, INK
from cswf_core.pictures.read import read_picture
from cswf_core.runs.folder import RunFolder

ROWS = 10
"""Images of a run that are shown at most: in a row; rows, which are classes if there are any."""

FLOW_ROWS = 3
"""Particles of a run whose flow is shown."""

WIDEST = 2000
"""Pixels of a row of runs; what does not fit goes into the next row, but for a single run."""

LINE = 20
"""Size of a label's letters and of its lines."""

SPACE = 20
"""Pixels around the runs."""


@attrs.frozen(eq=False)
class Strip:
    """The flow of one run: rows of images, with a column for each step; of points one row with one picture."""

    label: str
    rows: list[list[Image.Image]]
    steps: tuple[int, ...] = ()


def samples(runs: Sequence[RunFolder], columns: int) -> Image.Image:
    """Draw the samples of all runs, side by side with the labels above."""
    drawn = [_samples(run, min(columns, 8)) for run in runs]
    width = max(140, *(picture.width for picture in drawn))
    cells = [(_lines(run.label, width), picture) for run, picture in zip(runs, drawn, strict=True)]
    across = max(1, (WIDEST - SPACE) // (width + SPACE))
    across = math.ceil(len(cells) / math.ceil(len(cells) / across))  # rows of about one length
    bands = [cells[i : i + across] for i in range(0, len(cells), across)]
    heads = [max(len(lines) for lines, _ in band) * LINE + 6 for band in bands]
    heights = [max(picture.height for _, picture in band) for band in bands]
    size = (SPACE + across * (width + SPACE), SPACE + sum(heads) + sum(heights) + SPACE * len(bands))
    canvas = Image.new("RGB", size, BACKGROUND)
    pen = ImageDraw.Draw(canvas)
    y = SPACE
    for band, head, height in zip(bands, heads, heights, strict=True):
        for c, (lines, picture) in enumerate(band):
            x = SPACE + c * (width + SPACE)
            _write(pen, lines, x + width // 2, y + head - 6 - LINE * len(lines), "mm")
            canvas.paste(picture, (x + (width - picture.width) // 2, y + head))
        y += head + height + SPACE
    return canvas


def flows(runs: Sequence[RunFolder], snapshots: Sequence[Collection[int]]) -> Image.Image | None:
    """Draw the flows of all runs that have snapshots, labels to the left; None if none has.

    Of images the first few particles are shown, and the steps once, above all runs, where they are the same.
    """
    pairs = zip(runs, snapshots, strict=True)
    strips = list(filter(None, (_strip(run, steps) for run, steps in pairs if steps)))
    if not strips:
        return None
    longest = max((strip.steps for strip in strips), key=len)
    if all(strip.steps == longest[: len(strip.steps)] for strip in strips):
        headed = [longest] + [()] * (len(strips) - 1)
    else:
        headed = [strip.steps for strip in strips]
    tables = [_table(strip, steps) for strip, steps in zip(strips, headed, strict=True)]
    margin = math.ceil(min(max(_font().getlength(strip.label) for strip in strips), 220))
    labels = [_lines(strip.label, margin) for strip in strips]
    x = SPACE + margin + SPACE // 2
    heights = [
        max(table.height, LINE * len(lines)) + SPACE // 2 for table, lines in zip(tables, labels, strict=True)
    ]
    size = (x + max(table.width for table in tables) + SPACE, SPACE + sum(heights) + SPACE // 2)
    canvas = Image.new("RGB", size, BACKGROUND)
    pen = ImageDraw.Draw(canvas)
    y = SPACE
    for table, lines, steps, height in zip(tables, labels, headed, heights, strict=True):
        canvas.paste(table, (x, y))
        middle = y + (HEADER if steps else 0) + (table.height - (HEADER if steps else 0)) // 2
        _write(pen, lines, SPACE + margin, max(y, middle - LINE * len(lines) // 2), "rm")
        y += height
    return canvas


def _samples(run: RunFolder, columns: int) -> Image.Image:
    """Draw a run's images without the names of classes, which are the same in all runs; or its points."""
    with _reading(run.file("samples.npz")) as file:
        arrays = read_archive(file, ("images", "points", "labels"))
        labels = arrays.get("labels")
        if "images" in arrays:
            return _tiles(arrays["images"], labels, columns)
        points = arrays["points"]
        frames = _frames(run)
        if frames is not None and frames.target is not None:
            return scatter.panels([("samples", points)], labels, frames.target, points.shape[1])
    return _own(run.file("samples.png"))


def _tiles(images: Array, labels: Array | None, columns: int) -> Image.Image:
    """Draw images (n×C×H×W) in rows, which are classes if there are any."""
    if images.ndim != 4 or images.dtype != np.uint8 or not images.size:
        raise ValueError("its images are not n×C×H×W bytes")
    if labels is None:
        groups = [images[i : i + columns] for i in range(0, min(len(images), columns * 8), columns)]
    else:
        groups = [images[labels == c][:columns] for c in np.unique(labels)[:ROWS]]
    return grid.table([[grid.tile(torch.from_numpy(image)) for image in group] for group in groups])


def _strip(run: RunFolder, snapshots: Collection[int]) -> Strip | None:
    """Return a run's flow, from its frames or as it has drawn it; None if it has neither."""
    frames, own = _frames(run), run.file("flow.png")
    chosen = None if frames is None else frames.at(snapshots)
    if chosen is None:
        return Strip(run.label, [[_own(own)]]) if own.is_file() else None
    if chosen.images is None:
        return Strip(run.label, [[chosen.strip()]])
    return Strip(run.label, chosen.tiles(FLOW_ROWS), chosen.steps)


def _table(strip: Strip, steps: Sequence[int]) -> Image.Image:
    """Draw a strip under as many steps as there are, which may be more than its own."""
    if not steps:
        return grid.table(strip.rows)
    blank = Image.new("RGB", strip.rows[0][0].size, BACKGROUND)
    rows = [[*row, *[blank] * (len(steps) - len(row))] for row in strip.rows]
    return grid.table(rows, top=[str(step) for step in steps])


def _frames(run: RunFolder) -> Frames | None:
    if not run.file("frames.npz").is_file():
        return None
    with _reading(run.file("frames.npz")) as file:
        return Frames.read(file)


def _own(path: Path) -> Image.Image:
    """Return what a run has drawn itself."""
    with _reading(path) as file:
        return read_picture(file, "RGB")


@contextmanager
def _reading(path: Path) -> Iterator[Path]:
    """Turn whatever a damaged file makes its reader raise into one sentence."""
    try:
        yield path
    except RunError:
        raise
    except Exception as error:
        reason = str(error) if isinstance(error, CswfError) else f"{path} cannot be read ({error})"
        raise RunError(f"{reason}; remove the run's folder to run it again") from error


@functools.cache
def _font() -> ImageFont.FreeTypeFont:
    """Return a font that has Greek letters, as labels do."""
    import matplotlib

    return ImageFont.truetype(Path(matplotlib.get_data_path(), "fonts/ttf/DejaVuSans.ttf"), 14)


def _lines(label: str, width: int) -> list[str]:
    """Break a label into lines of at most `width` pixels: between words, or within one that is too long."""
    wrapped = (textwrap.wrap(label, letters) for letters in range(len(label), 0, -1))
    return next((lines for lines in wrapped if max(map(_font().getlength, lines), default=0) <= width), [label])


def _write(pen: ImageDraw.ImageDraw, lines: Sequence[str], x: int, y: int, anchor: str) -> None:
    """Write lines below each other, the first one's upper edge at y."""
    for i, line in enumerate(lines):
        pen.text((x, y + i * LINE + LINE // 2), line, INK, _font(), anchor=anchor)
