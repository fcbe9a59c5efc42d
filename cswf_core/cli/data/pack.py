"""`cswf data pack`: write a data set's images into a folder of shards."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import click
import yaml

from cswf_core.cli import options
from cswf_core.cli.terminal import prepare
from cswf_core.errors import DataError, RunError, excerpt
from cswf_core.files import bytes_of
from cswf_core.interfaces import Space, StoredImages
from cswf_core.numbers import whole_number
from cswf_core.packed import MANIFEST, refuse_if_taken
from cswf_core.packed import pack as write_shards
from cswf_core.plugins import Registry
from cswf_core.recipe import Recipe, known_recipes, load_recipe
from cswf_core.recipe.build import open_images
from cswf_core.runs.printing import complain, say
from cswf_core.runs.screen import WorkProgress

FLOW = {"schedule": {"use": "constant", "steps": 1, "directions": 1}}
"""What a recipe needs besides its data; it is not run."""


@click.command()
@click.argument("source")
@click.argument("out", type=click.Path(path_type=Path))
@click.argument("parameters", nargs=-1, metavar="[KEY=VALUE]...")
@click.option(
    "--shard-size",
    default="256MB",
    show_default=True,
    metavar="N|SIZE",
    help="Images in a shard at most, such as 10000; or its size, such as 64MB or 1GB.",
)
@click.option(
    "--seed",
    type=options.WholeNumber(0),
    help="Which images are held out or taken, where that is drawn.  [default: that of the recipe, else 0]",
)
@click.option("--force", is_flag=True, help="Replace the shards of an earlier pack in OUT.")
@options.quiet
@options.plugins_dir
def pack(
    source: str,
    out: Path,
    parameters: tuple[str, ...],
    shard_size: str,
    seed: int | None,
    force: bool,
    quiet: bool,
    plugins_dir: tuple[Path, ...],
) -> None:
    """Write the images of SOURCE, with labels and held-out images, into shards in the folder OUT.

    SOURCE is a data set, with its parameters as KEY=VALUE; a recipe, whose `data` is taken, with its keys; a
    folder of pictures (say size=64 too), a folder of shards, or an .npz file. A block of images is in
    memory at a time, where the source allows it. An interrupted pack can be called again.
    """
    per_shard = _shard_size(shard_size)
    refuse_if_taken(out, force=force)
    prepare(quiet=quiet)
    recipe = _recipe(source, parameters, seed, plugins_dir)
    if Path(getattr(recipe.data.part, "path", "")).resolve() == out.resolve():
        raise RunError(f"{out} is the source itself; name another folder for the shards")
    if recipe.data.checked.starts:
        raise DataError(f"dataset '{recipe.data.name}' says where particles begin, which shards cannot")
    images = open_images(recipe)
    with closing(WorkProgress(silent=quiet)) as progress:
        manifest = write_shards(
            images,
            out,
            source=recipe.data.plain(),
            seed=recipe.seed,
            per_shard=per_shard(images.space),
            force=force,
            tell=progress.tell,
        )
    if not quiet:
        _say_what_is_not_written(images)
        shards = sum(len(split.shards) for split in manifest.splits)
        splits = ", ".join(f"{split.samples:,} {split.name}" for split in manifest.splits)
        say(f"{out}: {splits}; {manifest.bytes / 1e6:,.1f} MB in {shards} shard{'s' if shards > 1 else ''}")


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
        section = _parsed(source)
    elif not written and path.exists():
        section = {"use": _reader(path), "path": str(path.resolve())}
    own = (f"data.{text}" for text in parameters)
    return load_recipe({**FLOW, "data": section}, (*own, *chosen), registry=registry)


def _parsed(source: str) -> Any:
    """Return the mapping of a text such as `{use: mnist, classes: [3]}`."""
    try:
        return yaml.safe_load(source)
    except yaml.YAMLError as error:
        raise DataError(f"SOURCE cannot be read as YAML: {' '.join(str(error).split())}") from None


def _reader(path: Path) -> str:
    """Return the data set that reads a path: a folder of shards, a folder of pictures, or an .npz file."""
    if path.is_dir():
        return "packed" if (path / MANIFEST).is_file() else "image-folder"
    return "npz"


def _shard_size(text: str) -> Callable[[Space], int]:
    """Return how many images a shard has, by their shape: `10000`, or as many as are `64MB`."""
    count = whole_number(text) or 0
    size = bytes_of(text)
    if not size:
        raise RunError(
            f"--shard-size takes a number of images, or a size such as 64MB or 1GB; got '{excerpt(text)}'"
        )
    return lambda space: count or max(1, size // space.dimension)


def _say_what_is_not_written(images: StoredImages) -> None:
    """Name the parameters to write beside `use: packed`, for data that are more than their bytes."""
    beside = {}
    if images.flips:
        beside["flips"] = "true"
    if images.dequantise != "step":
        beside["dequantise"] = images.dequantise
    if beside:
        keys = ", ".join(f"{key}: {value}" for key, value in beside.items())
        complain(f"not in the shards: {keys}; write it beside `use: packed` in a recipe")
