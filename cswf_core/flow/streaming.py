"""Particles that one device does not hold: they are kept in blocks, and processed block by block."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterator
from functools import cached_property

import attrs
import torch
from torch import Tensor

from cswf_core.errors import RunError
from cswf_core.flow.coordinates import StageCoordinates
from cswf_core.flow.memory import block_width, fits_in_memory
from cswf_core.flow.particles import BETWEEN_STAGES, Particles, Quantity
from cswf_core.flow.settings import Parts, Settings
from cswf_core.interfaces import Conditions, Observation
from cswf_core.ranks import Ranks, Share

log = logging.getLogger("cswf")

Start = Callable[[Share], Tensor]
"""A share of all particles → where these begin: d×n."""

BlockParts = dict[Quantity, Tensor]
"""x, z and S of one block, as far as they are needed: d×n or d_k×n each."""


@attrs.frozen(eq=False)
class Placement:
    """How particles are kept: as a whole, on the device."""

    like: Tensor
    """No particles, in their type and on their device: d×0."""
    total: int

    @staticmethod
    def of(like: Tensor, total: int, ranks: Ranks, memory: int | None = None) -> Placement:
        """Return how to keep particles where `memory` bytes of each device may be used; None: all fit."""
        bytes_each = len(like) * like.dtype.itemsize
        if memory is None or fits_in_memory(bytes_each * total, memory):
            return Placement(like, total)
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
        kind = PinnedPlacement if streamed and like.is_cuda else BlockPlacement
        return kind(like, total, block_width(like, memory), streamed)

    def require_support(self, parts: Parts, observation: Observation | None, settings: Settings) -> None:
        """Raise `RunError` if plugins or observations cannot work with particles that are kept like this."""

    def particles(self, start: Start, conditions: Conditions, clip: float | None, share: Share) -> Particles:
        """Return the particles of a share, which begin where `start` says, with their conditions."""
        return Particles(start(share).to(self.like).contiguous(), conditions, clip, share)


@attrs.frozen(eq=False)
class BlockPlacement(Placement):
    """How particles are kept that one device cannot hold: in blocks of `width`, on the device."""

    width: int
    streamed: bool
    """Whether a rank's share takes too much of the device's memory, too."""

    def require_support(self, parts: Parts, observation: Observation | None, settings: Settings) -> None:
        """Raise `RunError` if plugins or observations need all particles at once."""
        remedy = f"take fewer {settings.called('particles')}"
        if parts.cdf.bins is None:
            raise RunError(
                f"{parts.cdf.owner} needs all projected particles of a direction at once, and {self.total:,} "
                "do not fit into one device's memory: take an estimator with bins, such as histogram, or "
                f"{remedy}"
            )
        if observation is not None and not (observation.shared and parts.condition.amplifier == 1):
            raise RunError(
                f"{self.total:,} particles are too many for one device's memory, and are not worked on in "
                f"blocks where each sees a part of its own, or an amplifier stretches that: {remedy}"
            )

    def particles(self, start: Start, conditions: Conditions, clip: float | None, share: Share) -> Particles:
        """Return the particles of a share, in blocks; see `Placement.particles`."""
        return BlockParticles(start, conditions, clip, share, self)

    def keep(self, part: Tensor) -> Tensor:
        """Return a copy of some particles where they are kept."""
        return torch.empty(part.shape, dtype=part.dtype, device=self.like.device).copy_(part)

    def bring(self, stored: BlockParts) -> Callable[[], BlockParts]:
        """Begin to bring a block to the device; what is returned waits for it."""
        return lambda: stored

    def send(self, part: Tensor, stored: Tensor) -> None:
        """Begin to bring a part of a block back to where it is kept."""
        if part is not stored:
            stored.copy_(part)

    def wait(self) -> None:
        """Wait until all blocks are back."""


class PinnedPlacement(BlockPlacement):
    """How blocks are kept in the host's memory that a GPU copies from and to beside other work."""

    @cached_property
    def _side(self) -> torch.cuda.Stream:
        """The stream of the copies."""
        return torch.cuda.Stream(self.like.device)  # type: ignore[no-untyped-call]

    def keep(self, part: Tensor) -> Tensor:
        """Return a copy of some particles in pinned memory."""
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

    def bring(self, stored: BlockParts) -> Callable[[], BlockParts]:
        """Begin to copy a block to the device; what is returned waits for it."""
        with torch.cuda.stream(self._side):
            parts = {name: part.to(self.like.device, non_blocking=True) for name, part in stored.items()}
            arrival = self._side.record_event()  # type: ignore[no-untyped-call]

        def arrived() -> BlockParts:
            here = torch.cuda.current_stream(self.like.device)
            here.wait_event(arrival)
            for part in parts.values():
                part.record_stream(here)
            return parts

        return arrived

    def send(self, part: Tensor, stored: Tensor) -> None:
        """Begin to copy a part of a block back to the host."""
        part = part.contiguous()
        self._side.wait_stream(torch.cuda.current_stream(self.like.device))
        part.record_stream(self._side)
        with torch.cuda.stream(self._side):
            stored.copy_(part, non_blocking=True)

    def wait(self) -> None:
        """Wait until all blocks are back."""
        self._side.synchronize()


class BlockParticles(Particles):
    """Particles whose x, z and S are kept in blocks: in the host's memory, or on ranks that hold all together.

    All operations process one block on the device, while the next is brought there and the last is sent back.
    """

    in_blocks = True

    def __init__(
        self, start: Start, conditions: Conditions, clip: float | None, share: Share, placement: BlockPlacement
    ) -> None:
        """Compute where the particles of a share begin, block by block."""
        super().__init__(placement.like, conditions, clip, share)
        self.width = placement.width
        self.streamed = placement.streamed
        self.stored: list[Particles] = []
        """The blocks where they are kept: there is one at least, which may be empty."""
        self._placement = placement
        self._borrowed: Tensor | None = None
        """x as a whole, once `borrow_x` has returned it."""
        for first in range(0, max(1, len(share)), self.width):
            cut = slice(first, min(first + self.width, len(share)))
            part = Share(share.first + cut.start, share.first + cut.stop, share.total)
            x = placement.keep(start(part))
            self.stored.append(Particles(x, conditions.take(cut), clip, part))

    @property
    def at_once(self) -> int:
        """How many are projected at once, on each rank."""
        return min(self.width, self.share.total)

    def _empty(self, count: int) -> Tensor:
        """Return room for x of some particles, on the CPU."""
        return self._placement.like.new_empty(len(self._placement.like), count, device="cpu")

    @property
    def x(self) -> Tensor:
        """The particles in the data's space, on the CPU: d×M, a copy."""
        x = self._empty(len(self))
        for part, block in zip(torch.split(x, self.width, dim=1), self.blocks(whole=True), strict=True):
            part.copy_(block.x)
        return x

    def borrow_x(self) -> Tensor:
        """Return x (d×M) on the CPU, in the memory of the particles; a stage entered later works on a copy."""
        self._placement.wait()
        if self._borrowed is None:
            self._borrowed = self._empty(len(self))
            for block, part in zip(self.stored, torch.split(self._borrowed, self.width, dim=1), strict=True):
                block.parts["x"] = part.copy_(block.parts["x"])
        return self._borrowed

    def some(self, index: Tensor, gather: Callable[[Tensor], Tensor]) -> Tensor:
        """Return those particles that `index` (m) names, on the CPU: d×m; see `Particles.some`."""
        here = index.cpu()
        few: BlockParts = {}
        for name, blocks in self._needed().items():
            columns = blocks[0].new_empty(len(blocks[0]), len(here), device="cpu")
            for number, block in enumerate(blocks):
                chosen = here // self.width == number
                inside = here[chosen] % self.width
                columns[:, chosen] = block[:, inside.to(block.device)].cpu()
            few[name] = gather(columns)
        some = self._empty(few["x"].shape[1])
        for first in range(0, some.shape[1], self.width):
            cut = slice(first, first + self.width)
            parts = {name: columns[:, cut].to(self._placement.like.device) for name, columns in few.items()}
            some[:, cut] = self._block(parts, Conditions()).x.cpu()
        return some

    def enter(self, coordinates: StageCoordinates) -> None:
        """Begin a stage."""
        self.leave()
        keep = self._placement.keep
        if self._borrowed is not None:
            for stored in self.stored:
                stored.parts["x"] = keep(stored.parts["x"])
            self._borrowed = None
        if not coordinates.own:
            for stored, block in zip(self.stored, self.blocks(), strict=True):
                block.enter(coordinates)
                stored.parts |= {name: keep(part) for name, part in block.parts.items() if name != "x"}
        self._coordinates = coordinates

    def leave(self) -> None:
        """End a stage: apply its changes to x."""
        self._placement.wait()
        if self._x_stays:
            for stored, block in zip(self.stored, self.blocks(whole=True), strict=True):
                self._placement.send(block.x, stored.parts["x"])
            self._placement.wait()
        for stored in self.stored:
            stored.parts = {"x": stored.parts["x"]}
        self._coordinates = BETWEEN_STAGES

    def _needed(self) -> dict[Quantity, list[Tensor]]:
        self._placement.wait()
        names = [name for name in self.stored[0].parts if name == "x" or self._x_stays]
        return {name: [stored.parts[name] for stored in self.stored] for name in names}

    def _replace(self, name: Quantity, part: Tensor) -> None:
        for stored, own in zip(self.stored, torch.split(part, self.width, dim=1), strict=True):
            stored.parts[name] = self._placement.keep(own)

    def join(self, x: Tensor, conditions: Conditions, ranks: Ranks) -> None:
        """Raise `RunError`."""
        del x, conditions, ranks
        raise RunError("particles that one device's memory does not hold cannot be joined by others")

    def blocks(self, *, write: bool = False, whole: bool = False) -> Iterator[Particles]:
        """Yield all particles in blocks on the device; see `Particles.blocks`."""

        def bring(stored: Particles) -> Callable[[], BlockParts]:
            names = [name for name in stored.parts if whole or not (name == "x" and self._x_stays)]
            return self._placement.bring({name: stored.parts[name] for name in names})

        ahead = bring(self.stored[0])
        for number, stored in enumerate(self.stored):
            arrived = ahead
            if number + 1 < len(self.stored):
                ahead = bring(self.stored[number + 1])
            parts = arrived()
            block = self._block(parts, stored.conditions, stored.share)
            yield block
            if write:
                for name in parts:
                    self._placement.send(block.parts[name], stored.parts[name])

    def _block(self, parts: BlockParts, conditions: Conditions, share: Share | None = None) -> Particles:
        """Return particles made of x, z and S on the device; x is not needed where z moves."""
        x = parts["x"] if "x" in parts else parts["z"][:0]
        block = Particles(x, conditions, self.clip, share)
        block.parts = {"x": x, **parts}
        block._coordinates = self._coordinates
        return block
