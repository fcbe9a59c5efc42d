"""Particles that the device does not hold: they stay in the host's memory, and come to it some at a time."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from cswf_core.errors import RunError
from cswf_core.flow.particles import Particles
from cswf_core.flow.stage_coordinates import StageCoordinates
from cswf_core.interfaces import Conditions
from cswf_core.ranks import Share


class HostParticles(Particles):
    """Particles whose x, z and S are on the CPU, in pinned memory if the flow's device is a GPU.

    Whatever is done to them is done block by block, on the device. While one block is worked on the next is
    brought there, and the last is brought back.
    """

    streamed = True

    def __init__(
        self,
        x: Tensor,
        conditions: Conditions,
        clip: float | None,
        share: Share,
        device: torch.device,
        width: int,
    ) -> None:
        """`x` is in memory of `host_memory`, and `width` says how many particles a block has."""
        super().__init__(x, conditions, clip, share)
        self.device, self.width = device, width
        self._side: torch.cuda.Stream | None = None
        """Where blocks are copied, beside the work on others."""
        self._lent = False
        """Whether x was handed out as it is, so that it must not change any more."""

    @property
    def at_once(self) -> int:
        """How many are on the device at once."""
        return min(self.width, len(self))

    @property
    def x(self) -> Tensor:
        """The particles in the data's space, on the CPU: d×M."""
        self._settle()
        inside = self._coordinates
        if inside is None or (self._sum is None and not self._instead):
            return self._x
        return self._made(len(self._x), lambda block: block.x)

    def lent(self) -> Tensor:
        """Return x (d×M) without a copy, which will not change; for when no stage is entered."""
        assert self._coordinates is None
        self._settle()
        self._lent = True
        return self._x

    def some(self, index: Tensor, gather: Callable[[Tensor], Tensor] = lambda columns: columns) -> Tensor:
        """Return those particles that `index` (m) names, on the device: d×m."""
        self._settle()
        here = index.cpu()
        homes = self._homes(whole=True)
        parts = [None if home is None else home[:, here].to(self.device) for home in homes]
        return self._block(parts, Share(0, len(here), len(here))).some(
            torch.arange(len(here), device=self.device), gather
        )

    def enter(self, coordinates: StageCoordinates) -> None:
        """Begin a stage."""
        if self._lent:
            self._x, self._lent = self._copied(self._x), False
        self._coordinates, self._z, self._sum = None, self._x, None
        if coordinates.own:
            self._coordinates = coordinates
            return
        d_k, entered = coordinates.space.dimension, []

        def z(block: Particles) -> Tensor:
            block.enter(coordinates)
            entered.append(block.sum is not None)
            return block.cloud.z

        self._z = self._made(d_k, z)
        self._coordinates = coordinates
        self._sum = host_memory((d_k, len(self)), self._x.dtype, self.device).zero_() if any(entered) else None

    def restore(self, z: Tensor, total: Tensor | None) -> None:
        """Go on inside a stage that was entered before, with its z and S: d_k×M each."""
        self._z = self._copied(z)
        self._sum = None if total is None else self._copied(total)

    @property
    def entered(self) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """x as it was on entering the stage, z and S, where there is an S; where x itself moves, x is all."""
        self._settle()
        return super().entered

    def join(self, x: Tensor, conditions: Conditions, share: Share) -> None:
        """Refuse more particles."""
        del x, conditions, share
        raise RunError("particles that the device's memory does not hold cannot be joined by others")

    def leave(self) -> None:
        """End a stage: x takes on what the stage has changed."""
        changed = self._sum is not None or self._instead
        if changed:
            for cut, block in self._brought(whole=True):
                self._send(block.x, self._x, cut)
            self._settle()
        self._coordinates, self._sum, self._z = None, None, self._x

    def blocks(self, *, write: bool = False, whole: bool = False) -> Iterator[Particles]:
        """Yield all particles in blocks on the device; with `write`, what has changed there is brought back.

        `whole`: also what a step can do without, x where z moves.
        """
        for cut, block in self._brought(whole=whole):
            yield block
            if write:
                for home, part in zip(self._homes(whole=whole), block.parts, strict=True):
                    if home is not None and part is not None:
                        self._send(part, home, cut)

    def _homes(self, *, whole: bool) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Return x, z and S; where z moves in the place of x, x only as a part of the whole."""
        apart = self._z is not self._x
        without = apart and (self._sum is not None or self._instead) and not whole
        return None if without else self._x, self._z if apart else None, self._sum

    def _block(self, parts: Sequence[Tensor | None], share: Share) -> Particles:
        """Return particles made of x, z and S on the device."""
        x, z, total = parts
        there = next(part for part in parts if part is not None)
        first = share.first - self.share.first
        conditions = self.conditions.take(slice(first, first + len(share)))
        block = Particles(there[:0] if x is None else x, conditions, self.clip, share)
        block.resume(self._coordinates, z, total)
        return block

    def _brought(self, *, whole: bool) -> Iterator[tuple[slice, Particles]]:
        """Yield the columns of each block, and its particles on the device."""
        cuts = [slice(first, min(first + self.width, len(self))) for first in range(0, len(self), self.width)]
        ahead = self._bring(cuts[0], whole=whole) if cuts else None
        for number, cut in enumerate(cuts):
            assert ahead is not None
            parts, arrived = ahead
            ahead = self._bring(cuts[number + 1], whole=whole) if number + 1 < len(cuts) else None
            if arrived is not None:
                here = torch.cuda.current_stream(self.device)
                here.wait_event(arrived)
                for part in parts:
                    if part is not None:
                        part.record_stream(here)
            first = self.share.first
            yield cut, self._block(parts, Share(first + cut.start, first + cut.stop, self.share.total))

    def _bring(self, cut: slice, *, whole: bool) -> tuple[list[Tensor | None], torch.cuda.Event | None]:
        """Begin to bring a block to the device; what is returned there is ready after an event."""
        if self.device.type == "cpu":
            homes = self._homes(whole=whole)
            return [None if home is None else home[:, cut].clone() for home in homes], None
        with torch.cuda.stream(self._beside()):
            parts: list[Tensor | None] = []
            for home in self._homes(whole=whole):
                if home is None:
                    parts.append(None)
                    continue
                there = torch.empty(len(home), cut.stop - cut.start, dtype=home.dtype, device=self.device)
                for row, target in zip(home, there, strict=True):  # rows lie side by side: no copy in between
                    target.copy_(row[cut], non_blocking=True)
                parts.append(there)
            return parts, self._beside().record_event()  # type: ignore[no-untyped-call]

    def _send(self, part: Tensor, home: Tensor, cut: slice) -> None:
        """Begin to bring a block back to its home."""
        if self.device.type == "cpu":
            home[:, cut] = part
            return
        side = self._beside()
        side.wait_stream(torch.cuda.current_stream(self.device))
        part = part.contiguous()
        part.record_stream(side)
        with torch.cuda.stream(side):
            for row, source in zip(home, part, strict=True):
                row[cut].copy_(source, non_blocking=True)

    def _made(self, rows: int, make: Callable[[Particles], Tensor]) -> Tensor:
        """Return what is made of all blocks, on the CPU: rows×M."""
        made = host_memory((rows, len(self)), self._x.dtype, self.device)
        for cut, block in self._brought(whole=True):
            self._send(make(block), made, cut)
        self._settle()
        return made

    def _copied(self, tensor: Tensor) -> Tensor:
        return host_memory(tuple(tensor.shape), self._x.dtype, self.device).copy_(tensor)

    def _beside(self) -> torch.cuda.Stream:
        if self._side is None:
            self._side = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        return self._side

    def _settle(self) -> None:
        """Wait until all blocks are back."""
        if self._side is not None:
            self._side.synchronize()


def host_memory(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return memory of the host, from which a GPU can copy while other work is done; nothing is in it."""
    memory = torch.empty(*shape, dtype=dtype)
    if device.type == "cuda" and memory.nbytes:
        # PyTorch's own pinned memory would be rounded up to a power of two.
        place, runtime = memory.data_ptr(), torch.cuda.cudart()  # type: ignore[no-untyped-call]
        if int(runtime.cudaHostRegister(place, memory.nbytes, 0)) != 0:
            raise RunError(f"{memory.nbytes / 1e9:.3g} GB of the host's memory cannot be locked for the GPU")
        weakref.finalize(memory.untyped_storage(), runtime.cudaHostUnregister, place)
    return memory
