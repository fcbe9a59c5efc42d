"""Pictures for a page: samples and frames in their own few pixels, enlarged by the browser."""

from __future__ import annotations

import math

import numpy as np
from PIL import Image

from cswf_core.pictures.moments import GIF_PIXELS, Bytes, Moments, arrangement, mosaic
from cswf_core.report.html import Html, image, join, png_uri, tag, uri
from cswf_core.report.read import Run, Samples

TILE = 64
"""Pixels on the screen that the longer side of an image should have about."""

SAMPLE_BYTES = 600_000
FRAME_BYTES = 3_000_000
GIF_BYTES = 1_900_000
"""Bytes of what a page shows, before they are packed: samples; all frames; an animation to save."""

COLUMNS, ROWS = 12, 20
"""Samples that are shown at most: in a row; rows, which are classes if there are any."""


def samples(run: Run, budget: int = SAMPLE_BYTES, columns: int = COLUMNS) -> Html:
    """Return a run's samples: images by class if their names are known, else the picture it has drawn."""
    found = run.samples
    named = found is not None and (found.labels is None or bool(run.classes))
    if found is None or found.images is None or not named:
        drawn = drawing(run, "samples.png", f"Samples of {run.label}")
        if drawn or found is None or found.images is None:
            return drawn
    assert found is not None
    assert found.images is not None
    if found.labels is None:
        return _mosaic(found.images, budget, columns, run.label)
    return _by_class(found, run, budget, columns)


def drawing(run: Run, name: str, alt: str) -> Html:
    """Return a PNG of the run's folder as it is; nothing if there is none."""
    found = run.picture(name)
    if found is None:
        return Html("")
    content, size = found
    return image(uri(content, "image/png"), alt, size, class_="drawing")


def frames(run: Run, budget: int = FRAME_BYTES) -> Html:
    """Return a run's frames, one after the other; a script shows one at a time."""
    if run.moments is None:
        return Html("")
    shown = run.moments
    if shown.images is not None:
        shown = shown.few(budget // (len(shown.steps) * shown.images[0, 0].size))
    cells = [
        tag(
            "figure",
            _framed(picture, shown, f"{run.label} after {step:,} steps"),
            tag("figcaption", f"step {step:,}"),
            class_="frame",
            data_step=step,
        )
        for step, picture in zip(shown.steps, shown.pictures(), strict=True)
    ]
    return tag("div", *cells, class_="film", tabindex=0, role="group", aria_label=f"Frames of {run.label}")


def animation(run: Run) -> Html:
    """Return a link that saves the flow as an animation, of fewer images if flow.gif is too large."""
    content, moments = run.file("flow.gif"), run.moments
    if moments is not None and (content is None or len(content) > GIF_BYTES):
        content = moments.gif()
        if len(content) > GIF_BYTES and moments.images is not None:
            shown = math.ceil(GIF_PIXELS / math.prod(side + 1 for side in moments.images.shape[-2:]))
            content = moments.few(shown * GIF_BYTES // (len(content) * 5 // 4)).gif()
    if content is None or len(content) > GIF_BYTES:
        return Html("")
    name = "".join(c if c.isalnum() or c in "-_." else "-" for c in run.label)
    address = uri(content, "image/gif")
    return tag("a", "Save as GIF", class_="button", href=address, download=f"{name}-flow.gif")


def _framed(picture: Image.Image, moments: Moments, alt: str) -> Html:
    if moments.images is None:
        return image(png_uri(picture.quantize(64)), alt, picture.size, class_="drawing")
    return _enlarged(picture, max(moments.images.shape[-2:]), alt)


def _mosaic(images: Bytes, budget: int, columns: int, label: str) -> Html:
    count = max(1, min(len(images), columns * 6, budget // images[0].size))
    places = arrangement(None, count)
    return _enlarged(mosaic(images[:count], places), max(images.shape[-2:]), f"{count} samples of {label}")


def _by_class(found: Samples, run: Run, budget: int, columns: int) -> Html:
    """Return a line of images for each class, its name to the left."""
    assert found.images is not None
    assert found.labels is not None
    present = np.unique(found.labels)
    shown = present[:ROWS]
    each = max(1, min(columns, budget // (len(shown) * found.images[0].size)))
    side = max(found.images.shape[-2:])
    lines = []
    for c in shown:
        chosen = found.images[found.labels == c][:each]
        picture = mosaic(chosen, np.array([[i if i < len(chosen) else -1 for i in range(each)]]))
        name = run.classes[c] if 0 <= c < len(run.classes) else str(c)
        lines += [tag("span", name, class_="class"), _enlarged(picture, side, f"Samples of class {name}")]
    grid = tag("div", *lines, class_="classes")
    if len(present) > len(shown):
        return join(grid, tag("p", f"{len(shown)} of {len(present)} classes are shown.", class_="small"))
    return grid


def _enlarged(picture: Image.Image, side: int, alt: str) -> Html:
    """Return a picture of few pixels, enlarged by a whole factor where there is room."""
    factor = max(1, math.floor(TILE / side))
    size = (picture.width * factor, picture.height * factor)
    return image(png_uri(picture), alt, size, class_="pixels")
