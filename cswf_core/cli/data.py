"""What `cswf data` does: images packed into shards, and such folders checked and described."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import yaml

from cswf_core.cli.terminal import Execution, listed, prepare, say_facts
from cswf_core.errors import DataError, RunError, excerpt
from cswf_core.files import bytes_of
from cswf_core.interfaces import Space
from cswf_core.numbers import whole_number
from cswf_core.packed import MANIFEST, Manifest, PackedImages, find_damage, refuse_if_taken
from cswf_core.packed import pack as write_shards
from cswf_core.plugins import Registry
from cswf_core.recipe import Recipe, known_recipes, load_recipe
from cswf_core.recipe.build import open_images
from cswf_core.runs.printing import complain, say, say_json
from cswf_core.runs.screen import WorkProgress

FLOW = {"schedule": {"use": "constant", "steps": 1, "directions": 1}}
"""What a recipe needs besides its data; it is not run."""


def pack(
    source: str,
    out: Path,
    parameters: tuple[str, ...],
    shard_size: str,
    seed: int | None,
    force: bool,
    **options: Any,
) -> None:
    """Do the work of `cswf data pack`."""
    execution = Execution(**options)
    per_shard = _shard_size(shard_size)
    refuse_if_taken(out, force=force)
    prepare(quiet=execution.quiet)
    recipe = _recipe(source, parameters, seed, execution.plugins_dir)
    if Path(getattr(recipe.data.part, "path", "")).resolve() == out.resolve():
        raise RunError(f"{out} is the source itself; name another folder for the shards")
    if recipe.data.checked.starts:
        raise DataError(f"dataset '{recipe.data.name}' says where particles begin, which shards cannot")
    images = open_images(recipe)
    with execution.progress() as progress:
        manifest = write_shards(
            images,
            out,
            source=recipe.data.plain(),
            seed=recipe.seed,
            per_shard=per_shard(images.space),
            force=force,
            tell=progress.tell,
        )
    if execution.quiet:
        return
    beside = {"flips": "true"} if images.flips else {}
    if images.dequantise != "step":
        beside["dequantise"] = images.dequantise
    if beside:  # what is more than bytes
        keys = ", ".join(f"{key}: {value}" for key, value in beside.items())
        complain(f"not in the shards: {keys}; write it beside `use: packed` in a recipe")
    splits = ", ".join(f"{split.samples:,} {split.name}" for split in manifest.splits)
    say(f"{out}: {splits}; {_size(manifest)}")


def _recipe(
    source: str, parameters: tuple[str, ...], seed: int | None, plugins_dir: tuple[Path, ...]
) -> Recipe:
    """Return the recipe that SOURCE names, or one whose data are those that it names.

    The name of a data set comes before that of a recipe, and both before a path.
    """
    registry = Registry.discover(plugins_dir)
    chosen = () if seed is None else (f"seed={seed}",)
    written = source.lstrip().startswith("{") or source in registry.names("dataset")
    path = Path(source).expanduser()
    if not written and (source in known_recipes(registry) or source.endswith((".yaml", ".yml"))):
        return load_recipe(source, (*parameters, *chosen), registry=registry)
    if not written and not path.exists() and "/" in source:
        raise DataError(f"{path} does not exist; SOURCE is a data set, a recipe, a folder or an .npz file")
    section: Any = {"use": source}
    if written and source not in registry.names("dataset"):
        try:
            section = yaml.safe_load(source)
        except yaml.YAMLError as error:
            raise DataError(f"SOURCE cannot be read as YAML: {' '.join(str(error).split())}") from None
    elif not written and path.exists():
        images = "packed" if (path / MANIFEST).is_file() else "image-folder"
        section = {"use": images if path.is_dir() else "npz", "path": str(path.resolve())}
    own = (f"data.{text}" for text in parameters)
    return load_recipe({**FLOW, "data": section}, (*own, *chosen), registry=registry)


def _shard_size(text: str) -> Callable[[Space], int]:
    """Return how many images a shard has, by their shape: `10000`, or as many as are `64MB`."""
    count = whole_number(text) or 0
    size = bytes_of(text)
    if not size:
        raise RunError(
            f"--shard-size takes a number of images, or a size such as 64MB or 1GB; got '{excerpt(text)}'"
        )
    return lambda space: count or max(1, size // space.dimension)


def check_shards(folder: Path, quiet: bool) -> None:
    """Do the work of `cswf data check`."""
    prepare(quiet=quiet)
    manifest = Manifest.read(folder)
    with closing(WorkProgress(silent=quiet)) as progress:
        damage = find_damage(folder, manifest, progress.tell)
    if damage:
        raise DataError(*damage)
    PackedImages.open(folder, manifest)
    if not quiet:
        count = sum(1 for _ in manifest.files())
        say(f"{folder}: fine, all {count} files ({manifest.bytes / 1e6:,.1f} MB) are as they were written")


def info(folder: Path, as_json: bool) -> None:
    """Do the work of `cswf data info`."""
    manifest = Manifest.read(folder)
    if as_json:
        say_json(json.loads(manifest.text()))
        return
    path = json.dumps(str(folder), ensure_ascii=False)
    facts = {
        "packed from": f"{manifest.source.get('use')} (cswf {manifest.cswf}, format {manifest.format})",
        "images": f"{manifest.samples:,} of {'×'.join(map(str, manifest.shape))} bytes",
        "splits": ", ".join(f"{split.name} {split.samples:,}" for split in manifest.splits),
        "classes": listed(manifest.classes) or "none",
        "grey levels": f"{manifest.bin_width:g} apart, from −1",
        "size": _size(manifest),
        "recipe": f"data: {{use: packed, path: {path}}}",
    }
    say_facts(facts)


def _size(manifest: Manifest) -> str:
    """Return the size of all shards and how many there are."""
    shards = manifest.shards
    return f"{manifest.bytes / 1e6:,.1f} MB in {shards} shard{'s' if shards > 1 else ''}"
