"""A flow put together from a valid recipe, ready to run."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch

from cswf_core.errors import DataError, RunError
from cswf_core.flow.flow import Flow
from cswf_core.flow.memory import fits_in_memory
from cswf_core.flow.settings import Parts, Settings, TableRequest
from cswf_core.interfaces import Dataset, Key, Space, Stage, StoredImages
from cswf_core.kernels.memory import out_of_memory_explained, total_memory
from cswf_core.online import Counts, OnlineFlow
from cswf_core.packed import LoadedImages
from cswf_core.plugins import PluginFolders
from cswf_core.ranks import Ranks
from cswf_core.recipe.recipe import Choice, Recipe, load_recipe

log = logging.getLogger("cswf")

DIMENSIONS_PER_DIRECTION = 4
"""Above, a run warns: a step removes less than a fifth of the squared error."""

NAMES = {
    "particles": "particles.count",
    "data": "data.count",
    "images": "data.size",
    "scale": "particles.scale",
    "start": "particles.start",
    "coordinates": "coordinates",
    "offline": "particles.offline",
    "clip": "particles.clip",
    "part": "cdf.particles, cdf.data",
    "part of the data": "cdf.data",
    "precision": "particles.precision",
    "directions": "schedule.directions",
    "step size": "schedule.step_size",
    "sets": "online.sets",
    "room": "condition.room",
    "prior": "condition.prior",
    "turn": "model.turn",
}
"""The keys of recipes, for the nouns of the engine's errors."""


def choose_device(name: str) -> torch.device:
    """Return the device that `auto`, `cpu`, `cuda` or `cuda:N` means; raise `RunError` if there is none."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if not re.fullmatch(r"cpu|cuda(:[0-9]{1,4})?", name):
        raise RunError(f"there is no device '{name}': write auto, cpu, cuda or cuda:N")
    if name != "cpu":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if count == 0:
            raise RunError(f"device '{name}' was asked for, but PyTorch sees no CUDA device here")
        if int(name.partition(":")[2] or 0) >= count:
            raise RunError(f"device '{name}' was asked for, but there are {count} CUDA devices, counted from 0")
    return torch.device(name)


def load_data(
    recipe: Recipe,
    choice: Choice | None = None,
    device: torch.device | None = None,
    *,
    stored: bool | None = None,
) -> Dataset:
    """Load and check the data that a recipe chooses: `data`, or another choice of a dataset in it.

    Images that take too much of the memory, the host's or that of the flow's device, stay where they are
    stored, if their source can open them so; `stored` says that they do, or do not, whatever they take.
    """
    return load_chosen(choice or recipe.data, recipe.seed, _dtype(recipe), device, stored=stored)


def load_chosen(
    choice: Choice,
    seed: int,
    dtype: torch.dtype,
    device: torch.device | None = None,
    *,
    stored: bool | None = None,
) -> Dataset:
    """Load and check the data of a choice, or leave them where they are stored; see `load_data`."""
    if choice.checked.opens and stored is not False:
        host = torch.device("cpu")
        memory = min(total_memory(each) for each in (host, device or host))
        images = _opened(choice, seed, dtype)
        d = images.space.dimension
        count = len(images) * (2 if images.flips else 1)
        size = d * count * dtype.itemsize
        if stored or not fits_in_memory(size, memory):
            log.log(
                logging.INFO if stored else logging.WARNING,
                "%s images take %.3g GB as numbers, more than a quarter of a memory of %.3g GB: streamed",
                f"{count:,}",
                size / 1e9,
                memory / 1e9,
            )
            # Those that are needed at once may take an eighth of memory.
            return Dataset.of_stored(images, dtype, total_memory(host) // 8)
    with _data_fitting():
        data: Dataset = choice.checked.load(Key(seed, "data").open(dtype=dtype))
    return data


def open_images(recipe: Recipe) -> StoredImages:
    """Return a recipe's images, to be read a block at a time, or loaded as a whole if they cannot be."""
    return _opened(recipe.data, recipe.seed, _dtype(recipe))


def _opened(choice: Choice, seed: int, dtype: torch.dtype) -> StoredImages:
    draw = Key(seed, "data").open(dtype=dtype)
    with _data_fitting():
        if choice.checked.opens:
            images: StoredImages = choice.checked.open(draw)
            return images
        data = choice.checked.load(draw)
    try:
        return LoadedImages.of(data)
    except DataError as error:
        raise DataError(f"dataset '{choice.name}': {error}") from None


def build_flow(
    recipe: Recipe | str | Path,
    overrides: Sequence[str] = (),
    *,
    device: str = "auto",
    observers: Sequence[object] = (),
    plugins_dir: PluginFolders = None,
    counts: Counts | None = None,
    ranks: Ranks | None = None,
) -> Flow:
    """Return the flow that a recipe describes, ready to run; nothing is written to files.

    Args:
        recipe: The name of a built-in recipe, the path of a file, or a recipe that has been loaded.
        overrides: Changes to the recipe, `key.path=value`; not of one that has been loaded.
        device: Where to compute: `auto`, `cpu`, `cuda` or `cuda:N`.
        observers: Objects with hooks that watch the flow, beside plugins that do.
        plugins_dir: Folders with plugins of one file each; not for a recipe that has been loaded.
        counts: Those of data that an earlier flow has learned from.
        ranks: The processes that share particles and data; all of them build the same flow.
    """
    if not isinstance(recipe, Recipe):
        recipe = load_recipe(recipe, overrides, plugins_dir=plugins_dir)
    elif overrides or plugins_dir:
        raise RunError("a recipe that has been loaded takes no overrides and plugins: give them to load_recipe")
    chosen = choose_device(device)
    data = load_data(recipe, device=chosen)
    settings = settings_of(recipe, len(data))
    if settings.gaussian and settings.scale != 1:
        log.warning(
            "particles.scale has no effect with particles.start: gaussian, which is as wide as the data"
        )
    parts = parts_of(recipe)
    options: dict[str, Any] = {
        "start": _start(recipe, data, settings),
        "device": chosen,
        "observers": [*recipe.registry.watchers, *observers],
        "ranks": ranks,
    }
    online = recipe.online
    if online is None:
        flow = Flow(data, parts, settings, **options)
    else:
        flow = OnlineFlow(data, parts, settings, sets=online.sets, counts=counts, **options)
    if not parts.projection.adapts:  # such directions are chosen, and few of them suffice
        _warn_of_few_directions(flow.stages, data.space, settings)
    if isinstance(flow, OnlineFlow) and online is not None:
        for number, arrival in enumerate(recipe.arrivals):
            flow.again(online.steps_after(number), arriving=load_data(recipe, arrival, chosen))
    return flow


def settings_of(recipe: Recipe, data_count: int) -> Settings:
    """Return the numbers of a recipe's flow that are no plugin's."""
    particles = recipe.particles
    return Settings(
        count=data_count if particles.count is None else particles.count,
        offline=particles.offline,
        scale=particles.scale,
        gaussian=particles.start == "gaussian",
        clip=particles.clip,
        seed=recipe.seed,
        reuse=None if recipe.reuse == "all" else recipe.reuse,
        dtype=_dtype(recipe),
        half=particles.precision in ("auto", "fast"),
        turn=recipe.model.turn if recipe.model.save else None,
        tables=_tables(recipe),
        names=NAMES,
    )


def _warn_of_few_directions(stages: Sequence[Stage], space: Space, settings: Settings) -> None:
    """Warn, of the worst stage, if H is far below d.

    A step multiplies E|e|² by 1 − 2c + c² (1 + (d−1)/H) with c = η/d, which is 1 − H / (H + d − 1) at best.
    """
    worst = min(stages, key=lambda stage: stage.directions / stage.dimension(space))
    H = worst.directions
    d = worst.dimension(space)
    if d > DIMENSIONS_PER_DIRECTION * H:
        log.warning(
            f"stage {worst.name}: {H:,} directions are few for {d:,} dimensions: a step of any size removes at "
            f"most {100 * H / (H + d - 1):.2g} % of the squared error, and samples stay noisy; take about "
            f"{2 * d:,} {settings.called('directions')}, or many steps of a smaller "
            f"{settings.called('step size')}"
        )


def _start(recipe: Recipe, data: Dataset, settings: Settings) -> Dataset | None:
    """Return where the recipe's data say that particles begin; None: they do not."""
    total = settings.count_for(len(data)) + settings.offline
    if recipe.data.checked.starts:
        settings.require_particles(data.space.dimension, total)
    with _data_fitting():
        draw = Key(recipe.seed, "start").open(dtype=settings.dtype)
        start: Dataset | None = recipe.data.checked.start(data, total, draw)
    return start


def parts_of(recipe: Recipe) -> Parts:
    """Return the plugins that make the recipe's flow."""
    return Parts(
        condition=recipe.condition.checked,
        projection=recipe.projection.checked,
        cdf=recipe.cdf.checked,
        schedule=recipe.schedule.checked,
        coordinates=recipe.coordinates.checked,
    )


def load_everything(recipe: Recipe, *, stored: bool | None = None) -> Dataset:
    """Load the recipe's data and those that arrive later, with their conditions; `stored` as in `load_data`."""
    data = load_data(recipe, stored=stored)
    for arrival in recipe.arrivals:
        data = data.joined(load_data(recipe, arrival).with_classes(data.classes))
    encoded: Dataset = recipe.condition.checked.encoded(data)
    return encoded


def _tables(recipe: Recipe) -> TableRequest | None:
    """Return the tables that the recipe's model needs; None if it saves no model."""
    model = recipe.model
    return TableRequest(knots=model.knots, bits=model.bits) if model.save else None


def _dtype(recipe: Recipe) -> torch.dtype:
    return torch.float64 if recipe.particles.precision == "float64" else torch.float32


def _data_fitting() -> AbstractContextManager[None]:
    return out_of_memory_explained(
        "the data do not fit into this machine's memory; take fewer (data.count) or smaller images (data.size)"
    )
