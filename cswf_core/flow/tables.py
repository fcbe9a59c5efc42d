"""Tables of the transport maps T_h = F_q⁻¹∘F_p: how a run makes them, and how particles move by them.

A table holds, at K levels a_1 … a_K, the position F_p⁻¹(a_k) and the displacement F_q⁻¹(a_k) − F_p⁻¹(a_k), or
that of the estimator's own map where its tails differ (`extrapolates`);
between two of these knots the map is nearly a line. Where a model is saved, the particles of the run move
by these tables too (`TabulatedMaps`), rounded and read off as a model does it: later steps see the errors
and correct them. A saved model has its maps from the tables alone (`SavedMaps`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise

import attrs
import torch
from torch import Tensor

from cswf_core.flow.directions import Place
from cswf_core.flow.fits import AnyCloud, Begun, Fits, Slab, reading
from cswf_core.flow.memory import batch_size, batches
from cswf_core.flow.settings import TableRequest
from cswf_core.flow.transport import Displace, FittedMaps, Maps, displace_per_stratum
from cswf_core.interfaces import Rows
from cswf_core.kernels import tables
from cswf_core.kernels.tables import Lookup


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
        with self.clock.part("tables"):
            fits = self.fit(rows, F_p)
            levels = self.request.levels(rows.low).expand(self.fitter.rows_here(H), -1)
            positions = self.inverse(fits, levels)
            displacements = self.displacements(levels, positions, fits, F_q)
            positions, displacements = (
                self.fitter.all_rows(part, H).to(self.request.dtype) for part in (positions, displacements)
            )
            self._collect(positions, displacements, place)
        with self.clock.part("lookup", reading(rows)):
            return self.apart(
                rows, lambda number, part: tables.displace(part, positions[number], displacements[number])
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
        return torch.stack([self.cdf.inverse(fit, levels) for fit in fits])

    def displacements(self, levels: Tensor, positions: Tensor, F_p: Fits, F_q: Fits) -> Tensor:
        """Return δ at some levels (H×K), where F_p has its positions: S×H×K."""
        if not self.cdf.extrapolates:
            return self.inverse(F_q, levels) - positions
        delta = positions.clone()
        for part, mine, theirs in zip(delta, F_p, F_q, strict=True):
            through = self.cdf.between(mine, theirs)
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


@attrs.frozen(eq=False)
class SavedMaps(Maps[AnyCloud]):
    """T_h by the tables of a saved step, for particles that do not depend on each other."""

    lookups: Sequence[Sequence[Lookup]]
    """The maps along the directions of each batch, one for each stratum."""
    strata: Sequence[Tensor] | None
    """The particles of each stratum; None: there is one for all."""

    def begin(self, theta: Slab[AnyCloud], p: Rows) -> Displace:
        """Return the displacement of the particles' rows p."""
        of_batch = self.lookups[theta.place.batch]
        first = theta.place.first
        own = [lookup.part(slice(first, first + theta.count)) for lookup in of_batch]
        return lambda: displace_per_stratum(p, self.strata, lambda n, part: own[n].displace(part)).double()
