"""Pictures of points in the plane: particles on the contours of their target, panel by panel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from cswf_core.pictures.grid import BACKGROUND, INK, font

Floats = NDArray[np.floating[Any]]

SIDE = 300
"""Pixels of a panel's side."""

FINE = 2
"""Panels are drawn this many times larger and shrunk, for smooth edges."""

SHARES = (0.95, 0.8, 0.5, 0.2)
"""Contours enclose these shares of the target's mass."""

BLUES = ((226, 236, 247), (196, 216, 238), (158, 190, 224), (118, 160, 207))
RED = (205, 92, 92)
INKS = ((20, 20, 20), (178, 84, 0), (0, 110, 80), (110, 60, 160), (150, 30, 70), (70, 90, 20))
"""Colours of particles, by label."""


class Window:
    """The part of the plane that panels show."""

    def __init__(self, *clouds: Floats) -> None:
        points = np.concatenate([cloud for cloud in clouds if len(cloud)])
        low, high = np.percentile(points, 0.2, axis=0), np.percentile(points, 99.8, axis=0)
        margin = 0.12 * np.maximum(high - low, 1e-9)
        self.low, self.high = low - margin, high + margin

    def pixels(self, points: Floats, side: int) -> Floats:
        """Return points (n×2) in pixels of a side×side panel, y upwards."""
        unit = (points - self.low) / (self.high - self.low)
        return np.stack([unit[:, 0], 1 - unit[:, 1]], axis=1) * side

    def density(self, points: Floats, side: int) -> Floats:
        """Return a smoothed histogram of points on side×side pixels, with sum 1."""
        places = self.pixels(points, side)
        counts, _, _ = np.histogram2d(places[:, 1], places[:, 0], bins=side, range=[[0, side], [0, side]])
        reach = np.arange(-3 * (side // 36), 3 * (side // 36) + 1)
        kernel = np.exp(-0.5 * (reach / (side / 36)) ** 2)
        for axis in (0, 1):
            counts = np.apply_along_axis(np.convolve, axis, counts, kernel, mode="same")
        density: Floats = counts / max(counts.sum(), 1e-300)
        return density


def level_sets(density: Floats) -> list[NDArray[np.bool_]]:
    """Return, for each of SHARES, the smallest region that holds that share of the mass."""
    ordered = np.sort(density.ravel())[::-1]
    held = np.cumsum(ordered)
    thresholds = [ordered[min(int(np.searchsorted(held, share)), len(ordered) - 1)] for share in SHARES]
    return [density >= threshold for threshold in thresholds]


def outline(region: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return the pixels of a region that touch its outside."""
    inner: NDArray[np.bool_] = region.copy()
    for axis in (0, 1):
        for shift in (-1, 1):
            inner &= np.roll(region, shift, axis)
    edge: NDArray[np.bool_] = region & ~inner
    return edge


def panels(
    moments: Sequence[tuple[str, Floats]], labels: NDArray[np.int64] | None, target: Floats
) -> Image.Image:
    """Draw particles (n×2 each) at several moments, over the target in blue and their own beginning in red."""
    if target.shape[1] > 2:
        moments = [(f"{title} (2 of {target.shape[1]} coordinates)", points) for title, points in moments]
    moments = [(title, plane(points)) for title, points in moments]
    target = plane(target)
    window = Window(target, moments[0][1])
    side = SIDE * FINE
    background = np.full((side, side, 3), BACKGROUND, dtype=np.uint8)
    for region, blue in zip(level_sets(window.density(target, side)), BLUES, strict=True):
        background[region] = blue
    for region in level_sets(window.density(moments[0][1], side)):
        edge = outline(region)
        for axis in (0, 1):  # two pixels wide, one after shrinking
            edge |= np.roll(edge, 1, axis)
        background[edge] = RED
    gap, header = 8, 20
    canvas = Image.new("RGB", (len(moments) * (SIDE + gap) + gap, SIDE + header + gap), BACKGROUND)
    pen = ImageDraw.Draw(canvas)
    for i, (title, points) in enumerate(moments):
        x = gap + i * (SIDE + gap)
        canvas.paste(_panel(background, window.pixels(points, side), labels), (x, header))
        pen.rectangle((x, header, x + SIDE - 1, header + SIDE - 1), outline=(170, 170, 170))
        pen.text((x + SIDE // 2, header // 2), title, INK, font(13), anchor="mm")
    return canvas


def plane(points: Floats) -> Floats:
    """Return points in the plane: the first two coordinates, and 0 for one that is lacking."""
    flat = np.asarray(points, dtype=np.float64)[:, :2]
    return np.pad(flat, ((0, 0), (0, 2 - flat.shape[1])))


def _panel(background: NDArray[np.uint8], places: Floats, labels: NDArray[np.int64] | None) -> Image.Image:
    panel = Image.fromarray(background.copy())
    pen = ImageDraw.Draw(panel)
    radius = FINE * (1.6 if len(places) <= 1000 else 1.1)
    for i, (x, y) in enumerate(places):
        ink = INKS[0] if labels is None else INKS[int(labels[i]) % len(INKS)]
        pen.ellipse((x - radius, y - radius, x + radius, y + radius), fill=ink)
    return panel.resize((SIDE, SIDE), Image.Resampling.LANCZOS)
