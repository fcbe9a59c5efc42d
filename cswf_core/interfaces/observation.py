"""Contract of observations: the part of x that is given from the start and never moves."""

from __future__ import annotations

import abc

import torch
from torch import Tensor


class Observation(abc.ABC):
    """What is seen of x: its image under an orthogonal projection O (d×d); P = I − O is what flows."""

    shared: bool = True
    """Whether O is the same for all particles; if not, `seen` takes exactly M columns, one for each."""

    @abc.abstractmethod
    def seen(self, x: Tensor) -> Tensor:
        """Return O x: d×n → d×n."""

    def free(self, x: Tensor) -> Tensor:
        """Return P x = x − O x: d×n → d×n."""
        return x - self.seen(x)

    def shown(self, x: Tensor) -> Tensor:
        """Return what is seen as one would draw it, black (−1) where nothing is seen: d×n → d×n."""
        return self.seen(x)

    def to(self, device: torch.device) -> Observation:
        """Return it on another device; one that keeps no tensors is there already."""
        del device
        return self


class Masked(Observation):
    """Whole pixels are seen. Those never change by a single bit."""

    def __init__(self, mask: Tensor) -> None:
        """`mask` is true where a coordinate is seen: d booleans for all particles, d×M for one each."""
        self.mask = mask.reshape(mask.shape[0], -1)
        self.shared = self.mask.shape[1] == 1

    def seen(self, x: Tensor) -> Tensor:
        """Return x with everything else set to 0: d×n → d×n."""
        return torch.where(self.mask, x, torch.zeros((), dtype=x.dtype, device=x.device))

    def free(self, x: Tensor) -> Tensor:
        """Return x with what is seen set to 0: d×n → d×n."""
        return x.masked_fill(self.mask, 0)

    def shown(self, x: Tensor) -> Tensor:
        """Return x with everything else black: d×n → d×n."""
        return x.masked_fill(~self.mask, -1)

    def to(self, device: torch.device) -> Masked:
        """Return it with its mask on another device."""
        return Masked(self.mask.to(device))
