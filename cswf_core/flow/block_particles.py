"""Particles that one device does not hold: they are kept in blocks, and worked on block by block."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import attrs
import torch
from torch import Tensor

from cswf_core.errors import RunError
from cswf_core.flow.memory import block_width, fits
from cswf_core.flow.particles import Particles, refuse_other_parts
from cswf_core.flow.settings import Parts, Settings
from cswf_core.flow.stage_coordinates import StageCoordinates
from cswf_core.interfaces import Conditions, Observation
from cswf_core.ranks import Ranks, Share

log = logging.getLogger("cswf")

Begin = Callable[[Share], Tensor]
"""Which of all particles → where these begin: d×n."""

Name = Literal["x", "z", "sum"]
"""What particles have: x, and z and S inside a stage."""

NAMES: tuple[Name, ...] = ("x", "z", "sum")


class BlockParticles(Particles):
    """Particles whose x, z and S are kept in blocks: on the device, or streamed from the host.

    Whatever is done to them is done block by block, on the device. If they are in the host's memory, which is
    pinned for a GPU, the next block is brought there while one is worked on, and the last is brought back. On
    the device are those of several ranks that one alone could not have: all ranks then work as one alone does.
    """

    in_blocks = True

    def __init__(
        self,
        x: Begin,
        like: Tensor,
        conditions: Conditions,
        clip: float | None,
        share: Share,
        width: int,
        *,
        streamed: bool,
    ) -> None:
        """`x` returns some of the particles; `like` has their device and numbers: d×0. A block has `width`.

        `streamed`: they are kept in the host's memory.
        """
        super().__init__(like, conditions, clip, share)
        self.width, self.streamed = width, streamed
        self._side: torch.cuda.Stream | None = None
        """Where blocks are copied, beside the work on others."""
        self._lent: Tensor | None = None
        """x as a whole, if it was handed out."""
        self._homes: dict[Name, list[Tensor]] = {"x": [self._at_home(x(part)) for part in self._shares()]}
        """The blocks of x, of z and of S, as far as there are such: d×n each."""

    def __len__(self) -> int:
        return len(self.share)

    @property
    def at_once(self) -> int:
        """How many are projected at once, on each rank."""
        return min(self.width, self.share.total)

    @property
    def x(self) -> Tensor:
        """The particles in the data's space, on the CPU: d×M, a copy."""
        x = torch.empty(len(self._x), len(self), dtype=self._x.dtype)
        for cut, block in zip(self._cuts(), self.blocks(whole=True), strict=True):
            x[:, cut] = block.x
        return x

    def lent(self) -> Tensor:
        """Return x (d×M) on the CPU, in the memory of the particles: for when a flow is done.

        It does not change any more; a stage that is entered later has a copy.
        """
        assert self._coordinates is None
        assert self.streamed
        self._settle()
        if self._lent is None:
            blocks, self._lent = self._homes["x"], torch.empty(len(self._x), len(self), dtype=self._x.dtype)
            for number, cut in enumerate(self._cuts()):
                self._lent[:, cut] = blocks[number]
                blocks[number] = self._lent[:, cut]
        return self._lent

    def some(self, index: Tensor, gather: Callable[[Tensor], Tensor] = lambda columns: columns) -> Tensor:
        """Return those particles that `index` (m) names, on the CPU: d×m."""
        self._settle()
        here = index.cpu()
        block, inside = here // self.width, here % self.width
        homes = self._moving()
        few: dict[Name, Tensor] = {}
        for name, blocks in homes.items():
            columns = torch.empty(len(blocks[0]), len(here), dtype=self._x.dtype)
            for number in sorted(set(block.tolist())):
                chosen = block == number
                columns[:, chosen] = blocks[number][:, inside[chosen].to(blocks[number].device)].cpu()
            few[name] = gather(columns)
        some = torch.empty(len(self._x), few["x"].shape[1], dtype=self._x.dtype)
        for first in range(0, some.shape[1], self.width):
            cut = slice(first, min(first + self.width, some.shape[1]))
            parts = {name: columns[:, cut].to(self.device) for name, columns in few.items()}
            share = Share(0, cut.stop - cut.start, cut.stop - cut.start)
            some[:, cut] = self._block(parts, Conditions(), share).x.cpu()
        return some

    def enter(self, coordinates: StageCoordinates) -> None:
        """Begin a stage."""
        self.leave()
        if self._lent is not None:
            self._homes["x"], self._lent = [self._at_home(block) for block in self._homes["x"]], None
        if not coordinates.own:
            z: list[Tensor] = []
            for block in self.blocks(whole=True):
                block.enter(coordinates)
                z.append(self._at_home(block.cloud.z))
                if block.sum is not None:
                    self._homes.setdefault("sum", []).append(self._at_home(block.sum))
            self._homes["z"] = z
        self._coordinates = coordinates

    def restore(self, z: Tensor | None, total: Tensor | None) -> None:
        """Go on inside a stage that was entered before, with its z and S: d_k×M each; None where x moves."""
        self._settle()
        parts: dict[Name, Tensor | None] = {"z": z, "sum": total}
        for name, part in parts.items():
            there = self._moving().get(name)
            refuse_other_parts(part, None if there is None else (len(there[0]), len(self)), name)
        if z is not None:
            self._homes["z"] = [self._at_home(z[:, cut]) for cut in self._cuts()]
        if total is not None:
            self._homes["sum"] = [self._at_home(total[:, cut]) for cut in self._cuts()]

    def copied(self) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Return copies of x as it was on entering the stage, of z and of S, where x itself does not move."""
        self._settle()
        homes = self._moving()
        x, z, total = (torch.cat(homes[name], dim=1) if name in homes else None for name in NAMES)
        assert x is not None
        return x, z, total

    def join(self, x: Tensor, conditions: Conditions, share: Share) -> None:
        """Refuse more particles."""
        del x, conditions, share
        raise RunError("particles that one device's memory does not hold cannot be joined by others")

    def leave(self) -> None:
        """End a stage: x takes on what the stage has changed."""
        self._settle()
        if "sum" in self._homes or self._instead:
            for number, block in enumerate(self.blocks(whole=True)):
                self._send(block.x, self._homes["x"][number])
            self._settle()
        self._homes = {"x": self._homes["x"]}
        self._coordinates = None

    def blocks(self, *, write: bool = False, whole: bool = False) -> Iterator[Particles]:
        """Yield all particles in blocks on the device; with `write`, what has changed there is brought back.

        `whole`: also what a step can do without, x where z moves.
        """
        without = ("sum" in self._homes or self._instead) and not whole
        names = [name for name in self._homes if not (name == "x" and without)]
        shares = self._shares()
        ahead = self._bring(0, names)
        for number, share in enumerate(shares):
            parts, arrived = ahead
            if number + 1 < len(shares):
                ahead = self._bring(number + 1, names)
            if arrived is not None:
                here = torch.cuda.current_stream(self.device)
                here.wait_event(arrived)
                for part in parts.values():
                    part.record_stream(here)
            conditions = self.conditions.take(self._cuts()[number])
            block = self._block(parts, conditions, share)
            yield block
            if write:
                for name, changed in zip(NAMES, block.parts, strict=True):
                    if name in names and changed is not None:
                        self._send(changed, self._homes[name][number])

    def outlines(self) -> Iterator[Particles]:
        """Yield the blocks without x, z and S: which particles they are, and their conditions."""
        for cut, share in zip(self._cuts(), self._shares(), strict=True):
            yield Particles(self._x.new_empty(0, len(share)), self.conditions.take(cut), self.clip, share)

    def _moving(self) -> dict[Name, list[Tensor]]:
        """Return the blocks of x, and of z and S where x does not follow them at once."""
        return self._homes if "sum" in self._homes or self._instead else {"x": self._homes["x"]}

    def _cuts(self) -> list[slice]:
        """Return the columns of each block; there is one at least, which may be empty."""
        n = len(self)
        return [slice(first, min(first + self.width, n)) for first in range(0, max(1, n), self.width)]

    def _shares(self) -> list[Share]:
        """Return which of all particles each block is."""
        first, total = self.share.first, self.share.total
        return [Share(first + cut.start, first + cut.stop, total) for cut in self._cuts()]

    def _block(self, parts: dict[Name, Tensor], conditions: Conditions, share: Share) -> Particles:
        """Return particles made of x, z and S on the device."""
        there = next(iter(parts.values()))
        block = Particles(parts.get("x", there[:0]), conditions, self.clip, share)
        block.resume(self._coordinates, parts.get("z"), parts.get("sum"))
        return block

    def _bring(self, number: int, names: Sequence[Name]) -> tuple[dict[Name, Tensor], torch.cuda.Event | None]:
        """Begin to bring a block to the device; what is returned is there after an event."""
        homes = {name: self._homes[name][number] for name in names}
        if not self.streamed:
            return homes, None
        if self.device.type == "cpu":
            return {name: home.clone() for name, home in homes.items()}, None
        with torch.cuda.stream(self._beside()):
            parts = {name: home.to(self.device, non_blocking=True) for name, home in homes.items()}
            return parts, self._beside().record_event()  # type: ignore[no-untyped-call]

    def _send(self, part: Tensor, home: Tensor) -> None:
        """Begin to bring a block back to its home."""
        if part is home:
            return
        if self.device.type == "cpu" or not self.streamed:
            home.copy_(part)
            return
        part = part.contiguous()
        side = self._beside()
        side.wait_stream(torch.cuda.current_stream(self.device))
        part.record_stream(side)
        with torch.cuda.stream(side):
            home.copy_(part, non_blocking=True)

    def _at_home(self, part: Tensor) -> Tensor:
        """Return a copy of some particles where they are kept."""
        if not self.streamed:
            return part.to(self.device, copy=True)
        home = torch.empty(part.shape, dtype=part.dtype)
        if self.device.type == "cuda" and home.nbytes:  # a GPU can copy from and to it beside other work
            # PyTorch's own pinned memory would be rounded up to a power of two.
            place, runtime = home.data_ptr(), torch.cuda.cudart()  # type: ignore[no-untyped-call]
            if int(runtime.cudaHostRegister(place, home.nbytes, 0)) != 0:
                raise RunError(
                    f"{home.nbytes / 1e9:.3g} GB of the host's memory cannot be locked for the GPU: take fewer "
                    "particles, or a higher `ulimit -l`"
                )
            weakref.finalize(home.untyped_storage(), runtime.cudaHostUnregister, place)
        return home.copy_(part)

    def _beside(self) -> torch.cuda.Stream:
        if self._side is None:
            self._side = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        return self._side

    def _settle(self) -> None:
        """Wait until all blocks are back."""
        if self._side is not None:
            self._side.synchronize()


@attrs.frozen
class Home:
    """Where particles are kept that one device does not hold, and in which blocks."""

    total: int
    """M."""
    width: int
    """Particles of a block."""
    streamed: bool
    """Whether they are in the host's memory: not if all ranks together hold them."""

    @classmethod
    def of(
        cls,
        dimension: int,
        total: int,
        dtype: torch.dtype,
        device: torch.device,
        ranks: Ranks | None,
        memory: int | None,
    ) -> Home | None:
        """Return it for so many particles; None: `memory` bytes of one device hold them all."""
        if memory is None or fits(dimension, total, dtype, memory):
            return None
        most = max(map(len, (Ranks() if ranks is None else ranks).shares(total, device)))
        streamed = not fits(dimension, most, dtype, memory)
        if streamed:
            log.warning(
                "%s particles take %.3g GB, more than a quarter of a memory of %.3g GB: they stay in the "
                "host's, and are streamed",
                f"{most:,}",
                dimension * most * dtype.itemsize / 1e9,
                memory / 1e9,
            )
        return cls(total, block_width(dimension, dtype, memory, device), streamed)

    def refuse_unfit(self, parts: Parts, observation: Observation | None, settings: Settings) -> None:
        """Raise `RunError` if particles are to have what those in blocks cannot."""
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


def particles_of(
    begin: Begin, conditions: Conditions, settings: Settings, share: Share, like: Tensor, home: Home | None
) -> Particles:
    """Return a share of the particles, which begin where a function says; `like` are none of them: d×0."""
    if home is None:
        return Particles(begin(share).to(like).contiguous(), conditions, settings.clip, share)
    clip, streamed = settings.clip, home.streamed
    return BlockParticles(begin, like, conditions, clip, share, home.width, streamed=streamed)
