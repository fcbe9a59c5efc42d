"""Frames of a flow: a few fixed particles at chosen steps, for `frames.npz`, `flow.gif` and `flow.png`."""

from __future__ import annotations

import io
import math
from collections.abc import Collection, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw
from torch import Tensor

from cswf_core.arrays import read_archive
from cswf_core.documents import TensorForm, require_forms
from cswf_core.hookspecs import hookimpl
from cswf_core.pictures import grid, scatter
from cswf_core.pictures.grid import BACKGROUND, INK, Bytes, font

if TYPE_CHECKING:
    from cswf_core.flow.flow import Flow, State

PER_CLASS = 5
"""Images of a class in a frame, for up to 20 classes; without classes there are 48."""

MOST_BYTES = 600_000
"""Bytes of a frame's images; where they are large, there are fewer."""

ROWS = 10
"""Particles in flow.png."""

GIF_PIXELS = 64_000

MOST_FRAMES = 10_000

ARRAYS = ("images", "points", "labels", "target", "since")
"""Arrays of frames.npz that may be lacking."""


@attrs.frozen(eq=False)
class Frames:
    """The same n particles after T numbers of steps, as frames.npz has them: either images or points."""

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
    """n, the number of the frame at which each has come; None: all have been there from the first."""
    dimension: int = 2
    """Coordinates that the points have in their own space, of which two are kept."""

    @classmethod
    def read(cls, file: Path | io.BytesIO) -> Frames:
        """Read what `archive` has written; raise DataError, ValueError or KeyError if it is something else."""
        arrays = read_archive(file, ("steps", "classes", "dimension", *ARRAYS), limit=10**9)
        steps = arrays["steps"]
        names = arrays.get("classes", np.empty(0, "U1"))
        dimension = arrays.get("dimension", np.array(2))
        if steps.ndim != 1 or steps.dtype.kind not in "iu" or not 0 < len(steps) <= MOST_FRAMES:
            raise ValueError(f"it has no steps, or more than {MOST_FRAMES:,}")
        if names.ndim != 1 or names.dtype.kind != "U" or dimension.ndim or dimension.dtype.kind not in "iu":
            raise ValueError("its classes are no names")
        frames = cls(
            steps=tuple(int(step) for step in steps),
            classes=tuple(str(name) for name in names),
            dimension=int(dimension),
            **{name: arrays.get(name) for name in ARRAYS},
        )
        frames._refuse_misshaped()
        return frames

    def _refuse_misshaped(self) -> None:
        """Raise ValueError if arrays are not what frames consist of."""
        particles = self.points if self.images is None else self.images
        rank = 3 if self.images is None else 5
        if particles is None or particles.ndim != rank or len(particles) != len(self.steps):
            raise ValueError("it has no frames")
        if not particles.size:
            raise ValueError("its frames are empty")
        if self.images is not None and self.images.dtype != np.uint8:
            raise ValueError("its images are not bytes")
        for points in (self.points, self.target):
            if points is not None and not _is_plane(points):
                raise ValueError("its points are not pairs of finite numbers")
        for numbers in (self.labels, self.since):
            if numbers is not None and (
                numbers.shape != particles.shape[1:2] or numbers.dtype.kind not in "iu"
            ):
                raise ValueError("it has not a number for each particle")
        if sorted(self.steps) != list(self.steps):
            raise ValueError("its steps do not rise")

    def archive(self) -> bytes:
        """Return the content of frames.npz."""
        arrays: dict[str, Any] = {"steps": np.array(self.steps, dtype=np.int64)}
        for name in ARRAYS:
            if getattr(self, name) is not None:
                arrays[name] = getattr(self, name)
        if self.classes:
            arrays["classes"] = np.array(self.classes)
        if self.dimension > 2:
            arrays["dimension"] = np.array(self.dimension)
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **arrays)
        return buffer.getvalue()

    def at(self, steps: Collection[int]) -> Frames | None:
        """Return the frames of those of the steps that were recorded; None if none was."""
        index = [t for t, step in enumerate(self.steps) if step in steps]
        if not index:
            return None
        return attrs.evolve(
            self,
            steps=tuple(self.steps[t] for t in index),
            images=None if self.images is None else self.images[index],
            points=None if self.points is None else self.points[index],
            since=None if self.since is None else np.searchsorted(index, self.since),
        )

    def fewer(self, most: int) -> Frames:
        """Return the frames with at most `most` images (at least one), as many of each class; points all."""
        if self.images is None or self.images.shape[1] <= most:
            return self
        if self.labels is None:
            index = evenly(self.images.shape[1], max(1, most)).numpy()
        else:
            present = np.unique(self.labels)[: max(1, most)]
            each = max(1, most // len(present))
            index = np.concatenate([np.flatnonzero(self.labels == c)[:each] for c in present])
        labels, since = (None if part is None else part[index] for part in (self.labels, self.since))
        return attrs.evolve(self, images=self.images[:, index], labels=labels, since=since)

    def pictures(self) -> list[Image.Image]:
        """Draw each frame: images in their own pixels with clear gaps, or points over their target."""
        if self.images is not None:
            places = grid.arrangement(self.labels, self.images.shape[1])
            since = np.zeros(self.images.shape[1]) if self.since is None else self.since
            # Images that are still to come leave gaps.
            come = [np.where(since[places] <= t, places, -1) for t in range(len(self.images))]
            return [grid.mosaic(images, there) for images, there in zip(self.images, come, strict=True)]
        return scatter.film(self._clouds(), self.labels, self._target())

    def tiles(self) -> list[list[Image.Image]]:
        """Return images one by one, a row for each particle: the first of each class, or the first of all."""
        assert self.images is not None
        chosen = np.arange(self.images.shape[1])[:ROWS]
        if self.labels is not None:
            chosen = np.unique(self.labels, return_index=True)[1][:ROWS]
        blank = torch.full(self.images.shape[2:], 255, dtype=torch.uint8)  # of a class that is still to come
        since = np.zeros(self.images.shape[1]) if self.since is None else self.since
        return [
            [
                grid.tile(torch.from_numpy(images[i]) if since[i] <= t else blank)
                for t, images in enumerate(self.images)
            ]
            for i in chosen
        ]

    def strip(self) -> Image.Image:
        """Draw flow.png: all frames side by side, with their steps."""
        if self.images is not None:
            return grid.table(self.tiles(), top=[str(step) for step in self.steps])
        titled = list(zip([f"step {step}" for step in self.steps], self._clouds(), strict=True))
        return scatter.panels(titled, self.labels, self._target(), self.dimension)

    def gif(self) -> bytes:
        """Return an animation of all frames, the number of steps below; the last one stays longer."""
        frames = self
        if self.images is not None:
            height, width = self.images.shape[-2:]
            frames = self.fewer(GIF_PIXELS // ((height + 1) * (width + 1)))
        drawn = frames.pictures()
        factor = max(1, math.ceil(300 / max(drawn[0].size)))  # to 300 pixels at least
        titled = [
            _titled(picture, factor, f"step {step:,}") for step, picture in zip(self.steps, drawn, strict=True)
        ]
        buffer = io.BytesIO()
        durations = [140] * (len(titled) - 1) + [2500]  # milliseconds; the last one stays longer
        titled[0].save(
            buffer, "GIF", save_all=True, append_images=titled[1:], duration=durations, loop=0, disposal=1
        )
        return buffer.getvalue()

    def _clouds(self) -> list[NDArray[np.float32]]:
        """Return the points of each frame; those that come later are the last."""
        assert self.points is not None
        if self.since is None:
            return list(self.points)
        return [points[: int((self.since <= t).sum())] for t, points in enumerate(self.points)]

    def _target(self) -> NDArray[np.float32]:
        assert self.points is not None
        return self.points[-1] if self.target is None else self.target


class FrameRecorder:
    """Keeps a few fixed particles at about `count` steps, more of them early on, and at `snapshots`.

    The steps are chosen before the first one and only the particles to be shown leave the device, so a flow
    of fast steps is hardly held up. When particles arrive, some of them are shown from then on, and each
    round has as many frames.
    """

    remembered = "frames"

    def __init__(self, count: int = 24, snapshots: Collection[int] = ()) -> None:
        self.count = count
        self.snapshots = snapshots
        self._steps: frozenset[int] = frozenset()
        """Steps of the animation."""
        self._chosen: Tensor | None = None
        self._cohorts = 0
        """Arrivals of which some particles were chosen."""
        self._recorded: list[tuple[int, Tensor]] = []
        """Steps done, and the chosen particles then: n×C×H×W bytes, or n×2 numbers. Who comes later is last."""
        self._done = 0
        self._flow: Flow | None = None

    @hookimpl
    def before_stage(self, flow: Flow) -> None:
        """Choose steps and particles, and record the beginning."""
        self._prepare(flow)
        if self._chosen is not None and not self._recorded:
            self._record(flow)

    @hookimpl
    def after_step(self, flow: Flow, state: State) -> None:
        """Record the particles if this is one of the steps."""
        self._done = state.total_step
        if self._done in self._steps or self._done in self.snapshots:
            self._record(flow)

    @hookimpl
    def after_run(self, flow: Flow) -> None:
        """Record the end, also if a schedule has come to it early."""
        self._prepare(flow)  # a run may go on after its last stage
        if self._chosen is not None and self._recorded[-1][0] != self._done:
            self._record(flow)

    def keep(self) -> dict[str, Tensor]:
        """Return what belongs into a checkpoint: `steps` and `counts` (T), and `shown` (T×n×…)."""
        if not self._recorded:
            return {}
        steps = torch.tensor([step for step, _ in self._recorded])
        return {"steps": steps, "counts": self._counts(), "shown": self._padded()}

    def recall(self, state: Mapping[str, Tensor], total_step: int) -> None:
        """Go back to what a checkpoint has."""
        self._done = total_step
        self._recorded = []
        if state:
            self._require(state, total_step)
            steps = state["steps"].tolist()
            counts = state["counts"].tolist()
            frames = zip(steps, counts, state["shown"], strict=True)
            self._recorded = [(step, particles[:count]) for step, count, particles in frames]

    @staticmethod
    def _require(state: Mapping[str, Tensor], total_step: int) -> None:
        """Raise `RunError` if what a checkpoint has are no frames."""
        particles = state.get("shown")
        T = len(state.get("steps", ()))
        shape = () if particles is None else particles.shape[1:]
        numbers = torch.uint8 if len(shape) == 4 else torch.float32
        forms = {name: TensorForm(torch.int64, (T,)) for name in ("steps", "counts")}
        forms["shown"] = TensorForm(numbers, (T, None, *shape[1:]) if len(shape) in (2, 4) else (T, None, 2))
        require_forms(state, forms, f"the checkpoint of step {total_step:,}")

    @property
    def frames(self) -> Frames | None:
        """What has been recorded so far; None if nothing has."""
        if not self._recorded or self._flow is None or self._chosen is None:
            return None
        steps = tuple(step for step, _ in self._recorded)
        particles = self._padded()
        since = (self._counts()[:, None] <= torch.arange(particles.shape[1])).sum(dim=0)
        come = since.numpy() if int(since.max()) else None
        labels = self._flow.conditions.labels
        numbers = None if labels is None else labels[self._chosen[: len(since)]].numpy()
        data = self._flow.balanced_data
        if data.space.is_image:
            return Frames(steps, images=particles.numpy(), labels=numbers, classes=data.classes, since=come)
        target = data.take(evenly(len(data), 4000)).points().cpu().numpy()
        return Frames(
            steps,
            points=particles.numpy(),
            labels=numbers,
            classes=data.classes,
            target=scatter.plane(target).astype(np.float32),
            since=come,
            dimension=target.shape[1],
        )

    @property
    def film(self) -> Frames | None:
        """The frames of the animation: those recorded, without what only snapshots wanted."""
        return None if self.frames is None else self.frames.at({0, *self._steps, self._done})

    def _prepare(self, flow: Flow) -> None:
        self._flow = flow
        if self.count or self.snapshots:
            self._steps = frozenset(_frame_steps(flow, self.count))
            self._choose(flow)

    def _choose(self, flow: Flow) -> None:
        """Choose some of the particles that have come."""
        cohorts = (0, *flow.cohorts)
        for first, last in pairwise(cohorts[self._cohorts :]):
            new = choose(flow, first, last)
            self._chosen = new if self._chosen is None else torch.cat([self._chosen, new])
        self._cohorts = len(flow.cohorts)

    def _record(self, flow: Flow) -> None:
        self._choose(flow)
        samples = flow.samples(self._chosen)
        if samples.space.is_image:
            self._recorded.append((self._done, samples.images()))
        else:
            points = scatter.plane(samples.points().numpy()).astype(np.float32)
            self._recorded.append((self._done, torch.from_numpy(points)))

    def _counts(self) -> Tensor:
        """Return how many particles each frame has (T)."""
        return torch.tensor([len(particles) for _, particles in self._recorded])

    def _padded(self) -> Tensor:
        """Return all frames (T×n×…), with 0 where a particle has not come yet."""
        return torch.nn.utils.rnn.pad_sequence([particles for _, particles in self._recorded], batch_first=True)


def spread(total: int, count: int) -> list[int]:
    """Return about `count` of the steps 0 … total: the first, the last, and others that thin out."""
    count = max(2, min(count, total + 1))
    steps = [0]
    for i in range(1, count):
        steps.append(max(steps[-1] + 1, round(total * (i / (count - 1)) ** 2)))
    return sorted({min(step, total) for step in steps})


def choose(flow: Flow, first: int, last: int) -> Tensor:
    """Return which of the particles from `first` up to `last`, an arrival, to record.

    Of images some of each class in order, or some of all.
    """
    count = last - first
    labels = flow.conditions.labels
    if not flow.data.space.is_image:
        return first + evenly(count, 1500 // flow.rounds)
    most = max(1, MOST_BYTES // flow.data.space.dimension // flow.rounds)
    if labels is None:
        wanted = max(PER_CLASS, 48 // flow.rounds)
        return first + evenly(count, min(wanted, most))
    labels = labels[first:last]
    present = torch.unique(labels)[: min(20, most)]
    each = max(1, min(PER_CLASS, most // max(1, len(present))))
    chosen = [(labels == c).nonzero()[:each, 0] for c in present]
    return first + torch.cat([torch.arange(0), *chosen])


def evenly(count: int, most: int) -> Tensor:
    """Return at most `most` of the numbers 0 … count − 1, evenly spaced."""
    return torch.linspace(0, count - 1, min(count, most)).round().long()


def _frame_steps(flow: Flow, count: int) -> Iterator[int]:
    """Yield about `count` of a flow's steps, as many of each round."""
    size = len(flow.stages) // flow.rounds
    done = 0
    for first in range(0, len(flow.stages), size):
        total = sum(stage.steps for stage in flow.stages[first : first + size])
        yield from (done + step for step in spread(total, count // flow.rounds))
        done += total


def _titled(picture: Image.Image, factor: int, title: str) -> Image.Image:
    """Return a picture enlarged by a whole factor, a title below, in 128 colours of its own."""
    size = (picture.width * factor, picture.height * factor)
    enlarged = picture.resize(size, Image.Resampling.NEAREST)
    edge = 6
    line = 26
    canvas = Image.new("RGB", (size[0] + 2 * edge, size[1] + 2 * edge + line), BACKGROUND)
    mask = enlarged.getchannel("A") if "A" in enlarged.getbands() else None
    canvas.paste(enlarged.convert("RGB"), (edge, edge), mask)
    pen = ImageDraw.Draw(canvas)
    pen.text((canvas.width // 2, canvas.height - line // 2 - 2), title, INK, font(15), anchor="mm")
    some = canvas.resize((canvas.width // 3, canvas.height // 3), Image.Resampling.NEAREST)
    palette = some.quantize(128)  # colours of a ninth of the pixels: ten times faster, and hardly worse
    return canvas.quantize(palette=palette, dither=Image.Dither.NONE)


def _is_plane(points: NDArray[Any]) -> bool:
    """Say whether the last dimension is of two finite numbers."""
    shaped = points.ndim > 1 and points.shape[-1] == 2 and points.size > 0 and points.dtype.kind == "f"
    return shaped and bool(np.isfinite(points).all())
