"""Philox4x32-10 in one kernel: the words of `cswf_core.kernels.philox`, and numbers made of them at once."""
# mypy: ignore-errors

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

COUNTERS_OF_PROGRAM = 1024
"""Counters that a program draws from."""


@triton.jit(do_not_specialize=["key", "stream", "first", "count"])
def _draw(out, keys, key, stream, first, count, KIND: tl.constexpr, STORED: tl.constexpr, BLOCK: tl.constexpr):
    """Write the numbers of `count` counters: 4 each in float32, 2 each in float64."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    if STORED:
        key = tl.load(keys)
        stream = tl.load(keys + 1)
    position = first + i
    low = (position & 0xFFFFFFFF).to(tl.uint32)
    high = (position >> 32).to(tl.uint32)
    upper_low = (stream & 0xFFFFFFFF).to(tl.uint32) + tl.zeros((BLOCK,), tl.uint32)
    upper_high = (stream >> 32 & 0xFFFFFFFF).to(tl.uint32) + tl.zeros((BLOCK,), tl.uint32)
    a, b, c, d = tl.philox(key, low, high, upper_low, upper_high, 10)
    inside = i < count
    if KIND == "uniform":
        at = out + i * 4
        tl.store(at, (a >> 8).to(tl.float32) * (2.0**-24), mask=inside)
        tl.store(at + 1, (b >> 8).to(tl.float32) * (2.0**-24), mask=inside)
        tl.store(at + 2, (c >> 8).to(tl.float32) * (2.0**-24), mask=inside)
        tl.store(at + 3, (d >> 8).to(tl.float32) * (2.0**-24), mask=inside)
    elif KIND == "normal":
        at = out + i * 4
        turn: tl.constexpr = 2.0**-24 * 6.283185307179586
        radius = tl.sqrt(-2.0 * tl.log((a.to(tl.float32) + 0.5) * (2.0**-32)))
        angle = (b >> 8).to(tl.float32) * turn
        tl.store(at, radius * tl.cos(angle), mask=inside)
        tl.store(at + 1, radius * tl.sin(angle), mask=inside)
        radius = tl.sqrt(-2.0 * tl.log((c.to(tl.float32) + 0.5) * (2.0**-32)))
        angle = (d >> 8).to(tl.float32) * turn
        tl.store(at + 2, radius * tl.cos(angle), mask=inside)
        tl.store(at + 3, radius * tl.sin(angle), mask=inside)
    else:  # uniform numbers of 53 bits
        at = out + i * 2
        first_pair = (a.to(tl.int64) << 21) | (b.to(tl.int64) >> 11)
        second_pair = (c.to(tl.int64) << 21) | (d.to(tl.int64) >> 11)
        tl.store(at, first_pair.to(tl.float64) * (2.0**-53), mask=inside)
        tl.store(at + 1, second_pair.to(tl.float64) * (2.0**-53), mask=inside)


def drawn(
    kind: str, bits: tuple[int, int], first: int, count: int, like: Tensor, keys: Tensor | None
) -> Tensor:
    """Return the numbers of some counters: 4·count in float32, 2·count in float64.

    Args:
        kind: 'uniform' or 'normal', in float32, or 'uniform64', in float64.
        bits: The key and the stream, 64 bits each.
        first: The first counter.
        count: How many counters there are.
        like: A tensor of the type and on the device of the numbers.
        keys: Key and stream on the device, to be read there in place of `bits`: 2.
    """
    per_counter = 2 if kind == "uniform64" else 4
    out = torch.empty(count * per_counter, dtype=like.dtype, device=like.device)
    key, stream = (value - 2**64 if value >= 2**63 else value for value in bits)
    stored = keys is not None
    _draw[(triton.cdiv(count, COUNTERS_OF_PROGRAM),)](
        out, keys if stored else out, key, stream, first, count, kind, stored, COUNTERS_OF_PROGRAM, num_warps=4
    )
    return out
