"""The one-dimensional transport of the particles: p becomes δ = F_q⁻¹(F_p(p)) − p, along every direction.

There are two ways. `CDFTransport` asks the CDF plugin for δ. `TableTransport` makes small tables of the maps
T_h = F_q⁻¹∘F_p first, for a model to save, and moves the particles by them.

Such a table holds, at K levels a_1 … a_K, the position F_p⁻¹(a_k) and the displacement F_q⁻¹(a_k) − F_p⁻¹(a_k);
between two of these knots the map is nearly a line. Where a model is saved, particles move by these very
tables, rounding and all: what is saved then is what has happened, and the steps that follow see its errors and
mend them. Maps that the particles have not followed would be of little use: with 1,000 particles their errors
grow from step to step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, Protocol

import attrs
import torch
from torch import Tensor

from cswf_core.checks import CheckedCDF
from cswf_core.flow.clock import Clock, Work
from cswf_core.flow.memory import batches
from cswf_core.interfaces import FittedCDF, Rows, Stratum
from cswf_core.kernels import tables
from cswf_core.kernels.histogram import counted
from cswf_core.kernels.rows import Columns
from cswf_core.ranks import Ranks

Fits = list[FittedCDF]
"""F_q along some directions: one for each stratum, which is one for all where there are no strata."""

Begun = Callable[[], Fits]
"""Distributions whose counts are on their way between ranks: calling it waits for them."""

FIRST = 50
"""Steps of a stage whose tables are all kept: in them particles go most of their way."""


@attrs.frozen(eq=False)
class Place:
    """Which directions of a step some rows belong to."""

    batch: int
    """The number of the batch that they were drawn in."""
    first: int = 0
    """The row of the batch that the first of them is."""
    order: Tensor | None = None
    """The number of each in the order of the draw, where rows have another one; None: first, first + 1, …"""

    def rows(self, cut: slice) -> Place:
        """Return the place of some of the rows."""
        return Place(self.batch, self.first + cut.start, None if self.order is None else self.order[cut])

    def numbers(self, count: int) -> slice | Tensor:
        """Return the numbers of `count` rows in the order of the draw."""
        return slice(self.first, self.first + count) if self.order is None else self.order


class Transport(Protocol):
    """A way to displace the particles' rows."""

    def begin(self, rows: Rows) -> Begun | None:
        """Begin what needs the other ranks, before other work is done; None: there is nothing to begin."""

    def displace(self, rows: Rows, F_q: Fits, place: Place, F_p: Begun | None = None) -> Tensor:
        """Replace the particles' rows p by δ, in place; return the sum of δ² of each row: H."""


@attrs.frozen(eq=False)
class Samples:
    """The particles that a step's F_p is fitted to, of those that this rank has, and what belongs to them.

    None is all of them. Of the data, those that count are projected alone.
    """

    particles: Columns | None = None
    measured: Columns | None = None
    """The particles whose distance to the data is measured: not those that never take part in F_p."""
    stretch: float = 1.0
    """How many particles there are for each that is measured, over all ranks."""
    counts: tuple[Sequence[int], Sequence[int]] = ((), ())
    """How many particles and data each distribution is fitted to, over all ranks; not needed by one alone."""
    places: Sequence[Tensor | None] = ()
    """For each stratum, the place of each datum among all of it; None: they lie in a row."""


@attrs.frozen(eq=False)
class CDFTransport:
    """δ by the CDF plugin, stratum by stratum.

    With several ranks, each has some columns of a row. Where distributions can be made of counts in bins, the
    counts of all ranks are summed. Otherwise each rank is given some of the rows as a whole.
    """

    cdf: CheckedCDF
    strata: Sequence[Stratum] | None = None
    """The columns of each stratum that this rank has."""
    clock: Clock = attrs.field(factory=Clock)
    check: bool = True
    """Whether the plugin's numbers are checked, and not only their shapes: that reads back from the device."""
    samples: Samples = Samples()
    """What F_p and F_q are fitted to."""
    ranks: Ranks = attrs.field(factory=Ranks)

    @property
    def by_counts(self) -> bool:
        """Whether ranks sum counts; otherwise they exchange rows."""
        return self.cdf.bins is not None

    def begin(self, rows: Rows) -> Begun | None:
        """Begin to fit F_p over all ranks; None for one rank alone, and where rows are exchanged later."""
        if self.ranks.alone or not (self.by_counts or self.samples.particles is not None):
            return None
        with self.clock.part("count", _reading(rows)):
            return self._begin(rows, 0)

    def fit(self, rows: Rows, begun: Begun | None = None) -> Fits:
        """Return F_p, of the particles' rows; `begun` is what `begin` has returned for them."""
        return self.awaited(self._begin(rows, 0) if begun is None else begun)

    def begin_data(self, rows: Rows) -> Begun:
        """Begin to fit F_q, to the data's rows; for one rank alone, that is all of the work."""
        with self.clock.part("count", _reading(rows)):
            return self._begin(rows, 1)

    def awaited(self, begun: Begun) -> Fits:
        """Return distributions that have been begun, once the other ranks' counts are there."""
        with self.communicating():
            return begun()

    def _begin(self, rows: Rows, side: int) -> Begun:
        """Fit distributions to the rows of particles (side 0) or data (1), as far as that can be done here."""
        parts = self.parts(rows, side)
        if self.ranks.alone:
            fits = [self.cdf.fit_rows(part) for part in parts]
            return lambda: fits
        if not self.by_counts:
            whole = [self.ranks.whole_rows(part.read()) for part in parts]
            return lambda: [self.cdf.fit_rows(Rows.of(values())) for values in whole]
        assert self.cdf.bins is not None
        lows, highs = torch.stack([part.low for part in parts]), torch.stack([part.high for part in parts])
        with self.communicating(lows, highs):
            low, high = self.ranks.ends(lows, highs)
        ends = list(zip(low, high, strict=True))
        below = [
            counted(attrs.evolve(part, low=least, high=most), self.cdf.bins)
            for part, (least, most) in zip(parts, ends, strict=True)
        ]
        half, mine = rows.values.dtype == torch.float16, torch.stack(below)
        with self.communicating(mine):
            total = self.ranks.total(mine)

        return lambda: self.of_counts(total(), ends, side, half=half)

    def of_counts(
        self, below: Iterable[Tensor], ends: Iterable[tuple[Tensor, Tensor]], side: int, *, half: bool
    ) -> Fits:
        """Return the distributions of particles (side 0) or data (1) that have been counted, between ends."""
        counts = self.samples.counts[side]
        return [
            self.cdf.of_counts(of_part, count, *ends_of_part, half=half)
            for of_part, count, ends_of_part in zip(below, counts, ends, strict=True)
        ]

    def displace(self, rows: Rows, F_q: Fits, place: Place, F_p: Begun | None = None) -> Tensor:
        """Replace the particles' rows p by δ = F_q⁻¹(F_p(p)) − p; return the sum of δ² of each: H."""
        del place
        if F_p is None and self.samples.particles is None and (self.ranks.alone or not self.by_counts):
            return self._measured(rows, self._apart(rows, lambda n, part: self._displace(part, F_q[n])))
        with self.clock.part("count", _reading(rows)):
            fits = self.fit(rows, F_p)
        with self.clock.part("lookup", _reading(rows)):
            squares = self._apart(rows, lambda n, part: self._displace_by(part, fits[n], F_q[n]))
        return self._measured(rows, squares)

    @contextmanager
    def communicating(self, *sent: Tensor) -> Iterator[None]:
        """Count the time of something as communication, and tensors as sent, if there are other ranks."""
        moved = float(sum(tensor.nbytes for tensor in sent))
        with nullcontext() if self.ranks.alone else self.clock.part("communicate", lambda: (moved, 0.0)):
            yield

    def displace_by(self, rows: Rows, positions: Tensor, displacements: Tensor) -> Tensor:
        """Replace the particles' rows p by δ as tables say (S×H×K each); return the sum of δ² of each: H."""
        with self.clock.part("lookup", _reading(rows)):
            squares = self._apart(
                rows, lambda number, part: tables.displace(part, positions[number], displacements[number])
            )
        return self._measured(rows, squares)

    def rows_here(self, rows: int) -> int:
        """Return how many of some rows this rank fits distributions of: all, unless rows are exchanged."""
        return rows if self.by_counts else self.ranks.rows(rows)[self.ranks.rank]

    def displacements(self, grid: Tensor, positions: Tensor, F_p: Fits, F_q: Fits) -> Tensor:
        """Return δ at the levels of a grid (H×K), where F_p has its positions: S×H×K."""
        if not self.cdf.extrapolates:
            return torch.stack([self.cdf.inverse(fit, grid) for fit in F_q]) - positions
        delta = positions.clone()
        for part, mine, theirs in zip(delta, F_p, F_q, strict=True):
            through = self.cdf.between(mine, theirs)
            if through is None:
                raise TypeError("an estimator that extrapolates has `between` return a TransportMap")
            through.displace(Rows.of(part), check=self.check)
        return delta

    def _measured(self, rows: Rows, squares: Tensor) -> Tensor:
        """Return the sums of δ² as if all particles were as far from the data as those that are measured: H."""
        if self.samples.measured is None:
            return squares
        delta = rows.values[:, self.samples.measured]
        lengths: Tensor = torch.linalg.vector_norm(delta, dim=1, dtype=squares.dtype)  # read once, in any type
        return lengths.square() * self.samples.stretch

    def _apart(self, rows: Rows, displace: Callable[[int, Rows], Tensor]) -> Tensor:
        """Displace the rows of each stratum on its own; return the sum of δ² of each row: H."""
        if self.strata is None:
            return displace(0, rows)
        parts = self._strata(rows, 0)
        totals = [displace(number, part) for number, part in enumerate(parts)]
        for part, (particles, _) in zip(parts, self.strata, strict=True):
            rows.values[:, particles] = part.values  # only now: what runs out of memory is tried again
        return torch.stack(totals).sum(dim=0)

    def parts(self, rows: Rows, side: int) -> list[Rows]:
        """Return the rows of particles (side 0) or data (1) that count: of each stratum, or of a part."""
        if side or self.samples.particles is None:
            return self._strata(rows, side)
        return [rows.columns(self.samples.particles)]

    def _displace_by(self, rows: Rows, F_p: FittedCDF, F_q: FittedCDF) -> Tensor:
        """Displace rows by distributions of which F_p was fitted to some of them, or to those of all ranks."""
        if not (self.ranks.alone or self.by_counts):
            return self._exchanged(rows, lambda p: self.cdf.image(p, F_p, F_q, check=self.check))
        with self.clock.part("tables"):
            through = self.cdf.between(F_p, F_q) if self.cdf.displaces else None
        if through is not None:
            return through.displace(rows, check=self.check)
        p = rows.read()
        return _replaced(rows, self.cdf.image(p, F_p, F_q, check=self.check) - p)

    def _exchanged(self, rows: Rows, image: Callable[[Tensor], Tensor]) -> Tensor:
        """Displace rows by `image`, p → T(p), of those rows that this rank is given as a whole."""
        p = self.ranks.whole_rows(rows.read())()
        H, n = rows.values.shape
        return _replaced(rows, self.ranks.own_columns(image(p) - p, H, n))

    def _strata(self, rows: Rows, side: int) -> list[Rows]:
        if self.strata is None:
            return [rows]
        places = self.samples.places if side and self.samples.places else [None] * len(self.strata)
        return [rows.columns(stratum[side], place) for stratum, place in zip(self.strata, places, strict=True)]

    def _displace(self, rows: Rows, F_q: FittedCDF) -> Tensor:
        clock, read = self.clock, _reading(rows)
        if not (self.cdf.displaces and self.ranks.alone):
            with clock.part("lookup", read):
                return self._transport(rows, F_q)
        if clock.times:
            squares = self._displace_in_parts(rows, F_q)
            if squares is not None:
                return squares
        with clock.part("lookup", read):
            return self.cdf.displace(rows, F_q, check=self.check)

    def _displace_in_parts(self, rows: Rows, F_q: FittedCDF) -> Tensor | None:
        """Fit, compose and look up one after the other, each timed; None if the plugin composes no maps."""
        clock, read = self.clock, _reading(rows)
        with clock.part("count", read):
            F_p = self.cdf.fit_rows(rows)
        made: list[object] = [F_p, F_q]
        with clock.part("tables", lambda: (_bytes_of(made), 0.0)):
            through = self.cdf.between(F_p, F_q)
            made += [] if through is None else [through.plugin]
        if through is None:
            return None
        with clock.part("lookup", lambda: (2 * read()[0], 0.0)):
            return through.displace(rows, check=self.check)

    def _transport(self, rows: Rows, F_q: FittedCDF) -> Tensor:
        if not self.ranks.alone:
            return self._exchanged(rows, lambda p: self.cdf.transport(p, F_q, check=self.check))
        p = rows.read()
        return _replaced(rows, self.cdf.transport(p, F_q, check=self.check) - p)


FitsOfBatch = Mapping[int, Callable[[slice], Fits]]
"""The number of a batch → F_p along some of its directions, by their rows."""


@attrs.frozen(eq=False)
class FittedTransport:
    """Another transport, of particles whose F_p was fitted to more than those that are displaced."""

    transport: Transport
    F_p: FitsOfBatch

    def begin(self, rows: Rows) -> Begun | None:
        """Begin nothing."""
        del rows
        return None

    def displace(self, rows: Rows, F_q: Fits, place: Place, F_p: Begun | None = None) -> Tensor:
        """Replace the particles' rows p by δ, in place; return the sum of δ² of each row: H."""
        del F_p
        cut = slice(place.first, place.first + rows.values.shape[0])
        return self.transport.displace(rows, F_q, place, lambda: self.F_p[place.batch](cut))


@attrs.frozen
class TableRequest:
    """Which tables of a flow's steps are wanted."""

    knots: int = 64
    """K."""
    share: float = 1.0
    """Share of the directions: the first so many of each batch, and at least one."""
    every: int = 1
    """After a stage's first `FIRST` steps, which are all kept, one of so many is."""
    dtype: torch.dtype = torch.float32
    """The numbers that tables are rounded to."""

    def wants(self, step: int) -> bool:
        """Say whether the tables of a stage's step, counted from 0, are wanted."""
        return step < FIRST or (step - FIRST) % self.every == 0

    def tabulated(self, count: int) -> int:
        """Return how many of a batch's directions have tables."""
        return max(1, round(self.share * count))

    def levels(self, like: Tensor) -> Tensor:
        """Return the K levels, rising from 0 to 1 and closer to each other at both ends: tails matter."""
        angle = torch.linspace(0, math.pi, self.knots, dtype=torch.float64, device=like.device)
        return ((1 - angle.cos()) / 2).to(like.dtype)


@attrs.frozen(eq=False)
class StepTables:
    """T_h of some of a step's directions, in the order in which these were drawn."""

    positions: Tensor
    """F_p⁻¹ at the levels: S×H'×K, S being 1 unless conditions keep strata apart."""
    displacements: Tensor
    """F_q⁻¹ − F_p⁻¹ there: S×H'×K."""


class TableTransport:
    """δ by tables of the maps, which are collected as the step's directions are worked on."""

    def __init__(self, request: TableRequest, directions: int, together: int, by_cdf: CDFTransport) -> None:
        """`directions` is H, and `together` how many of them have to be drawn at once."""
        self._request = request
        self._by_cdf = by_cdf
        self._sizes = [count for _, count in batches(directions, together)]
        tabulated = [request.tabulated(count) for count in self._sizes]
        self._first = [sum(tabulated[:i]) for i in range(len(tabulated) + 1)]
        self._tables: tuple[Tensor, Tensor] | None = None

    def begin(self, rows: Rows) -> Begun | None:
        """Begin to fit F_p over all ranks; None for one rank alone."""
        if self._by_cdf.ranks.alone:
            return None
        begun = self._by_cdf.begin(rows)
        return partial(self._by_cdf.fit, rows) if begun is None else begun

    def displace(self, rows: Rows, F_q: Fits, place: Place, F_p: Begun | None = None) -> Tensor:
        """Replace the particles' rows p by δ, and keep the maps; return the sum of δ² of each: H."""
        H = rows.low.shape[0]
        with self._by_cdf.clock.part("tables"):
            fits = self._by_cdf.fit(rows, F_p)
            mine = self._by_cdf.rows_here(H)
            grid = self._request.levels(rows.low).expand(mine, -1)
            positions = torch.stack([self._by_cdf.cdf.inverse(fit, grid) for fit in fits])
            displacements = self._by_cdf.displacements(grid, positions, fits, F_q)
            if not (self._by_cdf.ranks.alone or self._by_cdf.by_counts):  # also a rank that has made all
                positions, displacements = (self._of_all(part, H) for part in (positions, displacements))
            maps = positions.to(self._request.dtype), displacements.to(self._request.dtype)
            self._keep(maps, *self._chosen(place, H))
        return self._by_cdf.displace_by(rows, *maps)

    def _of_all(self, maps: Tensor, rows: int) -> Tensor:
        """Return the maps of all ranks, of which each has made some: S×h×K → S×H×K."""
        return self._by_cdf.ranks.all_rows(maps.transpose(0, 1), rows).transpose(0, 1)

    def _keep(self, maps: tuple[Tensor, Tensor], cut: Tensor | slice | None, places: Tensor | slice) -> None:
        """Put some of the maps (S×H×K) where they belong."""
        if self._tables is None:
            shape = (maps[0].shape[0], self._first[-1], self._request.knots)
            self._tables = maps[0].new_empty(shape), maps[1].new_empty(shape)
        if cut is not None:
            for table, values in zip(self._tables, maps, strict=True):
                table[:, places] = values[:, cut]

    def _chosen(self, place: Place, count: int) -> tuple[Tensor | slice | None, Tensor | slice]:
        """Return which of `count` rows have tables, and where these go; None if none of them has.

        Tables are those of the first so many directions of each batch, in the order of the draw.
        """
        batch, order = place.batch, place.order
        tabulated, offset = self._first[batch + 1] - self._first[batch], self._first[batch]
        if order is None:
            last = min(count, tabulated - place.first)
            first = offset + place.first
            return (slice(0, last) if last > 0 else None), slice(first, first + last)
        if tabulated == self._sizes[batch]:
            return slice(0, count), order + offset
        if count == self._sizes[batch]:  # of a size that is known beforehand, so that steps can be recorded
            return order.argsort()[:tabulated], slice(offset, offset + tabulated)
        chosen = (order < tabulated).nonzero()[:, 0]
        return (chosen if len(chosen) else None), order[chosen] + offset

    def tables(self) -> StepTables:
        """Return the tables, once all directions have been worked on."""
        assert self._tables is not None
        return StepTables(*self._tables)


def _replaced(rows: Rows, delta: Tensor) -> Tensor:
    """Put δ (H×n) in the place of the values; return the sum of δ² of each row: H."""
    squares = delta.square().sum(dim=1)
    rows.values.copy_(delta)
    return squares


def _bytes_of(things: Sequence[object]) -> float:
    """Return the bytes of the tensors that attrs objects have as attributes."""
    kinds: list[Any] = [type(thing) for thing in things]
    values = [
        getattr(thing, field.name)
        for thing, kind in zip(things, kinds, strict=True)
        if attrs.has(kind)
        for field in attrs.fields(kind)
    ]
    return float(sum(value.numel() * value.element_size() for value in values if isinstance(value, Tensor)))


def _reading(rows: Rows) -> Work:
    """Return the work of reading the values once."""
    moved = float(rows.values.numel() * rows.values.element_size())
    return lambda: (moved, 0.0)
