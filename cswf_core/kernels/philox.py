"""Philox4x32-10: random numbers by counting, the same on every device.

Salmon et al., *Parallel random numbers: as easy as 1, 2, 3* (2011). A 64-bit key and a 128-bit counter give
four 32-bit words, with no state in between, so any part of a stream can be computed anywhere. Words are kept
in int64 tensors. In float32, element e of a stream comes from counter e // 4.

On CUDA devices one Triton kernel does it all; uniform numbers are the same to the bit, normal ones to rounding.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable

import attrs
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cswf_core.errors import NotRepeatableError
from cswf_core.kernels import gpu

WORD = 0xFFFFFFFF
"""The bits of a word."""

MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
"""What each round adds to the two words of the key."""

ROUNDS = 10

LOWER_HALF = 0 if sys.byteorder == "little" else 1
"""The index of the lower half of a number of 64 bits."""

COUNTERS_AT_A_TIME = 1 << 18
"""Counters computed at a time, so that the words in between stay in a CPU's cache."""


@attrs.frozen
class Stream:
    """A stream of random numbers, named by a key of 64 bits and the upper 64 bits of every counter."""

    key: int
    upper: int
    stored: Tensor | None = None
    """Key and upper half on the device, to be read there instead, so that recorded work draws other numbers at
    each repetition: 2."""


def uniform(stream: Stream, first: int, count: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the numbers of `count` counters from `first` on, uniform in [0, 1): 4 each, 2 in float64."""
    kind = "uniform64" if dtype == torch.float64 else "uniform"
    return _drawn(kind, uniforms, stream, first, count, dtype, device)


def normal(stream: Stream, first: int, count: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the numbers of `count` counters from `first` on, N(0, 1): 4 each, 2 in float64."""
    kind = "normal" if dtype == torch.float32 else None
    return _drawn(kind, normals, stream, first, count, dtype, device)


def _drawn(
    kind: str | None,
    make: Callable[[Tensor, torch.dtype], Tensor],
    stream: Stream,
    first: int,
    count: int,
    dtype: torch.dtype,
    device: torch.device,
) -> Tensor:
    """Return the numbers of `count` counters from `first` on.

    On a GPU, one kernel draws them if there is one of this kind; elsewhere `make` makes them of the words of
    some counters at a time.
    """
    if kind is not None and gpu.usable(device):
        from cswf_core.kernels.gpu.philox import drawn

        like = torch.empty(0, dtype=dtype, device=device)
        numbers: Tensor = drawn(kind, (stream.key, stream.upper), first, count, like, stream.stored)
        return numbers
    if stream.stored is not None:
        raise NotRepeatableError(f"there is no kernel that draws such numbers in {dtype}")
    if count <= COUNTERS_AT_A_TIME:
        return make(words(stream.key, stream.upper, first, count, device), dtype)
    each = 4 // words_per_number(dtype)
    out = torch.empty(count * each, dtype=dtype, device=device)
    for begin in range(0, count, COUNTERS_AT_A_TIME):
        end = min(begin + COUNTERS_AT_A_TIME, count)
        bits = words(stream.key, stream.upper, first + begin, end - begin, device)
        out[begin * each : end * each] = make(bits, dtype)
    return out


def words(key: int, stream: int, first: int, count: int, device: torch.device) -> Tensor:
    """Return the words of `count` counters from `first` on, four each: count×4 whole numbers below 2³².

    `key` are 64 bits; `stream`, 64 more, is the upper half of every counter.
    """
    # NumPy is quicker for few
    if device.type == "cpu" and count <= 1 << 15:
        return torch.from_numpy(_few_words(key, stream, first, count))
    position = torch.arange(first, first + count, dtype=torch.int64, device=device)
    c0 = position & WORD
    c1 = position >> 32
    c2 = torch.full_like(position, stream & WORD)
    c3 = torch.full_like(position, stream >> 32 & WORD)
    k0 = key & WORD
    k1 = key >> 32 & WORD
    for _ in range(ROUNDS):
        product0 = c0 * MULTIPLIERS[0]  # wraps around, which keeps all 64 bits
        product1 = c2 * MULTIPLIERS[1]
        c0 = (product1 >> 32).bitwise_xor_(c1).bitwise_xor_(k0).bitwise_and_(WORD)
        c1 = product1.bitwise_and_(WORD)
        c2 = (product0 >> 32).bitwise_xor_(c3).bitwise_xor_(k1).bitwise_and_(WORD)
        c3 = product0.bitwise_and_(WORD)
        k0 = (k0 + KEY_STEPS[0]) & WORD
        k1 = (k1 + KEY_STEPS[1]) & WORD
    return torch.stack([c0, c1, c2, c3], dim=1)


def _few_words(key: int, stream: int, first: int, count: int) -> NDArray[np.int64]:
    """Return the same words by NumPy, which takes less time to start.

    Words 0 and 2 of all counters are a row each of `even`, words 1 and 3 of `odd`. A round multiplies the even
    words; the halves of each product, which are read in place, go to the words of the other row.
    """
    steps = np.arange(ROUNDS)[:, None] * np.array(KEY_STEPS)
    keys = (np.array([key & WORD, key >> 32 & WORD]) + steps).astype(np.uint32)
    factors = np.array(MULTIPLIERS, np.uint64)[:, None]
    position = np.arange(first, first + count).view(np.uint32)
    even, odd = np.empty((2, 2, count), np.uint32)
    even[0] = position[LOWER_HALF::2]
    odd[0] = position[1 - LOWER_HALF :: 2]
    even[1] = stream & WORD
    odd[1] = stream >> 32 & WORD
    products = np.empty((2, 2, count), np.uint64)  # of this round and of the one before, whose halves `odd` are
    halves = products.view(np.uint32).reshape(2, 2, count, 2)[:, ::-1]
    for number in range(ROUNDS):
        product = halves[number % 2]
        np.multiply(even, factors, out=products[number % 2])
        np.bitwise_xor(product[:, :, 1 - LOWER_HALF], odd, out=even)
        even ^= keys[number, :, None]
        odd = product[:, :, LOWER_HALF]
    out = np.empty((count, 4), np.int64)
    out[:, 0::2] = even.T
    out[:, 1::2] = odd.T
    return out


def words_per_number(dtype: torch.dtype) -> int:
    """Return how many words a random number of a floating-point type takes."""
    return 2 if dtype == torch.float64 else 1


def uniforms(bits: Tensor, dtype: torch.dtype) -> Tensor:
    """Return words (n×4) as numbers uniform in [0, 1): 4n in float32, of 24 bits; 2n in float64, of 53."""
    if dtype == torch.float64:
        pairs = bits.view(-1, 2)
        return ((pairs[:, 0] << 21) | (pairs[:, 1] >> 11)).double() * 2.0**-53
    return (bits >> 8).to(dtype).view(-1) * 2.0**-24


def normals(bits: Tensor, dtype: torch.dtype) -> Tensor:
    """Return words (n×4) as N(0, 1) numbers, by Box and Muller: 4n in float32, 2n in float64."""
    if dtype == torch.float64:
        radius_bits, angle = uniforms(bits, dtype).view(-1, 2).unbind(1)
        radius = (-2 * torch.log1p(-radius_bits)).sqrt()
    else:
        pairs = bits.view(-1, 2)
        radius = (-2 * ((pairs[:, 0].to(dtype) + 0.5) * 2.0**-32).log()).sqrt()
        angle = (pairs[:, 1] >> 8).to(dtype) * 2.0**-24
    angle = angle * (2 * math.pi)
    return torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1).view(-1)
