"""One-dimensional transport through histograms: count, compose once per direction, look up.

A row's values are counted into B equal bins between its ends; the CDF is linear inside a bin. T = F_q⁻¹∘F_p is
evaluated at both edges of each of p's bins, and each value of p is then one interpolation away from its image.
A bin of p that reaches over a gap of q by less than half a value of q is not stretched over it: it ends where
the gap begins, or begins where it ends, and T jumps there. In an empty bin of p, where only values that were
not counted can lie, these stay where they are, or go to the nearer end of q's gap.
Counts are whole numbers, the same in any order and on any device. On CUDA, Triton kernels do
the same, but that a value exactly at a jump may go to its other side.

With a `tail` t, T is a straight line beyond the levels t and 1 − t, with the slope that brings the mean of p's
tail to that of q's: the outermost values of p are not sent, one by one, to the outermost values of q.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cswf_core.kernels import gpu
from cswf_core.kernels.rows import Counted, Rows, outermost


def counted(rows: Rows, bins: int) -> Tensor:
    """Return how many values lie below each of the B + 1 edges: H×(B+1), int32."""
    if gpu.usable(rows.values.device) and rows.low.dtype == torch.float32:
        from cswf_core.kernels.gpu import histogram

        if rows.places is not None:  # which the kernel does not know
            rows = Rows(rows.read(), rows.low, rows.high)
        below: Tensor = histogram.counted(rows, bins)
        return below
    H, _ = rows.values.shape
    # Clamped as whole numbers: then even NaN has a bin, and the flow lives to say what went wrong.
    place = positions(rows.read(), rows.low, rows.high, bins).int().clamp_(0, bins - 1)
    place += torch.arange(0, H * bins, bins, dtype=place.dtype, device=place.device)[:, None]
    below = torch.zeros(H, bins + 1, dtype=torch.int32, device=place.device)
    below[:, 1:] = torch.bincount(place.view(-1), minlength=H * bins).view(H, bins).cumsum(dim=1)
    return below


def composed(p: Counted, q: Counted, tail: float = 0.0) -> Tensor:
    """Return T − identity at both edges of each of p's bins: H×(B+1)×2. The last pair is the last edge twice.

    T is a straight line beyond `tail`, a share of the values on either side; nowhere if it is 0. On CUDA tables
    are in half precision if p's values were: displacements are small where particles are near the data.
    """
    if gpu.usable(p.below.device) and q.low.dtype == torch.float32:
        from cswf_core.kernels.gpu import histogram

        pairs: Tensor = histogram.composed(p, q, tail)
        return pairs
    levels = p.below.double() * q.count / p.count  # in this order whole numbers are met exactly
    begin = levels[:, :-1]
    end = levels[:, 1:]
    middle = (begin + end) / 2
    empty = begin == end
    place, under, over = _levels(q, levels)
    position = place + (levels - under) / (over - under)
    starts, stops = _gaps(q)
    # Of a bin of p: whether it reaches over a gap of q by less than half a value, at its upper or lower end.
    start = starts.gather(1, place[:, 1:])
    stop = stops.gather(1, place[:, :-1])
    above = (start < place[:, 1:]) & (under[:, 1:] >= (end - 0.5).maximum(middle))
    below = (stop > place[:, :-1] + 1) & (over[:, :-1] < (begin + 0.5).minimum(middle))
    lower = _values(q, torch.where(below, stop, position[:, :-1]))
    upper = _values(q, torch.where(above, start, position[:, 1:]))
    edges = _values(p, torch.arange(p.bins + 1, device=p.low.device))
    # For an empty bin, `upper` is where q's gap begins, and `lower` where it ends.
    after = torch.where(empty, edges[:, :-1].clamp(upper, lower), lower)
    before = torch.where(empty, edges[:, 1:].clamp(upper, lower), upper)
    if tail:
        after, before = _straightened(after, before, edges, p, q, tail)
    table = edges.new_empty(*edges.shape, 2)
    table[:, :-1, 0] = after - edges[:, :-1]
    table[:, :-1, 1] = before - edges[:, 1:]
    table[:, -1] = table[:, -2, 1:]
    return table


def _straightened(
    after: Tensor, before: Tensor, edges: Tensor, p: Counted, q: Counted, tail: float
) -> tuple[Tensor, Tensor]:
    """Return T at the lower and at the upper edges of p's bins (H×B each), with straight tails.

    The tails begin at an edge e of p; beyond, T(z) = T(e) + s (z − e), where s is the mean distance of q's
    values beyond T(e) from there, over that of p's beyond e, values on the inner side counting as 0.
    """
    most = outermost(tail, p.count)
    inner = torch.stack([(p.below <= most).sum(dim=1) - 1, (p.below < p.count - most).sum(dim=1)], dim=1)
    beyond = p.below.gather(1, inner)
    beyond[:, 1] = p.count - beyond[:, 1]
    start = edges.gather(1, inner)
    image = torch.cat([after.gather(1, inner[:, :1]), before.gather(1, inner[:, 1:] - 1)], dim=1)
    mine = _beyond(p, start)
    theirs = _beyond(q, image)
    slope = torch.where((beyond > 0) & (mine > 0), theirs / mine, 1.0)  # where nothing is beyond, any would do
    index = torch.arange(edges.shape[1], device=edges.device)
    for side, outside in enumerate((index <= inner[:, :1], index >= inner[:, 1:])):
        line = image[:, side, None] + slope[:, side, None] * (edges - start[:, side, None])
        after = torch.where(outside[:, :-1], line[:, :-1], after)
        before = torch.where(outside[:, 1:], line[:, 1:], before)
    return after, before


def _beyond(counts: Counted, ends: Tensor) -> Tensor:
    """Return the means of (z₀ − z)⁺ and (z − z₁)⁺ over values z, for ends z₀ and z₁ of each row: H×2 → H×2."""
    below = counts.below.double()
    width = ((counts.high - counts.low) / counts.bins).double()[:, None]
    tiny = torch.finfo(width.dtype).tiny
    place = (ends.double() - counts.low.double()[:, None]) / width.clamp_min(tiny)
    under = below[:, :-1]
    inside = below.diff(dim=1)
    first, last = (
        (place[:, side, None] - torch.arange(counts.bins, device=below.device)).clamp(0, 1) for side in (0, 1)
    )
    lower = (first * (under + first * inside / 2)).sum(dim=1)
    upper = ((1 - last) * (counts.count - under - (1 + last) * inside / 2)).sum(dim=1)
    return (torch.stack([lower, upper], dim=1) * width / counts.count).to(ends.dtype)


def looked_up(rows: Rows, table: Tensor, out: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return δ = T(p) − p of all values (H×n) and the sum of δ² of each row (H).

    `table` are the pairs of `composed`. With `out`, which may be the values themselves, δ is written there.
    """
    out = torch.empty_like(rows.values) if out is None else out
    if gpu.usable(rows.values.device) and rows.low.dtype == torch.float32:
        from cswf_core.kernels.gpu import histogram

        return out, histogram.looked_up(rows, table, out)
    p = rows.read()
    bins = table.shape[1] - 1
    position = positions(p, rows.low, rows.high, bins).clamp_(0, bins)
    place = position.int().clamp_(0, bins)
    position -= place
    place += torch.arange(0, table.shape[0] * (bins + 1), bins + 1, dtype=place.dtype, device=p.device)[:, None]
    pairs = torch.nn.functional.embedding(place, table.view(-1, 2))
    delta = torch.lerp(pairs[:, :, 0], pairs[:, :, 1], position)
    delta += p.clamp(rows.low[:, None], rows.high[:, None]).sub_(p)  # back to p's range
    squares = delta.square().sum(dim=1)
    out.copy_(delta)
    return out, squares


def displaced(rows: Rows, q: Counted, tail: float = 0.0) -> Tensor:
    """Replace p by δ = T(p) − p, in place, and return the sum of δ² of each row (H), on CUDA by one kernel."""
    if gpu.usable(rows.values.device) and rows.low.dtype == torch.float32:
        from cswf_core.kernels.gpu import histogram

        squares: Tensor = histogram.displaced(rows, q, tail)
        return squares
    below = counted(rows, q.bins)
    p = Counted(below, rows.values.shape[1], rows.low, rows.high)
    return looked_up(rows, composed(p, q, tail), rows.values)[1]


def positions(values: Tensor, low: Tensor, high: Tensor, bins: int) -> Tensor:
    """Return where values (H×n) lie among the bins, with a fraction: 0 is `low` (H), B is `high`."""
    width = high - low
    factor = torch.where(width > 0, bins / torch.where(width > 0, width, 1), 0)
    return (values - low[:, None]).mul_(factor[:, None])


def inverse(counts: Counted, target: Tensor) -> Tensor:
    """Return the values below which `target` values lie: H×m → H×m, float64 to the type of the ends.

    Where there are no values at a level, the result is at the upper end of the gap; at the highest level it is
    at the end of the last bin that is not empty.
    """
    place, under, over = _levels(counts, target)
    return _values(counts, place + (target - under) / (over - under))


def _levels(counts: Counted, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return in which bin `target` values lie below, and how many lie below its two edges: H×m each."""
    above = counts.below[:, 1:].contiguous()
    wanted = target.floor().clamp_max_(counts.count - 1).to(above.dtype)
    place = torch.searchsorted(above, wanted, right=True).clamp_(max=above.shape[1] - 1)
    return place, counts.below.gather(1, place), above.gather(1, place)


def _gaps(counts: Counted) -> tuple[Tensor, Tensor]:
    """Return for each bin at which edge the empty bins before it begin, and those behind it end: H×B each."""
    filled = counts.below[:, 1:] > counts.below[:, :-1]
    edge = torch.arange(counts.bins, dtype=torch.int32, device=filled.device)
    starts = torch.where(filled, edge + 1, 0).cummax(dim=1).values
    stops = torch.where(filled, edge, counts.bins).flip(1).cummin(dim=1).values.flip(1)
    pad = torch.nn.functional.pad
    return pad(starts[:, :-1], (1, 0)), pad(stops[:, 1:], (0, 1), value=counts.bins)


def _values(counts: Counted, position: Tensor) -> Tensor:
    """Return the values at places in bins, with a fraction: H×m, or m for all rows → H×m."""
    width = (counts.high - counts.low)[:, None] / counts.bins
    return counts.low[:, None] + width * position.to(counts.low.dtype)
