"""From a valid recipe to a flow that is ready to run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from cswf_core.errors import OutOfMemoryError, RunError
from cswf_core.flow import admission, boundary
from cswf_core.flow.flow import Flow
from cswf_core.flow.memory import is_out_of_memory
from cswf_core.flow.parts import Parts, Settings
from cswf_core.interfaces import Dataset, Key
from cswf_core.recipe.merge import CHOICES
from cswf_core.recipe.recipe import Recipe


def choose_device(name: str) -> torch.device:
    """Return the device that `auto`, `cpu`, `cuda` or `cuda:N` means here; one sentence if there is none."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    kind, _, index = name.partition(":")
    if (
        kind not in ("cpu", "cuda")
        or (index and not (kind == "cuda" and index.isdigit()))
        or name.endswith(":")
    ):
        raise RunError(f"there is no device '{name}': write auto, cpu, cuda or cuda:N")
    if kind == "cuda":
        there = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if there == 0:
            raise RunError(f"device '{name}' was asked for, but PyTorch sees no CUDA device here")
        if index and int(index) >= there:
            raise RunError(f"device '{name}' was asked for, but there are {there} CUDA devices, counted from 0")
    return torch.device(name)


def load_data(recipe: Recipe) -> Dataset:
    """Load the recipe's data and check them."""
    owner = recipe.data.plugin.owner
    with boundary.calling(owner, "load"), _data_fitting():
        data = recipe.data.part.load(Key(recipe.seed, "data").open(dtype=_dtype(recipe)))
    return admission.check_dataset(data, owner)


def build_flow(recipe: Recipe, *, device: str = "auto", observers: Sequence[object] = ()) -> Flow:
    """Load the data and put the parts together; plugins that watch flows are among the observers."""
    chosen = choose_device(device)
    data = load_data(recipe)
    settings = Settings(
        count=recipe.particles.count if recipe.particles.count is not None else len(data),
        scale=recipe.particles.scale,
        seed=recipe.seed,
        reuse=None if recipe.reuse == "all" else recipe.reuse,
        dtype=_dtype(recipe),
        half=recipe.particles.precision in ("auto", "fast"),
    )
    with boundary.calling(recipe.data.plugin.owner, "start"), _data_fitting():
        start = recipe.data.part.start(
            data, settings.count, Key(recipe.seed, "start").open(dtype=settings.dtype)
        )
    parts = Parts(
        condition=recipe.condition.part,
        projection=recipe.projection.part,
        cdf=recipe.cdf.part,
        schedule=recipe.schedule.part,
        owners={kind: getattr(recipe, key).plugin.owner for key, kind in CHOICES.items()},
    )
    watching = [*recipe.registry.observers(), *observers]
    return Flow(data, parts, settings, start=start, device=chosen, observers=watching)


def _dtype(recipe: Recipe) -> torch.dtype:
    return torch.float64 if recipe.particles.precision == "float64" else torch.float32


@contextmanager
def _data_fitting() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise OutOfMemoryError("the data do not fit into this machine's memory; take fewer") from error
