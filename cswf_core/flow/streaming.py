"""Particles that one device does not hold: they are kept in blocks, and processed block by block."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from cswf_core.errors import RunError
from cswf_core.flow.coordinates import StageCoordinates
from cswf_core.flow.memory import block_width, fits_in_memory
from cswf_core.flow.particles import BETWEEN_STAGES, Particles, Quantity, require_shape
from cswf_core.flow.settings import Parts, Settings
from cswf_core.interfaces import Conditions, Observation
from cswf_core.ranks import Ranks, Share

log = logging.getLogger("cswf")

FirstX = Callable[[Share], Tensor]
"""Which of all particles → where these begin: d×n."""

BlockParts = dict[Quantity, Tensor]
"""x, z and S of one block, as far as they are needed: d×n or d_k×n each."""


class Placement:
    """How particles are kept: as a whole, on the device."""

    @staticmethod
    def of(like: Tensor, total: int, ranks: Ranks | None = None, memory: int | None = None) -> Placement:
        """Return how to keep particles.

        Args:
            like: no particles, in their type and on their device: d×0.
            total: M, over all ranks.
            ranks: all processes; None: this one alone.
            memory: the bytes of a device that may be used; None: all particles fit.
        """
        bytes_each = len(like) * like.dtype.itemsize
        if memory is None or fits_in_memory(bytes_each * total, memory):
            return Placement()
        width = block_width(like, memory)
        most = max(map(len, (Ranks() if ranks is None else ranks).shares(total, like.device)))
        if fits_in_memory(bytes_each * most, memory):
            return BlockPlacement(total, width, like.device)
        log.warning(
            "%s particles take %.3g GB, more than a quarter of a memory of %.3g GB: they stay in the "
            "host's, and are streamed",
            f"{most:,}",
            bytes_each * most / 1e9,
            memory / 1e9,
        )
        return (PinnedPlacement if like.is_cuda else HostPlacement)(total, width, like.device)

    def require_support(self, parts: Parts, observation: Observation | None, settings: Settings) -> None:
        """Raise `RunError` if plugins or observations cannot work with particles that are kept like this."""

    def particles(
        self, first_x: FirstX, conditions: Conditions, clip: float | None, share: Share, like: Tensor
    ) -> Particles:
        """Return the particles of a share.

        Args:
            first_x: returns where some of the particles begin.
            conditions: those of the particles of this share.
            clip: the bound on coordinates; None: there is none.
            share: which of all particles these are.
            like: no particles, in their type and on their device: d×0.
        """
        return Particles(first_x(share).to(like).contiguous(), conditions, clip, share)


class BlockPlacement(Placement):
    """How particles are kept that one device cannot hold: in blocks, on the devices of ranks that hold all."""

    streamed = False
    """Whether blocks are in the host's memory."""

    def __init__(self, total: int, width: int, device: torch.device) -> None:
        """Keep blocks of `width` of the particles, of which there are `total` over all ranks."""
        self.total = total
        self.width = width
        self.device = device

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

    def particles(
        self, first_x: FirstX, conditions: Conditions, clip: float | None, share: Share, like: Tensor
    ) -> Particles:
        """Return the particles of a share, in blocks; see `Placement.particles`."""
        return BlockParticles(first_x, like, conditions, clip, share, self)

    def keep(self, part: Tensor) -> Tensor:
        """Return a copy of some particles where they are kept."""
        return torch.empty(part.shape, dtype=part.dtype, device=self.device).copy_(part)

    def bring(self, stored: BlockParts) -> Callable[[], BlockParts]:
        """Begin to bring a block to the device; what is returned waits for it."""
        return lambda: stored

    def send(self, part: Tensor, stored: Tensor) -> None:
        """Begin to bring a part of a block back to where it is kept."""
        if part is not stored:
            stored.copy_(part)

    def wait(self) -> None:
        """Wait until all blocks are back."""


class HostPlacement(BlockPlacement):
    """How blocks are kept in the host's memory; the device is a CPU, which works on them there."""

    streamed = True


class PinnedPlacement(HostPlacement):
    """How blocks are kept in the host's memory that a GPU copies from and to beside other work."""

    def __init__(self, total: int, width: int, device: torch.device) -> None:
        super().__init__(total, width, device)
        self._side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        """The stream of the copies."""

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
        """Begin to copy a block to the device."""
        with torch.cuda.stream(self._side):
            parts = {name: part.to(self.device, non_blocking=True) for name, part in stored.items()}
            arrival = self._side.record_event()  # type: ignore[no-untyped-call]

        def arrived() -> BlockParts:
            here = torch.cuda.current_stream(self.device)
            here.wait_event(arrival)
            for part in parts.values():
                part.record_stream(here)
            return parts

        return arrived

    def send(self, part: Tensor, stored: Tensor) -> None:
        """Begin to copy a part of a block back to the host."""
        part = part.contiguous()
        self._side.wait_stream(torch.cuda.current_stream(self.device))
        part.record_stream(self._side)
        with torch.cuda.stream(self._side):
            stored.copy_(part, non_blocking=True)

    def wait(self) -> None:
        """Wait until all blocks are back."""
        self._side.synchronize()


class BlockParticles(Particles):
    """Particles whose x, z and S are kept in blocks: on the device, or in the host's memory.

    All operations process one block at a time on the device, while the next is brought there and the last is
    brought back. Blocks stay on the device where several ranks together hold what one alone could not: all
    ranks then work as one alone does.
    """

    in_blocks = True

    def __init__(
        self,
        first_x: FirstX,
        like: Tensor,
        conditions: Conditions,
        clip: float | None,
        share: Share,
        placement: BlockPlacement,
    ) -> None:
        """Compute where the particles begin, block by block.

        Args:
            first_x: returns where some of the particles begin.
            like: no particles, in their type and on their device: d×0.
            conditions: those of the particles of this share.
            clip: the bound on coordinates; None: there is none.
            share: which of all particles these are.
            placement: keeps the blocks.
        """
        super().__init__(like, conditions, clip, share)
        self.width = placement.width
        self._placement = placement
        self._borrowed: Tensor | None = None
        """x as a whole, once `borrow_x` has returned it."""
        n = len(share)
        self._cuts = [slice(first, min(first + self.width, n)) for first in range(0, max(1, n), self.width)]
        """The columns of each block; there is one at least, which may be empty."""
        self._shares = [
            Share(share.first + cut.start, share.first + cut.stop, share.total) for cut in self._cuts
        ]
        """Which of all particles each block is."""
        self._stored: dict[Quantity, list[Tensor]] = {
            "x": [placement.keep(first_x(part)) for part in self._shares]
        }
        """The blocks of x, and inside a stage of z and of S, as far as these are needed: d×n each."""

    @property
    def streamed(self) -> bool:
        """Whether blocks are kept in the host's memory."""
        return self._placement.streamed

    @property
    def at_once(self) -> int:
        """How many are projected at once, on each rank."""
        return min(self.width, self.share.total)

    @property
    def x(self) -> Tensor:
        """The particles in the data's space, on the CPU: d×M, a copy."""
        x = torch.empty(len(self._x), len(self), dtype=self._x.dtype)
        for cut, block in zip(self._cuts, self.blocks(whole=True), strict=True):
            x[:, cut] = block.x
        return x

    def borrow_x(self) -> Tensor:
        """Return x (d×M) on the CPU, in the memory of the particles, of a flow that is done.

        It does not change any more: a stage that is entered later works on a copy.
        """
        assert self._coordinates is BETWEEN_STAGES
        assert self.streamed
        self._placement.wait()
        if self._borrowed is None:
            blocks = self._stored["x"]
            self._borrowed = torch.empty(len(self._x), len(self), dtype=self._x.dtype)
            for number, cut in enumerate(self._cuts):
                self._borrowed[:, cut] = blocks[number]
                blocks[number] = self._borrowed[:, cut]
        return self._borrowed

    def some(self, index: Tensor, gather: Callable[[Tensor], Tensor] = lambda columns: columns) -> Tensor:
        """Return those particles that `index` (m) names, on the CPU: d×m."""
        self._placement.wait()
        here = index.cpu()
        block_of = here // self.width
        inside = here % self.width
        few: BlockParts = {}
        for name, blocks in self._needed().items():
            columns = torch.empty(len(blocks[0]), len(here), dtype=self._x.dtype)
            for number in sorted(set(block_of.tolist())):
                chosen = block_of == number
                columns[:, chosen] = blocks[number][:, inside[chosen].to(blocks[number].device)].cpu()
            few[name] = gather(columns)
        some = torch.empty(len(self._x), few["x"].shape[1], dtype=self._x.dtype)
        for first in range(0, some.shape[1], self.width):
            cut = slice(first, min(first + self.width, some.shape[1]))
            parts = {name: columns[:, cut].to(self.device) for name, columns in few.items()}
            some[:, cut] = self._block(parts, Conditions()).x.cpu()
        return some

    def enter(self, coordinates: StageCoordinates) -> None:
        """Begin a stage."""
        self.leave()
        if self._borrowed is not None:
            self._stored["x"] = [self._placement.keep(block) for block in self._stored["x"]]
            self._borrowed = None
        if not coordinates.own:
            for block in self.blocks(whole=True):
                block.enter(coordinates)
                for name, part in block.parts.items():
                    if name != "x":
                        self._stored.setdefault(name, []).append(self._placement.keep(part))
        self._coordinates = coordinates

    def leave(self) -> None:
        """End a stage: apply its changes to x."""
        self._placement.wait()
        if self._x_stays:
            for block, stored in zip(self.blocks(whole=True), self._stored["x"], strict=True):
                self._placement.send(block.x, stored)
            self._placement.wait()
        self._stored = {"x": self._stored["x"]}
        self._coordinates = BETWEEN_STAGES

    def copied(self) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Return copies of x as it was on entering the stage, and of z and S; None where x itself moves."""
        self._placement.wait()
        copies = {name: torch.cat(blocks, dim=1) for name, blocks in self._needed().items()}
        return copies["x"], copies.get("z"), copies.get("sum")

    def restore(self, z: Tensor | None, total: Tensor | None) -> None:
        """Continue in a stage that was entered before, with its z and S: d_k×M each; None where x moves."""
        self._placement.wait()
        parts: dict[Quantity, Tensor | None] = {"z": z, "sum": total}
        for name, part in parts.items():
            there = self._needed().get(name)
            require_shape(part, None if there is None else (len(there[0]), len(self)), name)
            if part is not None:
                self._stored[name] = [self._placement.keep(part[:, cut]) for cut in self._cuts]

    def join(self, x: Tensor, conditions: Conditions, share: Share) -> None:
        """Raise `RunError`."""
        del x, conditions, share
        raise RunError("particles that one device's memory does not hold cannot be joined by others")

    def blocks(self, *, write: bool = False, whole: bool = False) -> Iterator[Particles]:
        """Yield all particles in blocks on the device; see `Particles.blocks`."""
        names = [name for name in self._stored if whole or not (name == "x" and self._x_stays)]
        bring = self._placement.bring
        ahead = bring({name: self._stored[name][0] for name in names})
        for number, cut in enumerate(self._cuts):
            arrived = ahead
            if number + 1 < len(self._cuts):
                ahead = bring({name: self._stored[name][number + 1] for name in names})
            block = self._block(arrived(), self.conditions.take(cut), self._shares[number])
            yield block
            if write:
                for name, part in block.parts.items():
                    if name in names:
                        self._placement.send(part, self._stored[name][number])

    def outlines(self) -> Iterator[Particles]:
        """Yield the blocks without x, z and S: which particles they are, and their conditions."""
        for cut, share in zip(self._cuts, self._shares, strict=True):
            yield Particles(self._x.new_empty(0, len(share)), self.conditions.take(cut), self.clip, share)

    def _needed(self) -> dict[Quantity, list[Tensor]]:
        """Return the blocks of x, and of z and S where these cannot be computed from x."""
        return self._stored if self._x_stays else {"x": self._stored["x"]}

    def _block(self, parts: BlockParts, conditions: Conditions, share: Share | None = None) -> Particles:
        """Return particles made of x, z and S on the device."""
        x = parts["x"] if "x" in parts else parts["z"][:0]
        block = Particles(x, conditions, self.clip, share)
        block.resume(self._coordinates, {"x": x, **parts})
        return block
