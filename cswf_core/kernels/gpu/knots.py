"""Maps by knots (Triton), one program per direction; see `kernels.knots`.

A value's displacement does not depend on what stands beside it, so that a sample's bits are the same in a run
and in its model, however many there are.
"""
# mypy: ignore-errors

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from cswf_core.kernels.rows import Rows

VALUES_AT_A_TIME = 4096
"""Values that a program works on at a time, at most."""

WARPS = 8


@triton.jit
def _delta(v, centre, below, above, delta, SIDE: tl.constexpr):
    """Return T(v) − v, by a table that begins at `delta`, with a centre and the lengths on its two sides."""
    away = v - centre
    up = away >= 0
    length = tl.abs(away)
    longest = tl.where(up, above, below)
    share = tl.minimum(length / longest, 1.0)
    whole = tl.minimum(
        tl.maximum((tl.sqrt(share) * SIDE).to(tl.int32), 0), SIDE - 1
    )  # also of NaN, which makes δ NaN
    knot = whole.to(tl.float32)
    part = (share * (SIDE * SIDE) - knot * knot) / (2.0 * knot + 1.0)
    step = tl.where(up, 1, -1)
    place = SIDE + whole * step
    inner = tl.load(delta + place)
    outer = tl.load(delta + place + step)
    return inner + part * (outer - inner) - step.to(tl.float32) * (length - share * longest)


@triton.jit
def _displace(
    values, stride, n, groups, offsets, group_count, cells, centre, reach, delta, squares, H,
    GROUPED: tl.constexpr, CELLS: tl.constexpr, SIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Replace a row's n values by δ, and store the sum of δ²."""
    K: tl.constexpr = 2 * SIDE + 1
    h = tl.program_id(0)
    row = values + h.to(tl.int64) * stride
    middle = tl.load(centre + h)
    below = tl.load(reach + 2 * h)
    above = tl.load(reach + 2 * h + 1)
    total = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, n, BLOCK):
        i = first + tl.arange(0, BLOCK)
        inside = i < n
        v = tl.load(row + i, mask=inside, other=0.0).to(tl.float32)
        if GROUPED:
            group = tl.load(groups + i, mask=inside, other=0).to(tl.int32)
            v += tl.load(offsets + h * group_count + group)
        if CELLS:
            table = tl.load(cells + i, mask=inside, other=0).to(tl.int32) * H + h
            centre_of = tl.load(centre + table)
            ends = reach + 2 * table
            d = _delta(v, centre_of, tl.load(ends), tl.load(ends + 1), delta + table * K, SIDE)
        else:
            d = _delta(v, middle, below, above, delta + h * K, SIDE)
        d = tl.where(inside, d, 0.0)
        total += d * d
        tl.store(row + i, d.to(values.dtype.element_ty), mask=inside)
    tl.store(squares + h, tl.sum(total, 0))


def displaced(rows: Rows, centre: Tensor, reach: Tensor, delta: Tensor, cells: Tensor | None) -> Tensor:
    """Replace the values p by δ = T(p) − p, in place; return the sum of δ² of each row: see `kernels.knots`."""
    values = rows.values
    H, n = values.shape
    grouped = rows.offsets is not None
    offsets = rows.offsets.contiguous() if grouped else centre
    squares = torch.empty(H, dtype=torch.float32, device=values.device)
    nothing = centre
    _displace[(H,)](
        values, values.stride(0), n, rows.groups if grouped else nothing, offsets, offsets.shape[1],
        nothing if cells is None else cells, centre.contiguous(), reach.contiguous(), delta.contiguous(),
        squares, H, grouped, cells is not None, delta.shape[-1] // 2,
        max(32 * WARPS, min(VALUES_AT_A_TIME, triton.next_power_of_2(n))), num_warps=WARPS,
    )  # fmt: skip
    return squares
