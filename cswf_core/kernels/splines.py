"""CDFs as monotone rational-quadratic splines through quantiles (after Gregory and Delbourgo, 1982).

A row has K knots, the values x₀ ≤ … ≤ x_{K−1} at equally spaced levels, here counted in knots: F(x_k) = k.
Between two of them, with gap g = x_{k+1} − x_k and ξ = (z − x_k)/g,

    F(z) = k + (ξ² + u ξ(1−ξ)) / (1 + (u+v−2) ξ(1−ξ)),

where u and v are F's derivatives at the two ends, times g. A knot's *pace* is the derivative of the inverse
there, dx/dk: half the distance between its neighbours, which makes F's derivative the harmonic mean of the
slopes on both sides. So u = g / pace lies between 0 and 2 whatever the data: F rises, the denominator is at
least ½, and the quadratic equation of the inverse is solved without cancellation. Values that coincide are
gaps of 0, where F jumps and the inverse is flat; no slope is ever formed, so none is infinite.

The authors' released code lays another spline, through knots at values and with the counts of values between
them, and has no inverse for it: `released_spline_cdf` is the CDF, to go with the inverse of sorted values,
`released_icdf` in `sorting.py`.
"""

from __future__ import annotations

from itertools import accumulate

import torch
from torch import Tensor


def quantiles(ordered: Tensor, count: int) -> Tensor:
    """Return the sorted rows (H×n) at `count` ≥ 2 equally spaced positions from first to last: H×count."""
    last = ordered.shape[1] - 1
    # Multiplied before divided: the last position is then exact, and all are where count is n.
    position = torch.arange(count, dtype=torch.float64, device=ordered.device) * last / (count - 1)
    below = position.long()
    fraction = (position - below).to(ordered.dtype)
    high = ordered[:, (below + 1).clamp(max=last)]
    return torch.lerp(ordered[:, below], high, fraction.expand_as(high))


def paces(values: Tensor) -> Tensor:
    """Return dx/dk at the knots of each row (H×K): H×K, 0 only where both gaps beside a knot are 0."""
    gaps = values.diff(dim=1)
    last = gaps.shape[1] - 1
    second = min(1, last)
    first_pace = _outer_pace(gaps.narrow(1, 0, 1), gaps.narrow(1, second, 1))
    last_pace = _outer_pace(gaps.narrow(1, last, 1), gaps.narrow(1, last - second, 1))
    return torch.cat([first_pace, (gaps[:, 1:] + gaps[:, :-1]) / 2, last_pace], dim=1)


def _outer_pace(gap: Tensor, inner: Tensor) -> Tensor:
    """Return the pace at the end of a row, beyond a gap whose neighbour is `inner`: H×1.

    With t = inner / gap, u = ((1+t)/2)^(1/t): the slope of the gap times a power of its ratio to the slope of
    both gaps together. It is exact to second order, near 0 where a tail runs out (t → 0) and never above 1.3.
    """
    ratio = torch.where(gap > 0, inner / gap, 1)
    u = ((1 + ratio) / 2) ** (1 / ratio)
    # With u = 0 the inverse would be infinitely steep there
    return gap / u.clamp(min=1 / 16)


def spline_cdf(values: Tensor, pace: Tensor, z: Tensor) -> Tensor:
    """Return F(z) in [0, 1] for z (H×m) and knots with their paces (H×K): H×m.

    It is 0 below a row's range and 1 above it; where knots coincide, the level of the last of them.
    """
    last = values.shape[1] - 1
    k = (torch.searchsorted(values, z.contiguous(), right=True) - 1).clamp(0, last - 1)
    low, high, u, v = _piece(values, pace, k)
    along = (z - low) / (high - low)
    bend = along * (1 - along)
    rise = (along * along + u * bend) / (1 + (u + v - 2) * bend)
    level = (k + rise.clamp(max=1)) / last
    # These two also replace what a gap of 0 at either end of the row has made of z outside of it.
    level = torch.where(z < values[:, :1], 0, level)
    return torch.where(z >= values[:, -1:], 1, level)


def spline_icdf(values: Tensor, pace: Tensor, a: Tensor) -> Tensor:
    """Return F⁻¹(a) for levels a (H×m, clamped to 0 … 1) and knots with their paces (H×K): H×m."""
    last = values.shape[1] - 1
    position = a.clamp(0, 1) * last
    k = position.long().clamp(0, last - 1)
    rise = position - k
    low, high, u, v = _piece(values, pace, k)
    # ξ solves (1−b)ξ² + bξ = rise. Every term below is positive or 0, so that nothing cancels.
    b = u * (1 - rise) + (2 - v) * rise
    root = ((b - 2 * rise).square() + 4 * rise * (1 - rise)).sqrt()
    along = torch.where(rise == 0, 0, 2 * rise / (b + root))
    return torch.lerp(low, high, along.clamp(max=1))


def _piece(values: Tensor, pace: Tensor, k: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return both ends of pieces k (H×m) and the derivatives u and v there: four of H×m."""
    low = values.gather(1, k)
    high = values.gather(1, k + 1)
    gap = high - low
    # The clamp is for rounding, and for paces that underflow.
    u, v = ((gap / pace.gather(1, end)).clamp(max=2) for end in (k, k + 1))
    return low, high, torch.where(gap > 0, u, 1), torch.where(gap > 0, v, 1)


def released_spline_cdf(ordered: Tensor, pieces: int, z: Tensor) -> Tensor:
    """Return the released code's F(z) for z (H×m), by a spline of B `pieces` through sorted rows (H×M): H×m.

    A row is scaled to 0 … 1. In a piece of width w and height h, with slope s = h/w, derivatives d and d' at
    its ends and ξ the share of w that lies below z,

        F = y + h (s ξ² + d ξ(1−ξ)) / (s + (d + d' − 2s) ξ(1−ξ)),

    y being the level of its lower end. At a knot inside the row, d is the height of the pieces on both sides
    over their width; at the row's ends it is 1. Outside of the row F goes on as a straight line, below 0 and
    above 1. A row whose values are all equal has level 0 at their value and below it, and 1 above.
    """
    x = _scaled(ordered, z)
    knots, levels = _released_knots(_scaled(ordered, ordered), pieces)
    widths = knots.diff(dim=1)
    heights = levels.diff(dim=1)
    # No z lies in a piece without width; this only keeps slopes, and sums of them, from being infinite.
    least = 4 * torch.finfo(z.dtype).tiny
    inner = (heights[:, :-1] + heights[:, 1:]) / (widths[:, :-1] + widths[:, 1:]).clamp(min=least)
    derivatives = _padded(inner, (1, 1), value=1.0)
    k = (torch.searchsorted(knots, x.contiguous()) - 1).clamp(0, pieces - 1)
    w = widths.gather(1, k).clamp(min=least)
    h = heights.gather(1, k)
    d = derivatives.gather(1, k)
    d_next = derivatives.gather(1, k + 1)
    s = h / w
    along = (x - knots.gather(1, k)) / w
    bend = along * (1 - along)
    rise = h * (s * along.square() + d * bend) / (s + (d_next + d - 2 * s) * bend)
    return torch.where((x > 0) & (x < 1), levels.gather(1, k) + rise, x)


def _padded(rows: Tensor, before_and_after: tuple[int, int], value: float | None = None) -> Tensor:
    return torch.nn.functional.pad(rows, before_and_after, value=value)


def _scaled(ordered: Tensor, z: Tensor) -> Tensor:
    """Return z (H×m) on a scale where the sorted rows (H×n) go from 0 to 1: H×m.

    Where a row's values are all equal, it is 0 at their value and below it, and 1 above.
    """
    low = ordered[:, :1]
    span = ordered[:, -1:] - low
    return torch.where(span > 0, (z - low) / torch.where(span > 0, span, 1), (z > low).to(z.dtype))


def _released_knots(x: Tensor, pieces: int) -> tuple[Tensor, Tensor]:
    """Return knots in sorted rows x (H×M) that go from 0 to 1, and the levels there: two of H×(B+1).

    Knot k is the value with index ⌊Mk/B⌋, as float64 has this product, and its level is the share of the values
    below it, summed up piece by piece.
    """
    M = x.shape[1]
    share = torch.arange(1, pieces, dtype=torch.float64, device=x.device) * (1 / pieces)
    inner = x[:, (share * M).long()].contiguous()
    below = _padded(_padded(torch.searchsorted(x, inner), (1, 0)), (0, 1), value=M)
    levels = running_sums(below.diff(dim=1).to(x.dtype) / M)
    return _padded(_padded(inner, (1, 0)), (0, 1), value=1.0), _padded(levels, (1, 0))


def running_sums(terms: Tensor) -> Tensor:
    """Return the sums of the first 1, 2, … n terms of each row (H×n), rounded as in the released code: H×n.

    Its compiler, XLA, adds up each run of 16 terms, and then the sum of all runs before it. Rounding
    matters: with as many particles as data, levels of knots are multiples of 1/N, and the last bit of such a
    level a decides whether ⌊aN⌋ is one datum or its neighbour.
    """
    n = terms.shape[1]
    runs = _padded(terms, (0, -n % 16)).reshape(terms.shape[0], -1, 16)
    sums = torch.stack(list(accumulate(runs.unbind(2))), dim=2)
    if n > 16:
        before = _padded(running_sums(sums[:, :-1, -1]), (1, 0))
        sums = sums + before.unsqueeze(2)
    return sums.flatten(1)[:, :n]
