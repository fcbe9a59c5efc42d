"""Particles that one device does not hold: they are kept in blocks, and processed block by block."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import zip_longest

import attrs
import torch
from torch import Tensor

from cswf_core.errors import RunError
from cswf_core.flow.memory import block_width, fits_in_memory
from cswf_core.flow.particles import BlockParts, ParticleBlock, Placement
from cswf_core.flow.settings import Parts, Settings
from cswf_core.interfaces import Observation
from cswf_core.ranks import Ranks

log = logging.getLogger("cswf")


def placement_of(like: Tensor, total: int, ranks: Ranks, memory: int | None = None) -> Placement:
    """Return how to keep `total` particles, where `memory` bytes of each device may be used; None: all fit."""
    bytes_each = len(like) * like.dtype.itemsize
    if memory is None or fits_in_memory(bytes_each * total, memory):
        return Placement(like)
    most = max(map(len, ranks.shares(total, like.device)))
    streamed = not fits_in_memory(bytes_each * most, memory)
    if streamed:
        log.warning(
            "%s particles take %.3g GB, more than a quarter of a memory of %.3g GB: they stay in the "
            "host's, and are streamed",
            f"{most:,}",
            bytes_each * most / 1e9,
            memory / 1e9,
        )
    kind = PinnedPlacement if streamed and like.is_cuda else Placement
    return kind(like, block_width(like, memory), streamed)


def require_blocks_suffice(
    total: int, parts: Parts, observation: Observation | None, settings: Settings
) -> None:
    """Raise `RunError` if plugins or observations need all particles at once, of which there are `total`."""
    remedy = f"take fewer {settings.called('particles')}"
    if parts.cdf.bins is None:
        raise RunError(
            f"{parts.cdf.owner} needs all projected particles of a direction at once, and {total:,} "
            "do not fit into one device's memory: take an estimator with bins, such as histogram, or "
            f"{remedy}"
        )
    if observation is not None and not (observation.shared and parts.condition.amplifier == 1):
        raise RunError(
            f"{total:,} particles are too many for one device's memory, and are not worked on in "
            f"blocks where each sees a part of its own, or an amplifier stretches that: {remedy}"
        )


class PinnedPlacement(Placement):
    """How blocks are kept in the host's memory that a GPU copies from and to beside other work."""

    @cached_property
    def _side(self) -> torch.cuda.Stream:
        """The stream of the copies."""
        return torch.cuda.Stream(self.like.device)  # type: ignore[no-untyped-call]

    def keep(self, part: Tensor) -> Tensor:
        """Return a copy of a part of a block in pinned memory."""
        stored = torch.empty(part.shape, dtype=part.dtype)
        if stored.nbytes:
            # PyTorch's own pinned memory would be rounded up to a power of two.
            place = stored.data_ptr()
            runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
            if int(runtime.cudaHostRegister(place, stored.nbytes, 0)) != 0:
                raise RunError(
                    f"{stored.nbytes / 1e9:.3g} GB of the host's memory cannot be locked for the GPU: take "
                    "fewer particles, or a higher `ulimit -l`"
                )
            weakref.finalize(stored.untyped_storage(), runtime.cudaHostUnregister, place)
        return stored.copy_(part)

    def brought(self, stored: Sequence[ParticleBlock], *, write: bool, whole: bool) -> Iterator[ParticleBlock]:
        """Yield blocks on the device, where the next one is on its way then; see `Particles.blocks`."""
        ahead = self._begun(stored[0], whole)
        for source, following in zip_longest(stored, stored[1:]):
            parts, arrival = ahead
            if following is not None:
                ahead = self._begun(following, whole)
            here = torch.cuda.current_stream(self.like.device)
            here.wait_event(arrival)
            for part in parts.values():
                part.record_stream(here)
            block = attrs.evolve(source, parts=parts)
            yield block
            if write:
                self._send(block, source)

    def _begun(self, stored: ParticleBlock, whole: bool) -> tuple[BlockParts, torch.cuda.Event]:
        """Begin to copy a block to the device, `whole` or what moves; return the copies, and their arrival."""
        names = stored.parts if whole else stored.moving
        with torch.cuda.stream(self._side):
            parts: BlockParts = {n: stored.parts[n].to(self.like.device, non_blocking=True) for n in names}
            return parts, self._side.record_event()  # type: ignore[no-untyped-call]

    def _send(self, block: ParticleBlock, stored: ParticleBlock) -> None:
        """Begin to copy a block back to the host."""
        for name in block.parts:
            part = block.parts[name].contiguous()
            self._side.wait_stream(torch.cuda.current_stream(self.like.device))
            part.record_stream(self._side)
            with torch.cuda.stream(self._side):
                stored.parts[name].copy_(part, non_blocking=True)

    def wait(self) -> None:
        """Wait until all blocks are back."""
        self._side.synchronize()
