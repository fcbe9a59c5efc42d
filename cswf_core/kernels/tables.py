"""Transport maps kept as tables: K positions along each direction, and the displacement at each of them.

Between two positions T is a line; before the first and after the last it is constant, so that whatever lies
beyond goes where the nearer end goes. To be quick, on CUDA too, T − identity is read off the lines at the edges
of equal bins between the first position and the last, and is linear inside a bin.
"""

from __future__ import annotations

import attrs
import torch
from torch import Tensor

from cswf_core.kernels import gpu
from cswf_core.kernels.histogram import looked_up
from cswf_core.kernels.rows import Rows

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


def displace(rows: Rows, positions: Tensor, displacements: Tensor) -> Tensor:
    """Replace the values p by δ = T(p) − p as tables (H×K each) say, in place; return Σ δ² of each row: H."""
    return Lookup.of(positions, displacements, rows.low).displace(rows)


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
