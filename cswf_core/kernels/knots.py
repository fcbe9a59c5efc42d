"""Maps by knots, which lie closer together where most values are: one at a centre, and J on either side.

The j-th knot on a side is at (j/J)² of the way from the centre to the last knot there. Between two knots
T − identity is a line; beyond the last knots T is constant. On CUDA, `kernels.gpu.knots` does the same.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cswf_core.kernels.rows import Rows


def positions(centre: Tensor, reach: Tensor, knots: int) -> Tensor:
    """Return where the K = 2J + 1 knots of tables are: S×H×K.

    Args:
        centre: The knot in the middle: S×H.
        reach: The lengths from there to the first knot and to the last: S×H×2.
        knots: K.
    """
    side = knots // 2
    part = torch.arange(-side, side + 1, device=centre.device).to(centre.dtype) / side
    down = reach[..., :1] * part[:side].square()
    up = reach[..., 1:] * part[side:].square()
    return centre[..., None] + torch.cat([-down, up], dim=-1)


def lines(centre: Tensor, reach: Tensor, delta: Tensor) -> Tensor:
    """Return where each of a table's K + 1 lines begins, δ there, and its slope: S×H×(K+1)×3.

    Those outside of the knots have slope −1. A value at a knot may be given to either line.
    """
    at = positions(centre, reach, delta.shape[-1])
    rise = delta.diff(dim=-1) / at.diff(dim=-1).clamp_min(torch.finfo(at.dtype).tiny)
    outside = torch.full_like(at[..., :1], -1)
    starts, heights = (torch.cat([each[..., :1], each], dim=-1) for each in (at, delta))
    return torch.stack([starts, heights, torch.cat([outside, rise, outside], dim=-1)], dim=-1)


def displaced(rows: Rows, centre: Tensor, reach: Tensor, lines: Tensor, cells: Tensor | None) -> Tensor:
    """Replace the values p by δ = T(p) − p, in place; return the sum of δ² of each row: H.

    Args:
        rows: The values: H×n.
        centre: The knot in the middle of each of S tables: S×H.
        reach: The lengths from there to the first knot and to the last: S×H×2.
        lines: The lines between knots, as the function of that name returns them: S×H×(K+1)×3.
        cells: The table of each value: n whole numbers below S; None: there is one.
    """
    values = rows.read()
    _, H, count, _ = lines.shape
    side = count // 2 - 1
    below, above = (1 / reach).unbind(dim=2)
    table = torch.zeros(1, dtype=torch.int32, device=centre.device) if cells is None else cells.int()
    centre_of, below_of, above_of = (each.T.index_select(1, table) for each in (centre, below, above))
    away = values - centre_of
    share = away.clamp_min(0).mul_(above_of).addcmul_(away.clamp_max_(0), below_of)
    knot = share.abs().sqrt_().copysign_(share).mul_(side).add_(side + 1)
    line = knot.clamp_(0, count - 1).int().clamp_(0, count - 1)  # also of NaN, which makes δ NaN
    line += torch.arange(0, H * count, count, dtype=line.dtype, device=line.device)[:, None]
    line += table * (H * count)
    start, height, slope = torch.nn.functional.embedding(line, lines.view(-1, 3)).unbind(dim=2)
    torch.addcmul(height, slope, values.sub_(start), out=values)
    squares = values.square().sum(dim=1)
    rows.values.copy_(values)
    return squares
