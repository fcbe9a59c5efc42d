"""Randomness: every draw is born from a key of its own.

A key is (run seed, stage, step, role, index), and nothing else decides the numbers: not what was drawn
before, not the order of the work, not the number of workers. To repeat the directions of step 4,000 one
needs their key, and neither the 3,999 steps before nor a file.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from contextvars import ContextVar
from typing import Protocol

import attrs
import numpy as np
import torch
from torch import Tensor

from cswf_core.errors import NotRepeatableError
from cswf_core.kernels import philox

Make = Callable[[philox.Stream, int, int, torch.dtype, torch.device], Tensor]
"""(stream, first counter, counters, dtype, device) → random numbers."""


class Recorder(Protocol):
    """Keeps the random numbers of work that is recorded, as a CUDA graph is, and repeated for other steps."""

    def note(self, key: Key, device: torch.device) -> Tensor:
        """Return where on the device a key's bits will be."""

    def note_numbers(self, key: Key, make: Callable[[Key], Tensor], count: int) -> Tensor:
        """Return where `count` numbers will be that `make` makes on the host, of a key."""


recorder: ContextVar[Recorder | None] = ContextVar("recorder", default=None)
"""Who records the draws that are opened now; None, the usual: nobody."""


@attrs.frozen
class Key:
    """The name of one random draw; `index` is global: a block of particles, of data or of directions."""

    seed: int
    """The run's seed."""
    role: str
    """What is drawn, such as `directions`."""
    stage: int = -1
    """The number of the stage, from 0; −1 outside stages."""
    step: int = -1
    """The number of the step in its stage, from 0; −1 outside steps."""
    index: int = 0
    """The number of the block, where work is cut into blocks."""

    def bits(self) -> int:
        """Return 128 well-mixed bits that belong to this key alone."""
        name = f"{self.seed}/{self.stage}/{self.step}/{self.role}/{self.index}"
        return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=16).digest(), "little")

    def halves(self) -> tuple[int, int]:
        """Return the bits as a key and a stream of 64 bits each."""
        bits = self.bits()
        return bits & (2**64 - 1), bits >> 64

    def open(self, device: torch.device | str = "cpu", dtype: torch.dtype | None = None) -> Draw:
        """Start the stream of numbers that this key names, on a device; they are float32 if nothing is said."""
        return Draw(self, torch.device(device), torch.float32 if dtype is None else dtype)


class Draw:
    """A stream of random numbers: calls in the same order give the same numbers, on any device.

    Uniform numbers agree to the bit between devices; normal ones, which take a logarithm and a cosine, to
    rounding.
    """

    def __init__(self, key: Key, device: torch.device, dtype: torch.dtype) -> None:
        self.key = key
        self.device = device
        self.dtype = dtype
        self._recorder = recorder.get()
        stored = None if self._recorder is None else self._recorder.note(key, device)
        self._stream = philox.Stream(*key.halves(), stored)
        self._position = 0
        self._betas = 0
        self._host: np.random.Generator | None = None

    @property
    def host(self) -> np.random.Generator:
        """A NumPy generator born from the same key, for distributions that are not here."""
        if self._recorder is not None:
            raise NotRepeatableError("numbers are drawn on the host")
        if self._host is None:
            self._host = np.random.Generator(np.random.Philox(key=self.key.bits()))
        return self._host

    def skip(self, count: int) -> None:
        """Pass over as many numbers of the draw's dtype, a multiple of four: the next ones are those behind."""
        assert count % 4 == 0, "counters give four words"
        self._position += count * philox.words_per_number(self.dtype) // 4

    def uniform(self, *shape: int) -> Tensor:
        """Return independent entries uniform in [0, 1), in the draw's dtype, on its device."""
        return self._take(philox.uniform, shape, self.dtype)

    def normal(self, *shape: int) -> Tensor:
        """Return independent N(0, 1) entries, in the draw's dtype, on its device."""
        return self._take(philox.normal, shape, self.dtype)

    def integers(self, high: int, *shape: int) -> Tensor:
        """Return independent whole numbers uniform in 0 … high−1 (int64), on the draw's device."""
        return (self._take(philox.uniform, shape, torch.float64) * high).long().clamp_(max=high - 1)

    def spread(self, count: int, total: int) -> Tensor:
        """Return `count` different ones of the numbers 0 … total−1, each as likely, in rising order (int64).

        A few of many are found without looking at all: the numbers are cut into as many equal runs, beginning
        anywhere on a circle, and each run gives one.
        """
        if total < 8 * count:  # runs would be short, and of uneven lengths
            return self._take(philox.uniform, (total,), torch.float64).argsort()[:count].sort().values
        edges = torch.arange(count + 1, device=self.device) * total // count
        uniform = self._take(philox.uniform, (count + 1,), torch.float64)
        inside = (uniform[1:] * edges.diff()).long().minimum(edges.diff() - 1)
        turned = edges[:-1] + inside + (uniform[0] * total).long()
        first = (turned < total).sum()  # they rise; from here on they begin again at 0, so these are the least
        return turned[(torch.arange(count, device=self.device) + first) % count] % total

    def sphere(self, count: int, dimension: int) -> Tensor:
        """Return `count` independent points of the unit sphere of ℝ^dimension (count × dimension)."""
        g = self.normal(count, dimension)
        if dimension == 1:  # now and then a normal number is 0, which has no direction
            return torch.where(g < 0, -1.0, 1.0).to(g.dtype)
        lengths: Tensor = torch.linalg.vector_norm(g, dim=1, keepdim=True)
        return g / lengths.clamp_min(torch.finfo(g.dtype).tiny)

    def beta(self, a: float, b: float, count: int) -> Tensor:
        """Return `count` independent numbers of the distribution Beta(a, b); they are made on the host."""

        role = "" if self._betas == 0 else f"/beta{self._betas}"  # each call has numbers of its own
        self._betas += 1

        def make(key: Key) -> Tensor:
            bits = attrs.evolve(key, role=key.role + role).bits()
            numbers = np.random.Generator(np.random.Philox(key=bits)).beta(a, b, count)
            return torch.from_numpy(numbers).to(self.dtype)

        if self._recorder is None:
            return make(self.key).to(self.device, non_blocking=True)
        return self._recorder.note_numbers(self.key, make, count)

    def _take(self, make: Make, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        count = math.prod(shape)
        counters = -(-count * philox.words_per_number(dtype) // 4)
        numbers = make(self._stream, self._position, counters, dtype, self.device)
        self._position += counters
        return numbers[:count].view(shape)
