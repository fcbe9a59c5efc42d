"""The state of a flow: after a step, for observers, and as a snapshot from which it can continue."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar

import attrs
import torch
from torch import Tensor

from cswf_core.documents import Amount, Count, MisfitError, Rule, TensorForm, require_forms, structured
from cswf_core.errors import RunError
from cswf_core.flow.tables import StepTables
from cswf_core.interfaces import Conditions, Stage
from cswf_core.ranks import Share

FILTERS = "filters/"
"""Beginning of the names of `Snapshot.filters` in a file."""


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
    moved: Tensor = attrs.field(repr=False)
    squares: Tensor = attrs.field(repr=False)
    """SW₂² before the step."""
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

    stage: Count = 0
    """The number of the stage it is in, or is to enter."""
    step: Count = 0
    """Steps done in that stage; 0 is before it was entered."""
    total: Count = 0
    """Steps done since the flow began."""
    seconds: Amount = 0.0
    distances: list[Amount] = attrs.field(factory=list)
    """Sliced distance before each of the stage's steps, if the schedule is adaptive."""

    def check(self, stages: Sequence[Stage], *, adaptive: bool) -> None:
        """Raise `RunError` if a flow through these stages cannot be here; if `adaptive`, it may leave early."""
        there = len(stages) > self.stage or (len(stages) == self.stage and self.step == 0)
        steps = [stage.steps for stage in stages[: self.stage + 1]]
        most = sum(steps[: self.stage]) + self.step
        if not there or self.step > [*steps, 0][self.stage] or not self.step <= self.total <= most:
            raise RunError(f"it is {self}, where no flow through these {len(stages)} stages can be")
        if (not adaptive and self.total != most) or len(self.distances) != (self.step if adaptive else 0):
            raise RunError(f"it is {self}, and a flow has taken another number of steps by then")

    def __str__(self) -> str:
        return f"at step {self.step} of stage {self.stage}, after {self.total} steps"


@attrs.frozen(kw_only=True)
class SnapshotFacts:
    """The facts of a snapshot in a file, which has others beside them."""

    open_ended: ClassVar[bool] = True
    position: Position
    habits: dict[str, Count]
    """`Snapshot.numerics`; files have kept this older name."""
    directions: dict[
        Annotated[str, Rule("the number of a stage", re.compile("[0-9]{1,18}").fullmatch)],
        Annotated[str, Rule("hexadecimal digits", re.compile("[0-9a-f/]*").fullmatch)] | None,
    ]
    share: Share | None = None


@attrs.frozen(eq=False)
class Snapshot:
    """All that a flow needs to continue as if it had not stopped; randomness has its keys."""

    position: Position
    conditions: Conditions
    """Y of these particles; once the snapshots of all ranks are joined, of all particles."""
    x: Tensor
    """The particles as they were when the stage was entered, or as they are between two stages: d×M."""
    share: Share
    """Which of all particles these are."""
    z: Tensor | None = None
    """Inside a stage with coordinates of its own, z = UᵀWx as far as the engine keeps it up: d_k×M."""
    sum: Tensor | None = None
    """There, the sum S of the stage's updates: d_k×M; None where z alone moves, and x follows from it."""
    numerics: dict[str, int] = attrs.field(factory=dict)
    """Decisions made when the stage began, or when memory ran short, that decide about the last digits."""
    fingerprints: dict[int, str | None] = attrs.field(factory=dict)
    """Those of the directions of each stage of a round, as far as they have been drawn."""
    filters: dict[str, Tensor] = attrs.field(factory=dict)
    """Inside a stage, what its projection has fitted to the data; empty: nothing."""

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors by name, for a file."""
        named = {"x": self.x, "z": self.z, "sum": self.sum, **attrs.asdict(self.conditions)}
        named |= {f"{FILTERS}{name}": tensor for name, tensor in self.filters.items()}
        return {name: tensor for name, tensor in named.items() if tensor is not None}

    def facts(self) -> dict[str, Any]:
        """Return the numbers, for a file."""
        prints = {str(stage): text for stage, text in self.fingerprints.items()}
        facts = {"position": attrs.asdict(self.position), "habits": self.numerics, "directions": prints}
        return facts if self.share.whole else {**facts, "share": attrs.asdict(self.share)}

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> Snapshot:
        """Return the snapshot that `tensors` and `facts` have come from; raise `RunError` if it is damaged."""
        try:
            known: SnapshotFacts = structured(facts, SnapshotFacts)
        except MisfitError as error:
            raise RunError(f"it is damaged: {error}") from None
        matrix = TensorForm(torch.is_floating_point, (None, None), optional=True)
        numbers = TensorForm(torch.int64, (None,), optional=True)
        forms = {"x": attrs.evolve(matrix, optional=False), "z": matrix, "sum": matrix}
        forms |= {"labels": numbers, "vectors": matrix, "origin": numbers}
        require_forms(tensors, forms, "the checkpoint")
        n = tensors["x"].shape[1]
        return cls(
            position=known.position,
            conditions=Conditions(tensors.get("labels"), tensors.get("vectors"), tensors.get("origin")),
            x=tensors["x"],
            z=tensors.get("z"),
            sum=tensors.get("sum"),
            numerics=known.habits,
            share=Share(0, n, n) if known.share is None else known.share,
            fingerprints={int(stage): text for stage, text in known.directions.items()},
            filters={name.removeprefix(FILTERS): tensors[name] for name in tensors if name.startswith(FILTERS)},
        )

    def check(self, share: Share, like: Tensor, own: Conditions) -> None:
        """Raise `RunError` if particles are not those of a flow, as far as shapes and conditions tell.

        `share` are the particles that should be here; `like` has their d and their numbers; `own` are the
        conditions of all particles of the flow when it began, to which others may have come.
        """
        form = TensorForm(like.dtype, (len(like), len(share)))
        if not form.fits(self.x):
            raise RunError(
                f"it has particles of {TensorForm(self.x.dtype, self.x.shape)}, and this rank's are {form}"
            )
        for part in (self.x, self.z, self.sum):
            if part is not None and (part.ndim != 2 or not bool(torch.isfinite(part).all())):
                raise RunError("its particles are not finite")
        if self.position.step and not self.numerics:
            raise RunError("it is of a moment inside a stage, and lacks how the stage was begun")
        for name in ("labels", "vectors", "origin"):
            before = getattr(own, name)
            now = getattr(self.conditions, name)
            if (before is None) != (now is None):
                raise RunError(f"its particles have {'no' if now is None else 'unexpected'} {name}")
            if before is None:
                continue
            n = min(before.shape[-1], share.total)
            right = TensorForm(before.dtype, (*before.shape[:-1], share.total)).fits(now)
            if not right or (not now.is_floating_point() and not torch.equal(now[..., :n], before[..., :n])):
                raise RunError(f"the {name} of its particles are not those of the flow")

    @classmethod
    def joined(cls, parts: Sequence[Snapshot], share: Share) -> Snapshot:
        """Return a share of the particles, with the conditions of all, from the snapshots of all ranks."""
        total = parts[0].share.total
        end = 0
        for part in parts:
            own = part.share
            if (own.first, own.total, own.stop) != (end, total, own.first + part.x.shape[1]):
                raise RunError("the files of a checkpoint do not have the particles of all ranks, in a row")
            end = own.stop
        if end != total:
            raise RunError(f"the files of a checkpoint have {end} of {total} particles")
        cuts = [part.share.own(share.cut) for part in parts]
        joined: dict[str, Any] = {}
        for name in ("x", "z", "sum"):
            columns = [getattr(part, name) for part in parts]
            lacking = any(tensor is None for tensor in columns)
            pieces = [] if lacking else [tensor[:, cut] for tensor, cut in zip(columns, cuts, strict=True)]
            joined[name] = None if lacking else torch.cat(pieces, dim=1)
        conditions = Conditions.joined([part.conditions for part in parts])
        return attrs.evolve(parts[0], **joined, conditions=conditions, share=share)
