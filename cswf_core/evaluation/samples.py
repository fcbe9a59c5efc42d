"""Samples of a run, a folder of pictures or an .npz file, whichever program made them.

Those that are scored get the channels and classes of the real ones that they are compared with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import attrs
import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from cswf_core import arrays
from cswf_core.arrays import Array, default_limit
from cswf_core.errors import DataError, RunError, printable
from cswf_core.files import enough_text, refuse_large
from cswf_core.interfaces import BIN, Conditions, Dataset, Space
from cswf_core.pictures.read import find_pictures, image_notes, picture_notes, read_picture
from cswf_core.plugins import PluginFolders, as_options
from cswf_core.runs.folder import RunFolder

FILES = {"batched": "samples.npz", "offline": "samples-offline.npz"}
"""A run's samples: the particles that F_p is made of, and those carried along or sampled from a saved model."""

ADVICE = "--limit {} allows it"
"""How to read files that need more memory."""


@attrs.frozen
class Reading:
    """How folders of pictures and .npz files are read."""

    limit: int | None = None
    """Bytes that the images may take as they are; None: a share of the memory."""
    resize: int | None = None
    """Side, in pixels, that images of another size are resized to; None: they stay as they are."""
    rgb: bool = False
    """Whether grey images become colour images with three equal channels."""


AS_THEY_ARE = Reading()


@attrs.frozen(eq=False)
class Generated:
    """Samples to be scored, and where they come from."""

    samples: Dataset = attrs.field(repr=False)
    source: str = ""
    path: Path = Path()
    run: Path | None = None
    """The folder of the run they are from."""
    ending: str = ""
    """What is put behind the names of their scores and figures."""
    notes: Sequence[str] = ()
    """Sentences on the files that a score may depend on."""


def is_run(path: Path) -> bool:
    """Return whether a folder is a run's."""
    return (path / "run.json").is_file() and (path / "recipe.yaml").is_file()


def read(
    path: Path, kind: str = "batched", plugins_dir: PluginFolders = None, reading: Reading = AS_THEY_ARE
) -> Generated:
    """Return the samples at a path: a run's (of a kind in `FILES`), a folder of pictures, or an .npz file.

    `plugins_dir` are the folders of a run's plugins, for the command that would draw samples it lacks.
    """
    if (path / "sweep.json").is_file():
        inside = next((sub.name for sub in sorted(path.iterdir()) if is_run(sub)), None)
        hint = f", such as {path / inside}" if inside else ""
        raise DataError(f"{path} is the folder of a sweep; give one of its runs{hint}")
    if path.is_dir() and is_run(path):
        return _read_run(path, kind, plugins_dir, reading)
    notes: list[str] = []
    if path.is_dir():
        return Generated(read_folder(path, reading, notes), printable(str(path)), path, notes=notes)
    if path.is_file() and path.suffix.lower() == ".npz":
        return Generated(read_archive(path, reading, notes), printable(str(path)), path, notes=notes)
    reason = "is neither a folder nor an .npz file" if path.exists() else "does not exist"
    raise DataError(f"{path} {reason}; give a run's folder, a folder of pictures, or an .npz file of images")


def _read_run(path: Path, kind: str, plugins_dir: PluginFolders, reading: Reading) -> Generated:
    file = path / FILES[kind]
    if not file.is_file():
        if kind == "offline":
            raise RunError(
                f"{path} has no offline samples ({file.name}): a run with particles.offline has some, and "
                f"`cswf sample {path}{as_options(plugins_dir)}` draws some from a saved model; leave out "
                "--samples for its particles"
            )
        facts = RunFolder(path).facts()
        status = "unknown" if facts is None else facts.status
        raise RunError(f"{path} has no samples: its status is '{status}'")
    notes: list[str] = []
    ending = "_offline" if kind == "offline" else ""
    return Generated(read_archive(file, reading, notes), file.name, path, path, ending, notes)


def read_folder(path: Path, reading: Reading, notes: list[str]) -> Dataset:
    """Return the pictures of a folder; folders within are classes, if there are any.

    They must be of one size and kind, unless `reading` makes them so. A sentence for each thing that a score
    may depend on is added to `notes`.
    """
    files, labels, classes = find_pictures(path)
    named = ((str(file.relative_to(path)), read_picture(file)) for file in files)
    pixels = _stacked(path, named, len(files), reading, notes)
    notes += picture_notes(path, files)
    notes += image_notes(path, pixels)
    return _dataset(pixels, torch.from_numpy(labels) if classes else None, classes)


def _stacked(
    path: Path, named: Iterable[tuple[str, Image.Image]], count: int, reading: Reading, notes: list[str]
) -> NDArray[np.uint8]:
    """Return `count` named pictures as n×C×H×W bytes, in the size and colours that are asked for."""
    first = ""
    pixels = np.empty((0, 0, 0, 0), np.uint8)
    resized = 0
    repeated = 0
    for i, (name, original) in enumerate(named):
        picture = original.convert("RGB") if reading.rgb else original
        if reading.resize is not None:
            picture = picture.resize((reading.resize, reading.resize), Image.Resampling.BICUBIC)
        planes = np.atleast_3d(np.asarray(picture, np.uint8)).transpose(2, 0, 1)
        if i == 0:
            first = name
            needed = count * planes.size
            limit = default_limit() if reading.limit is None else reading.limit
            refuse_large(path, needed, limit, ADVICE.format(enough_text(needed)))
            pixels = np.empty((count, *planes.shape), np.uint8)
        if planes.shape != pixels.shape[1:]:
            advice = "--rgb converts all of them to RGB"
            if planes.shape[1:] != pixels.shape[2:]:
                advice = f"--resize N resizes all of them to N×N pixels, and {advice}"
            sizes = f"{first} has {_size(pixels[0])} and {name} {_size(planes)}"
            raise DataError(f"the pictures in {path} must be of one size and kind, and {sizes}; {advice}")
        pixels[i] = planes
        resized += picture.size != original.size
        repeated += picture.mode != original.mode
    if resized:
        notes.append(
            f"{path}: {resized:,} of {count:,} images are resized to {reading.resize}×{reading.resize} pixels "
            "(--resize) by Pillow's bicubic filter with antialiasing, that of clean-fid, and rounded to bytes"
        )
    if repeated:
        notes.append(f"{path}: {repeated:,} of {count:,} images are grey, and are converted to RGB (--rgb)")
    return pixels


def _size(planes: NDArray[np.uint8]) -> str:
    channels, height, width = planes.shape
    return f"{width}×{height} pixels in {'colour' if channels == 3 else 'grey'}"


def read_archive(path: Path, reading: Reading, notes: list[str]) -> Dataset:
    """Return the samples of an .npz file: `images` or `arr_0` (bytes; n×C×H×W, n×H×W×C or n×H×W), or `points`.

    `labels` or `arr_1` are their classes, `origin` says what they complete, as a run leaves it. What stands
    behind a point's own coordinates, its condition, is separated by `conform`. `notes`: as in `read_folder`.
    """
    names = ("images", "arr_0", "points", "labels", "arr_1", "origin")
    held = arrays.read_archive(path, names, limit=reading.limit, advice=ADVICE)
    labels = _whole(path, held, ("labels", "arr_1"))
    origin = _whole(path, held, ("origin",))
    if "points" in held:
        return _points(path, held["points"], Conditions(labels=labels, origin=origin))
    name = next((name for name in ("images", "arr_0") if name in held), None)
    if name is None:
        others = ", ".join(arrays.names_in(path)) or "nothing"
        raise DataError(f"{path} has no 'images' (or 'arr_0') and no 'points'; it holds {others}")
    pixels = _bytes(path, name, held[name])
    if reading.resize is not None or reading.rgb:
        last = pixels[:, 0] if pixels.shape[1] == 1 else pixels.transpose(0, 2, 3, 1)
        pixels = _stacked(path, (("", Image.fromarray(image)) for image in last), len(pixels), reading, notes)
    notes += image_notes(path, pixels)
    samples = _dataset(pixels, labels, ())
    return attrs.evolve(samples, conditions=attrs.evolve(samples.conditions, origin=origin))


def _points(path: Path, rows: Array, conditions: Conditions) -> Dataset:
    """Return points (n×d) as samples."""
    fault = DataError(f"{path}: 'points' must be n×d finite numbers (float32), got {_described(rows)}")
    if rows.ndim != 2 or not rows.size or rows.dtype.kind not in "fiu":
        raise fault
    with np.errstate(over="ignore", invalid="ignore"):
        columns = rows.T.astype(np.float32, order="C")
    if not np.isfinite(columns).all():
        raise fault
    return Dataset(torch.from_numpy(columns), Space((len(columns),)), conditions)


def _bytes(path: Path, name: str, images: Array) -> NDArray[np.uint8]:
    """Return images as n×C×H×W bytes."""
    if images.ndim == 3:
        images = images[:, None]
    if images.ndim != 4 or images.dtype != np.uint8 or not images.size:
        hint = "convert pixels to whole numbers from 0 to 255, and these to uint8"
        raise DataError(f"{path}: '{name}' must be n×C×H×W bytes, got {_described(images)}; {hint}")
    if images.shape[1] not in (1, 3) and images.shape[3] in (1, 3):
        images = images.transpose(0, 3, 1, 2)
    if images.shape[1] not in (1, 3):
        hint = "images have 1 or 3 channels; leave out an alpha channel"
        raise DataError(f"{path}: '{name}' is {_described(images)}, and {hint}")
    return np.ascontiguousarray(images)


def _whole(path: Path, held: dict[str, Array], names: Sequence[str]) -> Tensor | None:
    """Return whole numbers, one for each sample; None if there are none."""
    name = next((name for name in names if name in held), None)
    if name is None:
        return None
    samples = next(held[key] for key in ("images", "arr_0", "points", name) if key in held)
    count = len(samples) if samples.ndim else 0
    numbers = held[name]
    if numbers.shape != (count,) or numbers.dtype.kind not in "iu":
        raise DataError(f"{path}: '{name}' must be {count} whole numbers, got {_described(numbers)}")
    return torch.from_numpy(numbers.astype(np.int64))


def _described(array: Array) -> str:
    return f"{'×'.join(map(str, array.shape)) or 'one value'} of {array.dtype}"


def _dataset(pixels: NDArray[np.uint8], labels: Tensor | None, classes: tuple[str, ...]) -> Dataset:
    flat = torch.from_numpy(pixels.reshape(len(pixels), -1))
    x = flat.T.to(torch.float32).mul_(BIN).sub_(1)
    return Dataset(x, Space(pixels.shape[1:]), Conditions(labels=labels), classes, bin_width=BIN)


def conform(samples: Dataset, real: Dataset, name: str, notes: list[str]) -> Dataset:
    """Return samples with the channels, classes and conditions of the real ones they are compared with.

    Grey pictures are repeated where the real ones have colours, and colour ones made grey where all their
    channels are the same; names of classes become the real ones' numbers; numbers behind a point's own
    coordinates become its condition. `name` is the samples' in sentences about a mismatch. A sentence for each
    change that a score may depend on is added to `notes`.
    """
    if real.space.is_image != samples.space.is_image:
        kinds = ("images", "points") if samples.space.is_image else ("points", "images")
        raise DataError(f"{name} are {kinds[0]}, and what they are compared with are {kinds[1]}")
    if not real.space.is_image:
        return _points_like(samples, real, name)
    samples = _channels_like(samples, real.space.shape[0], name, notes)
    if samples.space != real.space:
        ours, theirs = ("×".join(map(str, space.shape)) for space in (samples.space, real.space))
        _, height, width = real.space.shape
        advice = ""
        if samples.space.shape[1:] != real.space.shape[1:] and height == width:
            advice = f"; --resize {height} resizes images of folders and .npz files"
        elif samples.space.shape[0] > real.space.shape[0]:
            advice = "; convert the colour images to grey ones first"
        raise DataError(f"{name} are images of {ours}, and what they are compared with are of {theirs}{advice}")
    return _classes_like(samples, real, name, notes)


def _points_like(samples: Dataset, real: Dataset, name: str) -> Dataset:
    d = real.space.dimension
    vectors = real.conditions.vectors
    expected = d + (0 if vectors is None else vectors.shape[0])
    if samples.space.dimension != expected:
        raise DataError(f"{name} are points of {samples.space.dimension} numbers, and {expected} are expected")
    conditions = attrs.evolve(samples.conditions, vectors=None if vectors is None else samples.x[d:])
    return attrs.evolve(samples, x=samples.x[:d], space=real.space, conditions=conditions, classes=real.classes)


def _channels_like(samples: Dataset, channels: int, name: str, notes: list[str]) -> Dataset:
    ours, *grid = samples.space.shape
    planes = samples.x.view(ours, -1, len(samples))
    if ours == 1 and channels == 3:
        planes = planes.expand(3, -1, -1)
        notes.append(
            f"{name} are grey images, and are converted to RGB, as what they are compared with has colours"
        )
    elif ours == 3 and channels == 1 and bool((planes == planes[:1]).all()):
        planes = planes[:1]
        notes.append(f"{name} are in colour with all channels the same, and are taken as grey")
    else:
        return samples
    x = planes.reshape(-1, len(samples))
    return attrs.evolve(samples, x=x, space=Space((channels, *grid)))


def _classes_like(samples: Dataset, real: Dataset, name: str, notes: list[str]) -> Dataset:
    labels = samples.conditions.labels
    if labels is None or not real.classes:  # numbers of classes mean nothing where there are none
        conditions = attrs.evolve(samples.conditions, labels=None)
        return attrs.evolve(samples, classes=real.classes, conditions=conditions)
    if samples.classes:  # names of folders
        numbers = _numbers(samples.classes, real.classes)
        if numbers is None:
            notes.append(_unknown_classes(samples.classes, real.classes, name))
        labels = None if numbers is None else torch.tensor(numbers)[labels]  # None: no classes of these data
    if labels is not None and len(labels):
        least = int(labels.min())
        most = int(labels.max())
        if least < 0 or most >= len(real.classes):
            beyond = most if least >= 0 else least
            raise DataError(f"{name} have the label {beyond}, and there are {len(real.classes)} classes")
    conditions = attrs.evolve(samples.conditions, labels=labels)
    return attrs.evolve(samples, classes=real.classes, conditions=conditions)


def _unknown_classes(names: Sequence[str], classes: Sequence[str], name: str) -> str:
    """Return a sentence on folders whose names are not those of the classes."""
    strange = next((each for each in names if each not in classes), names[0])
    return (
        f"{name} have no classes: the folder '{strange}' is none of those of the real samples "
        f"({', '.join(classes[:5])}{', …' if len(classes) > 5 else ''})"
    )


def _numbers(names: Sequence[str], classes: Sequence[str]) -> list[int] | None:
    """Return the number of each class by its name, or by a number as its name; None if one is unknown."""
    rules: tuple[Callable[[str], int], ...] = (list(classes).index, int)
    for rule in rules:
        try:
            numbers = [rule(name) for name in names]
        except ValueError:
            continue
        if all(0 <= number < len(classes) for number in numbers):
            return numbers
    return None
