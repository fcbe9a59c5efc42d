"""CDFs as sorted arrays with linear interpolation (the paper's Appendix C.2).

With z₁ ≤ … ≤ z_n a row's sorted values, a value's *position* is its index counted from 0, with a fraction
between neighbours, and its level is a = (position + shift) / n. The paper has shift 0; its index
formula for the inverse is read with indices from 0, which makes it the inverse of its formula for
the CDF. Shift ½ treats both ends alike.

The authors' released code has the levels of shift ½ and another inverse. With j = ⌊an⌋ it multiplies the gap
between two neighbours by a − j/n, where linear interpolation would take an − j, n times as much: so the gap
hardly counts. `released_cdf` and `released_icdf` do the same.

`squared_w2` interpolates nothing: it is the distance of the values themselves.
"""

from __future__ import annotations

import torch
from torch import Tensor


def at_positions(ordered: Tensor, position: Tensor) -> Tensor:
    """Return the sorted rows (H×n) read at fractional positions (H×m, clamped to 0 … n−1): H×m."""
    last = ordered.shape[1] - 1
    position = position.clamp(0, last)
    below = position.floor().long()
    low = ordered.gather(1, below)
    high = ordered.gather(1, (below + 1).clamp(max=last))
    return low + (position - below) * (high - low)


def interpolated_cdf(ordered: Tensor, z: Tensor, shift: float) -> Tensor:
    """Return the level of z (H×m) among sorted rows (H×n); 0 below a row's range and 1 above it."""
    n = ordered.shape[1]
    count = torch.searchsorted(ordered, z.contiguous(), right=True)
    below = (count - 1).clamp(0, n - 1)
    above = count.clamp(0, n - 1)
    low = ordered.gather(1, below)
    high = ordered.gather(1, above)
    gap = high - low
    fraction = torch.where(gap > 0, (z - low) / torch.where(gap > 0, gap, 1), 0)
    level = (below + fraction + shift) / n
    level = torch.where(z < ordered[:, :1], 0, level)
    return torch.where(z > ordered[:, -1:], 1, level).to(z.dtype)


def interpolated_icdf(ordered: Tensor, a: Tensor, shift: float) -> Tensor:
    """Return the value at level a (H×m) of sorted rows (H×n): H×m."""
    return at_positions(ordered, a * ordered.shape[1] - shift)


def released_cdf(ordered: Tensor, z: Tensor) -> Tensor:
    """Return the released code's level of z (H×m) among sorted rows (H×n): H×m.

    It is ½/n at a row's least value and below, and equal values have the level of the first of them. Above the
    greatest value it is 1; the released code has (n+½)/n there, from which its inverse reads the same.
    """
    n = ordered.shape[1]
    count = torch.searchsorted(ordered, z.contiguous())
    below = (count - 1).clamp(min=0)
    low = ordered.gather(1, below)
    high = ordered.gather(1, count.clamp(max=n - 1))
    gap = high - low
    # Both neighbours are one and the same at the ends: nothing is added below the row, and 1 above it.
    fraction = torch.where(gap > 0, (z - low) / torch.where(gap > 0, gap, 1), (z > low).to(z.dtype))
    return ((below + fraction + 0.5) / n).clamp(max=1)


def released_icdf(ordered: Tensor, a: Tensor) -> Tensor:
    """Return the released code's value at level a (H×m) of sorted rows (H×N): H×m.

    It is y_j + (a − j/N)(y_{j+1} − y_j) with j = ⌊aN⌋ between 0 and N−1, so close to y_j. A level below 0 goes
    on below the least value, along the first gap; a level above 1 has the greatest value.
    """
    N = ordered.shape[1]
    j = (a * N).clamp(0, N).long().clamp(max=N - 1)
    low = ordered.gather(1, j)
    high = ordered.gather(1, (j + 1).clamp(max=N - 1))
    return low + (a - j.to(a.dtype) / N) * (high - low)


def rank_transport(p: Tensor, ordered: Tensor, shift: float) -> Tensor:
    """Return F_q⁻¹(F_p(p)) for p (H×M) and the sorted values of q (H×N), by ranks: H×M.

    The i-th smallest of M values always has level (i + shift)/M, so the levels, and with them the positions
    in q, are the same for every row: a sort of p, no search. Equal values of p get consecutive ranks.
    """
    M = p.shape[1]
    N = ordered.shape[1]
    order = p.argsort(dim=1, stable=True)
    position = (torch.arange(M, dtype=torch.float64, device=p.device) + shift) * (N / M) - shift
    position = position.clamp(0, N - 1)
    below = position.floor().long()
    fraction = (position - below).to(p.dtype)
    low = ordered[:, below]
    image = low + fraction * (ordered[:, (below + 1).clamp(max=N - 1)] - low)
    return torch.empty_like(p).scatter_(1, order, image)


def squared_w2(p: Tensor, q: Tensor) -> Tensor:
    """Return W₂² between the rows of p (H×M) and of q (H×N), each row as M or N equal weights: H.

    It is the integral of the squared difference of both quantile functions. These are steps, which end at the
    levels i/M and j/N: so the integral is a sum over at most M + N − 1 intervals, exact but for rounding.
    """
    p = p.sort(dim=1).values
    q = q.sort(dim=1).values
    M = p.shape[1]
    N = q.shape[1]
    if M == N:
        return (p - q).square().mean(dim=1)
    # Levels as whole numbers of 1/MN, so that equal ones are equal.
    ends = [torch.arange(1, count + 1, device=p.device) * other for count, other in ((M, N), (N, M))]
    upper = torch.unique(torch.cat(ends))
    lower = torch.cat([upper.new_zeros(1), upper[:-1]])
    weights = ((upper - lower).double() / (M * N)).to(p.dtype)
    return torch.mv((p[:, lower // N] - q[:, lower // M]).square(), weights)
