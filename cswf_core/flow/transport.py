"""The one-dimensional transport of the particles: p becomes δ = T(p) − p.

`Maps` is what a step asks for: the maps T_h = F_q⁻¹∘F_p along directions. `FittedMaps` has them from the
distributions of particles and data (`fits`), by the CDF plugin. Where a model is saved, particles move by
tables of these maps (`tables`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic

import attrs
import torch
from torch import Tensor

from cswf_core.flow.directions import Place
from cswf_core.flow.fits import AnyCloud, Begun, Fits, Fitter, Members, Slab, Source, reading
from cswf_core.interfaces import FittedCDF
from cswf_core.kernels.rows import Columns, Rows

LARGEST_SAFE = 1e15
"""Numbers below it can be multiplied, squared and added in float32 and stay finite."""

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
        strata = self.participants.strata
        if strata is None:
            return self.measured_squares(rows, displace(0, rows))
        totals: list[Tensor] = []
        for number, columns in enumerate(strata):
            part = rows.columns(columns)
            totals.append(displace(number, part))
            rows.values[:, columns] = part.values
        return self.measured_squares(rows, torch.stack(totals).sum(dim=0))

    def measured_squares(self, rows: Rows, squares: Tensor) -> Tensor:
        """Return Σ δ² of each row, for all particles, of δ and its sums of squares here: H."""
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
