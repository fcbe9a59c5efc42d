"""From a valid recipe to a flow that is ready to run."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import torch

from cswf_core.errors import RunError
from cswf_core.flow import boundary
from cswf_core.flow.flow import Flow, Parts, Settings
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
    with boundary.calling(owner, "load"):
        data = recipe.data.part.load(Key(recipe.seed, "data").open())
    return boundary.check_dataset(data, owner)


def build_flow(recipe: Recipe, *, device: str = "auto", observers: Sequence[object] = ()) -> Flow:
    """Load the data and put the parts together; plugins that watch flows are among the observers."""
    chosen = choose_device(device)
    data = load_data(recipe)
    owner = recipe.data.plugin.owner
    settings = Settings(
        count=recipe.particles.count,
        scale=recipe.particles.scale,
        seed=recipe.seed,
        reuse=None if recipe.reuse == "all" else recipe.reuse,
        dtype=getattr(torch, recipe.particles.precision),
    )
    count = settings.count if settings.count is not None else len(data)
    with boundary.calling(owner, "start"):
        start = recipe.data.part.start(data, count, Key(recipe.seed, "start").open())
    parts = Parts(
        condition=recipe.condition.part,
        projection=recipe.projection.part,
        cdf=recipe.cdf.part,
        schedule=recipe.schedule.part,
        owners={kind: getattr(recipe, key).plugin.owner for key, kind in CHOICES.items()},
    )
    watching = [*recipe.registry.observers(), *observers]
    return Flow(
        data, parts, attrs.evolve(settings, count=count), start=start, device=chosen, observers=watching
    )
