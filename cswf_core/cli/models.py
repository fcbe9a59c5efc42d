"""What `cswf sample`, `inpaint` and `inspect` do with saved models, and the files they write."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import attrs
import torch
from PIL import Image
from torch import Tensor

from cswf_core.arrays import Array, read_archive
from cswf_core.cli.terminal import Execution, listed, prepare, say_facts
from cswf_core.documents import read_document
from cswf_core.errors import CswfError, DataError, RunError, excerpt
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
from cswf_core.runs.samples import archive, arrays_of, completions_picture, samples_picture
from cswf_core.runs.two_samples import COMPARED, NAME, TwoSampleTest, as_json, compare_with
from cswf_core.session.devices import is_rank, number_from, number_of, own_device, start
from cswf_core.session.run import refresh_report


@attrs.frozen(kw_only=True)
class Sampling(Execution):
    """The samples that a person asks for."""

    count: int | None
    label: str | None
    labels: str | None
    vector: str | None
    seed: int

    def request(self) -> dict[str, Any]:
        """Return the count, labels, vectors and seed of a request; raise `RunError` if they are unclear."""
        count = 100 if self.count is None else self.count
        counts: dict[Label, int] | None = None
        if self.labels is not None:
            counts = _counts(self.labels)
            count = sum(counts.values())
            if self.label is not None or self.count not in (None, count):
                raise RunError("--labels says how many of each class: leave out --label and --count")
        numbers = None
        if self.vector is not None:
            try:
                numbers = [float(part) for part in self.vector.split(",")]
            except ValueError:
                got = f"got '{excerpt(self.vector)}'"
                raise RunError(f"--vector takes numbers, separated by commas, such as 0.3,0.7; {got}") from None
        labels = self.label if counts is None else counts
        return {"count": count, "labels": labels, "vectors": numbers, "seed": self.seed}


def _counts(text: str) -> dict[Label, int]:
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


def sample(path: Path, out: str | None, force: bool, **options: Any) -> int | None:
    """Do the work of `cswf sample`."""
    execution = Sampling(**options)
    request = execution.request()
    several = number_of(execution.devices, execution.device)
    if several is not None and several > 1 and not is_rank():
        if out is None or not is_shards(out):
            raise RunError("several devices share a folder of shards: give --out FOLDER/, with the slash")
        return start(several)
    prepare(quiet=execution.quiet)
    run = RunFolder(path) if (path / "run.json").is_file() else None
    rank = number_from("RANK", 0)
    processes = number_from("WORLD_SIZE", 1)
    if out is not None and is_shards(out):
        leader = attrs.evolve(execution, quiet=execution.quiet or rank > 0)
        model = load_model(path, plugins_dir=execution.plugins_dir)
        device = str(own_device(execution.device))
        with leader.progress() as progress:
            job = ShardJob(**request, device=device, rank=rank, processes=processes)
            write_shards(model, Path(out), job, force=force, tell=progress.tell)
        leader.say(f"{job.count:,} samples: see {Path(out) / MANIFEST}")
        if rank == 0 and run is not None:
            _test_shards(Path(out), model, run, leader)
        return None
    if processes > 1 or rank > 0:
        raise RunError("processes of torchrun share a folder of shards: give --out FOLDER/, with the slash")
    model = load_model(path, plugins_dir=execution.plugins_dir)
    stem = Path("samples") if run is None else run.file("samples-offline")
    usual = [stem.with_suffix(ending) for ending in (".npz", ".png")]
    own = out is None and run is not None  # files of the run, written anew each time
    places = destinations(None if out is None else Path(out), usual, model.space, force=force or own)
    with execution.progress() as progress:
        drawn = model.sample(**request, device=execution.device, tell=progress.tell)
    test, words = _test(arrays_of(drawn, None), model, run, execution)
    write_samples(drawn, model, places, test)
    if run is not None and own:
        refresh_report(run)
    execution.say(f"{len(drawn):,} samples: see {', '.join(map(str, places))}", *words)
    return None


def _test(
    samples: Mapping[str, Array], model: Model, run: RunFolder | None, sampling: Sampling
) -> tuple[TwoSampleTest | None, list[str]]:
    """Compare samples with their run's particles, and warn if they differ; return the result and a line."""
    if run is None:
        return None, []
    try:
        if sampling.vector is not None:
            raise DataError("their vector was chosen")
        test = compare_with(run.file("samples.npz"), samples, model.space.dimension)
    except CswfError as reason:
        return None, [f"not compared with the run's particles: {reason}"]
    test.warn()
    return test, [str(test)]


def _test_shards(folder: Path, model: Model, run: RunFolder | None, sampling: Sampling) -> None:
    """Compare the first shard with the particles of its run, and write the result to the manifest."""
    first = read_archive(folder / "samples-00000.npz", COMPARED)
    test, words = _test(first, model, run, sampling)
    manifest = read_document(folder / MANIFEST, dict[str, Any])
    facts = None if test is None else attrs.asdict(test)
    write_durably(folder / MANIFEST, json.dumps({**manifest, NAME: facts}, indent=2) + "\n")
    sampling.say(*words)


@attrs.frozen(kw_only=True)
class Completing(Execution):
    """The completions that a person asks for."""

    held_out: int | None
    mask: Path | None
    count: int
    resize: bool
    seed: int


def inpaint(path: Path, images: tuple[Path, ...], out: Path | None, force: bool, **chosen: Any) -> None:
    """Do the work of `cswf inpaint`."""
    options = Completing(**chosen)
    prepare(quiet=options.quiet)
    if bool(images) == (options.held_out is not None):
        raise RunError("give pictures (IMAGE…) or --held-out N, one of the two")
    model = load_model(path, plugins_dir=options.plugins_dir)
    model.refuse_unless_completing()
    if options.held_out is None:
        pixels = read_images(images, model.space, resize=options.resize)
        names = [image.stem for image in images]
    else:
        pixels = model.held_out_images(options.held_out)
        names = [f"held-out-{number:05}" for number in range(options.held_out)]
    mask = None if options.mask is None else read_mask(options.mask, model.space, resize=options.resize)
    places = destinations(out, [Path("completions.npz"), Path("completions.png")], model.space, force=force)
    observed = model.observation(pixels, mask=mask, seed=options.seed)
    with options.progress() as progress:
        completed = model.complete(
            pixels, mask=mask, count=options.count, seed=options.seed, device=options.device, tell=progress.tell
        )
    write_completions(completed, pixels, observed, names, places)
    options.say(f"{len(completed):,} completions: see {', '.join(map(str, places))}")


def destinations(out: Path | None, usual: Sequence[Path], space: Space, *, force: bool) -> list[Path]:
    """Return the files or the folder to write samples to: what `--out` names, or the usual files.

    Raises `RunError` if something is there already that may not be replaced, or if points would need a folder.
    """
    if out is not None and out.suffix.lower() in (".jpg", ".jpeg", ".gif", ".bmp", ".webp", ".npy", ".pt"):
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


def write_samples(samples: Dataset, model: Model, places: Sequence[Path], test: TwoSampleTest | None) -> None:
    """Write samples of a model, and how they compare with the particles of its run.

    Points are drawn on the data, or on themselves if these are not at hand.
    """

    def picture() -> Image.Image:
        target = samples
        if not samples.space.is_image:
            with suppress(CswfError):
                target = model.data()
        return samples_picture(samples, target, 10)

    labels = samples.conditions.labels
    classes = None if labels is None else [class_name(samples, label) for label in labels.tolist()]
    names = classes or ["sample"] * len(samples)
    _write(samples, names, None, picture, places, {NAME: as_json(test)})


def write_completions(
    completed: Dataset, images: Tensor, observed: Observation, names: Sequence[str], places: Sequence[Path]
) -> None:
    """Write completions (each with the number of its image) of images (m×C×H×W bytes) with these names.

    `observed` is what was seen of each image.
    """
    origin = completed.conditions.origin
    assert origin is not None
    each = of_columns(observed, origin).to(torch.device("cpu"))

    def picture() -> Image.Image:
        flat = pixels_of(images, completed.x.dtype)
        data = attrs.evolve(completed, x=flat[:, :0], held_out=attrs.evolve(completed, x=flat))
        conditions = attrs.evolve(completed.conditions, origin=-1 - origin)
        return completions_picture(attrs.evolve(completed, conditions=conditions), data, each, 50)

    _write(completed, [names[image] for image in origin.tolist()], each, picture, places, {})


def _write(
    samples: Dataset,
    names: Sequence[str],
    observed: Observation | None,
    picture: Callable[[], Image.Image],
    places: Sequence[Path],
    texts: Mapping[str, str],
) -> None:
    """Write samples as arrays, as one picture, or as a picture for each, by what places are called.

    `texts` about all samples go into the first two.
    """
    for place in places:
        ending = _ending(place)
        make_folder(place.parent if ending else place)
        if ending:
            if ending == ".npz":
                content = archive(samples, observed, **texts)
            else:
                content = pictures.png(picture(), **texts)
            write_durably(place, content)
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
    if not check:
        return
    if header.complete:
        load_model(path, plugins_dir=plugins_dir).flow(torch.device("cpu")).recognise()
    elif wrong := find_damage(file.parent, header.files):
        raise RunError(*wrong)
    for _ in saved_steps(file.parent, header):
        pass  # what does not fit the header is refused
    if as_json:
        return
    say(f"checked: all {_files(header)} are as they were written")
    if header.complete:
        say("checked: plugins draw the directions of the run")


def _files(header: ModelHeader) -> str:
    """Return the files beside the header: `3 shards, 2 files of filters and fitted.safetensors`."""
    parts = [f"{len(header.shards)} shards"]
    if header.filters:
        parts.append(f"{len(header.filters)} files of filters")
    if header.fitted is not None:
        parts.append(header.fitted.file)
    *first, last = parts
    return f"{', '.join(first)} and {last}" if first else last


def _describe(header: ModelHeader, path: Path) -> dict[str, str]:
    """Return the lines to print about a model, by their names."""
    data = header.data
    tables = header.tables
    cost = header.cost
    requests, command = _requests(header, path)
    shape = "×".join(map(str, data.shape))
    stages = header.stages
    saved = sum(shard.steps for shard in header.shards)
    planned = sum(stage.steps for stage in stages)
    directions = sorted({stage.directions for stage in stages})
    span = f"{directions[0]:,}" if len(directions) == 1 else f"{directions[0]:,} to {directions[-1]:,}"
    classes = "" if header.condition.tables is None else " for each class"
    return {
        "model of": f"{header.name} (cswf {header.cswf}, format {header.format})",
        "complete": "yes" if header.complete else "no: its run was stopped, `cswf resume` goes on with it",
        "data": f"{_plugin(header, 'data')}, {data.samples:,} samples of {shape}, SHA-256 {data.sha256[:12]}…",
        "condition": f"{_plugin(header, 'condition')}: {requests}",
        "flow": f"{header.particles:,} particles, {planned:,} steps in {len(stages)} stages, {span} directions",
        "tables": f"of {saved:,} steps, {tables.knots} knots of {tables.bits} bits{classes}",
        "size": f"{cost.bytes / 1e6:,.1f} MB in {_files(header)}",
        "cost": f"{cost.seconds:,.1f} s to write, {cost.share:.1%} of the time of all steps",
        "try": command,
    }


def _plugin(header: ModelHeader, key: str) -> str:
    """Return the name of a plugin in the header's recipe."""
    try:
        return str(from_yaml(header.recipe)[key]["use"])
    except (RecipeError, KeyError, TypeError):
        return "unknown"


def _requests(header: ModelHeader, path: Path) -> tuple[str, str]:
    """Return what can be asked of a model, in words, and a command to try on it."""
    condition = header.condition
    classes = header.data.classes if "labels" in condition.asks else ()
    command = f"cswf sample {path} --count 100"
    kinds: list[str] = []
    if "labels" in condition.asks:
        kinds.append(f"classes {listed(classes)}")
    if classes:
        command += f" --label {classes[-1]}"
    if "vectors" in condition.asks:
        pairs = list(zip(condition.low, condition.high, strict=True))
        ranges = ", ".join(f"{low:.3g} … {high:.3g}" for low, high in pairs)
        span = f" (the data's: {ranges})" if ranges else ""
        kinds.append(f"vectors of {condition.length} numbers{span}")
        middle = [f"{(low + high) / 2:.3g}" for low, high in pairs] or ["0"] * condition.length
        command += "" if classes else f" --vector={','.join(middle)}"
    if "image" in condition.asks:
        kinds.append("an image of which a part is seen" + ("" if condition.shared else ", another of each"))
        command = f"cswf inpaint {path} IMAGE.png"
    return " and ".join(kinds) or "nothing can be asked for", command
