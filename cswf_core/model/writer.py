"""The observer that saves a model during its run."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cswf_core.documents import MisfitError, TensorForm, require_forms
from cswf_core.errors import RunError
from cswf_core.flow.flow import Flow, State
from cswf_core.hookspecs import hookimpl
from cswf_core.interfaces import Key, Masked
from cswf_core.model.format import (
    FITTED,
    FORMAT,
    HEADER,
    ConditionFacts,
    ConditionKind,
    Cost,
    DataFacts,
    FiltersFile,
    ModelHeader,
    SavedStep,
    StageFacts,
    TableFacts,
    TableShard,
    filters_file,
    pack_mask,
    read_shard,
    shard_file,
    steps_per_shard,
    write_filters,
    write_fitted,
    write_shard,
)
from cswf_core.recipe import Recipe
from cswf_core.recipe.render import to_yaml
from cswf_core.runs.durable import FileEntry, make_folder, refuse_changed, remove_parts, write_durably
from cswf_core.runs.record import versions

REMEMBERED = {
    "filters": TensorForm(torch.uint8, (None, 32)),
    "closed": TensorForm(torch.uint8, (None, 32)),
    "tail": TensorForm(torch.int64, (1,)),
    "tail_sha256": TensorForm(torch.uint8, (32,)),
    "seconds": TensorForm(torch.float64, (1,)),
    "total": TensorForm(torch.float64, (1,)),
}
"""What a checkpoint has of a model: SHA-256 of filters and shards, and those of the open shard's steps."""


class ModelWriter:
    """Writes the tables of a flow's steps, shard by shard, with at most one shard in memory."""

    remembered = "model"

    def __init__(self, folder: Path, recipe: Recipe) -> None:
        """Prepare to save a model in a folder of its own, which is made when the first file is written."""
        self.folder = folder
        self.recipe = recipe
        self.data_digest: str | None = None
        """SHA-256 of the data; computed if None, which takes a while for many."""
        self._forget()

    def _forget(self) -> None:
        self._facts: dict[str, Any] = {}
        """What the header says about the flow; empty until that begins."""
        self._fitted: FileEntry | None = None
        self._filters: dict[int, FiltersFile] = {}
        """What the projection has fitted to the data, by stage."""
        self._full: list[TableShard] = []
        self._open: list[SavedStep] = []
        """Steps of the shard that is not yet complete."""
        self._saving_seconds = 0.0
        self._step_seconds = 0.0

    @hookimpl
    def before_stage(self, flow: Flow) -> None:
        """Write what was fitted to the data, and the header of a model that is not complete."""
        self._describe(flow, complete=False)

    @hookimpl
    def after_step(self, flow: Flow, state: State) -> None:
        """Add the step's tables to the open shard, and write it if that completes it."""
        self._step_seconds = state.seconds
        if state.tables is None:
            return
        if flow.device.type == "cuda":
            torch.cuda.synchronize(flow.device)  # the step's own time is not the model's
        began = time.perf_counter()
        if self._open and self._open[0].stage != state.stage_index:
            self._close()
        step = SavedStep(state.stage_index, state.step - 1, state.eta, state.tables).moved(Tensor.cpu)
        if not step.finite:
            flow.require_finite()  # says more, where particles have followed these maps already
            raise RunError(
                "a model needs maps that are finite and no longer than 4e9, and those of a step are not"
            )
        self._open.append(step)
        if len(self._open) == steps_per_shard(step.tables):
            self._close()
        self._saving_seconds += time.perf_counter() - began

    @hookimpl
    def after_stage(self) -> None:
        """Complete the open shard, as each has steps of one stage."""
        self._close()

    @hookimpl
    def after_run(self, flow: Flow) -> None:
        """Write the header of the complete model."""
        self._describe(flow, complete=True)

    def keep(self) -> dict[str, Tensor]:
        """Write the open shard and the header; return the shards' checksums, for a checkpoint."""
        self._write_header([*self._full, self._write_open()] if self._open else self._full)
        return {
            "filters": _digests(
                [self._filters.get(stage) for stage in range(max(self._filters, default=-1) + 1)]
            ),
            "closed": _digests(self._full),
            "tail": torch.tensor([len(self._open)]),
            "tail_sha256": torch.tensor(list(_digest(self._open)), dtype=torch.uint8),
            "seconds": torch.tensor([self._saving_seconds], dtype=torch.float64),
            "total": torch.tensor([self._step_seconds], dtype=torch.float64),
        }

    def recall(self, state: Mapping[str, Tensor], total_step: int) -> None:
        """Go back to a checkpoint: remove later shards and read the open one back.

        Nothing is removed before all shards of the checkpoint have been verified.
        """
        self._forget()
        if state:
            require_forms(state, REMEMBERED, f"the checkpoint of step {total_step:,}")
            for stage, row in enumerate(state["filters"]):
                if bool(row.any()):
                    path = filters_file(self.folder, stage)
                    refuse_changed(path, _hexadecimal(row))
                    self._filters[stage] = FiltersFile.of(path, stage=stage)
            for number, row in enumerate(state["closed"]):
                path = shard_file(self.folder, number)
                sha256 = _hexadecimal(row)
                refuse_changed(path, sha256)
                steps = read_shard(path)
                facts = {"bytes": path.stat().st_size, "stage": steps[0].stage, "steps": len(steps)}
                self._full.append(TableShard(file=path.name, sha256=sha256, **facts))
            tail = int(state["tail"])
            path = shard_file(self.folder, len(self._full))
            self._open = read_shard(path)[:tail] if tail else []
            if tail and _digest(self._open) != bytes(state["tail_sha256"].tolist()):
                raise RunError(f"{path} is not what was written: its checksum differs")
            self._saving_seconds = float(state["seconds"])
            self._step_seconds = float(state["total"])
        elif total_step:
            raise RunError(f"the checkpoint of step {total_step:,} knows nothing of a model")
        if self.folder.is_dir():
            remove_parts(self.folder)
            own = {shard_file(self.folder, number) for number in range(len(self._full) + bool(self._open))}
            own |= {filters_file(self.folder, stage) for stage in self._filters}
            there = (self.folder.glob(f"{kind}-*.safetensors") for kind in ("tables", "filters"))
            later = set(chain.from_iterable(there)) - own
            for path in (*later, self.folder / HEADER, self.folder / FITTED):  # these two are written again
                path.unlink(missing_ok=True)

    def _close(self) -> None:
        """Write the open shard, and begin the next."""
        if self._open:
            self._full.append(self._write_open())
            self._open = []

    def _write_open(self) -> TableShard:
        """Write the open shard as far as it goes; the complete one will take its place."""
        make_folder(self.folder)
        return write_shard(shard_file(self.folder, len(self._full)), self._open)

    def _write_header(self, shards: Sequence[TableShard]) -> None:
        """Write the header of a model that has some shards on the disk."""
        filters = tuple(self._filters.values())
        fitted = () if self._fitted is None else (self._fitted,)
        cost = Cost(
            bytes=sum(entry.bytes for entry in (*fitted, *filters, *shards)),
            seconds=round(self._saving_seconds, 3),
            share=round(self._saving_seconds / self._step_seconds, 4) if self._step_seconds else 0.0,
        )
        steps = sum(shard.steps for shard in shards)
        try:
            header = ModelHeader(
                format=FORMAT,
                steps=steps,
                cost=cost,
                shards=tuple(shards),
                fitted=self._fitted,
                filters=filters,
                **self._facts,
            )
        except MisfitError as error:
            raise RunError(f"no model can be saved of this flow: {error}") from None
        make_folder(self.folder)
        write_durably(self.folder / HEADER, header.text())

    def _describe(self, flow: Flow, *, complete: bool) -> None:
        """Write what a flow has fitted to its data and is not written yet, and the header with its facts."""
        if flow.rounds > 1 or len(flow.cohorts) > 1:
            raise RunError("a model's maps are of one round, to data that are all there from the start")
        if self.data_digest is None:
            self.data_digest = flow.data.digest()
        if not self._facts:
            for stage in flow.stages:
                flow.parts.projection.of_stage(stage).refuse_lacking()
            make_folder(self.folder)
            self._fitted = write_fitted(self.folder, flow)
        if flow.filters is not None:
            stage_index = flow.position.stage
            self._filters[stage_index] = write_filters(self.folder, stage_index, flow.filters)
        model = self.recipe.model
        self._facts = {
            "cswf": versions().get("cswf", "unknown"),
            "name": self.recipe.name,
            "complete": complete,
            "recipe": to_yaml(self.recipe.resolved()),
            "data": _data_facts(flow, self.data_digest),
            "condition": _condition_facts(flow),
            "precision": str(flow.settings.dtype).removeprefix("torch."),
            "particles": flow.count,
            "stages": tuple(
                StageFacts(
                    name=stage.name,
                    directions=stage.directions,
                    steps=stage.steps,
                    fingerprint=flow.fingerprints.get(number) or "",
                )
                for number, stage in enumerate(flow.stages)
            ),
            "plugins": tuple(self.recipe.plugin_facts()),
            "tables": TableFacts(knots=model.knots, bits=model.bits),
        }
        self._write_header(self._full)


def _data_facts(flow: Flow, digest: str) -> DataFacts:
    data = flow.data
    labels = flow.balanced_data.conditions.labels
    counts = [] if labels is None else torch.bincount(labels.cpu(), minlength=len(data.classes)).tolist()
    return DataFacts(
        sha256=digest,
        samples=len(data),
        shape=data.space.shape,
        classes=data.classes,
        counts=tuple(counts),
        bin_width=data.bin_width,
        streamed=data.stored is not None,
    )


def _condition_facts(flow: Flow) -> ConditionFacts:
    """Return the header's facts about the condition: what it draws for a particle, what it observes."""
    seen = flow.observation
    carried = flow.parts.condition.draw(flow.data, flow.count, Key(flow.settings.seed, "labels").open())
    kinds: dict[ConditionKind, object] = {"labels": carried.labels, "vectors": carried.vectors, "image": seen}
    shared = seen is None or seen.shared
    vectors = flow.balanced_data.conditions.vectors if carried.vectors is not None else None
    return ConditionFacts(
        low=() if vectors is None else tuple(vectors.amin(dim=1).tolist()),
        high=() if vectors is None else tuple(vectors.amax(dim=1).tolist()),
        length=flow.setup.condition_length,
        asks=tuple(name for name, kind in kinds.items() if kind is not None),
        tables=flow.setup.table_labels,
        shared=shared,
        mask=pack_mask(seen.mask[:, 0]) if isinstance(seen, Masked) and shared else None,
    )


def _digests(files: Sequence[FileEntry | None]) -> Tensor:
    """Return the SHA-256 of n files, n×32 bytes; for None it is 0."""
    digests = b"".join(bytes(32) if file is None else bytes.fromhex(file.sha256) for file in files)
    return torch.tensor(list(digests), dtype=torch.uint8).reshape(-1, 32)


def _hexadecimal(row: Tensor) -> str:
    """Return a SHA-256, 32 bytes, in hexadecimal."""
    return bytes(row.tolist()).hex()


def _digest(steps: Sequence[SavedStep]) -> bytes:
    """Return the SHA-256 of the steps' numbers: they stay the same when more steps join the shard."""
    sha = hashlib.sha256()
    for step in steps:
        sha.update(f"{step.stage}/{step.number}/{step.eta!r}".encode())
        for table in step.tables.tensors:
            sha.update(table.contiguous().numpy().tobytes())
    return sha.digest()
