"""Moments of a flow: the same few particles again and again, as frames.npz has them and flow.gif shows them."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw
from torch import Tensor

from cswf_core.pictures import scatter
from cswf_core.pictures.grid import BACKGROUND, INK, font

GIF_PIXELS = 64_000
GIF_SIDE = 300
"""Pixels of an animation's frame before images are enlarged; pixels that its longer side has at least."""

BRISK, HELD = 140, 2500
"""Milliseconds that a frame of an animation stays, and its last one."""

Bytes = NDArray[np.uint8]


@attrs.frozen(eq=False)
class Moments:
    """The same n particles at T moments, as frames.npz has them: either images or points."""

    steps: tuple[int, ...]
    """T numbers of steps done, rising."""
    images: Bytes | None = None
    """T×n×C×H×W."""
    points: NDArray[np.float32] | None = None
    """T×n×2."""
    labels: NDArray[np.int64] | None = None
    """n, the class of each; images are in the order of their classes."""
    classes: tuple[str, ...] = ()
    """Name of each class."""
    target: NDArray[np.float32] | None = None
    """m×2, some of the data that points flow to."""
    since: NDArray[np.int64] | None = None
    """n, the number of the moment at which each has come; None: all have been there from the first."""

    @classmethod
    def read(cls, file: Path | io.BytesIO) -> Moments:
        """Read what `archive` has written; raises ValueError or KeyError if it is something else."""
        with np.load(file) as arrays:
            found = {name: arrays[name] for name in arrays.files}
        moments = cls(
            steps=tuple(int(step) for step in found["steps"]),
            images=found.get("images"),
            points=found.get("points"),
            labels=found.get("labels"),
            classes=tuple(str(name) for name in found.get("classes", ())),
            target=found.get("target"),
            since=found.get("since"),
        )
        kept = moments.points if moments.images is None else moments.images
        rank = 3 if moments.images is None else 5
        if kept is None or kept.ndim != rank or len(kept) != len(moments.steps) or not kept.shape[1]:
            raise ValueError("it has no frames")
        if moments.images is not None and moments.images.dtype != np.uint8:
            raise ValueError("its images are not bytes")
        for each in (moments.labels, moments.since):
            if each is not None and len(each) != kept.shape[1]:
                raise ValueError("it has not a number for each particle")
        return moments

    def archive(self) -> bytes:
        """Return the content of frames.npz."""
        arrays: dict[str, Any] = {"steps": np.array(self.steps, dtype=np.int64)}
        for name in ("images", "points", "labels", "target", "since"):
            if getattr(self, name) is not None:
                arrays[name] = getattr(self, name)
        if self.classes:
            arrays["classes"] = np.array(self.classes)
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **arrays)
        return buffer.getvalue()

    def few(self, most: int) -> Moments:
        """Return the moments of at most `most` images (at least one), as many of each class; points all."""
        if self.images is None or self.images.shape[1] <= most:
            return self
        if self.labels is None:
            kept = evenly(self.images.shape[1], max(1, most)).numpy()
        else:
            present = np.unique(self.labels)[: max(1, most)]
            each = max(1, most // len(present))
            kept = np.concatenate([np.flatnonzero(self.labels == c)[:each] for c in present])
        labels, since = (None if part is None else part[kept] for part in (self.labels, self.since))
        return attrs.evolve(self, images=self.images[:, kept], labels=labels, since=since)

    def pictures(self) -> list[Image.Image]:
        """Draw each moment: images in their own pixels with clear gaps, or points over their target."""
        if self.images is not None:
            places = arrangement(self.labels, self.images.shape[1])
            return [mosaic(images, self._come(places, t)) for t, images in enumerate(self.images)]
        assert self.points is not None
        target = self.points[-1] if self.target is None else self.target
        count = len(self.steps)
        come = [
            len(points) if self.since is None else int((self.since <= t).sum())
            for t, points in enumerate(self.points)
        ]
        shown = [
            ("", points[:n]) for points, n in zip(self.points, come, strict=True)
        ]  # who comes later is last
        drawn = scatter.panels(shown, self.labels, target)
        gap = (drawn.width - count * scatter.SIDE) // (count + 1)
        top = drawn.height - scatter.SIDE - gap
        lefts = [gap + i * (scatter.SIDE + gap) for i in range(count)]
        return [drawn.crop((x, top, x + scatter.SIDE, top + scatter.SIDE)) for x in lefts]

    def _come(self, places: NDArray[np.int64], moment: int) -> NDArray[np.int64]:
        """Return where images go at a moment: gaps for those that are still to come."""
        if self.since is None:
            return places
        there: NDArray[np.int64] = np.where((places >= 0) & (self.since[places] <= moment), places, -1)
        return there

    def gif(self) -> bytes:
        """Return an animation of all moments, the number of steps below; the last one stays longer."""
        shown = self
        if self.images is not None:
            height, width = self.images.shape[-2:]
            shown = self.few(GIF_PIXELS // ((height + 1) * (width + 1)))
        drawn = shown.pictures()
        factor = max(1, math.ceil(GIF_SIDE / max(drawn[0].size)))
        frames = [
            _titled(picture, factor, f"step {step:,}") for step, picture in zip(self.steps, drawn, strict=True)
        ]
        buffer = io.BytesIO()
        durations = [BRISK] * (len(frames) - 1) + [HELD]
        frames[0].save(
            buffer, "GIF", save_all=True, append_images=frames[1:], duration=durations, loop=0, disposal=1
        )
        return buffer.getvalue()


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
            y, x = r * (height + 1), c * (width + 1)
            canvas[y : y + height, x : x + width, :colours] = images[number, :colours].transpose(1, 2, 0)
            canvas[y : y + height, x : x + width, colours] = 255
    return Image.fromarray(canvas)


def _titled(picture: Image.Image, factor: int, title: str) -> Image.Image:
    """Return a picture enlarged by a whole factor, a title below, in 128 colours of its own."""
    size = (picture.width * factor, picture.height * factor)
    enlarged = picture.resize(size, Image.Resampling.NEAREST)
    edge, line = 6, 26
    canvas = Image.new("RGB", (size[0] + 2 * edge, size[1] + 2 * edge + line), BACKGROUND)
    mask = enlarged.getchannel("A") if "A" in enlarged.getbands() else None
    canvas.paste(enlarged.convert("RGB"), (edge, edge), mask)
    pen = ImageDraw.Draw(canvas)
    pen.text((canvas.width // 2, canvas.height - line // 2 - 2), title, INK, font(15), anchor="mm")
    some = canvas.resize((canvas.width // 3, canvas.height // 3), Image.Resampling.NEAREST)
    palette = some.quantize(128)  # colours of a ninth of the pixels: ten times faster, and hardly worse
    return canvas.quantize(palette=palette, dither=Image.Dither.NONE)


def evenly(count: int, most: int) -> Tensor:
    """Return at most `most` of the numbers 0 … count − 1, evenly spaced."""
    return torch.linspace(0, count - 1, min(count, most)).round().long()
