"""Counts of whole numbers, to which more can always be added, in bins that follow the values.

Values are whole numbers. A row has B bins side by side, each 2^r wide and beginning at a multiple of 2^r, with
r as small as can be if all the row's values are to have a bin. When a value comes that has none, r grows, and
each new bin gets the counts of the old ones in it: 2^r-wide bins lie inside 2^(r+1)-wide ones. So counts, r and
the first bin follow from the values alone: not from their order, nor from the pieces that they came in.
"""

from __future__ import annotations

import attrs
import torch
from torch import Tensor

from cswf_core.kernels import gpu
from cswf_core.kernels.histogram import counted
from cswf_core.kernels.rows import Rows


@attrs.frozen(eq=False)
class Tally:
    """How many values lie in each of B bins, for H rows. `add` changes the tensors in place."""

    counts: Tensor
    """The counts, int32: H×B. The first bin is never empty, once there are values."""
    start: Tensor
    """The number s of the first bin, which begins at s·2^r: H, int64."""
    level: Tensor
    """The level r of each row, whose bins are 2^r wide: H, int64."""

    @classmethod
    def empty(cls, H: int, bins: int, device: torch.device | str = "cpu") -> Tally:
        """Return a tally of no values."""
        start = torch.zeros(H, dtype=torch.int64, device=device)
        return cls(torch.zeros(H, bins, dtype=torch.int32, device=device), start, torch.zeros_like(start))

    @staticmethod
    def size(H: int, bins: int) -> int:
        """Return the bytes that H rows of `bins` bins take."""
        return H * (4 * bins + 16)

    def rows(self, which: slice | Tensor) -> Tally:
        """Return some of the rows: a view if they are a slice, so that `add` changes both; otherwise a copy."""
        return Tally(self.counts[which], self.start[which], self.level[which])

    @property
    def nbytes(self) -> int:
        """The bytes of memory that it takes."""
        return self.size(*self.counts.shape)

    def to(self, device: torch.device) -> Tally:
        """Return it on a device."""
        return Tally(self.counts.to(device), self.start.to(device), self.level.to(device))

    def copy_(self, other: Tally) -> None:
        """Copy another tally of as many rows and bins, which may be on another device."""
        self.counts.copy_(other.counts)
        self.start.copy_(other.start)
        self.level.copy_(other.level)

    def add(self, values: Tensor) -> None:
        """Count values, H×n whole numbers (int64), which are overwritten."""
        H, bins = self.counts.shape
        self._reach(values.amin(dim=1), values.amax(dim=1))
        place = values.bitwise_right_shift_(self.level[:, None]).sub_(self.start[:, None])
        if gpu.usable(place.device) and bins & (bins - 1) == 0:  # then there is a kernel that counts
            low = torch.zeros(H, device=place.device)
            below = counted(Rows(place.float(), low, low + bins), bins)
            self.counts.add_(below[:, 1:] - below[:, :-1])
            return
        place += torch.arange(0, H * bins, bins, device=place.device)[:, None]
        self.counts.add_(torch.bincount(place.view(-1), minlength=H * bins).view(H, bins).to(torch.int32))

    def below(self) -> Tensor:
        """Return how many values lie below each of the B + 1 edges: H×(B+1), int32."""
        H, bins = self.counts.shape
        below = torch.zeros(H, bins + 1, dtype=torch.int32, device=self.counts.device)
        below[:, 1:] = self.counts.cumsum(dim=1, dtype=torch.int32)
        return below

    def edges(self) -> tuple[Tensor, Tensor]:
        """Return the first edge of each row and the last: 2×H whole numbers."""
        return self.start << self.level, self.start + self.counts.shape[1] << self.level

    def _reach(self, least: Tensor, most: Tensor) -> None:
        """Make the bins reach from the row's least new value to its greatest, and as far as they did before."""
        bins = self.counts.shape[1]
        there = self.counts > 0
        some = there.any(dim=1)
        last = self.start + (there * torch.arange(bins, device=least.device)).amax(dim=1)
        # A bin's lower edge stands for what is in it: no level will be finer.
        low = torch.where(some, torch.minimum(least, self.start << self.level), least)
        high = torch.where(some, torch.maximum(most, last << self.level), most)
        # With r one below this, the values would reach over 2B bins or more; three above, over B at most.
        level = (high - low).clamp_min(1).double().log2().floor().long() - bins.bit_length()
        level = torch.maximum(level, self.level)
        for _ in range(4):
            level += (high >> level) - (low >> level) >= bins
        start = low >> level
        if torch.equal(level, self.level) and torch.equal(start, self.start):
            return
        bin = self.start[:, None] + torch.arange(bins, device=least.device)
        bin = (bin >> (level - self.level)[:, None]) - start[:, None]
        bin.clamp_(0, bins - 1)  # bins outside have no counts
        self.counts.copy_(torch.zeros_like(self.counts).scatter_add_(1, bin, self.counts))
        self.start.copy_(start)
        self.level.copy_(level)
