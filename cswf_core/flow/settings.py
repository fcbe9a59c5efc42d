"""`Parts`, the plugins of a flow, and `Settings`, the numbers that are no plugin's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
import torch

from cswf_core.checks import (
    CheckedCDF,
    CheckedCondition,
    CheckedCoordinates,
    CheckedSampler,
    CheckedSchedule,
    checked,
)
from cswf_core.errors import PluginError, RunError
from cswf_core.kernels.memory import require_memory
from cswf_core.plugins import Registry

DEFAULTS = {"condition": "none", "projection": "uniform", "cdf": "histogram", "coordinates": "plain"}
"""Plugins of kinds that a recipe, or a program, leaves out."""


class Parts:
    """The plugins that make a flow, each behind its checks; plain plugins are put there."""

    def __init__(
        self, condition: object, projection: object, cdf: object, schedule: object, coordinates: object = None
    ) -> None:
        """Take the plugins as objects; see `of` for names and defaults."""
        self.condition: CheckedCondition = checked(condition, kind="condition")
        self.projection: CheckedSampler = checked(projection, kind="projection")
        self.cdf: CheckedCDF = checked(cdf, kind="cdf")
        self.schedule: CheckedSchedule = checked(schedule, kind="schedule")
        self.coordinates: CheckedCoordinates | None = None
        """Where W comes from; None: steps are taken in the data's own coordinates."""
        if coordinates is not None:
            self.coordinates = checked(coordinates, kind="coordinates")

    @classmethod
    def of(cls, **plugins: object) -> Parts:
        """Return plugins by kind, each an object or a name; kinds left out are those of `DEFAULTS`."""
        registry = Registry.discover()
        if "schedule" not in plugins:
            known = ", ".join(registry.names("schedule"))
            raise PluginError(f"a flow needs a schedule: Parts.of(schedule=…), an object or one of {known}")
        chosen: dict[str, Any] = {**DEFAULTS, **plugins}
        for kind, plugin in chosen.items():
            if isinstance(plugin, str):
                offered = registry.find(kind, plugin)
                try:
                    chosen[kind] = checked(offered.factory(), offered.owner)
                except TypeError as error:
                    raise PluginError(f"{offered.owner} cannot be had by its name alone: {error}") from None
        return cls(**chosen)


@attrs.frozen
class TableRequest:
    """What the tables of a flow's steps are like."""

    knots: int
    """K, an odd number."""
    bits: int
    """Bits of a displacement: 4, 8 or 16."""


@attrs.frozen
class Settings:
    """The numbers of a flow that are no plugin's."""

    count: int | None = None
    """M; None is as many particles as data."""
    offline: int = 0
    """Particles besides these M that are carried along: they move, and take no part in F_p."""
    scale: float = 1.0
    """Particles begin as N(0, scale² I),"""
    gaussian: bool = False
    """or as a Gaussian with the data's mean and covariance."""
    clip: float | None = None
    """Coordinates are kept in [−clip, clip] after every step; None: they may go anywhere."""
    seed: int = 0
    reuse: int | None = 1
    """For how many steps a set of directions is kept; None keeps one for a whole stage."""
    dtype: torch.dtype = attrs.field(factory=lambda: torch.float32)
    half: bool = False
    """Whether products on CUDA are in half precision with float32 sums; particles stay in `dtype`, float32.

    Noise in the data's bins is then added in even steps as values are counted, and not drawn: on CUDA with any
    estimator, elsewhere if it displaces rows itself."""
    turn: int | None = None
    """Steps after which the other half of the particles takes over in F_p; None: all take part in each."""
    tables: TableRequest | None = None
    """Which of the steps' transport maps observers get; None: none."""
    names: Mapping[str, str] = attrs.field(factory=dict, repr=False)
    """What users call things that errors advise to change: {"step size": "schedule.step_size"}."""

    def __attrs_post_init__(self) -> None:
        """Raise `RunError` for numbers that no flow can have."""
        for name, least in (("count", 1), ("reuse", 1), ("turn", 1), ("offline", 0)):
            number = getattr(self, name)
            if number is not None and number < least:
                raise RunError(f"{name} must be {least} or more, got {number}")

    def count_for(self, data_count: int) -> int:
        """Return M for a flow to `data_count` samples."""
        return data_count if self.count is None else self.count

    def called(self, noun: str) -> str:
        """Return a noun and, where users have a name for it, that name: `step size (schedule.step_size)`."""
        name = self.names.get(noun, noun)
        return noun if name == noun else f"{noun} ({name})"

    def remedy(self, dimension: int, particles: int, data: int = 0) -> str:
        """Return what to take less of so that memory suffices: what takes the most of it comes first."""
        less = [f"fewer {self.called('particles')}"]
        if data > particles:
            less.insert(0, f"fewer {self.called('data')}")
        # Then the size of a sample, more than the number of samples, is what fills the memory
        if dimension * self.dtype.itemsize > 10**6:
            less.insert(0, f"smaller {self.called('images')}")
        return f"take {' or '.join(less)}"

    def require_particles(self, dimension: int, count: int) -> None:
        """Raise `OutOfMemoryError` if `count` particles are more than this machine's memory holds."""
        particles = f"{count:,} particles in {dimension:,} dimensions"
        require_memory(dimension * count * self.dtype.itemsize, particles, self.remedy(dimension, count))
