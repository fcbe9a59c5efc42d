"""Samples of a saved model, written as a picture, as an .npz file, or as a folder with a PNG for each."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import attrs
import torch
from PIL import Image
from torch import Tensor

from cswf_core.errors import RunError
from cswf_core.interfaces import Dataset, Observation, Space
from cswf_core.model.requests import of_columns, pixels_of
from cswf_core.pictures import grid as pictures
from cswf_core.runs.durable import make_folder, open_plainly, write_durably
from cswf_core.runs.samples import archive, completions_picture, samples_picture

SAMPLES_PER_ROW = 10
"""Number of samples in a row of the picture, as in a run's samples.png."""

COMPLETED_IMAGES_IN_PICTURE = 50
"""Largest number of completed images in a picture."""

REFUSED_ENDINGS = (".jpg", ".jpeg", ".gif", ".bmp", ".webp", ".npy", ".pt")
"""Endings of file names that are no folder's, and that nothing is written as."""


def destinations(out: Path | None, usual: Sequence[Path], space: Space, *, force: bool) -> list[Path]:
    """Return the files or the folder to write samples to.

    Raises `RunError` if something is there already that may not be replaced, or if points would need a folder.

    Args:
        out: The file or folder that `--out` names; None: the usual ones.
        usual: The usual files.
        space: The space of the samples.
        force: Whether what is there may be replaced.
    """
    if out is not None and out.suffix.lower() in REFUSED_ENDINGS:
        raise RunError(f"--out takes a file that ends in .png or .npz, or a folder; got {out}")
    if out is not None and not _ending(out) and not space.is_image:
        raise RunError(
            f"--out takes a file that ends in .png or .npz for points, and a folder for images only; got {out}"
        )
    places = list(usual) if out is None else [out]
    for place in places:
        if place.is_dir() != (_ending(place) == "") and place.exists():
            raise RunError(f"{place} is {'a folder' if place.is_dir() else 'a file'}; give another --out")
        if (any(place.iterdir()) if place.is_dir() else place.exists()) and not force:
            raise RunError(
                f"{place} is {'not empty' if place.is_dir() else 'there'}; give another --out, or --force"
            )
    return places


def write_samples(samples: Dataset, target: Callable[[], Dataset], places: Sequence[Path]) -> None:
    """Write samples; `target` loads what points are drawn on."""
    labels = samples.conditions.labels
    for place in places:
        if _ending(place) == ".npz":
            save(place, archive(samples, None))
        elif _ending(place) == ".png":
            backdrop = samples if samples.space.is_image else target()
            save(place, pictures.png(samples_picture(samples, backdrop, SAMPLES_PER_ROW)))
        else:
            classes = None if labels is None else [class_name(samples, label) for label in labels.tolist()]
            _one_by_one(samples, classes or ["sample"] * len(samples), place)


def write_completions(
    completed: Dataset, images: Tensor, observed: Observation, names: Sequence[str], places: Sequence[Path]
) -> None:
    """Write completions of images.

    Args:
        completed: The completions, each with the number of its image.
        images: The images: m×C×H×W bytes.
        observed: What was seen of each image.
        names: Name of each image.
        places: Files or folder to write.
    """
    origin = completed.conditions.origin
    assert origin is not None
    each = of_columns(observed, origin).to(torch.device("cpu"))
    flat = pixels_of(images, completed.x.dtype)
    originals = attrs.evolve(completed, x=flat)
    data = attrs.evolve(completed, x=flat[:, :0], held_out=originals)
    held_out = attrs.evolve(completed, conditions=attrs.evolve(completed.conditions, origin=-1 - origin))
    for place in places:
        if _ending(place) == ".npz":
            save(place, archive(completed, each))
        elif _ending(place) == ".png":
            save(place, pictures.png(completions_picture(held_out, data, each, COMPLETED_IMAGES_IN_PICTURE)))
        else:
            _one_by_one(completed, [names[image] for image in origin.tolist()], place)


def save(place: Path, content: bytes) -> None:
    """Write a file, and make its folder if it is not there."""
    make_folder(place.parent)
    write_durably(place, content)


def class_name(samples: Dataset, label: int) -> str:
    """Return a class's name as a file can have it."""
    name = samples.classes[label] if label < len(samples.classes) else f"class{label}"
    return re.sub(r"[^\w.-]+", "-", name).strip("-.") or f"class{label}"


def _one_by_one(samples: Dataset, names: Sequence[str], folder: Path) -> None:
    """Write a PNG for each image, of its own size."""
    make_folder(folder)
    for number, (name, image) in enumerate(zip(names, samples.images(), strict=True)):
        pixels = image.permute(1, 2, 0).numpy()
        picture = Image.fromarray(pixels if len(image) == 3 else pixels[:, :, 0])
        target = folder / f"{name}-{number:05}.png"
        try:
            with open_plainly(target, "wb") as file:
                file.write(pictures.png(picture))
        except OSError as error:
            raise RunError(f"{target} cannot be written: {error.strerror or error}") from None


def _ending(place: Path) -> str:
    """Return `.png`, `.npz`, or nothing for a folder."""
    ending = place.suffix.lower()
    return ending if ending in (".png", ".npz") else ""
