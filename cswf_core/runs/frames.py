"""`frames.npz` and `flow.gif`: a few particles at many moments, from the start to the end of a flow."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw
from torch import Tensor

from cswf_core.hookspecs import hookimpl
from cswf_core.runs import scatter
from cswf_core.runs.pictures import BACKGROUND, INK, font

if TYPE_CHECKING:
    from cswf_core.flow.flow import Flow, State
    from cswf_core.interfaces import Dataset

FRAMES = 24
"""Moments that are kept if not said otherwise."""

PER_CLASS = 5
CLASSES = 10
IMAGES = 48
"""Images that are kept: of a class; classes of which there are some; altogether where there are no classes."""

MOST_BYTES = 600_000
"""Bytes of a moment's images; where they are large, fewer are kept."""

POINTS = 1500
TARGET = 4000
"""Points that are kept: particles at each moment, and data."""

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
        )
        kept = moments.points if moments.images is None else moments.images
        rank = 3 if moments.images is None else 5
        if kept is None or kept.ndim != rank or len(kept) != len(moments.steps) or not kept.shape[1]:
            raise ValueError("it has no frames")
        if moments.images is not None and moments.images.dtype != np.uint8:
            raise ValueError("its images are not bytes")
        if moments.labels is not None and len(moments.labels) != kept.shape[1]:
            raise ValueError("it has not a label for each particle")
        return moments

    def archive(self) -> bytes:
        """Return the content of frames.npz."""
        arrays: dict[str, Any] = {"steps": np.array(self.steps, dtype=np.int64)}
        for name in ("images", "points", "labels", "target"):
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
            return attrs.evolve(self, images=self.images[:, : max(1, most)])
        present = np.unique(self.labels)[: max(1, most)]
        each = max(1, most // len(present))
        kept = np.concatenate([np.flatnonzero(self.labels == c)[:each] for c in present])
        return attrs.evolve(self, images=self.images[:, kept], labels=self.labels[kept])

    def pictures(self) -> list[Image.Image]:
        """Draw each moment: images in their own pixels with clear gaps, or points over their target."""
        if self.images is not None:
            places = arrangement(self.labels, self.images.shape[1])
            return [mosaic(images, places) for images in self.images]
        assert self.points is not None
        target = self.points[-1] if self.target is None else self.target
        count = len(self.steps)
        drawn = scatter.panels([("", points) for points in self.points], self.labels, target)
        gap = (drawn.width - count * scatter.SIDE) // (count + 1)
        top = drawn.height - scatter.SIDE - gap
        lefts = [gap + i * (scatter.SIDE + gap) for i in range(count)]
        return [drawn.crop((x, top, x + scatter.SIDE, top + scatter.SIDE)) for x in lefts]

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


class Frames:
    """Keeps a few fixed particles at about `count` moments, more of them early on; with 0, none.

    The moments are chosen before the first step and only the particles to be shown leave the device, so a
    flow of fast steps is hardly held up.
    """

    def __init__(self, count: int = FRAMES) -> None:
        self.count = count
        self._steps: frozenset[int] = frozenset()
        self._chosen: Tensor | None = None
        self._kept: list[tuple[int, Dataset]] = []
        self._done = 0
        self._target: Dataset | None = None

    @hookimpl
    def before_stage(self, flow: Flow) -> None:
        """Choose steps and particles, and keep the beginning."""
        if self.count and self._chosen is None:
            self._steps = frozenset(spread(sum(stage.steps for stage in flow.stages), self.count))
            self._chosen = choose(flow)
            self._target = flow.target
            self._keep(flow)

    @hookimpl
    def after_step(self, flow: Flow, state: State) -> None:
        """Keep the particles if this is one of the steps."""
        self._done = state.total_step
        if self._done in self._steps:
            self._keep(flow)

    @hookimpl
    def after_run(self, flow: Flow) -> None:
        """Keep the end, also if a schedule has come to it early."""
        if self._chosen is not None and self._kept[-1][0] != self._done:
            self._keep(flow)

    @property
    def moments(self) -> Moments | None:
        """What has been kept so far; None if nothing has."""
        if not self._kept or self._target is None:
            return None
        first, steps = self._kept[0][1], tuple(step for step, _ in self._kept)
        labels = first.conditions.labels
        numbers = None if labels is None else labels.cpu().numpy()
        if first.space.is_image:
            images = np.stack([kept.images().numpy() for _, kept in self._kept])
            return Moments(steps, images=images, labels=numbers, classes=first.classes)
        points = np.stack([scatter.plane(kept.points().numpy()) for _, kept in self._kept])
        target = self._target.take(evenly(len(self._target), TARGET)).points()
        return Moments(
            steps,
            points=points.astype(np.float32),
            labels=numbers,
            classes=first.classes,
            target=scatter.plane(target.cpu().numpy()).astype(np.float32),
        )

    def archive(self) -> bytes | None:
        """Return frames.npz: `steps` (T) with `images` (T×n×C×H×W bytes) or `points` (T×n×2); None if empty.

        Also `labels` (n) and `classes` (their names) where there are any, and with points `target` (m×2).
        """
        return None if self.moments is None else self.moments.archive()

    def gif(self) -> bytes | None:
        """Return flow.gif, an animation of what was kept; None if nothing was."""
        return None if self.moments is None else self.moments.gif()

    def _keep(self, flow: Flow) -> None:
        self._kept.append((self._done, flow.samples(self._chosen)))


def spread(total: int, count: int) -> list[int]:
    """Return about `count` of the steps 0 … total: the first, the last, and others that thin out."""
    count = max(2, min(count, total + 1))
    steps = [0]
    for i in range(1, count):
        steps.append(max(steps[-1] + 1, round(total * (i / (count - 1)) ** 2)))
    return sorted({min(step, total) for step in steps})


def choose(flow: Flow) -> Tensor:
    """Return which particles to keep, on the flow's device: some of each class in order, or some of all."""
    count, labels = len(flow.particles), flow.particles.conditions.labels
    if not flow.data.space.is_image:
        return evenly(count, POINTS).to(flow.device)
    most = max(1, MOST_BYTES // flow.data.space.dimension)
    if labels is None:
        return evenly(count, min(IMAGES, most)).to(flow.device)
    present = torch.unique(labels)[: min(CLASSES, most)]
    each = max(1, min(PER_CLASS, most // len(present)))
    return torch.cat([(labels == c).nonzero()[:each, 0] for c in present]).to(flow.device)


def evenly(count: int, most: int) -> Tensor:
    """Return at most `most` of the numbers 0 … count − 1, evenly spaced."""
    return torch.linspace(0, count - 1, min(count, most)).round().long()


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
