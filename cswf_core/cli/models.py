"""What `cswf sample`, `inpaint` and `inspect` do with saved models, and the files they write."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import torch
from PIL import Image
from torch import Tensor

from cswf_core.cli.terminal import listed, prepare, say_facts
from cswf_core.errors import CswfError, RunError, excerpt
from cswf_core.interfaces import Dataset, Observation, Space
from cswf_core.model import Model, load_model
from cswf_core.model.format import ModelHeader, saved_steps
from cswf_core.model.model import header_file
from cswf_core.model.requests import Label, of_columns, pixels_of
from cswf_core.model.shards import MANIFEST, ShardJob, is_shards, write_shards
from cswf_core.numbers import whole_number
from cswf_core.pictures import grid as pictures
from cswf_core.pictures.read import read_images, read_mask
from cswf_core.recipe import RecipeError
from cswf_core.recipe.render import from_yaml
from cswf_core.runs.durable import find_damage, make_folder, open_plainly, write_durably
from cswf_core.runs.folder import RunFolder
from cswf_core.runs.printing import say, say_json
from cswf_core.runs.samples import archive, completions_picture, samples_picture, tell_drift
from cswf_core.runs.screen import WorkProgress
from cswf_core.session.devices import is_rank, number_from, number_of, own_device, start
from cswf_core.session.run import refresh_report


def sample(
    path: Path,
    count: int | None,
    label: str | None,
    labels: str | None,
    vector: str | None,
    seed: int,
    out: str | None,
    force: bool,
    device: str,
    devices: str | None,
    quiet: bool,
    plugins_dir: tuple[Path, ...],
) -> int | None:
    """Do the work of `cswf sample`."""
    counts = None if labels is None else _parse_labels(labels)
    if counts is not None and (label is not None or count not in (None, sum(counts.values()))):
        raise RunError("--labels says how many of each class: leave out --label and --count")
    total = sum(counts.values()) if counts is not None else 100 if count is None else count
    numbers = None if vector is None else _parse_vector(vector)
    several = number_of(devices, device)
    if several is not None and several > 1 and not is_rank():
        if out is None or not is_shards(out):
            raise RunError("several devices share a folder of shards: give --out FOLDER/, with the slash")
        return start(several)
    prepare(quiet=quiet)
    rank = number_from("RANK", 0)
    processes = number_from("WORLD_SIZE", 1)
    wanted: dict[str, Any] = {"labels": label if counts is None else counts, "vectors": numbers, "seed": seed}
    if out is not None and is_shards(out):
        quiet = quiet or rank > 0
        model = load_model(path, plugins_dir=plugins_dir)
        device = str(own_device(device))
        with closing(WorkProgress(silent=quiet)) as progress:
            job = ShardJob(count=total, **wanted, device=device, rank=rank, processes=processes)
            write_shards(model, Path(out), job, force=force, tell=progress.tell)
        if not quiet:
            say(f"{total:,} samples: see {Path(out) / MANIFEST}")
        return None
    if processes > 1 or rank > 0:
        raise RunError("processes of torchrun share a folder of shards: give --out FOLDER/, with the slash")
    model = load_model(path, plugins_dir=plugins_dir)
    run = path if (path / "run.json").is_file() else None
    stem = Path("samples") if run is None else run / "samples-offline"
    usual = [stem.with_suffix(ending) for ending in (".npz", ".png")]
    places = destinations(
        None if out is None else Path(out), usual, model.space, force=force or (out is None and run is not None)
    )
    with closing(WorkProgress(silent=quiet)) as progress:
        drawn = model.sample(total, **wanted, device=device, tell=progress.tell)
    write_samples(drawn, partial(_target, model, drawn), places)
    if run is not None and not model.header.condition.asks:  # with classes, particles may have other ones
        facts = RunFolder(run).facts()
        if facts is not None and facts.spread is not None:
            tell_drift(drawn, facts.spread)
    if run is not None and out is None:
        refresh_report(RunFolder(run))
    if not quiet:
        say(f"{len(drawn):,} samples: see {', '.join(map(str, places))}")
    return None


def _parse_labels(text: str) -> dict[Label, int]:
    """Return the number of samples of each class in `0:100,7:50`."""
    counts: dict[Label, int] = {}
    for part in text.split(","):
        name, _, written = part.rpartition(":")
        number = whole_number(written)
        if not name.strip() or not number:
            got = f"got '{excerpt(part)}'"
            raise RunError(f"--labels takes CLASS:N, separated by commas, such as 0:100,7:50; {got}")
        counts[name.strip()] = counts.get(name.strip(), 0) + number
    return counts


def _parse_vector(text: str) -> list[float]:
    """Return the numbers of `0.3,0.7`."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise RunError(
            f"--vector takes numbers, separated by commas, such as 0.3,0.7; got '{excerpt(text)}'"
        ) from None


def _target(model: Model, drawn: Dataset) -> Dataset:
    """Return the data that points are drawn on; the points themselves if the data are not at hand."""
    try:
        return model.data()
    except CswfError:
        return drawn


def inpaint(
    path: Path,
    images: tuple[Path, ...],
    held_out: int | None,
    mask: Path | None,
    count: int,
    resize: bool,
    seed: int,
    out: Path | None,
    force: bool,
    device: str,
    quiet: bool,
    plugins_dir: tuple[Path, ...],
) -> None:
    """Do the work of `cswf inpaint`."""
    prepare(quiet=quiet)
    if bool(images) == (held_out is not None):
        raise RunError("give pictures (IMAGE…) or --held-out N, one of the two")
    model = load_model(path, plugins_dir=plugins_dir)
    model.refuse_unless_completing()
    if held_out is None:
        pixels = read_images(images, model.space, resize=resize)
        names = [image.stem for image in images]
    else:
        pixels = model.held_out_images(held_out)
        names = [f"held-out-{number:05}" for number in range(held_out)]
    observable = None if mask is None else read_mask(mask, model.space, resize=resize)
    places = destinations(out, [Path("completions.npz"), Path("completions.png")], model.space, force=force)
    observed = model.observation(pixels, mask=observable, seed=seed)
    with closing(WorkProgress(silent=quiet)) as progress:
        completed = model.complete(
            pixels, mask=observable, count=count, seed=seed, device=device, tell=progress.tell
        )
    write_completions(completed, pixels, observed, names, places)
    if not quiet:
        say(f"{len(completed):,} completions: see {', '.join(map(str, places))}")


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

    def picture() -> Image.Image:
        return samples_picture(samples, samples if samples.space.is_image else target(), 10)

    labels = samples.conditions.labels
    classes = None if labels is None else [class_name(samples, label) for label in labels.tolist()]
    names = classes or ["sample"] * len(samples)
    _write(samples, names, lambda: archive(samples, None), picture, places)


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

    def picture() -> Image.Image:
        flat = pixels_of(images, completed.x.dtype)
        data = attrs.evolve(completed, x=flat[:, :0], held_out=attrs.evolve(completed, x=flat))
        conditions = attrs.evolve(completed.conditions, origin=-1 - origin)
        return completions_picture(attrs.evolve(completed, conditions=conditions), data, each, 50)

    named = [names[image] for image in origin.tolist()]
    _write(completed, named, lambda: archive(completed, each), picture, places)


def _write(
    samples: Dataset,
    names: Sequence[str],
    arrays: Callable[[], bytes],
    picture: Callable[[], Image.Image],
    places: Sequence[Path],
) -> None:
    """Write samples as arrays, as one picture, or as a picture for each, by what places are called."""
    for place in places:
        ending = _ending(place)
        make_folder(place.parent if ending else place)
        if ending:
            write_durably(place, arrays() if ending == ".npz" else pictures.png(picture()))
            continue
        for number, (name, image) in enumerate(zip(names, samples.images(), strict=True)):
            pixels = image.permute(1, 2, 0).numpy()
            target = place / f"{name}-{number:05}.png"
            try:
                with open_plainly(target, "wb") as file:
                    file.write(pictures.png(Image.fromarray(pixels if len(image) == 3 else pixels[:, :, 0])))
            except OSError as error:
                raise RunError(f"{target} cannot be written: {error.strerror or error}") from None


def class_name(samples: Dataset, label: int) -> str:
    """Return a class's name as a file can have it."""
    name = samples.classes[label] if label < len(samples.classes) else f"class{label}"
    return re.sub(r"[^\w.-]+", "-", name).strip("-.") or f"class{label}"


def _ending(place: Path) -> str:
    """Return `.png`, `.npz`, or nothing for a folder."""
    ending = place.suffix.lower()
    return ending if ending in (".png", ".npz") else ""


def inspect(path: Path, as_json: bool, check: bool, plugins_dir: tuple[Path, ...]) -> None:
    """Do the work of `cswf inspect`."""
    file = header_file(path)
    header = ModelHeader.read(file)
    if as_json:
        say_json(json.loads(header.text()))
    else:
        say_facts(_describe(header, path))
    if check:
        if header.complete:
            load_model(path, plugins_dir=plugins_dir).flow(torch.device("cpu")).recognise()
        elif wrong := find_damage(file.parent, header.files):
            raise RunError(*wrong)
        for _ in saved_steps(file.parent, header):
            pass  # what does not fit the header is refused
        if not as_json:
            more = "" if header.fitted is None else f" and {header.fitted.file}"
            say(f"checked: all {len(header.shards)} shards{more} are as they were written")
            if header.complete:
                say("checked: plugins draw the directions of the run")


def _describe(header: ModelHeader, path: Path) -> dict[str, str]:
    """Return the lines to print about a model, by their names."""
    data = header.data
    tables = header.tables
    cost = header.cost
    shape = "×".join(map(str, data.shape))
    stages = header.stages
    saved = sum(shard.steps for shard in header.shards)
    planned = sum(stage.steps for stage in stages)
    directions = sorted({stage.directions for stage in stages})
    span = f"{directions[0]:,}" if len(directions) == 1 else f"{directions[0]:,} to {directions[-1]:,}"
    numbers = f"{tables.knots} knots in {tables.dtype}"
    share = "" if tables.directions == 1 else f", of {tables.directions:g} of the directions"
    every = "" if tables.every == 1 else f", of one step in {tables.every} after the first of each stage"
    more = "" if header.fitted is None else f" and {header.fitted.file}"
    return {
        "model of": f"{header.name} (cswf {header.cswf}, format {header.format})",
        "complete": "yes" if header.complete else "no: its run was stopped, `cswf resume` goes on with it",
        "data": f"{_plugin(header, 'data')}, {data.samples:,} samples of {shape}, SHA-256 {data.sha256[:12]}…",
        "condition": f"{_plugin(header, 'condition')}: {_requests(header)}",
        "flow": f"{header.particles:,} particles, {planned:,} steps in {len(stages)} stages, {span} directions",
        "tables": f"of {saved:,} steps, {numbers}{share}{every}",
        "size": f"{cost.bytes / 1e6:,.1f} MB in {len(header.shards)} shards{more}",
        "cost": f"{cost.seconds:,.1f} s to write, {cost.share:.1%} of the time of all steps",
        "try": _try(header, path),
    }


def _plugin(header: ModelHeader, key: str) -> str:
    """Return the name of a plugin in the header's recipe."""
    try:
        return str(from_yaml(header.recipe)[key]["use"])
    except (RecipeError, KeyError, TypeError):
        return "unknown"


def _requests(header: ModelHeader) -> str:
    """Return what can be asked of a model, in words."""
    asks = header.condition.asks
    classes = header.data.classes
    kinds: list[str] = []
    if "labels" in asks:
        kinds.append(f"classes {listed(classes)}")
    if "vectors" in asks:
        pairs = zip(header.condition.low, header.condition.high, strict=True)
        ranges = ", ".join(f"{low:.3g} … {high:.3g}" for low, high in pairs)
        kinds.append(
            f"vectors of {header.condition.length} numbers" + (f" (the data's: {ranges})" if ranges else "")
        )
    if "image" in asks:
        kinds.append(
            "an image of which a part is seen" + ("" if header.condition.shared else ", another of each")
        )
    return " and ".join(kinds) or "nothing can be asked for"


def _try(header: ModelHeader, path: Path) -> str:
    """Return a command to try on a model."""
    if "image" in header.condition.asks:
        return f"cswf inpaint {path} IMAGE.png"
    more = ""
    if "labels" in header.condition.asks and header.data.classes:
        more = f" --label {header.data.classes[-1]}"
    elif "vectors" in header.condition.asks:
        pairs = zip(header.condition.low, header.condition.high, strict=True)
        middle = [f"{(low + high) / 2:.3g}" for low, high in pairs] or ["0"] * header.condition.length
        more = f" --vector={','.join(middle)}"
    return f"cswf sample {path} --count 100{more}"
