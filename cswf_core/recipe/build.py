"""A flow put together from a valid recipe, ready to run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from cswf_core.errors import OutOfMemoryError, RunError
from cswf_core.flow import admission, boundary
from cswf_core.flow.flow import Flow
from cswf_core.flow.memory import is_out_of_memory
from cswf_core.flow.settings import Parts, Settings
from cswf_core.flow.tables import TableRequest
from cswf_core.interfaces import Dataset, Key
from cswf_core.online.counts import Sketch
from cswf_core.online.incoming import joined, matched
from cswf_core.recipe.recipe import Choice, Recipe
from cswf_core.recipe.sections import CHOICES


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
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if count == 0:
            raise RunError(f"device '{name}' was asked for, but PyTorch sees no CUDA device here")
        if index and int(index) >= count:
            raise RunError(f"device '{name}' was asked for, but there are {count} CUDA devices, counted from 0")
    return torch.device(name)


def load_data(recipe: Recipe, choice: Choice | None = None) -> Dataset:
    """Load and check the data that a recipe chooses: `data`, or another choice of a dataset in it."""
    choice = recipe.data if choice is None else choice
    with boundary.calling(choice.plugin.owner, "load"), _data_fitting():
        data = choice.part.load(Key(recipe.seed, "data").open(dtype=_dtype(recipe)))
    return admission.check_dataset(data, choice.plugin.owner)


def build_flow(
    recipe: Recipe, *, device: str = "auto", observers: Sequence[object] = (), sketch: Sketch | None = None
) -> Flow:
    """Load the data and put the parts together; plugins that watch flows are among the observers.

    Data that arrive later are loaded too, and a round is planned for each. `sketch` has the counts of data that
    an earlier flow has learned from.
    """
    chosen = choose_device(device)
    data = load_data(recipe)
    settings = Settings(
        count=recipe.particles.count if recipe.particles.count is not None else len(data),
        scale=recipe.particles.scale,
        seed=recipe.seed,
        reuse=None if recipe.reuse == "all" else recipe.reuse,
        dtype=_dtype(recipe),
        half=recipe.particles.precision in ("auto", "fast"),
        tables=_tables(recipe),
        sets=None if recipe.online is None else recipe.online.sets,
    )
    with boundary.calling(recipe.data.plugin.owner, "start"), _data_fitting():
        start = recipe.data.part.start(
            data, settings.count, Key(recipe.seed, "start").open(dtype=settings.dtype)
        )
    watching = [*recipe.registry.observers(), *observers]
    flow = Flow(data, parts_of(recipe), settings, start=start, device=chosen, observers=watching, sketch=sketch)
    for number, arrival in enumerate(recipe.arrivals):
        assert recipe.online is not None
        flow.again(recipe.online.steps_after(number), arriving=load_data(recipe, arrival))
    return flow


def parts_of(recipe: Recipe) -> Parts:
    """Return the four plugins that make the recipe's flow."""
    return Parts(
        condition=recipe.condition.part,
        projection=recipe.projection.part,
        cdf=recipe.cdf.part,
        schedule=recipe.schedule.part,
        owners={kind: getattr(recipe, key).plugin.owner for key, kind in CHOICES.items()},
    )


def load_everything(recipe: Recipe) -> Dataset:
    """Load the recipe's data together with those that arrive later."""
    data = load_data(recipe)
    for arrival in recipe.arrivals:
        data = joined(data, matched(load_data(recipe, arrival), data.classes))
    return data


def _tables(recipe: Recipe) -> TableRequest | None:
    """Return the tables that the recipe's model needs; None if it saves no model."""
    model = recipe.model
    if not model.save:
        return None
    dtype = torch.float16 if model.dtype == "float16" else torch.float32
    return TableRequest(knots=model.knots, share=model.directions, every=model.every, dtype=dtype)


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
