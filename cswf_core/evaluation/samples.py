"""Samples from a disk: a run's folder, a folder of pictures, or an .npz file, whichever program made them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from cswf_core.errors import DataError, RunError
from cswf_core.interfaces import BIN, Conditions, Dataset, Space

ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".webp")

FILES = {"batched": "samples.npz", "offline": "samples-offline.npz"}
"""A run's samples: the particles that flowed with the data, and those sampled from the saved model later."""

Array = NDArray[Any]


@attrs.frozen(eq=False)
class Subject:
    """Samples to be scored, and where they come from."""

    path: Path
    source: str
    samples: Dataset = attrs.field(repr=False)
    run: Path | None = None
    """The folder of the run they are from."""


def is_run(path: Path) -> bool:
    """Say whether a folder is a run's."""
    return (path / "run.json").is_file() and (path / "recipe.yaml").is_file()


def read(path: Path, which: str = "batched") -> Subject:
    """Return what a path holds: a run's samples (batched or offline ones), pictures, or arrays."""
    if (path / "sweep.json").is_file():
        inside = next((sub.name for sub in sorted(path.iterdir()) if is_run(sub)), None)
        hint = f", such as {path / inside}" if inside else ""
        raise DataError(f"{path} is the folder of a sweep; give one of its runs{hint}")
    if path.is_dir() and is_run(path):
        return _run(path, which)
    if path.is_dir():
        return Subject(path, str(path), folder(path))
    if path.is_file() and path.suffix.lower() == ".npz":
        return Subject(path, str(path), archive(path))
    what = "is neither a folder nor an .npz file" if path.exists() else "does not exist"
    raise DataError(f"{path} {what}; give a run's folder, a folder of pictures, or an .npz file of images")


def _run(path: Path, which: str) -> Subject:
    file = path / FILES[which]
    if not file.is_file():
        if which == "offline":
            raise RunError(
                f"{path} has no offline samples ({file.name}): `cswf sample {path}` draws some if the run has "
                "saved a model; leave out --samples for its particles"
            )
        raise RunError(f"{path} has no samples: its status is '{_status(path)}'")
    return Subject(path, file.name, archive(file), run=path)


def _status(path: Path) -> str:
    try:
        return str(json.loads((path / "run.json").read_text(encoding="utf-8"))["status"])
    except (OSError, ValueError, KeyError, TypeError):
        return "unknown"


def folder(path: Path) -> Dataset:
    """Return the pictures of a folder, all of one size; folders within are classes, if there are any."""
    files = _pictures(path)
    within = {sub.name: _pictures(sub) for sub in sorted(path.iterdir()) if sub.is_dir() and sub.name[0] != "."}
    within = {name: paths for name, paths in within.items() if paths}
    if files and within:
        first = next(iter(within))
        raise DataError(f"{path} has pictures of its own beside folders of them, such as {first}; keep either")
    labels: Tensor | None = None
    if within:
        files = [file for paths in within.values() for file in paths]
        labels = torch.repeat_interleave(torch.arange(len(within)), torch.tensor([*map(len, within.values())]))
    if not files:
        raise DataError(f"{path} has no pictures ({', '.join(ending[1:] for ending in ENDINGS)})")
    example = _picture(files[0])
    pixels = np.empty((len(files), *example.shape), np.uint8)
    for i, file in enumerate(files):
        picture = _picture(file)
        if picture.shape != example.shape:
            sizes = f"{files[0].name} has {_size(example)} and {file.name} {_size(picture)}"
            raise DataError(f"the pictures in {path} must be of one size and kind, and {sizes}")
        pixels[i] = picture
    return _dataset(pixels, labels, tuple(within))


def _pictures(path: Path) -> list[Path]:
    return [file for file in sorted(path.iterdir()) if file.suffix.lower() in ENDINGS and file.name[0] != "."]


def _picture(path: Path) -> NDArray[np.uint8]:
    """Return one picture as C×H×W bytes, as it is: nothing is cut or resized."""
    try:
        with Image.open(path) as opened:
            if opened.mode.startswith(("I", "F")):
                raise DataError(f"{path} has more than 8 bits per value; convert it to an 8-bit image")
            pixels = np.asarray(opened.convert("L" if opened.mode in ("1", "L", "LA") else "RGB"), np.uint8)
    except DataError:
        raise
    except Exception as error:  # Pillow's decoders raise many kinds for damaged files
        reason = " ".join(str(error).split())
        raise DataError(f"{path} cannot be read as an image ({reason}); replace or remove it") from None
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def _size(picture: NDArray[np.uint8]) -> str:
    channels, height, width = picture.shape
    return f"{width}×{height} pixels in {'colour' if channels == 3 else 'grey'}"


def archive(path: Path) -> Dataset:
    """Return the samples of an .npz file: `images` or `arr_0` (bytes; n×C×H×W, n×H×W×C or n×H×W), or `points`.

    `labels` or `arr_1` are their classes, `origin` says what they complete, as a run leaves it. What stands
    behind a point's own coordinates, its condition, is told apart by `form.like`.
    """
    try:
        opened = np.load(path, allow_pickle=False)
        if not isinstance(opened, np.lib.npyio.NpzFile):
            raise ValueError("it is a single array")
        with opened as file:
            arrays = {name: file[name] for name in file.files}
    except Exception as error:  # a damaged archive raises many kinds
        raise DataError(f"{path} cannot be read as .npz ({' '.join(str(error).split())})") from None
    labels = _whole(path, arrays, ("labels", "arr_1"))
    origin = _whole(path, arrays, ("origin",))
    if "points" in arrays:
        rows = arrays["points"]
        if rows.ndim != 2 or not len(rows) or rows.dtype.kind not in "fiu" or not np.isfinite(rows).all():
            raise DataError(f"{path}: 'points' must be n×d finite numbers, got {_described(rows)}")
        points = torch.from_numpy(np.ascontiguousarray(rows.astype(np.float32)))
        conditions = Conditions(labels=labels, origin=origin)
        return Dataset(points.T.contiguous(), Space((points.shape[1],)), conditions)
    name = next((name for name in ("images", "arr_0") if name in arrays), None)
    if name is None:
        held = ", ".join(arrays) or "nothing"
        raise DataError(f"{path} has no 'images' (or 'arr_0') and no 'points'; it holds {held}")
    found = _dataset(_bytes(path, name, arrays[name]), labels, ())
    return attrs.evolve(found, conditions=attrs.evolve(found.conditions, origin=origin))


def _bytes(path: Path, name: str, images: Array) -> NDArray[np.uint8]:
    """Return images as n×C×H×W bytes."""
    if images.ndim == 3:
        images = images[:, None]
    if images.ndim != 4 or images.dtype != np.uint8 or not len(images):
        raise DataError(f"{path}: '{name}' must be n×C×H×W bytes (uint8), got {_described(images)}")
    if images.shape[1] not in (1, 3) and images.shape[3] in (1, 3):
        images = images.transpose(0, 3, 1, 2)
    return np.ascontiguousarray(images)


def _whole(path: Path, arrays: dict[str, Array], names: Sequence[str]) -> Tensor | None:
    """Return whole numbers, one for each sample; None if there are none."""
    name = next((name for name in names if name in arrays), None)
    if name is None:
        return None
    samples = next(arrays[key] for key in ("images", "arr_0", "points", name) if key in arrays)
    count = len(samples) if samples.ndim else 0
    numbers = arrays[name]
    if numbers.shape != (count,) or numbers.dtype.kind not in "iu":
        raise DataError(f"{path}: '{name}' must be {count} whole numbers, got {_described(numbers)}")
    return torch.from_numpy(numbers.astype(np.int64))


def _described(array: Array) -> str:
    return f"{'×'.join(map(str, array.shape)) or 'one value'} of {array.dtype}"


def _dataset(pixels: NDArray[np.uint8], labels: Tensor | None, classes: tuple[str, ...]) -> Dataset:
    flat = torch.from_numpy(pixels.reshape(len(pixels), -1))
    x = flat.T.to(torch.float32).mul_(BIN).sub_(1)
    return Dataset(x, Space(pixels.shape[1:]), Conditions(labels=labels), classes, bin_width=BIN)
