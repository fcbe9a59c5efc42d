"""The observer that saves a model while its run goes on."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cswf_core.errors import RunError
from cswf_core.flow.flow import Flow, State
from cswf_core.flow.transport import StepTables
from cswf_core.hookspecs import hookimpl
from cswf_core.interfaces import Key, Masked
from cswf_core.model.header import (
    FORMAT,
    NAME,
    ConditionFacts,
    Cost,
    DataFacts,
    Header,
    Shard,
    StageFacts,
    TableFacts,
    packed,
)
from cswf_core.model.shards import PATTERN, Steps, listed, shard_file
from cswf_core.recipe import Recipe
from cswf_core.recipe.render import to_yaml
from cswf_core.runs.durable import fingerprint, remove_parts, write_durably
from cswf_core.runs.record import versions


class ModelWriter:
    """Writes the tables of a flow's steps, shard by shard; never more than one shard is in memory."""

    remembered = "model"

    def __init__(self, folder: Path, recipe: Recipe) -> None:
        """`folder` is the model's own; it is made with the first thing that is written."""
        self.folder = folder
        self.recipe = recipe
        self.data_digest: str | None = None
        """SHA-256 of the data, if somebody knows it; it takes a while for many."""
        self._facts: dict[str, Any] = {}
        self._complete = False
        self._forget()

    def _forget(self) -> None:
        self._closed: list[Shard] = []
        self._tail = Steps()
        self._written: Shard | None = None
        """The tail as it is on the disk; None if it is not there, or has grown since."""
        self._seconds = 0.0
        self._total = 0.0
        """Time of all steps so far."""

    @hookimpl
    def before_stage(self, flow: Flow) -> None:
        """Say on the disk that a model is being made, and of what."""
        self._complete = False
        self._describe(flow)
        self._write_header()

    @hookimpl
    def after_step(self, flow: Flow, state: State) -> None:
        """Take the step's tables in, and write a shard if that fills it."""
        self._total = state.seconds
        if state.tables is None:
            return
        if flow.device.type == "cuda":
            torch.cuda.synchronize(flow.device)  # the step's own time is not the model's
        began = time.perf_counter()
        if self._tail.stage != state.stage_index:
            self._close()
            self._tail.stage = state.stage_index
        self._tail.add(state.step - 1, state.eta, _brought(state.tables))
        self._written = None
        if len(self._tail) == self._tail.most:
            self._close()
        self._seconds += time.perf_counter() - began

    @hookimpl
    def after_stage(self) -> None:
        """End the shard: each has steps of one stage."""
        self._close()

    @hookimpl
    def after_run(self, flow: Flow) -> None:
        """Say that the model is complete."""
        self._complete = True
        self._describe(flow)
        self._write_header()

    def keep(self) -> dict[str, Tensor]:
        """Write what is in memory; return what tells whether the files are those of this moment."""
        self._write_tail()
        self._write_header()
        digests = b"".join(bytes.fromhex(shard.sha256) for shard in self._closed)
        return {
            "closed": torch.tensor(list(digests), dtype=torch.uint8).reshape(-1, 32),
            "tail": torch.tensor([len(self._tail)]),
            "tail_sha256": torch.tensor(list(_digest(self._tail)), dtype=torch.uint8),
            "seconds": torch.tensor([self._seconds], dtype=torch.float64),
            "total": torch.tensor([self._total], dtype=torch.float64),
        }

    def recall(self, kept: Mapping[str, Tensor], total_step: int) -> None:
        """Go back to a checkpoint: what was written after it is removed, and the last shard read back.

        Nothing is removed before all that the checkpoint needs has been found to be good.
        """
        self._forget()
        if total_step and not kept:
            raise RunError(f"the checkpoint of step {total_step:,} knows nothing of a model")
        closed = [] if not kept else [bytes(row.tolist()).hex() for row in kept["closed"]]
        count = 0 if not kept else int(kept["tail"])
        shards = [self._found(number, sha256) for number, sha256 in enumerate(closed)]
        if count:
            path = shard_file(self.folder, len(closed))
            self._tail = Steps.read(path, count)
            if _digest(self._tail) != bytes(kept["tail_sha256"].tolist()):
                self._tail = Steps()
                raise RunError(f"{path} is not what was written: its checksum differs")
        self._closed = shards
        self._seconds = float(kept["seconds"]) if kept else 0.0
        self._total = float(kept["total"]) if "total" in kept else 0.0
        self._remove_after(len(closed) + (1 if count else 0))

    def _found(self, number: int, sha256: str) -> Shard:
        """Return what the header says of a shard that is on the disk, if it is as it was written."""
        path = shard_file(self.folder, number)
        if not path.is_file():
            raise RunError(f"{path} is missing")
        if fingerprint(path) != sha256:
            raise RunError(f"{path} is not what was written: its checksum differs")
        return listed(path, sha256)

    def _remove_after(self, count: int) -> None:
        """Remove all shards but the first `count`, and with them a header that knows of more."""
        if not self.folder.is_dir():
            return
        remove_parts(self.folder)
        kept = {shard_file(self.folder, number).name for number in range(count)}
        for path in self.folder.glob(PATTERN):
            if path.name not in kept:
                path.unlink(missing_ok=True)
        (self.folder / NAME).unlink(missing_ok=True)

    def _close(self) -> None:
        """Write the shard at hand, and begin the next."""
        written = self._write_tail()
        if written is not None:
            self._closed.append(written)
        self._tail, self._written = Steps(), None

    def _write_tail(self) -> Shard | None:
        """Write the shard at hand as far as it goes; the whole one will take its place."""
        if len(self._tail) and self._written is None:
            self._make_folder()
            self._written = self._tail.write(shard_file(self.folder, len(self._closed)))
        return self._written

    def _write_header(self) -> None:
        shards = (*self._closed, *([self._written] if self._written is not None else []))
        size = sum(shard.bytes for shard in shards)
        cost = Cost(
            bytes=size,
            seconds=round(self._seconds, 3),
            share=round(self._seconds / self._total, 4) if self._total else 0.0,
        )
        header = Header(
            format=FORMAT,
            complete=self._complete,
            steps=sum(shard.steps for shard in shards),
            cost=cost,
            shards=shards,
            **self._facts,
        )
        self._make_folder()
        write_durably(self.folder / NAME, header.text())

    def _make_folder(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"{self.folder} cannot be made: {error.strerror or error}") from None

    def _describe(self, flow: Flow) -> None:
        """Take down what the header says of a flow."""
        if flow.rounds > 1 or len(flow.cohorts) > 1:
            raise RunError("a model's maps are of one round, to data that are all there from the start")
        if self.data_digest is None:
            self.data_digest = flow.data.digest()
        model = self.recipe.model
        self._facts = {
            "cswf": versions().get("cswf", "unknown"),
            "name": self.recipe.name,
            "recipe": to_yaml(self.recipe.resolved()),
            "data": _data_facts(flow, self.data_digest),
            "condition": _condition_facts(flow),
            "precision": str(flow.settings.dtype).removeprefix("torch."),
            "particles": len(flow.particles),
            "stages": tuple(
                StageFacts(name=stage.name, directions=stage.directions, steps=stage.steps)
                for stage in flow.stages
            ),
            "tables": TableFacts(
                knots=model.knots, dtype=model.dtype, directions=model.directions, every=model.every
            ),
        }


def _brought(tables: StepTables) -> StepTables:
    """Return tables on the CPU; raise `RunError` if their numbers are no numbers there."""
    positions, displacements = tables.positions.cpu(), tables.displacements.cpu()
    if not bool(torch.isfinite(positions).all() and torch.isfinite(displacements).all()):
        raise RunError(
            "a step's maps are too large for half precision; take model.dtype=float32"
            if positions.dtype == torch.float16
            else "a step's maps are not finite, and no model can be made of them"
        )
    return StepTables(positions, displacements)


def _data_facts(flow: Flow, digest: str) -> DataFacts:
    data, labels = flow.data, flow.target.conditions.labels
    counts = [] if labels is None else torch.bincount(labels.cpu(), minlength=len(data.classes)).tolist()
    return DataFacts(
        sha256=digest,
        samples=len(data),
        shape=data.space.shape,
        classes=data.classes,
        counts=counts,
        bin_width=data.bin_width,
    )


def _condition_facts(flow: Flow) -> ConditionFacts:
    """Say what the condition draws for a particle, and what of its image is given."""
    seen, draw = flow.observation, Key(flow.settings.seed, "labels").open()
    carried = flow.parts.condition.draw(flow.data, len(flow.particles), draw)
    kinds = {"labels": carried.labels, "vectors": carried.vectors, "image": seen}
    shared = seen is None or seen.shared
    return ConditionFacts(
        length=flow.condition_length,
        asks=[name for name, kind in kinds.items() if kind is not None],
        strata=_strata(flow),
        shared=shared,
        mask=packed(seen.mask[:, 0]) if isinstance(seen, Masked) and shared else None,
    )


def _strata(flow: Flow) -> list[int] | None:
    """Return the label of each stratum; None if there are none."""
    cpu = torch.device("cpu")
    carried, data = (
        c.to(cpu, flow.settings.dtype) for c in (flow.particles.conditions, flow.target.conditions)
    )
    strata = flow.parts.condition.strata(carried, data)
    if strata is None:
        return None
    labels = carried.labels
    found: list[int] = []
    for particles, _ in strata:
        own = [] if labels is None else torch.unique(labels[particles]).tolist()
        if len(own) != 1:
            raise RunError("a model is saved of strata that are classes, and the condition has others")
        found += own
    return found


def _digest(steps: Steps) -> bytes:
    """Return the SHA-256 of the steps' numbers: they stay the same when more steps join the shard."""
    sha = hashlib.sha256()
    for number, eta, tables in zip(steps.numbers, steps.eta, steps.tables, strict=True):
        sha.update(f"{steps.stage}/{number}/{eta!r}".encode())
        for table in (tables.positions, tables.displacements):
            sha.update(table.contiguous().numpy().tobytes())
    return sha.digest()
