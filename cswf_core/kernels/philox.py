"""Philox4x32-10: random numbers by counting, the same on every device.

Salmon et al., *Parallel random numbers: as easy as 1, 2, 3* (2011). A 64-bit key and a 128-bit counter give
four 32-bit words, with no state in between, so any part of a stream can be computed anywhere. Words are kept
in int64 tensors. In float32, element e of a stream comes from counter e // 4.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

WORD = 0xFFFFFFFF
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10


def words(key: int, stream: int, first: int, count: int, device: torch.device) -> Tensor:
    """Return the words of `count` counters from `first` on, four each: count×4 whole numbers below 2³².

    `key` are 64 bits; `stream`, 64 more, is the upper half of every counter.
    """
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
