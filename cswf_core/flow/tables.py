"""The transport maps of a step as small tables: what a saved model keeps of it.

Along direction h the map is T_h = F_q⁻¹∘F_p. At K levels a_1 … a_K it takes F_p⁻¹(a_k) to F_q⁻¹(a_k); between
two of these knots it is nearly a line. So K positions and K displacements are the map, whoever meets it later.

Where tables are wanted, particles move by these very tables, rounding and all. What is saved then is what has
happened, and the steps that follow see its errors and mend them. Maps that are merely written down lead astray:
with 1,000 particles their errors grow from step to step.
"""

from __future__ import annotations

import math

import attrs
import torch
from torch import Tensor

from cswf_core.flow.clock import Clock
from cswf_core.flow.estimate import Estimate, Fits
from cswf_core.flow.memory import tiles
from cswf_core.interfaces import Rows

FIRST = 50
"""Steps of a stage that are all kept: in them particles go most of their way."""


@attrs.frozen
class TableRequest:
    """Which tables of a flow's steps are wanted."""

    knots: int = 64
    """K."""
    share: float = 1.0
    """Share of the directions: the first so many of each tile, and at least one."""
    every: int = 1
    """After a stage's first `FIRST` steps, which are all kept, one of so many is."""
    dtype: torch.dtype = torch.float32
    """The numbers that tables are rounded to."""

    def wants(self, step: int) -> bool:
        """Say whether the tables of a stage's step, counted from 0, are wanted."""
        return step < FIRST or (step - FIRST) % self.every == 0

    def kept(self, count: int) -> int:
        """Return how many of a tile's directions have tables."""
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


class TableKeeper:
    """Collects the tables of one step as its directions are worked on, some at a time."""

    def __init__(self, request: TableRequest, directions: int, together: int, estimate: Estimate) -> None:
        """`directions` is H, and `together` how many of them are drawn at once."""
        self._request = request
        self._estimate = estimate
        sizes = [count for _, count in tiles(directions, together)]
        self._sizes = sizes
        kept = [request.kept(count) for count in sizes]
        self._first = [sum(kept[:i]) for i in range(len(kept) + 1)]
        self._found: tuple[Tensor, Tensor] | None = None

    def displace(
        self, tile: int, first: int, drawn: Tensor | None, rows: Rows, fits: Fits, clock: Clock
    ) -> Tensor:
        """Replace particles' rows p by δ along some directions of a tile, keeping the maps; return Σ δ²: H.

        `drawn` are their numbers in the tile; None: they go on from `first` in order.
        """
        with clock.part("tables"):
            grid = self._request.levels(rows.low).expand(rows.low.shape[0], -1)
            positions = torch.stack([fit.icdf(grid) for fit in self._estimate.fit(rows)])
            displacements = torch.stack([fit.icdf(grid) for fit in fits]) - positions
            maps = positions.to(self._request.dtype), displacements.to(self._request.dtype)
            self._keep(maps, *self._chosen(tile, first, drawn, rows.low.shape[0]))
        return self._estimate.displace_by(rows, *maps, clock)

    def _keep(self, maps: tuple[Tensor, Tensor], cut: Tensor | slice | None, places: Tensor | slice) -> None:
        """Put some of the maps (S×H×K) where they belong."""
        if self._found is None:
            shape = (maps[0].shape[0], self._first[-1], self._request.knots)
            self._found = maps[0].new_empty(shape), maps[1].new_empty(shape)
        if cut is not None:
            for table, values in zip(self._found, maps, strict=True):
                table[:, places] = values[:, cut]

    def _chosen(
        self, tile: int, first: int, drawn: Tensor | None, count: int
    ) -> tuple[Tensor | slice | None, Tensor | slice]:
        """Return which of `count` rows have tables, and where these go; None if none of them has."""
        kept, offset = self._first[tile + 1] - self._first[tile], self._first[tile]
        if drawn is None:
            last = min(count, kept - first)
            return (slice(0, last) if last > 0 else None), slice(offset + first, offset + first + last)
        if kept == self._sizes[tile]:
            return slice(0, count), drawn + offset
        if count == self._sizes[tile]:  # of a size that is known beforehand, so that steps can be recorded
            return drawn.argsort()[:kept], slice(offset, offset + kept)
        chosen = (drawn < kept).nonzero()[:, 0]
        return (chosen if len(chosen) else None), drawn[chosen] + offset

    def found(self) -> tuple[Tensor, Tensor]:
        """Return positions and displacements, once all directions have been worked on."""
        assert self._found is not None
        return self._found

    def tables(self, step: int) -> StepTables | None:
        """Return the tables of a stage's step, counted from 0; None if these are not wanted."""
        return StepTables(*self.found()) if self._request.wants(step) else None
