"""The CDF plugin at work: fits of the data, displacements of the particles, stratum by stratum."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs
import torch
from torch import Tensor

from cswf_core.flow import boundary
from cswf_core.flow.clock import Clock, Work
from cswf_core.interfaces import CDFEstimator, FittedCDF, Owner, Rows, Stratum, TransportMap
from cswf_core.kernels import tables

Fits = list[FittedCDF]
"""What was fitted to the data's rows: one for each stratum."""


class Estimate:
    """One-dimensional transport by the recipe's CDF plugin, with its answers checked."""

    def __init__(self, cdf: CDFEstimator, owner: Owner, strata: Sequence[Stratum] | None) -> None:
        self.cdf = cdf
        self.owner = owner
        self.strata = strata
        self.check_values = True
        """Whether numbers are checked, and not only shapes: that reads back from the device."""
        self.composes = type(cdf).between is not CDFEstimator.between
        """Whether the plugin composes maps, whose making can be timed apart."""
        self.lean = self.composes or type(cdf).displace is not CDFEstimator.displace
        """Whether the plugin reads rows as they are, and needs no memory of their size."""

    def fit(self, rows: Rows) -> Fits:
        """Return F_p of the particles' rows."""
        return [self._fit(part) for part in self._strata(rows, 0)]

    def fit_data(self, rows: Rows, clock: Clock) -> Fits:
        """Return F_q of the data's rows."""
        with clock.part("count", _work(rows)):
            return [self._fit(part) for part in self._strata(rows, 1)]

    def displace(self, rows: Rows, fits: Fits, clock: Clock) -> Tensor:
        """Replace the particles' rows p by δ = F_q⁻¹(F_p(p)) − p; return the sum of δ² of each: H."""
        return self._apart(rows, lambda number, part: self._displace(part, fits[number], clock))

    def displace_by(self, rows: Rows, positions: Tensor, displacements: Tensor, clock: Clock) -> Tensor:
        """Replace the particles' rows p by δ as tables say (S×H×K each); return the sum of δ² of each: H."""
        with clock.part("lookup", _work(rows)):
            return self._apart(
                rows, lambda number, part: tables.displace(part, positions[number], displacements[number])
            )

    def _apart(self, rows: Rows, displace: Callable[[int, Rows], Tensor]) -> Tensor:
        """Displace the rows of each stratum on its own; return the sum of δ² of each row: H."""
        if self.strata is None:
            return displace(0, rows)
        parts = self._strata(rows, 0)
        totals = [displace(number, part) for number, part in enumerate(parts)]
        for part, (particles, _) in zip(parts, self.strata, strict=True):
            rows.values[:, particles] = part.values  # only now: what runs out of memory is tried again
        return torch.stack(totals).sum(dim=0)

    def _strata(self, rows: Rows, side: int) -> list[Rows]:
        if self.strata is None:
            return [rows]
        return [rows.columns(stratum[side]) for stratum in self.strata]

    def _fit(self, rows: Rows) -> FittedCDF:
        with boundary.calling(self.owner, "fit"):
            fitted = self.cdf.fit_rows(rows)
        if not isinstance(fitted, FittedCDF):
            raise boundary.fault(self.owner, "fit", "a FittedCDF", type(fitted).__name__)
        return fitted

    def _displace(self, rows: Rows, data: FittedCDF, clock: Clock) -> Tensor:
        work = _work(rows)
        if not self.lean:
            with clock.part("lookup", work):
                return self._transport(rows, data)
        if type(clock) is Clock or not self.composes:
            with clock.part("lookup", work), boundary.calling(self.owner, "displace"):
                return self._checked(self.cdf.displace(rows, data), rows)
        with clock.part("count", work):
            mine = self._fit(rows)
        made: list[object] = [mine, data]
        with clock.part("tables", lambda: (_held(made), 0.0)), boundary.calling(self.owner, "between"):
            through = self.cdf.between(mine, data)
            made.append(through)
        if not isinstance(through, TransportMap):
            raise boundary.fault(self.owner, "between", "a TransportMap", type(through).__name__)
        with clock.part("lookup", lambda: (2 * work()[0], 0.0)), boundary.calling(self.owner, "displace"):
            return self._checked(through.displace(rows), rows)

    def _checked(self, squares: Tensor, rows: Rows) -> Tensor:
        boundary.check_tensor(squares, self.owner, "displace", shape=tuple(rows.low.shape), like=rows.low)
        return boundary.check_finite(squares, self.owner, "displace") if self.check_values else squares

    def _transport(self, rows: Rows, data: FittedCDF) -> Tensor:
        p = rows.read()
        with boundary.calling(self.owner, "transport"):
            image = self.cdf.transport(p, data)
        delta = boundary.check_transport(image, self.owner, p=p, values=self.check_values) - p
        squares = delta.square().sum(dim=1)
        rows.values.copy_(delta)
        return squares


def _held(things: Sequence[object]) -> float:
    """Return the bytes of the tensors that objects have as attributes."""
    kinds: list[Any] = [type(thing) for thing in things]
    values = [
        getattr(thing, field.name)
        for thing, kind in zip(things, kinds, strict=True)
        if attrs.has(kind)
        for field in attrs.fields(kind)
    ]
    return float(sum(value.numel() * value.element_size() for value in values if isinstance(value, Tensor)))


def _work(rows: Rows) -> Work:
    """Return what reading the values once moves."""
    moved = float(rows.values.numel() * rows.values.element_size())
    return lambda: (moved, 0.0)
