"""The ranks of a flow: processes that have a share of its particles and data each, and take all steps together.

A step needs of the other ranks the ends of each row of projected values, and how many of these lie in each
bin between them. Whole numbers have the same sum in any order: so the result does not depend on the number
of ranks. An estimator without bins needs whole rows, which ranks exchange. PyTorch's own
`torch.distributed` carries them, by NCCL between GPUs and by Gloo between CPUs.

Rank 0 runs the program: it alone has observers, files and a terminal. The others take the same steps and,
between two steps, carry out the commands of rank 0, such as to send their particles, until it ends these.
"""

from __future__ import annotations

import re
import signal
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import attrs
import torch
import torch.distributed as dist
from torch import Tensor

from cswf_core.errors import LostRankError, RunError
from cswf_core.kernels.columns import COLUMNS_AT_A_TIME
from cswf_core.kernels.rows import Columns

SAME = "all ranks need the same recipe, data, versions and kind of processor"
"""What to do where ranks differ."""

Item = TypeVar("Item")

Work = Callable[[], Tensor]
"""Waits for other ranks and returns what came of it."""


class Dismissed(Exception):  # noqa: N818  (no error: the work is done)
    """Rank 0 has ended the work of all ranks."""


@attrs.frozen
class Share:
    """The samples of one rank among all, by their numbers: a row of whole groups."""

    first: int
    stop: int
    total: int

    @classmethod
    def of(cls, total: int, rank: int, size: int, device_type: str) -> Share:
        """Return the share of a rank: as many groups as the others have, or one more."""
        part = part_of(total, COLUMNS_AT_A_TIME[device_type], rank, size)
        return cls(part.start, part.stop, total)

    def __len__(self) -> int:
        return self.stop - self.first

    @property
    def whole(self) -> bool:
        """Whether it is all there is."""
        return len(self) == self.total

    @property
    def cut(self) -> slice:
        """The columns of all samples that are here."""
        return slice(self.first, self.stop)

    def own(self, columns: Columns | None) -> Columns | None:
        """Return those of some columns of all samples that are here, by their numbers here; None: all."""
        if columns is None or self.whole:
            return columns
        if isinstance(columns, Tensor):
            return columns[self.has(columns)] - self.first
        numbers = range(*columns.indices(self.total))
        skipped = -(-max(0, self.first - numbers.start) // numbers.step)
        first = numbers.start + skipped * numbers.step - self.first
        return slice(first, max(first, min(numbers.stop, self.stop) - self.first), numbers.step)

    def places(self, columns: Columns | None) -> Tensor | None:
        """Return the place among some columns of those that are here; None: they lie in a row."""
        if not isinstance(columns, Tensor) or self.whole:
            return None
        return self.has(columns).nonzero()[:, 0]

    def has(self, numbers: Tensor) -> Tensor:
        """Return which of some numbers of samples are here: m booleans."""
        return (numbers >= self.first) & (numbers < self.stop)


def part_of(total: int, together: int, rank: int, size: int) -> slice:
    """Return a rank's part of `total` things: groups of `together`, as many as other ranks have or one more."""
    groups = -(-total // together)
    ends = [min(total, together * (groups * number // size)) for number in (rank, rank + 1)]
    return slice(*ends)


def size_of(columns: Columns | None, total: int) -> int:
    """Return how many columns there are; None: all of them."""
    if columns is None:
        return total
    return len(columns) if isinstance(columns, Tensor) else len(range(*columns.indices(total)))


class Ranks:
    """One process that has everything, and sends nothing; or several, joined by `torch.distributed`."""

    CONTINUE = 0
    """Rank 0 says so when other ranks shall continue their own work;"""
    COMMAND = 1
    """before a command that all carry out;"""
    END = 2
    """and when all shall end."""

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        """Be one of `size` ranks, whose process group has been begun if there are several."""
        self.rank = rank
        self.size = size
        self._owners: list[Callable[[], object]] = []
        """What commands are about, such as flows, in the order in which all ranks have made them."""
        self._commands: dict[tuple[str, int], Callable[..., Any]] = {}
        """What a command does, by its name and the number of what it is about."""
        self._commanding = False
        """Whether this is rank 0 and the other ranks wait for its commands."""
        self._nccl = not self.alone and "nccl" in str(dist.get_backend_config())
        """Whether tensors go from GPU to GPU; otherwise by way of the host."""

    @property
    def alone(self) -> bool:
        """Whether there are no others."""
        return self.size == 1

    @property
    def leads(self) -> bool:
        """Whether this is rank 0."""
        return self.rank == 0

    def share(self, total: int, device: torch.device) -> Share:
        """Return which of `total` samples this rank has."""
        return Share.of(total, self.rank, self.size, device.type)

    def shares(self, total: int, device: torch.device) -> list[Share]:
        """Return which of `total` samples each rank has."""
        return [Share.of(total, rank, self.size, device.type) for rank in range(self.size)]

    def rows(self, count: int) -> list[int]:
        """Return how many of `count` rows each rank has, where it is given some as a whole.

        They are multiples of 64, but for the last: a processor's vector units then meet the same
        numbers as on one rank, and leave the same over, which matters for functions that are rounded
        differently there.
        """
        parts = (part_of(count, 64, rank, self.size) for rank in range(self.size))
        return [part.stop - part.start for part in parts]

    def ahead(self, items: Iterable[Item]) -> Iterable[Item]:
        """Return items; with other ranks, each comes when the next has been made: its sums are on their way."""
        return items if self.alone else _delayed(items)

    def ends(self, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        """Return the least of the lows of all ranks, and the greatest of the highs."""
        if self.alone:
            return low, high
        both = self._carried(torch.stack([-low, high]))
        self._wait(lambda: dist.all_reduce(both, dist.ReduceOp.MAX))
        least, most = both.to(low.device)
        return -least, most

    def total(self, counts: Tensor) -> Work:
        """Begin to sum whole numbers over all ranks; what is returned waits for the sums."""
        if self.alone:
            return lambda: counts
        carried = self._carried(counts.contiguous())
        begun = self._wait(lambda: dist.all_reduce(carried, async_op=True))

        def sums() -> Tensor:
            self._wait(begun.wait)
            return carried.to(counts.device)

        return sums

    def sums(self, numbers: Tensor) -> Tensor:
        """Return the sums of float64 numbers over all ranks, added in the order of these."""
        if self.alone:
            return numbers
        carried = self._carried(numbers.contiguous())
        each = [torch.empty_like(carried) for _ in range(self.size)]
        self._wait(lambda: dist.all_gather(each, carried))
        return torch.stack(each).sum(dim=0).to(numbers.device)

    def whole_rows(self, values: Tensor) -> Work:
        """Begin to give each rank some rows as a whole, the values of all ranks side by side: H×n → h×N."""
        if self.alone:
            return lambda: values
        H, n = values.shape
        widths = self._numbers(n)
        mine = self.rows(H)[self.rank]
        sent = values.contiguous()
        received = [sent.new_empty(mine, width) for width in widths]
        begun = self._exchange(list(torch.split(sent, self.rows(H))), received)

        def rows() -> Tensor:
            begun()
            return torch.cat(received, dim=1)

        return rows

    def own_columns(self, values: Tensor, rows: int, columns: int) -> Tensor:
        """Return this rank's columns of rows that ranks have as a whole: h×N → H×n."""
        if self.alone:
            return values
        widths = self._numbers(columns)
        received = [values.new_empty(count, columns) for count in self.rows(rows)]
        self._exchange([part.contiguous() for part in torch.split(values, widths, dim=1)], received)()
        return torch.cat(received)

    def all_rows(self, values: Tensor, rows: int) -> Tensor:
        """Return the rows of all ranks, of which each has some: h×K → H×K."""
        if self.alone:
            return values
        received = [values.new_empty(count, *values.shape[1:]) for count in self.rows(rows)]
        self._exchange([values.contiguous()] * self.size, received)()
        return torch.cat(received)

    def gathered(self, x: Tensor) -> Tensor:
        """Return the columns of all ranks side by side (d×n → d×N) at rank 0; elsewhere what is here."""
        if self.alone:
            return x
        widths = self._numbers(x.shape[1])
        empty = x.new_empty(x.shape[0], 0)
        sent = [x.contiguous() if number == 0 else empty for number in range(self.size)]
        received = [x.new_empty(x.shape[0], width if self.rank == 0 else 0) for width in widths]
        self._exchange(sent, received)()
        return torch.cat(received, dim=1) if self.rank == 0 else x

    def reshared(self, x: Tensor, before: Sequence[Share], after: Sequence[Share]) -> Tensor:
        """Return the columns that a rank has after shares have changed, of those that all had before."""
        if self.alone:
            return x
        here = before[self.rank]

        def common(mine: Share, theirs: Share) -> slice:
            first = max(mine.first, theirs.first)
            return slice(first, max(first, min(mine.stop, theirs.stop)))

        cuts = [common(here, share) for share in after]
        sent = [x[:, cut.start - here.first : cut.stop - here.first].contiguous() for cut in cuts]
        widths = [(cut.stop - cut.start) for cut in (common(share, after[self.rank]) for share in before)]
        received = [x.new_empty(x.shape[0], width) for width in widths]
        self._exchange(sent, received)()
        return torch.cat(received, dim=1)

    def agree(self, noun: str, value: str) -> None:
        """Raise `RunError` on all ranks if one of them has another value."""
        values = self.collected(value, noun)
        for rank, other in enumerate(values):
            if other != values[0]:
                short = max(len(other), len(values[0])) <= 100
                values_in_words = f" ({other}, and not {values[0]})" if short else ""
                raise RunError(f"rank {rank} has other {noun} than rank 0{values_in_words}: {SAME}")

    def collected(self, thing: Any, noun: str) -> list[Any]:
        """Return what all ranks have, in their order; raise `RunError` on all if one has another noun."""
        if self.alone:
            return [thing]
        answers: list[Any] = [None] * self.size
        self._wait(lambda: dist.all_gather_object(answers, (noun, thing)))
        first = answers[0][0]
        for rank, (other, _) in enumerate(answers):
            if other != first:
                raise RunError(f"rank {rank} compares its {other}, and rank 0 its {first}: {SAME}")
        return [each for _, each in answers]

    def least(self, number: int) -> int:
        """Return the least number that a rank has."""
        return int(min(self.collected(number, "memory")))

    def decided(self, answer: bool) -> bool:
        """Return the answer of rank 0."""
        return bool(self._told(int(answer)))

    def define_command(self, name: str, owner: object, work: Callable[..., Any]) -> None:
        """Define what a command of rank 0 about an owner does: `work(owner, …)`; for all ranks.

        One process alone does not keep the owner alive by that; several do, as rank 0 may still command it.
        """
        self._commands[name, self._number(owner)] = work

    def forget(self) -> None:
        """Let go of all owners and their commands: work begins anew, on all ranks."""
        self._owners.clear()
        self._commands.clear()

    def begin_commands(self) -> None:
        """Note that the other ranks receive commands from here on; only for rank 0."""
        self._commanding = True

    def command(self, name: str, owner: object, *arguments: Any) -> Any:
        """Have all ranks carry out a command, and return its result here; only for rank 0."""
        assert self.leads, "rank 0 gives commands"
        number = self._number(owner)
        if self.alone:
            return self._carried_out(name, number, arguments)
        before = self._commanding
        self._commanding = False  # until all have carried it out
        self._told(self.COMMAND)
        self._wait(lambda: dist.broadcast_object_list([name, number, arguments], src=0))
        result = self._carried_out(name, number, arguments)
        self._commanding = before
        return result

    def receive_commands(self) -> None:
        """Carry out the commands of rank 0 until it ends them; only for other ranks."""
        while True:
            word = self._told(self.CONTINUE)
            if word == self.CONTINUE:
                return
            if word == self.END:
                raise Dismissed
            command: list[Any] = [None, None, None]
            self._wait(lambda command=command: dist.broadcast_object_list(command, src=0))  # type: ignore[misc]
            self._carried_out(*command)

    def end_commands(self) -> None:
        """Let the other ranks continue their own work; only for rank 0."""
        self._commanding = False
        self._told(self.CONTINUE)

    def dismiss(self) -> None:
        """Have the other ranks end, if they receive commands; otherwise they see that this one is gone."""
        if self._commanding:
            self._commanding = False
            self._told(self.END)

    def _number(self, owner: object) -> int:
        for number, known in enumerate(self._owners):
            if known() is owner:
                return number
        self._owners.append(weakref.ref(owner) if self.alone else lambda: owner)
        return len(self._owners) - 1

    def _carried_out(self, name: str, number: int, arguments: Sequence[Any]) -> Any:
        return self._commands[name, number](self._owners[number](), *arguments)

    def _told(self, word: int) -> int:
        """Return the number that rank 0 has."""
        if self.alone:
            return word
        told = torch.tensor([word])
        self._wait(lambda: dist.broadcast(told, src=0))
        return int(told)

    def _numbers(self, own: int) -> list[int]:
        """Return the number that each rank has."""
        each = torch.zeros(self.size, dtype=torch.int64)
        each[self.rank] = own
        self._wait(lambda: dist.all_reduce(each))
        return [int(number) for number in each]

    def _exchange(self, sent: Sequence[Tensor], received: Sequence[Tensor]) -> Callable[[], None]:
        """Begin to send each rank a tensor, and to receive one from each; what is returned waits for that."""
        flat = self._carried(torch.cat([part.reshape(-1) for part in sent]))
        into = flat.new_empty(sum(part.numel() for part in received))
        sizes = [part.numel() for part in received], [part.numel() for part in sent]
        begun = self._wait(lambda: dist.all_to_all_single(into, flat, *sizes, async_op=True))

        def finish() -> None:
            self._wait(begun.wait)
            for part, arrived in zip(received, torch.split(into, sizes[0]), strict=True):
                part.copy_(arrived.view(part.shape))

        return finish

    def _carried(self, tensor: Tensor) -> Tensor:
        """Return a tensor where it can be sent from."""
        return tensor.cpu() if tensor.is_cuda and not self._nccl else tensor

    def _wait(self, work: Callable[[], Any]) -> Any:
        """Do something together with the other ranks; one sentence if one of them is gone."""
        try:
            return work()
        except RuntimeError as error:  # what torch.distributed raises is one, or a subclass
            # When a rank is gone, errors of torch.distributed have one of these words.
            words = ("connection", "gloo", "nccl", "socket", "timed out", "peer")
            if not any(word in str(error).lower() for word in words):
                raise
            self._commanding = False
            with suppress(ValueError):  # not in the main thread
                signal.signal(signal.SIGTERM, signal.SIG_IGN)  # whoever has started the ranks sends it now
            reason = re.sub(r"^\[[^]]*] *", "", " ".join(str(error).split()))[:80]  # without a file of Gloo's
            raise LostRankError(f"another rank was lost, and all have ended ({reason})") from error


def _delayed(items: Iterable[Item]) -> Iterator[Item]:
    """Yield items, each when the one behind it has been made."""
    last: Item | None = None
    for item in items:
        if last is not None:
            yield last
        last = item
    if last is not None:
        yield last
