"""Saved steps on their way to a GPU: the next shard is read while the steps of this one are taken.

A shard comes from the disk into page-locked memory, in a thread of its own, and from there to the device in one
copy that nobody waits for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import attrs
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from cswf_core.errors import RunError
from cswf_core.flow.transport import StepTables
from cswf_core.model.format import SavedStep, Shard

NAMES = ("positions", "displacements")
ALIGNED = 512
"""A tensor begins at a multiple of so many bytes."""


@attrs.frozen(eq=False)
class HostShard:
    """The steps of a shard in the memory of the host."""

    numbers: list[int]
    eta: list[float]
    tables: tuple[Tensor, ...]
    """Positions and displacements: n×S×H'×K each."""


@attrs.define(eq=False)
class Stand:
    """Memory that a shard is read into; where it is page-locked, copies from it need no waiting."""

    memory: Tensor
    """Bytes."""
    copied: Any = None
    """The CUDA event after which the last shard has left it."""

    def read(self, path: Path) -> HostShard:
        """Read a shard, once the last one has left."""
        if self.copied is not None:
            self.copied.synchronize()
        try:
            with safe_open(path, framework="pt") as file:
                eta, numbers = file.get_tensor("eta").tolist(), file.get_tensor("steps").tolist()
                tables, first = [], 0
                for name in NAMES:
                    table = file.get_tensor(name)
                    place = self.memory[first : first + table.nbytes].view(table.dtype).view(table.shape)
                    tables.append(place.copy_(table))
                    first += -(-table.nbytes // ALIGNED) * ALIGNED
        except (OSError, SafetensorError, RuntimeError) as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            raise RunError(f"{path} cannot be read ({reason})") from None
        return HostShard(numbers, eta, tuple(tables))

    def send(self, read: HostShard, device: torch.device) -> list[Tensor]:
        """Return the tables on a device; on CUDA they are there for whoever works on the same stream."""
        sent = [table.to(device, non_blocking=True, copy=True) for table in read.tables]
        if device.type == "cuda":
            self.copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self.copied.record(torch.cuda.current_stream(device))
        return sent


def steps_on(device: torch.device, folder: Path, shards: Sequence[Shard]) -> Iterator[SavedStep]:
    """Yield a model's steps in order, their tables on a device; two shards are in the host's memory."""
    largest = max((shard.bytes for shard in shards), default=0) + len(NAMES) * ALIGNED
    locked = device.type == "cuda"
    stands = [Stand(torch.empty(largest, dtype=torch.uint8, pin_memory=locked)) for _ in shards[:2]]
    paths = [folder / shard.file for shard in shards]
    with ThreadPoolExecutor(1, "reading") as reader:
        reading = [reader.submit(stand.read, path) for stand, path in zip(stands[:1], paths, strict=False)]
        for number, shard in enumerate(shards):
            read = reading.pop().result()
            if number + 1 < len(shards):
                reading.append(reader.submit(stands[(number + 1) % 2].read, paths[number + 1]))
            positions, displacements = stands[number % 2].send(read, device)
            for i, step in enumerate(read.numbers):
                tables = StepTables(positions[i], displacements[i])
                yield SavedStep(shard.stage, step, read.eta[i], tables)
