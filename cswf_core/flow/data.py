"""The data that particles flow to: on the flow's device as a whole or, if they are too large, in blocks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property, partial
from itertools import zip_longest
from typing import Any

import attrs
import torch
from torch import Tensor

from cswf_core.errors import RunError
from cswf_core.flow.memory import block_width, fits_in_memory
from cswf_core.flow.particles import balanced
from cswf_core.flow.settings import Parts, Settings
from cswf_core.interfaces import Conditions, Dataset, Part
from cswf_core.ranks import Ranks

FEWEST_FITTED = 4096
"""The fewest streamed data that anything is fitted to, and enough for their mean length."""

MEMORY_OVER_FITTED = 16
"""The memory is at least this many times as large as streamed data that are fitted to, or these are fewest."""

BYTES_PER_COPY = 1 << 26
"""Bytes that are copied to a GPU at a time."""

Numbers = Tensor | slice
"""Which of all data, by their numbers."""

Chosen = Callable[[int], Tensor | None]
"""The number of a draw → the data that F_q is fitted to then, in rising order; None: all."""

Request = tuple[object, Callable[[], Numbers]]
"""Some of the data, to be read now or ahead of time, by a key."""

log = logging.getLogger("cswf")


@attrs.frozen(eq=False)
class Block:
    """Some of the data x (d×m), on the flow's device."""

    x: Tensor
    conditions: Conditions
    numbers: Numbers
    first: int
    """The place of the first among those that F_q is fitted to."""


class FlowData:
    """The data of a flow, balanced as its condition wants them."""

    def __init__(
        self, data: Dataset, parts: Parts, settings: Settings, device: torch.device, ranks: Ranks, memory: int
    ) -> None:
        """Decide where the data are kept, of whose memory each device gives `memory` bytes."""
        self.all = balanced(data, parts.condition, settings.seed)
        """The data of all ranks: on the CPU, or stored."""
        self.memory = memory
        self._ranks = ranks
        self.share = ranks.share(len(self.all), device)
        """Which of them are this rank's, where F_q is fitted to all."""
        self.like = torch.empty(data.space.dimension, 0, device=device, dtype=settings.dtype)
        """No data, in their type and on their device: d×0."""
        bytes_each = len(self.like) * settings.dtype.itemsize
        most = max(map(len, ranks.shares(len(self.all), device)))
        self.together = fits_in_memory(bytes_each * len(self.all), memory)
        """Whether one device could hold all: then no blocks are made, whatever the number of ranks."""
        part = parts.cdf.data
        own = part is None or ranks.alone  # a rank's share of a part may be any of the data
        self.resident = own and fits_in_memory(bytes_each * most, memory)
        """Whether this rank's share stays on the device; otherwise it is brought there in blocks."""
        self.width = block_width(self.like, memory)
        self.x = self.like
        """This rank's share on its device, once it is loaded: d×n; empty if it is not resident, or dropped."""
        self._reader = (PinnedReader if device.type == "cuda" else DataReader)(self.all, self.like)
        counted = len(self.all) if part is None else part.of(len(self.all))
        if parts.cdf.bins is None and len(self.cuts(counted)) > 1:
            raise RunError(
                f"{parts.cdf.owner} needs all projected data of a direction at once, and {counted:,} do not "
                f"fit into {memory / 1e9:.3g} GB: take an estimator with bins, such as histogram, or fit F_q "
                f"to a {settings.called('part of the data')}"
            )

    @cached_property
    def conditions(self) -> Conditions:
        """Y of this rank's share, on its device."""
        return self.all.conditions.take(self.share.cut).to(self.like.device, self.like.dtype)

    @property
    def looked_at(self) -> int | None:
        """How many data, evenly spread, anything is fitted to before the flow; None: all."""
        if self.all.stored is None and (self.together or self.like.device.type == "cpu"):
            return None
        bytes_each = self.all.space.dimension * self.like.element_size()
        few = self.all.spread(max(FEWEST_FITTED, self.memory // MEMORY_OVER_FITTED // bytes_each))
        return len(few) if len(few) < len(self.all) else None

    @cached_property
    def sample(self) -> Dataset:
        """The data that coordinates, a Gaussian or directions are fitted to: all, or some, with a warning."""
        if self.looked_at is None:
            return self.all
        log.warning(
            "data are streamed: what is fitted to them before the flow is fitted to %s of %s",
            f"{self.looked_at:,}",
            f"{len(self.all):,}",
        )
        return self.all.spread(self.looked_at)

    def sample_x(self) -> Tensor:
        """Return x of `sample` on the device: d×n."""
        if self.share.whole and self.x.shape[1] == len(self.all):
            return self.x
        return self.sample.x.to(self.like.device, self.like.dtype).contiguous()

    def typical(self) -> Tensor:
        """Return this rank's share on the device, or a few of all data if the share is not there: d×n."""
        return self.x if self.resident else self.all.spread(FEWEST_FITTED).x.to(self.like)

    def load_to_device(self) -> None:
        """Load this rank's share, if it is to stay on the device."""
        if not self.resident:
            return
        share = self.share
        if self.all.stored is None:
            self.x = self.all.columns(share.cut).to(self.like.device, self.like.dtype).contiguous()
        else:
            self.x = self.like.new_empty(len(self.like), len(share))
            for first in range(0, len(share), self.width):
                part = slice(first, min(first + self.width, len(share)))
                numbers = slice(share.first + part.start, share.first + part.stop)
                self.x[:, part] = self._reader.fetch(numbers)

    def drop(self) -> None:
        """Release the data on the device: counts have taken their place."""
        self.x = self.like

    def most_at_once(self, part: Part | None) -> int:
        """Return how many data are projected at once, over all ranks or in a block; the same for any ranks."""
        counted = len(self.all) if part is None else part.of(len(self.all))
        return counted if self.together else min(counted, self.width)

    def cuts(self, count: int | None = None) -> list[slice]:
        """Return the blocks of a rank's share of `count` data, as many on all ranks; some may be empty."""
        shares = self._ranks.shares(len(self.all) if count is None else count, self.like.device)
        own = shares[self._ranks.rank]
        if self.together:
            return [own.cut]
        most = max(map(len, shares))
        starts = range(own.first, own.first + max(1, most), self.width)
        return [slice(min(first, own.stop), min(first + self.width, own.stop)) for first in starts]

    def blocks(self, stage: int, draw: int, chosen: Chosen, following: int | None = None) -> Iterator[Block]:
        """Yield the data that F_q is fitted to at a draw, block by block, while the next block is read.

        After the last one, that is the first of the draw `following`, if there is one.
        """
        of_draw = chosen(draw)
        if self.resident and self.together and of_draw is None:
            yield Block(self.x, self.conditions, self.share.cut, self.share.first)
            return
        cuts = self.cuts(None if of_draw is None else len(of_draw))

        def numbers_of(draw: int, cut: slice) -> Numbers:
            of_draw = chosen(draw)
            return cut if of_draw is None else of_draw[cut]

        def request(draw: int, cut: slice) -> Request:
            # Parts are drawn for a stage, and all data are always the same.
            key = cut.start if of_draw is None else (stage, draw, cut.start)
            return key, partial(numbers_of, draw, cut)

        ahead = [request(draw, cut) for cut in cuts[1:]]
        if following is not None:
            ahead.append(request(following, cuts[0]))
        for cut, after in zip_longest(cuts, ahead):
            numbers = numbers_of(draw, cut)
            if self.resident:
                x = self.x[:, self.share.own(numbers)].contiguous()
            else:
                x = self._reader.read(request(draw, cut), after)
            conditions = self.all.conditions.take(numbers if isinstance(numbers, slice) else numbers.cpu())
            yield Block(x, conditions.to(self.like.device, self.like.dtype), numbers, cut.start)


class DataReader:
    """Reads data as numbers of the kind of `like` (d×0), and the next ones ahead, in a thread: on a CPU."""

    def __init__(self, data: Dataset, like: Tensor) -> None:
        self._data = data
        self._like = like
        self._thread = ThreadPoolExecutor(1, "cswf-data")
        self._ahead: dict[object, Future[Tensor]] = {}

    def fetch(self, numbers: Numbers) -> Tensor:
        """Return some of the data on the device: d×m."""
        return self._decoded(self._brought(numbers))

    def read(self, request: Request, ahead: Request | None) -> Tensor:
        """Return some of the data on the device (d×m), and begin to read those of the request `ahead`."""
        key, numbers = request
        pending = self._ahead
        self._ahead = {}
        for future in pending.values():
            future.result()  # also if another was expected: pinned memory serves one at a time
        x = self._decoded(pending[key].result()) if key in pending else self.fetch(numbers())
        if ahead is not None:
            following, chosen = ahead
            self._ahead[following] = self._thread.submit(lambda: self._brought(chosen()))
        return x

    def _brought(self, numbers: Numbers) -> Tensor:
        """Read some of the data and return them on the device: bytes m×d, or d×m."""
        stored = self._data.stored
        return self._data.columns(numbers).contiguous() if stored is None else stored.levels(numbers)

    def _decoded(self, x: Tensor) -> Tensor:
        """Return data that have been brought as numbers: d×m."""
        stored = self._data.stored
        return (x if stored is None else stored.pixels(x)).to(self._like.dtype)


class PinnedReader(DataReader):
    """Brings data to a GPU through pinned memory beside other work; one piece is read while another is sent."""

    def __init__(self, data: Dataset, like: Tensor) -> None:
        super().__init__(data, like)
        self._stream: Any = torch.cuda.Stream(like.device, priority=-1)  # type: ignore[no-untyped-call]
        # A GPU may help to choose what is read ahead, and does so beside other work.
        self._thread = ThreadPoolExecutor(1, "cswf-data", torch.cuda.set_stream, (self._stream,))
        self._dtype = like.dtype if data.stored is None else torch.uint8
        self._buffers = [torch.empty(0, dtype=self._dtype) for _ in range(2)]

    def _brought(self, numbers: Numbers) -> Tensor:
        stored = self._data.stored
        d = self._data.space.dimension
        index = numbers if isinstance(numbers, Tensor) else range(numbers.start, numbers.stop)
        count = len(index)
        axis = 1 if stored is None else 0
        step = max(1, BYTES_PER_COPY // (d * self._dtype.itemsize))
        sent: list[Any] = [torch.cuda.Event() for _ in self._buffers]  # type: ignore[no-untyped-call]
        with torch.cuda.stream(self._stream):
            shape = (d, count) if stored is None else (count, d)
            there = torch.empty(shape, dtype=self._dtype, device=self._like.device)
            for number, first in enumerate(range(0, count, step)):
                which = number % 2
                stop = min(first + step, count)
                target = there.narrow(axis, first, stop - first)
                sent[which].synchronize()
                if self._buffers[which].numel() < target.numel():
                    self._buffers[which] = torch.empty(target.numel(), dtype=self._dtype, pin_memory=True)
                pinned = self._buffers[which][: target.numel()].view(target.shape)
                some = index[first:stop]
                part = some if isinstance(some, Tensor) else slice(some.start, some.stop)
                if stored is None:
                    pinned.copy_(self._data.columns(part))
                else:
                    stored.levels(part, pinned)
                target.copy_(pinned, non_blocking=True)
                sent[which].record(self._stream)
        self._stream.synchronize()
        return there

    def _decoded(self, x: Tensor) -> Tensor:
        x.record_stream(torch.cuda.current_stream(x.device))
        return super()._decoded(x)
