"""Philox4x32-10: random numbers by counting, the same on every device.

Salmon et al., *Parallel random numbers: as easy as 1, 2, 3* (2011). A 64-bit key and a 128-bit counter give
four 32-bit words, with no state in between, so any part of a stream can be computed anywhere. Words are kept
in int64 tensors. In float32, element e of a stream comes from counter e // 4.

On CUDA devices one Triton kernel does it all; uniform numbers are the same to the bit, normal ones to rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import attrs
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cswf_core.errors import NotRepeatableError
from cswf_core.kernels import gpu

WORD = 0xFFFFFFFF
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10

FEW = 1 << 15
"""Counters up to which NumPy is quicker on a CPU."""

PIECE = 1 << 18
"""Counters worked on at a time, so that the words in between stay in a CPU's cache."""


@attrs.frozen
class Stream:
    """Which numbers: a key of 64 bits and the upper 64 bits of every counter."""

    key: int
    upper: int
    stored: Tensor | None = None
    """Key and upper half on the device, which are read there instead: work that is recorded once and repeated
    draws other numbers each time."""


def uniform(stream: Stream, first: int, count: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the numbers of `count` counters from `first` on, uniform in [0, 1): 4 each, 2 in float64."""
    if gpu.usable(device):
        kind = "uniform64" if dtype == torch.float64 else "uniform"
        return _on_gpu(kind, stream, first, count, dtype, device)
    return _in_pieces(uniforms, stream, first, count, dtype, device)


def normal(stream: Stream, first: int, count: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the numbers of `count` counters from `first` on, N(0, 1): 4 each, 2 in float64."""
    if gpu.usable(device) and dtype == torch.float32:
        return _on_gpu("normal", stream, first, count, dtype, device)
    return _in_pieces(normals, stream, first, count, dtype, device)


def _on_gpu(
    kind: str, stream: Stream, first: int, count: int, dtype: torch.dtype, device: torch.device
) -> Tensor:
    from cswf_core.kernels.gpu.philox import drawn

    like = torch.empty(0, dtype=dtype, device=device)
    numbers: Tensor = drawn(kind, (stream.key, stream.upper), first, count, like, stream.stored)
    return numbers


def _in_pieces(
    make: Callable[[Tensor, torch.dtype], Tensor],
    stream: Stream,
    first: int,
    count: int,
    dtype: torch.dtype,
    device: torch.device,
) -> Tensor:
    if stream.stored is not None:
        raise NotRepeatableError(f"there is no kernel that draws such numbers in {dtype}")
    each = 4 // words_per_number(dtype)
    out = torch.empty(count * each, dtype=dtype, device=device)
    for begin in range(0, count, PIECE):
        end = min(begin + PIECE, count)
        bits = words(stream.key, stream.upper, first + begin, end - begin, device)
        out[begin * each : end * each] = make(bits, dtype)
    return out


def words(key: int, stream: int, first: int, count: int, device: torch.device) -> Tensor:
    """Return the words of `count` counters from `first` on, four each: count×4 whole numbers below 2³².

    `key` are 64 bits; `stream`, 64 more, is the upper half of every counter.
    """
    if device.type == "cpu" and count <= FEW:
        return torch.from_numpy(_few_words(key, stream, first, count))
    position = torch.arange(first, first + count, dtype=torch.int64, device=device)
    c0, c1 = position & WORD, position >> 32
    c2, c3 = (torch.full_like(position, half) for half in (stream & WORD, stream >> 32 & WORD))
    k0, k1 = key & WORD, key >> 32 & WORD
    for _ in range(ROUNDS):
        product0, product1 = c0 * MULTIPLIERS[0], c2 * MULTIPLIERS[1]  # wraps around, which keeps all 64 bits
        c0 = (product1 >> 32).bitwise_xor_(c1).bitwise_xor_(k0).bitwise_and_(WORD)
        c1 = product1.bitwise_and_(WORD)
        c2 = (product0 >> 32).bitwise_xor_(c3).bitwise_xor_(k1).bitwise_and_(WORD)
        c3 = product0.bitwise_and_(WORD)
        k0, k1 = (k0 + WEYL[0]) & WORD, (k1 + WEYL[1]) & WORD
    return torch.stack([c0, c1, c2, c3], dim=1)


def _few_words(key: int, stream: int, first: int, count: int) -> NDArray[np.int64]:
    """Return the same words by NumPy, which needs less time to begin with."""
    position = np.arange(first, first + count, dtype=np.int64).view(np.uint64)
    c0: NDArray[Any] = position & WORD
    c1: NDArray[Any] = position >> 32
    c2: NDArray[Any] = np.full_like(position, stream & WORD)
    c3: NDArray[Any] = np.full_like(position, stream >> 32 & WORD)
    k0, k1 = key & WORD, key >> 32 & WORD
    for _ in range(ROUNDS):
        product0, product1 = c0 * np.uint64(MULTIPLIERS[0]), c2 * np.uint64(MULTIPLIERS[1])
        c0 = (product1 >> 32) ^ c1 ^ np.uint64(k0)
        c1 = product1 & WORD
        c2 = (product0 >> 32) ^ c3 ^ np.uint64(k1)
        c3 = product0 & WORD
        k0, k1 = (k0 + WEYL[0]) & WORD, (k1 + WEYL[1]) & WORD
    return np.stack([c0, c1, c2, c3], axis=1).view(np.int64)


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
