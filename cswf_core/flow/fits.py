"""F_p and F_q: the one-dimensional distributions of particles and of data along directions.

A `Source` is what distributions are fitted to: one block of samples, many blocks, or counts of samples.
`Source.along(θ)` fits them along directions, for some of these at a time. `remembering` is a source whose
distributions serve several steps, or several blocks of particles.

A `Fitter` does the fitting, for the samples of all ranks. Where ranks have some of the samples each, counts in
bins are summed: whole numbers have the same sum in any order, so that bits do not depend on the number of
ranks. An estimator without bins is given some rows as a whole on each rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Generic, Protocol, TypeVar

import attrs
import torch
from torch import Tensor

from cswf_core.checks import CheckedCDF
from cswf_core.flow.directions import Place
from cswf_core.flow.memory import Clock, Work
from cswf_core.interfaces import FittedCDF, Rows
from cswf_core.kernels.histogram import counted
from cswf_core.kernels.rows import Columns
from cswf_core.ranks import Ranks

Fits = list[FittedCDF]
"""Distributions along some directions: one for each stratum, which is one for all where there are no strata."""

Begun = Callable[[], Fits]
"""Distributions that have been begun: calling it waits for what other ranks send, and finishes them."""

AnyCloud = TypeVar("AnyCloud")
"""Samples in a stage's coordinates, in the numbers of the steps that project them."""

Samples = TypeVar("Samples", contravariant=True)


class Slab(Protocol[Samples]):
    """Directions whose products are taken at once, in whatever numbers."""

    @property
    def place(self) -> Place:
        """Which of the step's directions they are."""

    @property
    def count(self) -> int:
        """The number of directions."""

    def projected(self, cloud: Samples, clock: Clock) -> Rows:
        """Return p_h = θ_h·(z, ξy) of particles: H×n."""

    def projected_data(self, cloud: Samples, clock: Clock) -> Rows:
        """Return q_h of data, with the noise in their bins: H×n."""


@attrs.frozen(eq=False)
class Members:
    """The samples that each distribution is fitted to: the columns of each stratum, or those of all."""

    sizes: Sequence[int]
    """How many samples each distribution has, over all ranks."""
    columns: Sequence[Columns] | None = None
    """The columns of each distribution that this rank has; None: all columns, for one distribution."""
    places: Sequence[Tensor | None] = ()
    """The place of each column among all of its distribution; None: they follow one another."""
    partial: bool = False
    """Whether some columns belong to no distribution."""

    def parts(self, rows: Rows) -> list[Rows]:
        """Return the rows of each distribution."""
        if self.columns is None:
            return [rows]
        places = self.places or [None] * len(self.columns)
        return [rows.columns(index, place) for index, place in zip(self.columns, places, strict=True)]


Blocks = Callable[[bool], Iterator[tuple[AnyCloud, Members]]]
"""(whether there is another pass) → blocks of samples, in the stage's coordinates."""


@attrs.frozen(eq=False)
class Fitter:
    """Fits distributions to samples of which each rank has some."""

    cdf: CheckedCDF
    clock: Clock
    ranks: Ranks
    exchange: Ranks = attrs.field(init=False)
    """The ranks among which rows are exchanged; one alone where there are bins, whose counts are summed."""

    @exchange.default
    def _exchange(self) -> Ranks:
        return self.ranks if self.cdf.bins is None else Ranks()

    @property
    def displaces(self) -> bool:
        """Whether the plugin displaces rows by its own maps: not where these have to be brought first."""
        return self.cdf.displaces and self.exchange.alone

    def begin(self, rows: Rows, members: Members) -> Begun:
        """Begin to fit distributions to rows; alone, that is all of the work."""
        with self.clock.part("count", reading(rows)):
            parts = members.parts(rows)
            if self.ranks.alone:
                fits = [self.cdf.fit_rows(part) for part in parts]
                return lambda: fits
            if self.exchange.alone:
                return self._begin_counts(parts, members.sizes)
            whole = [self.exchange.whole_rows(part.read()) for part in parts]
            return lambda: [self.cdf.fit_rows(Rows.of(values())) for values in whole]

    def begin_particles(self, rows: Rows, members: Members) -> Begun | None:
        """Begin to fit F_p before other work is done; None: nobody sends, or `replace` exchanges all rows."""
        if self.ranks.alone or not (self.exchange.alone or members.partial):
            return None
        return self.begin(rows, members)

    def _begin_counts(self, parts: Sequence[Rows], sizes: Sequence[int]) -> Begun:
        """Count the samples that are here, and begin to sum the counts over ranks."""
        lows = torch.stack([part.low for part in parts])
        highs = torch.stack([part.high for part in parts])
        with self.communicating(lows, highs):
            low, high = self.ranks.ends(lows, highs)
        ends = list(zip(low, high, strict=True))
        bins = bins_of(self.cdf)
        counts = torch.stack(
            [
                counted(attrs.evolve(part, low=least, high=most), bins)
                for part, (least, most) in zip(parts, ends, strict=True)
            ]
        )
        half = parts[0].values.dtype == torch.float16
        with self.communicating(counts):
            total = self.ranks.total(counts)

        def fits() -> Fits:
            with self.communicating():
                below = total()
            return self.of_counts(below, ends, sizes, half)

        return fits

    def replace(self, rows: Rows, function: Callable[[Tensor], Tensor]) -> Tensor:
        """Replace p by δ = T(p) − p, T being a function of all values of a row; return Σ δ² of each: H."""
        p = self.exchange.whole_rows(rows.read())()
        delta = self.exchange.own_columns(function(p) - p, *rows.values.shape)
        squares = delta.square().sum(dim=1)
        rows.values.copy_(delta)
        return squares

    def rows_here(self, count: int) -> int:
        """Return how many of `count` rows this rank fits distributions to."""
        return self.exchange.rows(count)[self.exchange.rank]

    def own_rows(self, *values: Tensor) -> list[Tensor]:
        """Return the rows that this rank fits distributions to, of S×H values each: S×h."""
        rows = self.exchange.rows(values[0].shape[1])
        first = sum(rows[: self.exchange.rank])
        return [each[:, first : first + rows[self.exchange.rank]] for each in values]

    def all_rows(self, values: Tensor, count: int) -> Tensor:
        """Return the rows of all ranks, of which each has made some: S×h×K → S×H×K."""
        return self.exchange.all_rows(values.transpose(0, 1), count).transpose(0, 1)

    def communicating(self, *sent: Tensor) -> AbstractContextManager[None]:
        """Measure communication with other ranks, if any, which are sent tensors."""
        size = float(sum(tensor.nbytes for tensor in sent))
        return nullcontext() if self.ranks.alone else self.clock.part("communicate", lambda: (size, 0.0))

    def of_counts(
        self, below: Iterable[Tensor], ends: Iterable[tuple[Tensor, Tensor]], sizes: Sequence[int], half: bool
    ) -> Fits:
        """Return the distributions of samples that have been counted, between ends."""
        return [
            self.cdf.of_counts(counts, size, *ends_of_part, half=half)
            for counts, size, ends_of_part in zip(below, sizes, ends, strict=True)
        ]

    def of_blocks(
        self,
        blocks: Blocks[AnyCloud],
        slabs: Sequence[Slab[AnyCloud]],
        project: Callable[[Slab[AnyCloud], AnyCloud], Rows],
        sizes: Sequence[int],
    ) -> Callable[[slice], Fits]:
        """Return the distributions of samples that are there only in blocks, along directions by their numbers.

        All blocks are read twice: for the ends of each row, and for counts between these. So distributions are
        those of all samples at once, to the bit.

        Args:
            blocks: The samples.
            slabs: The step's directions.
            project: (directions, samples) → the samples' rows along the directions.
            sizes: How many samples each distribution has, over all blocks and ranks.
        """
        bins = bins_of(self.cdf)

        def rows(more_passes: bool) -> Iterator[tuple[slice, list[Rows]]]:
            for cloud, members in blocks(more_passes):
                for theta in slabs:
                    yield theta.place.in_step(theta.count), members.parts(project(theta, cloud))

        low: Tensor | None = None
        high: Tensor | None = None
        half = False
        for cut, parts in rows(True):
            half = parts[0].values.dtype == torch.float16
            lows = torch.stack([part.low for part in parts])
            highs = torch.stack([part.high for part in parts])
            if low is None or high is None:
                low = lows.new_full((len(parts), sum(theta.count for theta in slabs)), torch.inf)
                high = -low
            low[:, cut] = low[:, cut].minimum(lows)
            high[:, cut] = high[:, cut].maximum(highs)
        assert low is not None
        assert high is not None
        with self.communicating(low, high):
            low, high = self.ranks.ends(low, high)
        below = torch.zeros(*low.shape, bins + 1, dtype=torch.int32, device=low.device)
        for cut, parts in rows(False):
            with self.clock.part("count"):
                for number, part in enumerate(parts):
                    between = attrs.evolve(part, low=low[number, cut], high=high[number, cut])
                    below[number, cut] += counted(between, bins)
        with self.communicating(below):
            total = self.ranks.total(below)()

        def fits(cut: slice) -> Fits:
            ends = [(low[number, cut], high[number, cut]) for number in range(len(low))]
            return self.of_counts(total[:, cut], ends, sizes, half)

        return fits


@attrs.frozen(eq=False)
class Source(Generic[AnyCloud]):
    """What F_q, or F_p, is fitted to: one block of samples, many blocks, or counts."""

    along: Callable[[Slab[AnyCloud]], Begun]
    """Begins to fit distributions along directions."""
    clouds: Callable[[], Iterator[AnyCloud]]
    """Yields the samples, to inspect them; none where there are only counts of them."""


def one_block(cloud: Callable[[], AnyCloud], members: Members, fitter: Fitter) -> Source[AnyCloud]:
    """Return data that are there as a whole; `cloud` returns them, in the stage's coordinates, when needed."""

    def along(theta: Slab[AnyCloud]) -> Begun:
        return fitter.begin(theta.projected_data(cloud(), fitter.clock), members)

    return Source(along, lambda: iter([cloud()]))


KeptFits = dict[tuple[int, int], Fits]
"""Distributions that serve several steps, by the rows of their directions among those of a step."""


def remembering(source: Source[AnyCloud], known: KeptFits) -> Source[AnyCloud]:
    """Return a source whose distributions are kept for later steps, or other blocks of particles."""

    def along(theta: Slab[AnyCloud]) -> Begun:
        rows = theta.place.in_step(theta.count)
        key = (rows.start, rows.stop)  # others than before where memory was short
        begun = None if key in known else source.along(theta)

        def fits() -> Fits:
            if begun is not None:
                known[key] = begun()
            return known[key]

        return fits

    return Source(along, source.clouds)


def bins_of(cdf: CheckedCDF) -> int:
    """Return B of an estimator that distributions of counted samples are made by."""
    assert cdf.bins is not None, "the flow has been refused where samples must be counted and cannot be"
    return cdf.bins


def reading(rows: Rows) -> Work:
    """Return the work of reading the values once."""
    size = float(rows.values.numel() * rows.values.element_size())
    return lambda: (size, 0.0)
