"""The data that particles flow to: on the flow's device as a whole or, if they are too large, in blocks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
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
from cswf_core.interfaces import Conditions, Dataset
from cswf_core.ranks import Ranks, Share

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
        """Bring the data to the device, of whose memory they may take `memory` bytes; in blocks if need be."""
        self.all = balanced(data, parts.condition, settings.seed)
        """The data of all ranks: on the CPU, or stored."""
        self.memory = memory
        self.share = ranks.share(len(self.all), device)
        """Which of them are this rank's, where F_q is fitted to all."""
        self.like = torch.empty(data.space.dimension, 0, device=device, dtype=settings.dtype)
        """No data, in their type and on their device: d×0."""
        part = parts.cdf.data
        self.counted = len(self.all) if part is None else part.of(len(self.all))
        """The number of data that F_q is fitted to at a draw."""
        bytes_each = len(self.like) * settings.dtype.itemsize
        whole = fits_in_memory(bytes_each * len(self.all), memory)
        width = len(self.all) if whole else block_width(self.like, memory)
        self.at_once = min(self.counted, width)
        """How many data are projected at once, over all ranks or in a block; the same for any ranks."""
        self.cuts = _cuts(ranks.shares(self.counted, device), ranks.rank, width)
        """The blocks of this rank's share of those that F_q is fitted to, as many as on other ranks."""
        if parts.cdf.bins is None and len(self.cuts) > 1:
            raise RunError(
                f"{parts.cdf.owner} needs all projected data of a direction at once, and {self.counted:,} do "
                f"not fit into {memory / 1e9:.3g} GB: take an estimator with bins, such as histogram, or fit "
                f"F_q to a {settings.called('part of the data')}"
            )
        self._reader = (PinnedReader if device.type == "cuda" else DataReader)(self.all, self.like)
        most = max(map(len, ranks.shares(len(self.all), device)))
        own = part is None or ranks.alone  # a rank's share of a part may be any of the data
        self.resident = own and fits_in_memory(bytes_each * most, memory)
        """Whether this rank's share stays on the device; otherwise it is brought there in blocks."""
        self.x = self.like
        """This rank's share on its device: d×n; empty if it is not resident, or dropped."""
        self._whole: Block | None = None
        """The share as one block, where it is resident and F_q is fitted to all data."""
        if self.resident:
            self._load()

    def _load(self) -> None:
        """Load this rank's share, to stay on the device."""
        share = self.share
        if self.all.stored is None:
            self.x = self.all.columns(share.cut).to(self.like.device, self.like.dtype).contiguous()
        else:
            self.x = self.like.new_empty(len(self.like), len(share))
            width = block_width(self.like, self.memory)
            for first in range(share.first, share.stop, width):
                numbers = slice(first, min(first + width, share.stop))
                self.x[:, first - share.first : numbers.stop - share.first] = self._reader.fetch(numbers)
        if len(self.cuts) == 1 and self.counted == len(self.all):
            self._whole = self._block(self.x, share.cut, share.first)

    def drop(self) -> None:
        """Release the data on the device: counts have taken their place."""
        self.x = self.like
        self.at_once = 0
        self._whole = None

    @cached_property
    def looked_at(self) -> int | None:
        """How many data, evenly spread, anything is fitted to before the flow; None: all."""
        bytes_each = len(self.like) * self.like.element_size()
        whole = fits_in_memory(bytes_each * len(self.all), self.memory)
        if self.all.stored is None and (whole or self.like.device.type == "cpu"):
            return None
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

    def blocks(self, stage: int, draw: int, chosen: Chosen, following: int | None = None) -> Iterator[Block]:
        """Yield the data that F_q is fitted to at a draw, block by block, while the next block is read.

        After the last one, that is the first of the draw `following`, if there is one.
        """
        if self._whole is not None:
            yield self._whole
            return

        def numbers_of(draw: int, cut: slice) -> Numbers:
            of_draw = chosen(draw)
            return cut if of_draw is None else of_draw[cut]

        def request(draw: int, cut: slice) -> Request:
            # Parts are drawn for a stage, and all data are always the same.
            key = cut.start if self.counted == len(self.all) else (stage, draw, cut.start)
            return key, partial(numbers_of, draw, cut)

        ahead = [request(draw, cut) for cut in self.cuts[1:]]
        if following is not None:
            ahead.append(request(following, self.cuts[0]))
        for cut, after in zip_longest(self.cuts, ahead):
            numbers = numbers_of(draw, cut)
            if self.resident:
                x = self.x[:, self.share.own(numbers)].contiguous()
            else:
                x = self._reader.read(request(draw, cut), after)
            yield self._block(x, numbers, cut.start)

    def _block(self, x: Tensor, numbers: Numbers, first: int) -> Block:
        """Return data x (d×m), which have these numbers among all, with their conditions."""
        conditions = self.all.conditions.take(numbers if isinstance(numbers, slice) else numbers.cpu())
        return Block(x, conditions.to(self.like.device, self.like.dtype), numbers, first)


def _cuts(shares: Sequence[Share], rank: int, width: int) -> list[slice]:
    """Return the blocks of a rank's share, as many on all ranks; some may be empty."""
    own = shares[rank]
    most = max(map(len, shares))
    starts = range(own.first, own.first + max(1, most), width)
    return [slice(min(first, own.stop), min(first + width, own.stop)) for first in starts]


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
