"""The one-dimensional transport of the particles: p becomes δ = T(p) − p.

`Maps` is what a step asks for: the maps T_h = F_q⁻¹∘F_p along directions. `FittedMaps` has them from the
distributions of particles and data (`fits`), by the CDF plugin.

A table holds, at K levels a_1 … a_K, the position F_p⁻¹(a_k) and the displacement F_q⁻¹(a_k) − F_p⁻¹(a_k), or
that of the estimator's own map where its tails differ (`extrapolates`); between two of these knots the map is a
line, and constant before the first and after the last, so that whatever lies beyond goes where the nearer end
goes. To be quick, on CUDA too, a `Lookup` has T − identity at the edges of equal bins between the first
position and the last, and is linear inside a bin. Where a model is saved, the particles of the run move by
tables too (`TabulatedMaps`), rounded and read off as a model does it: later steps see the errors and correct
them. A saved model has its maps from the tables alone (`saved_maps`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Any, Generic

import attrs
import torch
from torch import Tensor

from cswf_core.flow.directions import Place
from cswf_core.flow.fits import AnyCloud, Begun, Fits, Fitter, Members, Slab, Source, reading
from cswf_core.flow.memory import batch_size, batches
from cswf_core.flow.settings import TableRequest
from cswf_core.interfaces import FittedCDF
from cswf_core.kernels import gpu
from cswf_core.kernels.histogram import looked_up
from cswf_core.kernels.rows import Columns, Rows

LARGEST_SAFE = 1e15
"""Numbers below it can be multiplied, squared and added in float32 and stay finite."""

LOOKUP_BINS = 512
"""Equal bins between the first position and the last."""


@attrs.frozen(eq=False)
class Lookup:
    """H maps, ready to be looked up in."""

    low: Tensor
    """The first position of each row: H."""
    high: Tensor
    """The last position of each row: H."""
    pairs: Tensor
    """T − identity at both edges of each bin, as `kernels.histogram.composed` has it: H×(B+1)×2."""

    @classmethod
    def of(cls, positions: Tensor, displacements: Tensor, like: Tensor) -> Lookup:
        """Return the maps that positions, which never fall along a row, and displacements are: H×K each.

        They may be in half precision; the maps are computed and kept in the type of `like`.
        """
        positions = positions.to(like.dtype).contiguous()
        displacements = displacements.to(like.dtype)
        low = positions[:, 0].contiguous()
        high = positions[:, -1].contiguous()
        edge = torch.arange(LOOKUP_BINS + 1, dtype=low.dtype, device=low.device)
        delta = displacement(
            low[:, None] + (high - low)[:, None] / LOOKUP_BINS * edge, positions, displacements
        )
        return cls(low, high, torch.stack([delta, torch.cat([delta[:, 1:], delta[:, -1:]], dim=1)], dim=2))

    @classmethod
    def in_order(
        cls, positions: Tensor, displacements: Tensor, order: Tensor | None, like: Tensor, *, quick: bool
    ) -> list[Lookup]:
        """Return the maps of each stratum (S×H×K), row r being row order[r]; `quick`: by one kernel on CUDA."""
        if quick and gpu.usable(positions.device):
            from cswf_core.kernels.gpu import maps

            strata = zip(*maps.tabulated(positions, displacements, order, LOOKUP_BINS), strict=True)
            return [cls(low, high, pairs) for low, high, pairs in strata]
        if order is not None:
            positions = positions[:, order]
            displacements = displacements[:, order]
        return [cls.of(p, d, like) for p, d in zip(positions, displacements, strict=True)]

    def part(self, cut: slice) -> Lookup:
        """Return the maps of some rows."""
        return Lookup(self.low[cut], self.high[cut], self.pairs[cut])

    def displace(self, rows: Rows) -> Tensor:
        """Replace the values p by δ = T(p) − p, in place; return the sum of δ² of each row: H."""
        inside = attrs.evolve(rows, low=self.low, high=self.high)
        return looked_up(inside, self.pairs, rows.values)[1]


def displacement(values: Tensor, positions: Tensor, displacements: Tensor) -> Tensor:
    """Return δ = T(p) − p on the lines themselves, without bins: H×n → H×n.

    Where several positions are equal, T jumps, and the last of them counts.
    """
    start, height, slope = _lines(positions, displacements)
    line = torch.searchsorted(positions, values.contiguous(), right=True)
    beyond = values - start.gather(1, line)
    return torch.addcmul(height.gather(1, line), slope.gather(1, line), beyond)


def _lines(positions: Tensor, displacements: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return where each of the K + 1 lines begins, δ there, and its slope: H×(K+1) each.

    The first and the last have slope −1: T is constant on them.
    """
    width = positions.diff(dim=1)
    rise = torch.where(width > 0, displacements.diff(dim=1) / torch.where(width > 0, width, 1), 0)
    outside = torch.full_like(positions[:, :1], -1)
    start = torch.cat([positions[:, :1], positions], dim=1)
    height = torch.cat([displacements[:, :1], displacements], dim=1)
    return start, height, torch.cat([outside, rise, outside], dim=1)


Displace = Callable[[], Tensor]
"""Replaces projected values p by δ = T(p) − p, in place; returns the sum of δ² of each row: H, float64."""

Maps = Callable[[Slab[AnyCloud], Rows], Displace]
"""(some of a step's directions θ_h, the particles' rows along them) → the displacement by the maps T_h.

It begins the fits that maps need; calling the displacement waits for other ranks, where there are any."""


@attrs.frozen(eq=False, kw_only=True)
class Participants:
    """Two sets of this rank's particles: those that F_p is fitted to, and those that count in SW₂²."""

    particles: Members
    measured: Columns | None = None
    """The particles whose distance to the data is measured, as they are not only carried along; None: all."""
    stretch: float = 1.0
    """M divided by the number of particles that are measured, over all ranks."""

    @property
    def strata(self) -> Sequence[Columns] | None:
        """The particles that each map moves; None: there is one map for all."""
        return None if self.particles.partial else self.particles.columns


@attrs.frozen(eq=False)
class FittedMaps(Generic[AnyCloud]):
    """T_h = F_q⁻¹∘F_p of distributions that are fitted to data and particles, stratum by stratum."""

    fitter: Fitter
    participants: Participants
    F_q: Source[AnyCloud]
    F_p: Source[AnyCloud] | None = None
    """The particles in blocks; None: F_p is fitted to the rows that are displaced."""
    check: bool = True
    """Whether the plugin's numbers are checked, and not only their shapes: that reads back from the device."""

    def begin(self, theta: Slab[AnyCloud], p: Rows) -> Displace:
        """Return the displacement of the particles' rows p."""
        F_q = self.F_q.along(theta)
        if self.F_p is None:
            F_p = self.fitter.begin_particles(p, self.participants.particles)
        else:
            F_p = self.F_p.along(theta)
        return lambda: self.displace(p, F_q(), theta.place, F_p).double()

    def fit(self, rows: Rows, begun: Begun | None = None) -> Fits:
        """Return F_p, of the particles' rows; `begun` is F_p that has been begun."""
        begun = self.fitter.begin(rows, self.participants.particles) if begun is None else begun
        return begun()

    def displace(self, rows: Rows, F_q: Fits, place: Place, F_p: Begun | None = None) -> Tensor:
        """Replace the particles' rows p by δ = F_q⁻¹(F_p(p)) − p; return the sum of δ² of each: H."""
        del place
        if F_p is None and not self.participants.particles.partial:
            return self.apart(rows, lambda n, part: self._displace_fused(part, F_q[n]))
        fits = self.fit(rows, F_p)
        with self.fitter.clock.part("lookup", reading(rows)):
            return self.apart(rows, lambda n, part: self._displace_composed(part, fits[n], F_q[n]))

    def tables(self) -> tuple[Tensor, ...]:
        """Return nothing: no maps are saved."""
        return ()

    @property
    def largest(self) -> float:
        """Up to this number, values can be squared and added."""
        return LARGEST_SAFE

    def apart(self, rows: Rows, displace: Callable[[int, Rows], Tensor]) -> Tensor:
        """Displace the rows of each stratum on its own; return Σ δ² of each row, for all particles: H."""
        squares = displace_per_stratum(rows, self.participants.strata, displace)
        measured = self.participants.measured
        if measured is None:
            return squares
        delta = rows.values[:, measured]
        lengths: Tensor = torch.linalg.vector_norm(delta, dim=1, dtype=squares.dtype)  # read once, in any type
        return lengths.square() * self.participants.stretch

    def _displace_fused(self, rows: Rows, F_q: FittedCDF) -> Tensor:
        """Displace rows that F_p is fitted to on the way."""
        cdf = self.fitter.cdf
        clock = self.fitter.clock
        if clock.times and self.fitter.displaces:  # part by part, which takes longer than all in one
            squares = self._displace_timed(rows, F_q)
            if squares is not None:
                return squares
        with clock.part("lookup", reading(rows)):
            if self.fitter.displaces:
                return cdf.displace(rows, F_q, check=self.check)
            return self.fitter.replace(rows, lambda p: cdf.transport(p, F_q, check=self.check))

    def _displace_timed(self, rows: Rows, F_q: FittedCDF) -> Tensor | None:
        """Fit, compose and look up one after the other, each timed; None if the plugin composes no maps."""
        read = reading(rows)
        with self.fitter.clock.part("count", read):
            F_p = self.fitter.cdf.fit_rows(rows)
        made: list[object] = [F_p, F_q]
        with self.fitter.clock.part("tables", lambda: (_bytes_of(made), 0.0)):
            through = self.fitter.cdf.between(F_p, F_q)
            made += [] if through is None else [through.plugin]
        if through is None:
            return None
        with self.fitter.clock.part("lookup", lambda: (2 * read()[0], 0.0)):
            return through.displace(rows, check=self.check)

    def _displace_composed(self, rows: Rows, F_p: FittedCDF, F_q: FittedCDF) -> Tensor:
        """Displace rows by distributions of which F_p was fitted to some of them, or to those of all ranks."""
        with self.fitter.clock.part("tables"):
            through = self.fitter.cdf.between(F_p, F_q) if self.fitter.displaces else None
        if through is not None:
            return through.displace(rows, check=self.check)
        return self.fitter.replace(rows, lambda p: self.fitter.cdf.image(p, F_p, F_q, check=self.check))


def displace_per_stratum(
    rows: Rows, strata: Sequence[Columns] | None, displace: Callable[[int, Rows], Tensor]
) -> Tensor:
    """Displace the columns of each stratum, or all, by a map of their own; return Σ δ² of each row: H."""
    if strata is None:
        return displace(0, rows)
    totals: list[Tensor] = []
    for number, columns in enumerate(strata):
        part = rows.columns(columns)
        totals.append(displace(number, part))
        rows.values[:, columns] = part.values
    return torch.stack(totals).sum(dim=0)


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


@attrs.frozen(eq=False)
class StepTables:
    """T_h of some of a step's directions, in the order in which these were drawn."""

    positions: Tensor
    """F_p⁻¹ at the levels: S×H'×K, S being 1 unless conditions keep strata apart."""
    displacements: Tensor
    """F_q⁻¹ − F_p⁻¹ there: S×H'×K."""

    def each(self, change: Callable[[Tensor], Tensor]) -> StepTables:
        """Return the tables with a change of both tensors, such as to another device."""
        return StepTables(change(self.positions), change(self.displacements))


def rows_of_batches(request: TableRequest, directions: int, together: int) -> list[slice]:
    """Return which rows of a step's tables each batch has: those of its first directions, batch by batch."""
    ends = accumulate((request.tabulated(count) for _, count in batches(directions, together)), initial=0)
    return [slice(first, stop) for first, stop in pairwise(ends)]


@attrs.frozen(eq=False, kw_only=True)
class TabulatedMaps(FittedMaps[AnyCloud]):
    """Fitted maps as tables, which are collected while the step's directions are worked on."""

    request: TableRequest
    directions: int
    """H."""
    together: int
    """How many directions have to be drawn at once."""
    _tables: list[Tensor] = attrs.field(factory=list, init=False)

    def displace(self, rows: Rows, F_q: Fits, place: Place, F_p: Begun | None = None) -> Tensor:
        """Replace the particles' rows p by δ, and collect the maps; return the sum of δ² of each: H."""
        H = rows.low.shape[0]
        with self.fitter.clock.part("tables"):
            fits = self.fit(rows, F_p)
            levels = self.request.levels(rows.low).expand(self.fitter.rows_here(H), -1)
            positions = self.inverse(fits, levels)
            displacements = self.displacements(levels, positions, fits, F_q)
            positions, displacements = (
                self.fitter.all_rows(part, H).to(self.request.dtype) for part in (positions, displacements)
            )
            self._collect(positions, displacements, place)
        with self.fitter.clock.part("lookup", reading(rows)):
            return self.apart(
                rows, lambda n, part: Lookup.of(positions[n], displacements[n], part.low).displace(part)
            )

    def tables(self) -> tuple[Tensor, ...]:
        """Return positions and displacements, once all directions have been worked on: S×H'×K each.

        They are those of the first directions of each batch, in the order of the draw.
        """
        begins = range(0, self.directions, batch_size(self.together))
        counts = [self.request.tabulated(count) for _, count in batches(self.directions, self.together)]
        parts = [slice(begin, begin + count) for begin, count in zip(begins, counts, strict=True)]
        return tuple(torch.cat([table[:, part] for part in parts], dim=1) for table in self._tables)

    def inverse(self, fits: Fits, levels: Tensor) -> Tensor:
        """Return F⁻¹ at some levels (H×K): S×H×K."""
        return torch.stack([self.fitter.cdf.inverse(fit, levels) for fit in fits])

    def displacements(self, levels: Tensor, positions: Tensor, F_p: Fits, F_q: Fits) -> Tensor:
        """Return δ at some levels (H×K), where F_p has its positions: S×H×K."""
        if not self.fitter.cdf.extrapolates:
            return self.inverse(F_q, levels) - positions
        delta = positions.clone()
        for part, mine, theirs in zip(delta, F_p, F_q, strict=True):
            through = self.fitter.cdf.between(mine, theirs)
            if through is None:
                raise TypeError("an estimator that extrapolates has `between` return a TransportMap")
            through.displace(Rows.of(part), check=self.check)
        return delta

    @property
    def largest(self) -> float:
        """Up to this number, δ = q − p can be rounded."""
        return min(super().largest, float(torch.finfo(self.request.dtype).max) / 2)

    def _collect(self, positions: Tensor, displacements: Tensor, place: Place) -> None:
        """Put the maps along some of the directions (S×H×K each) where they belong."""
        strata, count, knots = positions.shape
        if not self._tables:
            shape = (strata, self.directions, knots)
            self._tables.extend([positions.new_empty(shape), displacements.new_empty(shape)])
        rows = place.in_draw(count)
        for table, values in zip(self._tables, (positions, displacements), strict=True):
            table[:, rows] = values


def saved_maps(lookups: Sequence[Sequence[Lookup]], strata: Sequence[Tensor] | None) -> Maps[Any]:
    """Return T_h by the tables of a saved step, for particles that do not depend on each other.

    Args:
        lookups: The maps along the directions of each batch, one for each stratum.
        strata: The particles of each stratum; None: there is one for all.
    """

    def displacement_along(theta: Slab[Any], p: Rows) -> Displace:
        first = theta.place.first
        own = [lookup.part(slice(first, first + theta.count)) for lookup in lookups[theta.place.batch]]
        return lambda: displace_per_stratum(p, strata, lambda n, part: own[n].displace(part)).double()

    return displacement_along
