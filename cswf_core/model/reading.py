"""Saved steps on their way to a GPU: the next shard is read while the steps of this one are taken.

A shard comes from the disk into page-locked memory, in a thread of its own, and from there to the device in one
copy that nobody waits for.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import attrs
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from cswf_core.documents import short
from cswf_core.errors import RunError
from cswf_core.flow.tables import StepTables
from cswf_core.model.format import TABLES, SavedStep, refuse_infinite, steps_of
from cswf_core.model.header import Header, Shard

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

    def read(self, folder: Path, header: Header, shard: Shard) -> HostShard:
        """Read a shard, once the last one has left; raise `RunError` if it is not as the header says."""
        if self.copied is not None:
            self.copied.synchronize()
        path = folder / shard.file
        try:
            with safe_open(path, framework="pt") as file:
                numbers, eta = steps_of(file, header, shard)
                tables, first = [], 0
                for name in TABLES:
                    table = file.get_tensor(name)
                    place = self.memory[first : first + table.nbytes].view(table.dtype).view(table.shape)
                    tables.append(place.copy_(table))
                    first += -(-table.nbytes // ALIGNED) * ALIGNED
                refuse_infinite(*tables)
        except (OSError, SafetensorError, RuntimeError, ValueError) as error:
            raise RunError(f"{path} cannot be read ({short(error)})") from None
        return HostShard(numbers, eta, tuple(tables))

    def send(self, read: HostShard, device: torch.device) -> list[Tensor]:
        """Return the tables on a device; on CUDA they are there for whoever works on the same stream."""
        sent = [table.to(device, non_blocking=True, copy=True) for table in read.tables]
        if device.type == "cuda":
            self.copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self.copied.record(torch.cuda.current_stream(device))
        return sent


def steps_on(device: torch.device, folder: Path, header: Header) -> Iterator[SavedStep]:
    """Yield a model's steps in order, their tables on a device; two shards are in the host's memory."""
    shards = header.shards
    largest = max((shard.bytes for shard in shards), default=0) + len(TABLES) * ALIGNED
    locked = device.type == "cuda"
    stands = [Stand(torch.empty(largest, dtype=torch.uint8, pin_memory=locked)) for _ in shards[:2]]
    with ThreadPoolExecutor(1, "reading") as reader:
        reading = [reader.submit(stands[0].read, folder, header, shard) for shard in shards[:1]]
        for number, shard in enumerate(shards):
            read = reading.pop().result()
            if number + 1 < len(shards):
                stand = stands[(number + 1) % 2]
                reading.append(reader.submit(stand.read, folder, header, shards[number + 1]))
            positions, displacements = stands[number % 2].send(read, device)
            for i, step in enumerate(read.numbers):
                tables = StepTables(positions[i], displacements[i])
                yield SavedStep(shard.stage, step, read.eta[i], tables)
