"""Saved maps, and moving by them: in a run that saves a model, and in the model.

Along a direction, T = F_q⁻¹∘F_p is kept by its displacement T − identity at K = 2J + 1 knots: one at a centre,
and J on either side, at (j/J)² of the way to where the particles end. So knots lie closer together where most
particles are. Between two knots the displacement is a line; beyond the last knot on either side, T is constant,
so that whatever lies there goes where that knot goes. Where particles have labels, each class has a table of
its own, which spans that class only.

`StepTables` are the tables as a model stores them, in few bits; `Lookup` has their numbers. A run that saves a
model moves its particles by the stored tables (`TabulatedMaps`), and a saved model has its maps from these
alone (`saved_maps`). So later steps see the rounding and correct it, and new samples meet the same maps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from typing import Any

import attrs
import torch
from torch import Tensor

from cswf_core.errors import RunError
from cswf_core.flow.directions import Place
from cswf_core.flow.fits import AnyCloud, Begun, Fits, Slab, reading
from cswf_core.flow.settings import TableRequest
from cswf_core.flow.transport import Displace, FittedMaps, Maps
from cswf_core.interfaces import FittedCDF, Rows
from cswf_core.kernels import gpu
from cswf_core.kernels.knots import displaced, lines, positions

LONGEST = 255
"""The code of the greatest length that tables can have, about 4·10⁹."""


@lru_cache(maxsize=8)
def _lengths(device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return the length that each code stands for, four to an octave: 256 numbers."""
    octaves = (torch.arange(LONGEST + 1, dtype=torch.float64) - 128) / 4
    return torch.exp2(octaves).to(dtype).to(device)


def _codes_of(lengths: Tensor) -> Tensor:
    """Return the code of the least length that can be stored and is not below each of some: uint8."""
    codes = torch.ceil(4 * torch.log2(lengths.double()).nan_to_num(nan=torch.inf) - 1e-6) + 128
    return codes.clamp(0, LONGEST).to(torch.uint8)


def _length_of(codes: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the lengths that codes stand for."""
    return _lengths(codes.device, dtype)[codes.long()]


@attrs.frozen(eq=False)
class StepTables:
    """T_h of a step's directions, in the order in which these were drawn, as a model stores them."""

    centre: Tensor
    """The knot in the middle, where most particles are: S×H, float32; S is 1, or the number of classes."""
    spans: Tensor
    """Codes of the lengths from there to the first knot and to the last, and of the longest δ: S×H×3, uint8."""
    levels: Tensor
    """δ at the knots, as the signed root of its share of the longest: S×H×K, or two of them in a byte."""

    def each(self, change: Callable[[Tensor], Tensor]) -> StepTables:
        """Return the tables with a change of all tensors, such as to another device."""
        return StepTables(change(self.centre), change(self.spans), change(self.levels))

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        """Centres, spans and levels."""
        return self.centre, self.spans, self.levels

    @classmethod
    def of(cls, centre: Tensor, ends: Tensor, delta: Tensor, bits: int) -> StepTables:
        """Return tables of centres and ends, as `Knots` has them, and of δ (S×H×K), in 4, 8 or 16 bits.

        Where δ is not finite, the centre is NaN, and every value becomes NaN: whole numbers cannot say so.
        """
        centre = centre.masked_fill(~delta.isfinite().all(dim=-1), torch.nan)
        longest = _codes_of(delta.abs().amax(dim=-1))
        share = delta / _length_of(longest, delta.dtype)[..., None]
        most = 2 ** (bits - 1) - 1
        levels = (share.abs().sqrt() * most).round().clamp(max=most) * share.sign()
        spans = torch.cat([ends, longest[..., None]], dim=-1)
        return cls(centre, spans, _packed(levels.to(torch.int16), bits))


def _packed(levels: Tensor, bits: int) -> Tensor:
    """Return whole numbers in as few bytes: of 4 bits, two in a byte, the first one lower."""
    if bits > 4:
        return levels.to(torch.int8 if bits == 8 else torch.int16)
    low = levels[..., ::2] + 8
    low[..., : levels.shape[-1] // 2] += 16 * (levels[..., 1::2] + 8)
    return low.to(torch.uint8)


def _unpacked(levels: Tensor, knots: int) -> tuple[Tensor, int]:
    """Return the numbers that `_packed` was given, and the largest that they could be."""
    if levels.dtype != torch.uint8:
        return levels, torch.iinfo(levels.dtype).max
    both = torch.stack([levels & 15, levels >> 4], dim=-1).flatten(-2)[..., :knots]
    return both.to(torch.int8) - 8, 7


@attrs.frozen(eq=False)
class Knots:
    """Where the knots of S×H tables are."""

    centre: Tensor
    """S×H, float32."""
    ends: Tensor
    """Codes of the lengths from there to the first knot and to the last: S×H×2."""

    @classmethod
    def of(cls, low: Tensor, centre: Tensor, high: Tensor) -> Knots:
        """Return the grid of particles from `low` to `high` with a centre (S×H each)."""
        centre = centre.float().masked_fill(~(high - low).isfinite(), torch.nan)
        reach = torch.stack([centre - low, high - centre], dim=-1).clamp_min(0)
        return cls(centre, _codes_of(reach))

    def positions(self, knots: int, dtype: torch.dtype) -> Tensor:
        """Return the positions of the knots: S×H×K."""
        return positions(self.centre.to(dtype), _length_of(self.ends, dtype), knots)


@attrs.frozen(eq=False)
class Lookup:
    """Maps that are ready to move particles."""

    centre: Tensor
    """S×H."""
    reach: Tensor
    """The lengths from there to the first knot and to the last: S×H×2."""
    delta: Tensor
    """T − identity at the knots: S×H×K."""

    @classmethod
    def of(cls, tables: StepTables, knots: int, like: Tensor) -> Lookup:
        """Return the maps that tables store, in the type of `like` and in memory of their own."""
        spans = _length_of(tables.spans, like.dtype)
        levels, most = _unpacked(tables.levels, knots)
        share = levels.to(like.dtype) / most
        centre = tables.centre.to(like.dtype, copy=True)
        return cls(centre, spans[..., :2], share * share.abs() * spans[..., 2:])

    @cached_property
    def lines(self) -> Tensor:
        """The lines between the knots, for the CPU: S×H×(K+1)×3."""
        return lines(self.centre, self.reach, self.delta)

    def rows(self, rows: slice | Tensor) -> Lookup:
        """Return the maps of some directions."""
        if isinstance(rows, slice) and (rows.start, rows.stop) == (0, self.centre.shape[1]):
            return self
        return Lookup(self.centre[:, rows], self.reach[:, rows], self.delta[:, rows])

    def displace(self, rows: Rows, cells: Tensor | None) -> Tensor:
        """Replace the values p by δ = T(p) − p, in place; return the sum of δ² of each row: H.

        `cells` has the number of each particle's table: n; None: there is one.
        """
        if gpu.usable(rows.values.device) and rows.low.dtype == torch.float32:
            from cswf_core.kernels.gpu import knots

            squares: Tensor = knots.displaced(rows, self.centre, self.reach, self.delta, cells)
            return squares
        return displaced(rows, self.centre, self.reach, self.lines, cells)


def tables_of(labels: Tensor, tables: Sequence[int]) -> Tensor:
    """Return the number of each particle's table: n, of labels (n) and the label of each table."""
    same = labels == torch.tensor(tables, device=labels.device)[:, None]
    if not bool(same.any(dim=0).all()):
        raise RunError("the model has no maps for the class of some particles")
    return same.to(torch.uint8).argmax(dim=0).to(torch.uint8 if len(tables) <= 256 else torch.int32)


@attrs.frozen(eq=False, kw_only=True)
class Cells:
    """Which table each particle of a rank, or of a block, moves by: that of its label."""

    count: int
    """S."""
    index: Tensor
    """The number of each particle's table: n."""
    groups: Tensor | None
    """The group that the condition puts each table's particles in; None: it has no groups."""
    apart: bool
    """Whether each table's particles have distributions of their own."""

    @classmethod
    def of(cls, labels: Tensor, tables: Sequence[int], groups: Tensor | None, *, apart: bool) -> Cells:
        """Return the cells of particles with labels (n), `tables` being the label of each table."""
        index = tables_of(labels, tables)
        return cls(count=len(tables), index=index, groups=groups, apart=apart)

    @cached_property
    def members(self) -> list[Tensor]:
        """The particles of each table, by their numbers."""
        return [torch.nonzero(self.index == number)[:, 0] for number in range(self.count)]


@attrs.frozen(eq=False, kw_only=True)
class TabulatedMaps(FittedMaps[AnyCloud]):
    """Fitted maps as tables, which are collected while the step's directions are worked on."""

    request: TableRequest
    directions: int
    """H."""
    cells: Cells | None
    """Which table each particle moves by; None: there is one."""
    _tables: list[Tensor] = attrs.field(factory=list, init=False)

    def displace(self, rows: Rows, F_q: Fits, place: Place, F_p: Begun | None = None) -> Tensor:
        """Replace the particles' rows p by δ, and collect the maps; return the sum of δ² of each: H."""
        knots = self.request.knots
        with self.fitter.clock.part("tables"):
            fits = self.fit(rows, F_p)
            tables = self._tabulated(rows, fits, F_q)
            self._collect(tables, place)
            lookup = Lookup.of(tables, knots, rows.low)
        with self.fitter.clock.part("lookup", reading(rows)):
            squares = lookup.displace(rows, None if self.cells is None else self.cells.index)
            return self.measured_squares(rows, squares)

    def tables(self) -> tuple[Tensor, ...]:
        """Return centres, spans and levels, once all directions have been worked on."""
        return tuple(self._tables)

    def _tabulated(self, rows: Rows, F_p: Fits, F_q: Fits) -> StepTables:
        """Return the tables of some directions."""
        H = rows.low.shape[0]
        assert len(F_p) == 1 or self.cells is not None
        grid = Knots.of(*self._spans(rows, F_p).unbind(dim=-1))
        delta = self._displacements(grid.positions(self.request.knots, rows.low.dtype), F_p, F_q)
        numbers = torch.cat([grid.centre[..., None].to(delta), grid.ends.to(delta), delta], dim=-1)
        numbers = self.fitter.all_rows(numbers, H)  # of all ranks, where each has fitted some
        centre, below, above, *_ = numbers[..., :3].unbind(dim=-1)
        ends = torch.stack([below, above], dim=-1).to(torch.uint8)
        return StepTables.of(centre.float().contiguous(), ends, numbers[..., 3:], self.request.bits)

    def _spans(self, rows: Rows, F_p: Fits) -> Tensor:
        """Return the least, the middle and the greatest value of each table's particles: S×h×3."""
        cdf = self.fitter.cdf
        cells = self.cells
        if cells is None or cells.apart:
            levels = torch.arange(3, device=rows.low.device).to(rows.low) / 2
            levels = levels.expand(self.fitter.rows_here(len(rows.low)), -1)
            return torch.stack([cdf.inverse(fit, levels) for fit in F_p])
        low, high = self.fitter.own_rows(*self._ends(rows, cells))
        parts = []
        for ends in torch.stack([low, high], dim=-1):
            level = cdf.levels(F_p[0], ends).mean(dim=1, keepdim=True)
            middle = cdf.inverse(F_p[0], level).maximum(ends[:, :1]).minimum(ends[:, 1:])
            parts.append(torch.cat([ends[:, :1], middle, ends[:, 1:]], dim=1))
        return torch.stack(parts)

    def _ends(self, rows: Rows, cells: Cells) -> tuple[Tensor, Tensor]:
        """Return the least and the greatest value of each table's particles, of all ranks: S×H each.

        Where the offsets of labels stand beside the values, those of all particles stand for a label's own.
        """
        if rows.offsets is not None and cells.groups is not None:
            offsets = rows.offsets[:, cells.groups].T
            low = rows.low - rows.offsets.amin(dim=1) + offsets
            high = rows.high - rows.offsets.amax(dim=1) + offsets
        else:
            own = [rows.columns(members) for members in cells.members]
            low = torch.stack([part.low for part in own])
            high = torch.stack([part.high for part in own])
        return self.fitter.ranks.ends(low, high)

    def _displacements(self, knots: Tensor, F_p: Fits, F_q: Fits) -> Tensor:
        """Return δ at knots (S×h×K): S×h×K."""
        S, h, K = knots.shape
        if len(F_p) == S:
            return torch.stack([self._at(*each) for each in zip(knots, F_p, F_q, strict=True)])
        beside = knots.transpose(0, 1).reshape(h, S * K)
        return self._at(beside, F_p[0], F_q[0]).reshape(h, S, K).transpose(0, 1)

    def _at(self, values: Tensor, F_p: FittedCDF, F_q: FittedCDF) -> Tensor:
        """Return δ of some values along each direction: h×m → h×m."""
        cdf = self.fitter.cdf
        through = cdf.between(F_p, F_q) if cdf.displaces else None
        if through is None:
            return cdf.image(values, F_p, F_q, check=self.check) - values
        delta = values.clone(memory_format=torch.contiguous_format)
        through.displace(Rows.of(delta), check=self.check)
        return delta

    def _collect(self, tables: StepTables, place: Place) -> None:
        """Put the tables of some of the directions where they belong."""
        if not self._tables:
            for part in tables.tensors:
                shape = (part.shape[0], self.directions, *part.shape[2:])
                self._tables.append(part.new_empty(shape))
        rows = place.in_draw(tables.centre.shape[1])
        for whole, part in zip(self._tables, tables.tensors, strict=True):
            whole[:, rows] = part


def saved_maps(lookups: Sequence[Lookup], cells: Tensor | None) -> Maps[Any]:
    """Return T_h by the tables of a saved step, for particles that do not depend on each other.

    Args:
        lookups: The maps along the directions of each batch.
        cells: The number of each particle's table; None: there is one for all.
    """

    def displacement_along(theta: Slab[Any], p: Rows) -> Displace:
        first = theta.place.first
        own = lookups[theta.place.batch].rows(slice(first, first + theta.count))
        return lambda: own.displace(p, cells).double()

    return displacement_along
