"""Data `npz`: arrays from a file.

What it is: `images` (n×C×H×W, or n×H×W for grey; bytes, or numbers in [−1, 1]) or `points` (n×d), with
`labels` (n whole numbers from 0) and `vectors` (n×l) if there are any.
Cost: the file is read once into memory.
When not to use it: for data sets that have a plugin of their own.
"""

from __future__ import annotations

from pathlib import Path

import attrs
import numpy as np
import torch
from numpy.typing import NDArray

from cswf_core.arrays import read_archive
from cswf_core.errors import DataError
from cswf_core.interfaces import (
    BIN,
    Conditions,
    Dataset,
    DatasetSource,
    Dequantise,
    Draw,
    Size,
    Space,
    parameter,
)
from cswf_plugins.datasets.images import (
    CLASSES_HELP,
    DEQUANTISE_HELP,
    fill_levels,
    members,
    subset,
)

Array = NDArray[np.generic]


@attrs.frozen(kw_only=True)
class Npz(DatasetSource):
    """Arrays from an .npz file."""

    path: Path = parameter("the file; a relative path counts from the recipe that names it")
    count: int | None = parameter(
        "N, a random subset of that many samples, before flips; all of them if left out",
        default=None,
        at_least=1,
    )
    classes: tuple[str, ...] = parameter(CLASSES_HELP, default=())
    flips: bool = parameter("add the mirror image of each of the images, which doubles N", default=False)
    dequantise: Dequantise = parameter(f"for images that are bytes, {DEQUANTISE_HELP}", default="step")

    limit: Size | None = parameter(
        "memory that the arrays may take, such as 20GB; a file with more is refused before it is unpacked; a "
        "quarter of this machine's if left out",
        default=None,
    )

    def load(self, draw: Draw) -> Dataset:
        """Return the file's samples; bytes become x = v/128 − 1 with bins of 1/128."""
        try:
            limit = None if self.limit is None else self.limit.bytes
            arrays = read_archive(
                self.path.expanduser(),
                ("images", "points", "labels", "vectors"),
                limit=limit,
                advice="data.limit: {} allows it",
            )
        except DataError as error:
            raise DataError(f"dataset 'npz': {error}") from None
        x, space, bin_width = self._samples(arrays, draw.dtype)
        labels, classes = self._labels(arrays.get("labels"), x.shape[1])
        data = Dataset(
            x=x,
            space=space,
            conditions=Conditions(labels, self._vectors(arrays.get("vectors"), x.shape[1], draw.dtype)),
            classes=classes,
            bin_width=bin_width,
        )
        try:
            return self._augmented(self._subset(data, draw), draw)
        except DataError as error:
            raise DataError(f"dataset 'npz': {self.path}: {error}") from None

    def _subset(self, data: Dataset, draw: Draw) -> Dataset:
        """Return the samples of the chosen classes, renumbered from 0, or a random subset of them."""
        if self.classes:
            labels = data.conditions.labels
            if labels is None:
                raise DataError(f"there are no 'labels' to choose class {self.classes[0]!r} from")
            index, renumbered, classes = members(self.classes, labels.numpy(), data.classes)
            data = data.take(torch.from_numpy(index))
            conditions = attrs.evolve(data.conditions, labels=torch.from_numpy(renumbered))
            data = attrs.evolve(data, conditions=conditions, classes=classes)
        if self.count is not None:
            data = data.take(torch.from_numpy(subset(len(data), self.count, draw)))
        return data

    def _augmented(self, data: Dataset, draw: Draw) -> Dataset:
        """Return the data with mirror images behind the others and with noise, if it should have them."""
        if self.flips:
            if not data.space.is_image:
                raise DataError("flips needs 'images'; 'points' have no mirror image")
            n = len(data)
            data = data.take(torch.arange(n).repeat(2))
            data.x[:, n:] = data.x[:, n:].view(*data.space.shape, n).flip(2).reshape(-1, n)
            data = attrs.evolve(data, augmented=n)
        if self.dequantise == "step" or not data.bin_width:
            return data
        fill_levels(data.x, self.dequantise, draw)
        return attrs.evolve(data, bin_width=0.0)

    def _samples(self, arrays: dict[str, Array], dtype: torch.dtype) -> tuple[torch.Tensor, Space, float]:
        if ("images" in arrays) == ("points" in arrays):
            raise self._error("must have either an array 'images' or an array 'points'")
        if "points" in arrays:
            points = arrays["points"]
            if points.ndim != 2 or 0 in points.shape[1:] or points.dtype.kind not in "fiu":
                raise self._error(f"'points' must be n×d numbers, got {_describe(points)}")
            return self._columns("points", points, dtype), Space((points.shape[1],)), 0.0
        images = arrays["images"]
        if images.ndim == 3:
            images = images[:, None]
        if images.ndim != 4 or 0 in images.shape[1:] or images.dtype.kind not in "fu":
            expected = "n×C×H×W or n×H×W bytes or floating-point numbers"
            raise self._error(f"'images' must be {expected}, got {_describe(arrays['images'])}")
        if images.shape[1] > 4 and images.shape[3] in (1, 3, 4):
            shape = "×".join(map(str, images.shape))
            raise self._error(f"'images' must have channels before rows and columns, n×C×H×W, got {shape}")
        space = Space(images.shape[1:])
        x = self._columns("images", images.reshape(len(images), space.dimension), dtype)
        if images.dtype.kind == "u":
            if images.dtype != np.uint8:
                raise self._error(f"'images' must have 8 bits per value, got {images.dtype}")
            return x * BIN - 1, space, BIN
        if x.numel() and (float(x.min()) < -1 or float(x.max()) > 1):
            raise self._error(f"'images' must lie in [−1, 1], got {float(x.min()):g} … {float(x.max()):g}")
        return x, space, 0.0

    def _vectors(self, vectors: Array | None, count: int, dtype: torch.dtype) -> torch.Tensor | None:
        if vectors is None:
            return None
        fitting = vectors.ndim == 2 and len(vectors) == count and vectors.shape[1] > 0
        if not fitting or vectors.dtype.kind not in "fiu":
            raise self._error(f"'vectors' must be {count}×l numbers, got {_describe(vectors)}")
        return self._columns("vectors", vectors, dtype)

    def _labels(self, labels: Array | None, count: int) -> tuple[torch.Tensor | None, tuple[str, ...]]:
        if labels is None:
            return None, ()
        if labels.shape != (count,) or labels.dtype.kind not in "iu":
            raise self._error(f"'labels' must be {count} whole numbers, got {_describe(labels)}")
        lowest, highest = (int(labels.min()), int(labels.max())) if count else (0, -1)
        if lowest < 0:
            raise self._error(f"'labels' must be 0 or more, got {lowest}")
        if highest >= max(count, 1):
            raise self._error(
                f"'labels' must count from 0 without large gaps, got {highest} among {count} samples"
            )
        return torch.from_numpy(labels.astype(np.int64)), tuple(str(c) for c in range(highest + 1))

    def _columns(self, name: str, rows: Array, dtype: torch.dtype) -> torch.Tensor:
        """Return an n×m array as an m×n tensor, a sample per column; refuse what is not finite."""
        bad = int((~np.isfinite(rows)).any(axis=1).sum()) if rows.dtype.kind == "f" else 0
        if bad:
            raise self._error(f"has NaN or infinite values in {bad:,} of {len(rows):,} '{name}'")
        # Numbers of few bits are float32 exactly, which takes half of the memory.
        exact = np.float32 if rows.dtype.itemsize <= 2 or rows.dtype.char == "f" else np.float64
        with np.errstate(over="ignore"):  # a number beyond float64 is infinite, and said below
            columns = torch.from_numpy(rows.T.astype(exact, order="C")).to(dtype)
        if not bool(torch.isfinite(columns).all()):
            raise self._error(f"has values in '{name}' beyond {dtype}; write particles.precision: float64")
        return columns

    def _error(self, reason: str) -> DataError:
        return DataError(f"dataset 'npz': {self.path} {reason}")


def _describe(array: Array) -> str:
    return f"{'×'.join(map(str, array.shape)) or 'one value'} of {array.dtype}"
