"""Randomness: every draw is born from a key of its own.

A key is (run seed, stage, step, role, index), and nothing else decides the numbers: not what was drawn
before, not the order of the work, not the number of workers. To repeat the directions of step 4,000 one
needs their key, and neither the 3,999 steps before nor a file.
"""

from __future__ import annotations

import hashlib
from typing import Any

import attrs
import numpy as np
import torch
from torch import Tensor


@attrs.frozen
class Key:
    """The name of one random draw; `index` is global: a block of particles, of data or of directions."""

    seed: int
    role: str
    stage: int = -1
    step: int = -1
    index: int = 0

    def bits(self) -> int:
        """Return 128 well-mixed bits that belong to this key alone."""
        name = f"{self.seed}/{self.stage}/{self.step}/{self.role}/{self.index}"
        return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=16).digest(), "little")

    def open(self, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32) -> Draw:
        """Start the stream of numbers that this key names, on a device."""
        return Draw(self, torch.device(device), dtype)


class Draw:
    """A stream of random numbers: calls in the same order give the same numbers.

    On the CPU the stream is NumPy's Philox with all 128 bits of the key (PyTorch's CPU generator keeps
    only 32 bits of its seed, and a long run would meet the same directions twice); on an accelerator it
    is PyTorch's own Philox with 64 bits.
    """

    def __init__(self, key: Key, device: torch.device, dtype: torch.dtype) -> None:
        self.key = key
        self.device = device
        self.dtype = dtype
        self._host: np.random.Generator | None = None
        self._device_generator: torch.Generator | None = None

    @property
    def host(self) -> np.random.Generator:
        """The stream as a NumPy generator, for distributions that PyTorch lacks."""
        if self._host is None:
            self._host = np.random.Generator(np.random.Philox(key=self.key.bits()))
        return self._host

    def normal(self, *shape: int) -> Tensor:
        """Return independent N(0, 1) entries, in the draw's dtype, on its device."""
        if self.device.type == "cpu":
            return torch.from_numpy(self.host.standard_normal(shape, dtype=self._numpy_dtype()))
        return torch.randn(shape, generator=self._generator(), device=self.device, dtype=self.dtype)

    def uniform(self, *shape: int) -> Tensor:
        """Return independent entries uniform in [0, 1), in the draw's dtype, on its device."""
        if self.device.type == "cpu":
            return torch.from_numpy(self.host.random(shape, dtype=self._numpy_dtype()))
        return torch.rand(shape, generator=self._generator(), device=self.device, dtype=self.dtype)

    def integers(self, high: int, *shape: int) -> Tensor:
        """Return independent whole numbers uniform in 0 … high−1 (int64), on the draw's device."""
        return torch.from_numpy(self.host.integers(0, high, shape)).to(self.device)

    def sphere(self, count: int, dimension: int) -> Tensor:
        """Return `count` independent points of the unit sphere of ℝ^dimension (count × dimension)."""
        g = self.normal(count, dimension)
        lengths: Tensor = torch.linalg.vector_norm(g, dim=1, keepdim=True)
        return g / lengths.clamp_min(torch.finfo(g.dtype).tiny)

    def _numpy_dtype(self) -> Any:
        return np.float64 if self.dtype == torch.float64 else np.float32

    def _generator(self) -> torch.Generator:
        if self._device_generator is None:
            self._device_generator = torch.Generator(self.device)
            self._device_generator.manual_seed(self.key.bits() & (2**63 - 1))
        return self._device_generator
