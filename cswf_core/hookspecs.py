"""The plugin door: every hook a plugin can implement, each with its contract."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

import pluggy

if TYPE_CHECKING:
    from cswf_core.flow.flow import Flow, State
    from cswf_core.interfaces import Stage

PROJECT = "cswf"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


class Register(Protocol):
    """What a `register_*` hook is handed."""

    def __call__(self, name: str, plugin: type[Any]) -> None:
        """Offer `plugin`, a class that implements the contract, to recipes under `name`."""


class Registration:
    """Hooks that offer plugins; each calls `register(name, cls)` once per plugin."""

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
    def register_datasets(self, register: Register) -> None:
        """Offer `DatasetSource` classes to `data:`."""

    @hookspec
    def register_metrics(self, register: Register) -> None:
        """Offer `Metric` classes to `evaluate.metrics:`."""

    @hookspec
    def register_observers(self, register: Register) -> None:
        """Offer `Observer` classes to `observers:`."""


class Observation:
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
