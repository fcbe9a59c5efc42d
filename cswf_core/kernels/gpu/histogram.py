"""Counting into bins, composing tables and looking them up (Triton): one program per direction.

Counters, and then tables in half precision, live in the shared memory of a multiprocessor, which reads values
at random places quickest. Triton has no name for that memory: lines of PTX reserve, write and read it. Triton's
interpreter knows no PTX; there `tl.histogram` counts, and tables are looked up in the device's memory.
"""
# mypy: ignore-errors

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from cswf_core.kernels.rows import STRIDES, Counted, Rows, outermost

VALUES_AT_A_TIME = 4096
"""Values that a program works on at a time, at most."""

WARPS = 8

COMPILED = {"num_warps": WARPS, "enable_fp_fusion": False}
"""How the kernel is compiled. A compiler that may round a·b + c once instead of twice does so in some forms of
the kernel only, and they have to agree: one process does in one go what several do one after the other."""

COLUMN_STRIDE, ROW_STRIDE = (tl.constexpr(step) for step in STRIDES)

# Lines of PTX. Counters are reserved for up to 4,096 bins, and one for what must not be counted.
RESERVE = tl.constexpr(".shared .align 16 .b8 cswf_counters[16400]; mov.u32 $0, cswf_counters;")
CLEAR = tl.constexpr("st.shared.u32 [$1], 0; mov.u32 $0, 0;")
COUNT = tl.constexpr("red.shared.add.u32 [$1], 1; mov.u32 $0, 0;")
READ = tl.constexpr("ld.shared.u32 $0, [$1];")
WRITE = tl.constexpr("st.shared.u32 [$1], $2; mov.u32 $0, 0;")
WRITE_HALF = tl.constexpr("st.shared.b16 [$1], $2; mov.u32 $0, 0;")


@triton.jit
def _on(ASM: tl.constexpr, address):
    """Run a line of PTX for each address in shared memory."""
    return tl.inline_asm_elementwise(ASM, "=r,r", [address], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def _write(address, value):
    """Write a number of 16 or 32 bits to each address in shared memory."""
    if value.dtype == tl.int32:
        tl.inline_asm_elementwise(WRITE, "=r,r,r", [address, value], dtype=tl.int32, is_pure=False, pack=1)
    else:
        bits = value.to(tl.int16, bitcast=True)
        tl.inline_asm_elementwise(WRITE_HALF, "=r,r,h", [address, bits], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def _value(row, i, inside, h, column, groups, offset, noise, GROUPED: tl.constexpr, NOISY: tl.constexpr):
    """Return the value at column i, with its group's offset and its noise; `inside` is None where all are."""
    if inside is None:
        v = tl.load(row + i).to(tl.float32)
    else:
        v = tl.load(row + i, mask=inside, other=0.0).to(tl.float32)
    if GROUPED:
        if inside is None:  # noqa: SIM108  (Triton has to decide while compiling)
            group = tl.load(groups + i)
        else:
            group = tl.load(groups + i, mask=inside, other=0)
        v += tl.load(offset + group.to(tl.int32))
    if NOISY:
        circle = ((i + column).to(tl.uint32) * COLUMN_STRIDE + h.to(tl.uint32) * ROW_STRIDE) >> 9
        v = tl.fma(tl.fma(circle.to(tl.float32), 2.0**-23, -0.5), noise, v)
    return v


@triton.jit
def _factor(low, high, B: tl.constexpr):
    """Return how many bins there are for each unit of a value."""
    width = high - low
    return tl.where(width > 0, B / tl.where(width > 0, width, 1.0), 0.0)


@triton.jit
def _floor(t):
    """Return the whole part of t ≥ 0 as a whole number and as a float; for whole t it may be t − 1.

    So a value exactly at an edge where T jumps may go to the other side of the jump than on a CPU. The float's
    own digits are used, as the units that convert numbers are few.
    """
    shifted = tl.maximum(t, 0.5) + 8388607.5
    return shifted.to(tl.int32, bitcast=True) - 0x4B000000, shifted - 8388608.0


@triton.jit
def _count_row(
    row, n, h, column, low, factor, groups, offset, noise, base,
    GROUPED: tl.constexpr, NOISY: tl.constexpr, B: tl.constexpr, BLOCK: tl.constexpr, SHARED: tl.constexpr,
):  # fmt: skip
    """Return how many of a row's n values lie in each bin: B. Counters in shared memory begin at `base`."""
    b = tl.arange(0, B)
    counts = tl.zeros((B,), tl.int32)
    if SHARED:
        _on(CLEAR, base + 4 * b)
        tl.debug_barrier()
    whole = n // BLOCK * BLOCK
    for first in range(0, whole, BLOCK):
        i = first + tl.arange(0, BLOCK)
        v = _value(row, i, None, h, column, groups, offset, noise, GROUPED, NOISY)
        place = tl.minimum(tl.maximum((v - low) * factor, 0.0), B - 1.0).to(tl.int32)
        if SHARED:
            _on(COUNT, base + 4 * place)
        else:
            counts += tl.histogram(place, B)
    for first in range(whole, n, BLOCK):
        i = first + tl.arange(0, BLOCK)
        inside = i < n
        v = _value(row, i, inside, h, column, groups, offset, noise, GROUPED, NOISY)
        place = tl.minimum(tl.maximum((v - low) * factor, 0.0), B - 1.0).to(tl.int32)
        if SHARED:
            _on(COUNT, base + 4 * tl.where(inside, place, B))
        else:
            counts += tl.histogram(place, B, mask=inside)
    if SHARED:
        tl.debug_barrier()
        counts = _on(READ, base + 4 * b)
        tl.debug_barrier()  # a table may be written there
    return counts


@triton.jit
def _image(below, level, inside, low, high, B: tl.constexpr, ROUNDS: tl.constexpr):
    """Return the values of q below which `level` of its values lie, for an edge of p's bin seen from inside.

    They are looked for in the bin of q that has the value with the number `inside`, counted from 0. If `level`
    is beyond that bin, it is in the next one; or, if that is empty, at the bin's end, where a gap of q begins.
    """
    place = inside * 0
    last = place + (B - 1)
    for _ in range(ROUNDS):
        middle = (place + last) // 2
        beyond = tl.load(below + 1 + middle) > inside
        last = tl.where(beyond, middle, last)
        place = tl.where(beyond | (place == last), place, middle + 1)
    under = tl.load(below + place).to(tl.float64)
    over = tl.load(below + 1 + place).to(tl.float64)
    before = tl.load(below + tl.maximum(place - 1, 0)).to(tl.float64)
    behind = tl.load(below + tl.minimum(place + 2, B)).to(tl.float64)
    down = (level < under) & (before < under)
    up = (level > over) & (behind > over)
    place = tl.where(down, place - 1, tl.where(up, place + 1, place))
    first = tl.where(down, before, tl.where(up, over, under))
    end = tl.where(down, under, tl.where(up, behind, over))
    part = tl.minimum(tl.maximum((level - first) / tl.maximum(end - first, 1.0), 0.0), 1.0)
    return low + (high - low) / B * (place + part).to(tl.float32)


@triton.jit
def _below(level):
    """Return the number, from 0, of the last value that begins below a level."""
    whole = level.to(tl.int32)
    return tl.where(whole.to(tl.float64) < level, whole, tl.maximum(whole - 1, 0))


@triton.jit
def _slopes(before, below_q, M, N, first, end, left, right, width, width_q, B: tl.constexpr):
    """Return the slopes of T's lines: q's mean distance beyond `left` and `right` (in bins) over p's.

    But for the one bin that is cut, sums are of whole numbers, twice the values. So they do not depend on the
    order, which differs between the forms of the kernel.
    """
    i = tl.arange(0, B)
    under = tl.load(below_q + i).to(tl.int64)
    over = tl.load(below_q + 1 + i).to(tl.int64)
    lower = under.to(tl.float32)
    inside = (over - under).to(tl.float32)
    part = tl.minimum(tl.maximum(left - i.to(tl.float32), 0.0), 1.0)
    whole = tl.sum(tl.where(part == 1, under + over, 0), 0).to(tl.float32) / 2
    cut = tl.sum(tl.where(part < 1, part * (lower + part * inside / 2), 0.0), 0)
    theirs = (whole + cut) * width_q / N
    twice = before.to(tl.int64)
    mine = tl.sum(tl.where(i < first, 2 * twice, tl.where(i == first, twice, 0)), 0).to(tl.float32) / 2
    low = tl.where(mine > 0, theirs / tl.maximum(mine * width / M, 1e-30), 1.0)
    part = tl.minimum(tl.maximum(right - i.to(tl.float32), 0.0), 1.0)
    whole = tl.sum(tl.where(part == 0, 2 * N.to(tl.int64) - under - over, 0), 0).to(tl.float32) / 2
    cut = tl.sum(tl.where(part > 0, (1 - part) * (N - lower - (1 + part) * inside / 2), 0.0), 0)
    theirs = (whole + cut) * width_q / N
    twice = M.to(tl.int64) - twice
    mine = tl.sum(tl.where(i > end, 2 * twice, tl.where(i == end, twice, 0)), 0).to(tl.float32) / 2
    high = tl.where(mine > 0, theirs / tl.maximum(mine * width / M, 1e-30), 1.0)
    return low, high


@triton.jit
def _compose_row(
    before, upto, below_q, M, N, low_p, high_p, low_q, high_q, table, base, most,
    TAILED: tl.constexpr, B: tl.constexpr, ROUNDS: tl.constexpr, SHARED: tl.constexpr,
):  # fmt: skip
    """Write T − identity at both edges of p's bins, pair by pair; the last pair is the last edge twice.

    They go to `table`, or to shared memory from `base` on. `before` and `upto` are the counts below the lower
    and the upper edges of all B bins. See `histogram.composed` for jumps, and for the straight lines in the
    tails, which have `most` values each, at most.
    """
    i = tl.arange(0, B)
    width = (high_p - low_p) / B
    edge = low_p + width * i.to(tl.float32)
    next_edge = low_p + width * (i + 1).to(tl.float32)
    begin = before.to(tl.float64) * N.to(tl.float64) / M.to(tl.float64)
    finish = upto.to(tl.float64) * N.to(tl.float64) / M.to(tl.float64)
    middle = (begin + finish) / 2
    empty = before == upto
    inside = tl.where(empty, begin.to(tl.int32), _below(tl.minimum(begin + 0.5, middle)))
    image = _image(below_q, begin, tl.minimum(inside, N - 1), low_q, high_q, B, ROUNDS)
    inside = tl.minimum(_below(tl.maximum(finish - 0.5, middle)), N - 1)
    ending = _image(below_q, finish, inside, low_q, high_q, B, ROUNDS)
    lowest = ending  # where a bin is empty
    highest = image
    image = tl.where(empty, tl.minimum(tl.maximum(edge, lowest), highest), image)
    ending = tl.where(empty, tl.minimum(tl.maximum(next_edge, lowest), highest), ending)
    if TAILED:
        width_q = (high_q - low_q) / B
        first = tl.sum(tl.where(before <= most, 1, 0), 0) - 1
        end = tl.sum(tl.where(before < M - most, 1, 0), 0)
        left = tl.sum(tl.where(i == first, image, 0.0), 0)
        right = tl.sum(tl.where(i == end - 1, ending, 0.0), 0)
        safe = tl.maximum(width_q, 1e-30)
        low, high = _slopes(
            before, below_q, M, N, first, end, (left - low_q) / safe, (right - low_q) / safe, width, width_q, B
        )
        image = tl.where(i < first, left + low * width * (i - first).to(tl.float32), image)
        image = tl.where(i >= end, right + high * width * (i - end).to(tl.float32), image)
        ending = tl.where(i < first, left + low * width * (i + 1 - first).to(tl.float32), ending)
        ending = tl.where(i >= end, right + high * width * (i + 1 - end).to(tl.float32), ending)
    delta = (image - edge).to(table.dtype.element_ty)
    ending -= next_edge
    outer = tl.sum(tl.where(i == B - 1, ending, 0.0), 0).to(table.dtype.element_ty)
    ending = ending.to(table.dtype.element_ty)
    if SHARED:
        _write(base + 4 * i, delta)
        _write(base + 4 * i + 2, ending)
        _write(base + 4 * B + 2 * tl.arange(0, 2), tl.broadcast_to(outer, (2,)))
    else:
        tl.store(table + 2 * i, delta)
        tl.store(table + 2 * i + 1, ending)
        tl.store(table + 2 * B, outer)
        tl.store(table + 2 * B + 1, outer)


@triton.jit
def _delta(v, low, high, factor, pairs, base, B: tl.constexpr, SHARED: tl.constexpr):
    """Return T(v) − v; the displacements at both edges of a bin are read as one number of 32 or 64 bits."""
    t = tl.minimum(tl.maximum((v - low) * factor, 0.0), B * 1.0)
    place, below = _floor(t)
    pair = _on(READ, base + 4 * place) if SHARED else tl.load(pairs + place)
    if pairs.dtype.element_ty == tl.int32:
        lower = (pair & 0xFFFF).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
        upper = (pair >> 16).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
    else:
        lower = (pair & 0xFFFFFFFF).to(tl.int32).to(tl.float32, bitcast=True)
        upper = (pair >> 32).to(tl.int32).to(tl.float32, bitcast=True)
    back = tl.minimum(tl.maximum(v, low), high) - v
    return tl.fma(t - below, upper - lower, lower) + back


@triton.jit
def _look_up_row(
    row, target, n, h, column, low, high, factor, groups, offset, noise, pairs, base,
    GROUPED: tl.constexpr, NOISY: tl.constexpr, B: tl.constexpr, BLOCK: tl.constexpr, SHARED: tl.constexpr,
):  # fmt: skip
    """Write δ of a row's n values and return the sum of δ²."""
    total = tl.zeros((BLOCK,), tl.float32)
    whole = n // BLOCK * BLOCK
    for first in range(0, whole, BLOCK):
        i = first + tl.arange(0, BLOCK)
        v = _value(row, i, None, h, column, groups, offset, noise, GROUPED, NOISY)
        delta = _delta(v, low, high, factor, pairs, base, B, SHARED)
        total = tl.fma(delta, delta, total)
        tl.store(target + i, delta.to(target.dtype.element_ty))
    for first in range(whole, n, BLOCK):
        i = first + tl.arange(0, BLOCK)
        inside = i < n
        v = _value(row, i, inside, h, column, groups, offset, noise, GROUPED, NOISY)
        delta = tl.where(inside, _delta(v, low, high, factor, pairs, base, B, SHARED), 0.0)
        total = tl.fma(delta, delta, total)
        tl.store(target + i, delta.to(target.dtype.element_ty), mask=inside)
    return tl.sum(total)


@triton.jit(do_not_specialize=["M", "N", "first_row", "column", "most"])
def _transport(
    values, stride, n, first_row, column, low_at, high_at, groups, offsets, group_count, noises,
    below_p, below_q, M, N, low_q, high_q, table, pairs, out, out_stride, squares, most,
    COUNTS: tl.constexpr, COMPOSES: tl.constexpr, LOOKS_UP: tl.constexpr, TAILED: tl.constexpr,
    GROUPED: tl.constexpr, NOISY: tl.constexpr, B: tl.constexpr, ROUNDS: tl.constexpr,
    BLOCK: tl.constexpr, THREADS: tl.constexpr, SHARED: tl.constexpr,
):  # fmt: skip
    """Count a row, compose its table, look its values up: one of the three, or one after the other.

    If all are done, a row's values are still in the cache when they are looked up.
    """
    h = tl.program_id(0)
    number = h + first_row
    low = tl.load(low_at + h)
    high = tl.load(high_at + h)
    factor = _factor(low, high, B)
    row = values + h.to(tl.int64) * stride
    offset = offsets + h.to(tl.int64) * group_count
    noise = tl.load(noises + h) if NOISY else 0.0
    mine = below_p + h.to(tl.int64) * (B + 1)
    TABLE_SHARED: tl.constexpr = SHARED and LOOKS_UP and pairs.dtype.element_ty == tl.int32
    RESERVES: tl.constexpr = TABLE_SHARED or (SHARED and COUNTS)
    base = tl.min(_on(RESERVE, tl.arange(0, THREADS)), 0) if RESERVES else 0
    if COUNTS:
        counts = _count_row(
            row, n, number, column, low, factor, groups, offset, noise, base, GROUPED, NOISY, B, BLOCK, SHARED
        )  # fmt: skip
        upto = tl.cumsum(counts, 0)
        before = upto - counts
        if not COMPOSES:
            tl.store(mine + tl.arange(0, B), before)
            tl.store(mine + B, n)
    if COMPOSES:
        if not COUNTS:
            before = tl.load(mine + tl.arange(0, B))
            upto = tl.load(mine + 1 + tl.arange(0, B))
        theirs = below_q + h.to(tl.int64) * (B + 1)
        low_of_q = tl.load(low_q + h)
        high_of_q = tl.load(high_q + h)
        at = table + h.to(tl.int64) * (2 * B + 2)
        _compose_row(
            before, upto, theirs, M, N, low, high, low_of_q, high_of_q, at, base, most,
            TAILED, B, ROUNDS, TABLE_SHARED,
        )  # fmt: skip
        tl.debug_barrier()
    if LOOKS_UP:
        target = out + h.to(tl.int64) * out_stride
        at = pairs + h.to(tl.int64) * (B + 1)
        if TABLE_SHARED and not COMPOSES:
            i = tl.arange(0, B)
            _write(base + 4 * i, tl.load(at + i))
            last = B + tl.arange(0, 2)  # no tensor has one number; the second goes where nobody reads
            _write(base + 4 * last, tl.load(at + last, mask=last == B, other=0))
            tl.debug_barrier()
        total = _look_up_row(
            row, target, n, number, column, low, high, factor, groups, offset, noise, at, base,
            GROUPED, NOISY, B, BLOCK, TABLE_SHARED,
        )  # fmt: skip
        tl.store(squares + h, total)


def _launch(
    rows: Rows, bins: int, p: Counted | None = None, q: Counted | None = None, table: Tensor | None = None,
    out: Tensor | None = None, tail: float = 0.0,
) -> Tensor:  # fmt: skip
    """Start one program per row, and return the sums of δ², if values are looked up: H.

    Only counts are made with p alone, and only a table with p and q. Values are looked up with `out`, which is
    all that is done with a table alone; with q, too, counts and tables are made before. Whatever a form of the
    kernel does not use points to the values.

    Args:
        rows: The values, or none where a table is made of counts.
        bins: B, a power of two.
        p: The counts of the values, which are written or read.
        q: The counts of the data.
        table: T − identity at both edges of each bin, which is written or read: H×(B+1)×2.
        out: Where the displacements go: H×n.
        tail: The share of values on either side beyond which T is a straight line.
    """
    H, n = rows.values.shape
    nothing = rows.values
    composes = q is not None
    looks_up = out is not None
    counts = composes == looks_up
    grouped = rows.offsets is not None
    noisy = rows.noise is not None
    offsets = rows.offsets.contiguous() if grouped else nothing
    pairs = nothing
    if table is not None:
        pairs = table.view(torch.int32 if table.dtype == torch.float16 else torch.int64)
    M = n if p is None else p.count
    squares = torch.empty(H, dtype=torch.float32, device=nothing.device) if looks_up else nothing
    _transport[(H,)](
        nothing, nothing.stride(0), n, rows.first, rows.column, rows.low, rows.high,
        rows.groups if grouped else nothing, offsets, offsets.shape[1] if grouped else 0,
        rows.noise if noisy else nothing, nothing if p is None else p.below, q.below if composes else nothing,
        M, q.count if composes else 0, q.low if composes else nothing, q.high if composes else nothing,
        nothing if table is None else table, pairs, out if looks_up else nothing,
        out.stride(0) if looks_up else 0, squares, outermost(tail, M),
        counts, composes, looks_up, tail > 0, grouped, noisy, bins, bins.bit_length(),
        max(32 * WARPS, min(VALUES_AT_A_TIME, triton.next_power_of_2(n))), 32 * WARPS, nothing.is_cuda,
        **COMPILED,
    )  # fmt: skip
    return squares


def counted(rows: Rows, bins: int) -> Tensor:
    """Return how many values lie below each of the B + 1 edges, B a power of two: H×(B+1), int32."""
    H, n = rows.values.shape
    below = torch.empty(H, bins + 1, dtype=torch.int32, device=rows.values.device)
    _launch(rows, bins, p=Counted(below, n, rows.low, rows.high))
    return below


def composed(p: Counted, q: Counted, tail: float = 0.0) -> Tensor:
    """Return T − identity at both edges of each of p's bins: H×(B+1)×2, float16 if p's values were."""
    dtype = torch.float16 if p.half else torch.float32
    table = torch.empty(len(p.low), p.bins + 1, 2, dtype=dtype, device=p.low.device)
    _launch(Rows(p.below, p.low, p.high), p.bins, p=p, q=q, table=table, tail=tail)  # no values are read
    return table


def looked_up(rows: Rows, table: Tensor, out: Tensor) -> Tensor:
    """Write δ = T(p) − p to `out`, which may be the values themselves; return the sum of δ² of each row."""
    return _launch(rows, table.shape[1] - 1, table=table, out=out)


def displaced(rows: Rows, q: Counted, tail: float = 0.0) -> Tensor:
    """Replace p by δ = T(p) − p by one kernel; return the sum of δ² of each row."""
    values = rows.values
    dtype = torch.float16 if values.dtype == torch.float16 else torch.float32
    # In half precision on CUDA, nothing of this table is used but its type.
    count = 1 if values.is_cuda and dtype == torch.float16 else len(values)
    table = torch.empty(count, q.bins + 1, 2, dtype=dtype, device=values.device)
    return _launch(rows, q.bins, q=q, table=table, out=values, tail=tail)
