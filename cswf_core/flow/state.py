"""The state of a flow: after a step, for observers, and as a snapshot from which it can go on."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import torch
from torch import Tensor

from cswf_core.flow.transport import StepTables
from cswf_core.interfaces import Conditions, Stage
from cswf_core.ranks import Share


@attrs.frozen(eq=False)
class State:
    """Where a flow is after a step. Numbers are read back from the device only when asked for."""

    stage: Stage
    stage_index: int
    stage_count: int
    step: int
    """Steps done in this stage, from 1 to `stage.steps`."""
    total_step: int
    """Steps done since the flow began."""
    total_steps: int
    """Steps of all stages together; fewer are taken if the schedule leaves a stage early."""
    seconds: float
    """Time since the first step began."""
    eta: float
    """η of the step that was taken."""
    moved: Tensor = attrs.field(repr=False)
    squares: Tensor = attrs.field(repr=False)
    tables: StepTables | None = attrs.field(default=None, repr=False)
    """The step's transport maps, if `Settings.tables` asks for them."""

    @property
    def displacement(self) -> float:
        """Mean distance that a particle moved in this step; on CUDA, with precision fast, of 1,024 of them."""
        return float(self.moved)

    @property
    def distance(self) -> float:
        """Sliced distance SW₂ from particles to data before this step, along its directions, ξy included."""
        return math.sqrt(float(self.squares))


@attrs.define
class Position:
    """How far a flow has come."""

    stage: int = 0
    """The number of the stage it is in, or is to enter."""
    step: int = 0
    """Steps done in that stage; 0 is before it was entered."""
    total: int = 0
    """Steps done since the flow began."""
    seconds: float = 0.0
    """Time they took."""
    distances: list[float] = attrs.field(factory=list)
    """Sliced distance before each of the stage's steps, if the schedule looks at them."""


@attrs.frozen(eq=False)
class Snapshot:
    """All that a flow needs to go on as if it had not stopped; randomness needs nothing, it has its keys."""

    position: Position
    conditions: Conditions
    """Y of all particles, also of those that other ranks have."""
    x: Tensor
    """The particles as they were when the stage was entered, or as they are between two stages: d×M."""
    z: Tensor | None = None
    """Inside a stage with coordinates of its own, z = UᵀWx as far as the engine keeps it up: d_k×M."""
    sum: Tensor | None = None
    """There, the sum S of the stage's updates: d_k×M; None where z alone moves, and x is to be had from it."""
    numerics: dict[str, int] = attrs.field(factory=dict)
    """Decisions made when the stage began, or when memory ran short, that decide about the last digits."""
    share: Share | None = None
    """Which of all particles these are; None: all of them."""
    fingerprints: dict[int, str | None] = attrs.field(factory=dict)
    """Those of the directions of each stage of a round, as far as they have been drawn."""

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors by name, for a file."""
        y = self.conditions
        named = {"x": self.x, "z": self.z, "sum": self.sum}
        named |= {"labels": y.labels, "vectors": y.vectors, "origin": y.origin}
        return {name: tensor for name, tensor in named.items() if tensor is not None}

    def facts(self) -> dict[str, Any]:
        """Return the numbers, for a file."""
        prints = {str(stage): text for stage, text in self.fingerprints.items()}
        facts = {"position": attrs.asdict(self.position), "habits": self.numerics, "directions": prints}
        return facts if self.share is None else {**facts, "share": attrs.asdict(self.share)}

    @property
    def total(self) -> int:
        """How many particles there are, here and on other ranks."""
        return self.x.shape[1] if self.share is None else self.share.total

    def own(self) -> Snapshot:
        """Return the snapshot with the conditions of its own particles only, for a file."""
        if self.share is None:
            return self
        return attrs.evolve(self, conditions=self.conditions.take(self.share.cut))

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> Snapshot:
        """Return the snapshot that `tensors` and `facts` have come from."""
        conditions = Conditions(tensors.get("labels"), tensors.get("vectors"), tensors.get("origin"))
        position = Position(**facts["position"])
        z, total, numerics = tensors.get("z"), tensors.get("sum"), dict(facts["habits"])
        share = Share(**facts["share"]) if "share" in facts else None
        prints = {int(stage): text for stage, text in facts.get("directions", {}).items()}
        return cls(position, conditions, tensors["x"], z, total, numerics, share, prints)

    @classmethod
    def joined(cls, parts: Sequence[Snapshot], share: Share) -> Snapshot:
        """Return a share of the particles from the snapshots of all ranks, whatever their shares were.

        Conditions are those of all particles.
        """

        def columns(name: str) -> Tensor | None:
            wanted = []
            for part in parts:
                tensor, own = getattr(part, name), part.share
                if tensor is None or own is None:
                    return None if tensor is None else tensor[:, share.cut]
                ends = (min(max(end, own.first), own.stop) for end in (share.first, share.stop))
                wanted.append(tensor[:, slice(*(end - own.first for end in ends))])
            return torch.cat(wanted, dim=1)

        x = columns("x")
        assert x is not None
        conditions = Conditions.joined([part.conditions for part in parts])
        return attrs.evolve(
            parts[0], x=x, z=columns("z"), sum=columns("sum"), conditions=conditions, share=share
        )
