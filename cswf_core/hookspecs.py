"""The plugin door: every hook a plugin can implement, each with its contract."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import pluggy
import torch
from torch import Tensor

from cswf_core.interfaces import Dataset, Stage

PROJECT = "cswf"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


class Register(Protocol):
    """The function that a `register_*` hook is handed."""

    def __call__(self, name: str, plugin: type[Any]) -> None:
        """Offer `plugin`, a class that implements the contract, to recipes under `name`."""


class Folder(Protocol):
    """A folder of a package, as `importlib.resources.files` returns it."""

    def iterdir(self) -> Iterable[object]:
        """Return what is in it."""


class RegisterRecipes(Protocol):
    """The function that `register_recipes` is handed."""

    def __call__(self, path: str | os.PathLike[str] | Folder) -> None:
        """Offer a recipe's .yaml file, or all in a folder; a relative path counts from the hook's module."""


class Flow(Protocol):
    """What watching hooks can rely on of a flow (`cswf_core.flow.flow.Flow`)."""

    data: Dataset
    """The data that particles flow to."""
    stages: Sequence[Stage]
    """The stages of the schedule, in order."""
    device: torch.device
    """Where the flow computes."""

    def samples(self, index: Tensor | None = None) -> Dataset:
        """Return the particles as they are now, on the CPU; `index` names some of them."""


class State(Protocol):
    """What watching hooks can rely on of a flow's state after a step (`cswf_core.flow.state.State`)."""

    @property
    def step(self) -> int:
        """Steps done in the stage."""

    @property
    def total_step(self) -> int:
        """Steps done since the flow began."""

    @property
    def displacement(self) -> float:
        """Mean distance that a particle moved in the step."""

    @property
    def distance(self) -> float:
        """Sliced distance from particles to data before the step."""


class Registration:
    """Hooks that offer plugins; each calls `register(name, cls)` once per plugin, but the last one."""

    @hookspec
    def register_projections(self, register: Register) -> None:
        """Offer `ProjectionSampler` classes to `projection:`."""

    @hookspec
    def register_cdfs(self, register: Register) -> None:
        """Offer `CDFEstimator` classes to `cdf:`."""

    @hookspec
    def register_conditions(self, register: Register) -> None:
        """Offer `ConditionEncoder` classes to `condition:`."""

    @hookspec
    def register_schedules(self, register: Register) -> None:
        """Offer `Schedule` classes to `schedule:`."""

    @hookspec
    def register_coordinates(self, register: Register) -> None:
        """Offer `Coordinates` classes to `coordinates:`."""

    @hookspec
    def register_datasets(self, register: Register) -> None:
        """Offer `DatasetSource` classes to `data:`."""

    @hookspec
    def register_metrics(self, register: Register) -> None:
        """Offer `Metric` classes to `evaluate.metrics:`."""

    @hookspec
    def register_observers(self, register: Register) -> None:
        """Offer `Observer` classes to `observers:`."""

    @hookspec
    def register_recipes(self, register: RegisterRecipes) -> None:
        """Offer recipes, which are named `distribution:file`; call `register(path)` for each file or folder."""


class Watching:
    """Hooks that watch a flow; what they return is ignored, and they must not change it."""

    @hookspec
    def before_stage(self, flow: Flow, stage: Stage) -> None:
        """Run when the flow has entered a stage's coordinates and before its first step."""

    @hookspec
    def after_step(self, flow: Flow, state: State) -> None:
        """Run after every step; `state` says where the flow is and how far it moved."""

    @hookspec
    def after_stage(self, flow: Flow, stage: Stage) -> None:
        """Run when the particles are back in the data's space after a stage."""

    @hookspec
    def after_run(self, flow: Flow) -> None:
        """Run once, after the last stage; not run when the flow is interrupted."""

    @hookspec
    def after_evaluation(self, flow: Flow, scores: Mapping[str, float]) -> None:
        """Run once, when the recipe's metrics have been computed."""


NAMES = tuple(name for spec in (Registration, Watching) for name in vars(spec) if not name.startswith("_"))
"""Every hook."""
