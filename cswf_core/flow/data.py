"""The data that particles flow to: on the flow's device as a whole or, if they are too many, some at a time."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from functools import cached_property
from typing import Any

import attrs
import torch
from torch import Tensor

from cswf_core.errors import RunError
from cswf_core.flow.memory import block_width, fits
from cswf_core.flow.particles import balanced
from cswf_core.flow.settings import Parts, Settings
from cswf_core.interfaces import Conditions, Dataset, Part
from cswf_core.ranks import Ranks

FEW = 4096
"""Samples that are enough to tell how long they are, and that anything can be fitted to."""

SAMPLE_SHARE = 16
"""Data that something is fitted to may take one part in so many of the memory, where not all are there."""

PIECE = 1 << 26
"""Bytes that are on their way to a GPU at a time."""

Chosen = Callable[[int], Tensor | None]
"""The number of a draw → the data that F_q is fitted to then, in rising order; None: all."""

log = logging.getLogger("cswf")


@attrs.frozen(eq=False)
class Block:
    """Some of the data, on the flow's device."""

    x: Tensor
    """d×m."""
    conditions: Conditions
    numbers: Tensor | slice
    """Which of all data they are."""
    first: int
    """The place of the first among those that F_q is fitted to."""


class FlowData:
    """The data of a flow, balanced as its condition wants them."""

    def __init__(
        self, data: Dataset, parts: Parts, settings: Settings, device: torch.device, ranks: Ranks, memory: int
    ) -> None:
        """`memory` is what each rank may use of its device's, in bytes."""
        self.all = balanced(data, parts.condition, settings.seed)
        """Those of all ranks: on the CPU, or stored."""
        self.share = ranks.share(len(self.all), device)
        """Which of them are this rank's, where F_q is fitted to all."""
        d, most = data.space.dimension, max(map(len, ranks.shares(len(self.all), device)))
        self.together = fits(d, len(self.all), settings.dtype, memory)
        """Whether one device could have all: then no blocks are made, whatever the number of ranks."""
        self.resident = fits(d, most, settings.dtype, memory)
        """Whether this rank's stay on the device; otherwise they are brought there, some at a time."""
        if parts.cdf.data is not None and not ranks.alone:
            self.resident = False  # each rank has its share of a part, wherever these data are
        self.like = torch.empty(data.space.dimension, 0, device=device, dtype=settings.dtype)
        """No data, of their kind: d×0."""
        self._ranks, self.memory = ranks, memory
        self.width = block_width(d, settings.dtype, memory, device)
        """Data of a block, at most."""
        self.x = self.like
        """This rank's, on its device: d×n; none before `settle`, where counts take their place, or if they are
        not resident."""
        self._reader = _Reader(self.all, self.like)
        counted = len(self.all) if parts.cdf.data is None else parts.cdf.data.of(len(self.all))
        if parts.cdf.bins is None and len(self.cuts(counted)) > 1:
            raise RunError(
                f"{parts.cdf.owner} needs all projected data of a direction at once, and {counted:,} do not "
                f"fit into {memory / 1e9:.3g} GB: take an estimator with bins, such as histogram, or fit F_q "
                f"to a {settings.called('part of the data')}"
            )

    @cached_property
    def conditions(self) -> Conditions:
        """Y of this rank's, on its device."""
        return self.all.conditions.take(self.share.cut).to(self.like.device, self.like.dtype)

    @property
    def looked_at(self) -> int | None:
        """How many data, evenly spread, anything is fitted to before the flow; None: all."""
        if self.all.stored is None and (self.together or self.like.device.type == "cpu"):
            return None
        each = self.all.space.dimension * self.like.element_size()
        few = self.all.spread(max(FEW, self.memory // SAMPLE_SHARE // each))
        return len(few) if len(few) < len(self.all) else None

    @cached_property
    def sample(self) -> Dataset:
        """The data that coordinates, a Gaussian or directions are fitted to: all, or some, which is told."""
        if self.looked_at is None:
            return self.all
        log.warning(
            "data are streamed: what is fitted to them before the flow is fitted to %s of %s",
            f"{self.looked_at:,}",
            f"{len(self.all):,}",
        )
        return self.all.spread(self.looked_at)

    def sample_x(self) -> Tensor:
        """Return the numbers of `sample` on the device: d×n."""
        if self.share.whole and self.x.shape[1] == len(self.all):
            return self.x
        return self.sample.x.to(self.like.device, self.like.dtype).contiguous()

    def typical(self) -> Tensor:
        """Return this rank's share on the device, or a few of all data if that is not there: d×n."""
        return self.x if self.resident else self.all.spread(FEW).x.to(self.like)

    def settle(self) -> None:
        """Have this rank's share on its device, if it is to stay there."""
        if not self.resident:
            return
        if self.all.stored is None:
            own = self.all.columns(self.share.cut)
            self.x = own.to(self.like.device, self.like.dtype).contiguous()
            return
        self.x = self.like.new_empty(len(self.like), len(self.share))
        for first in range(0, len(self.share), self.width):
            cut = slice(self.share.first + first, min(self.share.first + first + self.width, self.share.stop))
            self.x[:, first : first + self.width] = self._reader.read(None, cut)

    def forget(self) -> None:
        """Let go of the data on the device: counts have taken their place."""
        self.x = self.like

    def most_at_once(self, part: Part | None) -> int:
        """Return how many data are projected at once: over all ranks or, if they come in blocks, on each.

        It does not depend on the number of ranks, so that slabs do not.
        """
        counted = len(self.all) if part is None else part.of(len(self.all))
        return counted if self.together else min(counted, self.width)

    def cuts(self, count: int | None = None) -> list[slice]:
        """Return the blocks of a rank's share of the data that F_q is fitted to, by their places there.

        There are as many on all ranks; some may be empty.
        """
        shares = self._ranks.shares(len(self.all) if count is None else count, self.like.device)
        most, own = max(map(len, shares)), shares[self._ranks.rank]
        if self.together:
            return [own.cut]
        starts = range(own.first, own.first + max(1, most), self.width)
        return [slice(min(first, own.stop), min(first + self.width, own.stop)) for first in starts]

    def blocks(self, stage: int, draw: int, chosen: Chosen, following: int | None = None) -> Iterator[Block]:
        """Yield the data that F_q is fitted to at a draw of a stage, block by block.

        While one is worked on the next is read, and after the last one the first of the draw that is following.
        """
        of_draw = chosen(draw)
        if self.resident and self.together and of_draw is None:
            yield Block(self.x, self.conditions, self.share.cut, self.share.first)
            return
        cuts = self.cuts(None if of_draw is None else len(of_draw))
        for number, cut in enumerate(cuts):
            numbers = cut if of_draw is None else of_draw[cut]
            if self.resident:
                first = self.share.first
                here = slice(cut.start - first, cut.stop - first) if of_draw is None else of_draw[cut]
                x = self.x[:, here].contiguous()
            else:
                of_stage = None if of_draw is None else stage
                x = self._reader.read(_key(of_stage, draw, cut), numbers)
                if number + 1 < len(cuts):
                    self._expect(of_stage, draw, cuts[number + 1], chosen)
                elif following is not None:
                    self._expect(of_stage, following, cuts[0], chosen)
            conditions = self.all.conditions.take(numbers if isinstance(numbers, slice) else numbers.cpu())
            yield Block(x, conditions.to(self.like.device, self.like.dtype), numbers, cut.start)

    def _expect(self, stage: int | None, draw: int, cut: slice, chosen: Chosen) -> None:
        """Begin to read a block of a draw."""

        def numbers() -> Tensor | slice:
            of_draw = chosen(draw)
            return cut if of_draw is None else of_draw[cut]

        self._reader.expect(_key(stage, draw, cut), numbers)


def _key(stage: int | None, draw: int, cut: slice) -> object:
    """Return what a block is known by: parts are drawn for a stage, and all data (None) are always the same."""
    return cut.start if stage is None else (stage, draw, cut.start)


class _Reader:
    """Reads data ahead, in a thread of its own, and brings them to a device beside other work there."""

    def __init__(self, data: Dataset, like: Tensor) -> None:
        self._data, self._like = data, like
        self._thread: ThreadPoolExecutor | None = None
        self._ahead: tuple[object, Future[Tensor]] | None = None
        self._staging: _Staging | None = None
        if like.is_cuda:
            self._staging = _Staging(like.device, like.dtype if data.stored is None else torch.uint8)

    def expect(self, key: object, numbers: Callable[[], Tensor | slice]) -> None:
        """Begin to read some of the data, which `read` will ask for by this key."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "cswf-data")
        self._ahead = key, self._thread.submit(lambda: self._chosen(numbers))

    def read(self, key: object, numbers: Tensor | slice) -> Tensor:
        """Return some of the data on the device: d×m."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            x = ahead[1].result()  # also if others were expected: staging is for one at a time
            if ahead[0] == key:
                return self._here(x)
        return self._here(self._brought(numbers))

    def _chosen(self, numbers: Callable[[], Tensor | slice]) -> Tensor:
        """Choose some of the data and read them; a GPU that helps to choose does so beside other work."""
        with nullcontext() if self._staging is None else torch.cuda.stream(self._staging.stream):
            chosen = numbers()
        return self._brought(chosen)

    def _here(self, x: Tensor) -> Tensor:
        """Return data as numbers, for work that is queued now."""
        stored = self._data.stored
        if x.is_cuda:
            x.record_stream(torch.cuda.current_stream(x.device))
        return (x if stored is None else stored.pixels(x)).to(self._like.dtype)

    def _brought(self, numbers: Tensor | slice) -> Tensor:
        """Read some of the data and return them on the device, where they have arrived: bytes m×d, or d×m."""
        stored = self._data.stored
        if self._staging is None:
            return self._data.columns(numbers).contiguous() if stored is None else stored.levels(numbers)
        count = len(numbers) if isinstance(numbers, Tensor) else numbers.stop - numbers.start
        d = self._data.space.dimension

        def part(cut: slice) -> Tensor | slice:
            if isinstance(numbers, Tensor):
                return numbers[cut]
            return slice(numbers.start + cut.start, numbers.start + cut.stop)

        def columns(cut: slice, out: Tensor) -> None:
            out.copy_(self._data.columns(part(cut)))

        if stored is None:
            return self._staging.brought((d, count), 1, columns)
        return self._staging.brought((count, d), 0, lambda cut, out: stored.levels(part(cut), out))


class _Staging:
    """Pinned memory that data pass through on their way to a GPU: one piece is read while another is sent."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self._device, self._dtype = device, dtype
        self.stream: Any = torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]
        """Its work goes before that of others."""
        self._buffers = [torch.empty(0, dtype=dtype) for _ in range(2)]

    def brought(self, shape: tuple[int, int], axis: int, fill: Callable[[slice, Tensor], object]) -> Tensor:
        """Return numbers of a shape on the device, where they have arrived.

        `fill` writes a slice of them, along the axis, into memory on the host.
        """
        count, other = shape[axis], shape[1 - axis]
        step = max(1, PIECE // (other * self._dtype.itemsize))
        sent: list[Any] = [torch.cuda.Event() for _ in self._buffers]  # type: ignore[no-untyped-call]
        with torch.cuda.stream(self.stream):
            there = torch.empty(shape, dtype=self._dtype, device=self._device)
            for number, first in enumerate(range(0, count, step)):
                which, cut = number % 2, slice(first, min(first + step, count))
                target = there.narrow(axis, first, cut.stop - first)
                sent[which].synchronize()
                if self._buffers[which].numel() < target.numel():
                    self._buffers[which] = torch.empty(target.numel(), dtype=self._dtype, pin_memory=True)
                pinned = self._buffers[which][: target.numel()].view(target.shape)
                fill(cut, pinned)
                target.copy_(pinned, non_blocking=True)
                sent[which].record(self.stream)
        self.stream.synchronize()
        return there
