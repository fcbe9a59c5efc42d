"""Pictures of points in the plane: particles on the contours of their target, drawn with matplotlib."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

if TYPE_CHECKING:  # matplotlib takes half a second to import, and pictures of images do without it
    from matplotlib.axes import Axes
    from matplotlib.collections import PathCollection
    from matplotlib.figure import Figure

Floats = NDArray[np.floating[Any]]
Labels = NDArray[np.int64]

SIDE = 300
GAP = 8
HEADER = 20
"""Pixels of a panel's side, between panels, and of the line above them that has their titles."""

BINS = 150
"""Cells of a histogram's side; contours are drawn between them."""

SHARES = (0.95, 0.8, 0.5, 0.2)
"""Contours enclose these shares of the target's mass."""

INKS = ("#141414", "#b25400", "#006e50", "#6e3ca0", "#961e46", "#465a14")
"""Colours of particles, by label."""

INK = "#282828"

DPI = 128
"""A power of two, so that pixels / DPI × DPI are the same number of pixels."""


def panels(
    titled: Sequence[tuple[str, Floats]], labels: Labels | None, target: Floats, dimension: int
) -> Image.Image:
    """Draw titled clouds of particles side by side, over the target in blue and the first cloud in red.

    The first two coordinates of each cloud (n×d) are drawn; titles say so where the `dimension` is larger.
    """
    if dimension > 2:
        titled = [(f"{title} (2 of {dimension} coordinates)", points) for title, points in titled]
    clouds = [plane(points) for _, points in titled]
    backdrop = Backdrop(plane(target), clouds[0])
    width = len(titled) * (SIDE + GAP) + GAP
    height = HEADER + SIDE + GAP
    with _figure(width, height) as figure:
        for i, ((title, _), points) in enumerate(zip(titled, clouds, strict=True)):
            left = GAP + i * (SIDE + GAP)
            axes = figure.add_axes((left / width, GAP / height, SIDE / width, SIDE / height))
            backdrop.draw(axes)
            _scatter(axes, points, labels)
            middle = ((left + SIDE / 2) / width, 1 - HEADER / 2 / height)
            figure.text(*middle, title, ha="center", va="center", color=INK, fontsize=_points(13))
        return _rendered(figure)


def film(clouds: Sequence[Floats], labels: Labels | None, target: Floats) -> list[Image.Image]:
    """Draw clouds of particles (n×2) one by one, without titles; all clouds begin with the same particles."""
    backdrop = Backdrop(target, clouds[0])
    pictures = []
    with _figure(SIDE, SIDE) as figure:
        axes = figure.add_axes((0, 1 / SIDE, 1 - 1 / SIDE, 1 - 1 / SIDE))  # its frame is within
        backdrop.draw(axes)
        marks = _scatter(axes, max(clouds, key=len), labels)
        for points in clouds:
            marks.set_offsets(points)
            pictures.append(_rendered(figure))
    return pictures


def plane(points: Floats) -> Floats:
    """Return points in the plane: the first two coordinates, and 0 for one that is lacking."""
    flat = np.asarray(points, dtype=np.float64)[:, :2]
    return np.pad(flat, ((0, 0), (0, 2 - flat.shape[1])))


class Backdrop:
    """What particles are drawn on: the density of their target and that of their beginning."""

    def __init__(self, target: Floats, start: Floats) -> None:
        points = np.concatenate([target, start])
        low = np.percentile(points, 0.2, axis=0)
        high = np.percentile(points, 99.8, axis=0)
        margin = 0.12 * np.maximum(high - low, 1e-9)
        self.low = low - margin
        self.high = high + margin
        self.target = self.density(target)
        self.start = self.density(start)

    def density(self, points: Floats) -> Floats:
        """Return a smoothed histogram of points, BINS×BINS with sum 1; rows go up."""
        edges = [np.linspace(self.low[axis], self.high[axis], BINS + 1) for axis in (1, 0)]
        counts, _, _ = np.histogram2d(points[:, 1], points[:, 0], bins=edges)
        cells = np.arange(BINS)
        kernel = np.exp(-0.5 * ((cells[:, None] - cells) / (BINS / 36)) ** 2)
        smooth = kernel @ counts @ kernel
        density: Floats = smooth / max(smooth.sum(), 1e-300)
        return density

    def draw(self, axes: Axes) -> None:
        """Draw both densities, and no numbers on the axes: only the shape matters."""
        extent = (self.low[0], self.high[0], self.low[1], self.high[1])
        blues = ("#e2ecf7", "#c4d8ee", "#9ebee0", "#76a0cf")
        colours = dict(zip(levels(self.target), blues, strict=True))  # of equal levels, the last colour
        axes.contourf(
            self.target, [*colours, np.inf], colors=[*colours.values()], extent=extent, origin="lower"
        )
        lines = sorted(set(levels(self.start)))
        axes.contour(self.start, lines, colors="#cd5c5c", linewidths=_points(1), extent=extent, origin="lower")
        axes.set(xlim=extent[:2], ylim=extent[2:], xticks=[], yticks=[])
        for spine in axes.spines.values():
            spine.set(color="#aaaaaa", linewidth=_points(1))


def levels(density: Floats) -> list[float]:
    """Return, for each of SHARES, the density above which that share of the mass lies."""
    ordered = np.sort(density.ravel())[::-1]
    mass = np.cumsum(ordered)
    return [float(ordered[min(int(np.searchsorted(mass, share)), len(ordered) - 1)]) for share in SHARES]


def _scatter(axes: Axes, points: Floats, labels: Labels | None) -> PathCollection:
    colours = INKS[0] if labels is None else [INKS[int(label) % len(INKS)] for label in labels[: len(points)]]
    diameter = _points(3.8 if len(points) <= 1000 else 2.8)
    return axes.scatter(points[:, 0], points[:, 1], s=diameter**2, c=colours, linewidths=0, zorder=3)


def _points(pixels: float) -> float:
    """Return a length in typographic points, which matplotlib measures in."""
    return pixels * 72 / DPI


@contextmanager
def _figure(width: int, height: int) -> Iterator[Figure]:
    """Make a white figure of some pixels; a user's own settings of matplotlib change nothing about it."""
    from matplotlib import style
    from matplotlib.figure import Figure

    with style.context(["default", {"text.parse_math": False}]):
        yield Figure(figsize=(width / DPI, height / DPI), dpi=DPI, facecolor="white")


def _rendered(figure: Figure) -> Image.Image:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="rgba")
    size = (round(figure.bbox.width), round(figure.bbox.height))
    return Image.frombytes("RGBA", size, buffer.getvalue()).convert("RGB")
