"""Counts of the data as a stage's steps meet them: along each direction, in place of the data themselves."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import torch
from torch import Tensor

from cswf_core.flow import boundary
from cswf_core.flow.estimate import Fits
from cswf_core.interfaces import CDFEstimator, FittedCDF, Owner
from cswf_core.kernels.tally import Tally


@attrs.frozen(eq=False)
class SetCounts:
    """The data's counts along one set of directions, on the flow's device."""

    tally: Tally
    """H rows, in the order in which directions are drawn."""
    first: Sequence[int]
    """The number of the first direction of each tile."""
    count: int
    """N."""
    unit: float
    """What a value of 1 in the tally stands for."""
    cdf: CDFEstimator
    owner: Owner
    dtype: torch.dtype

    def fits(self, tile: int, first: int, count: int, drawn: Tensor | None) -> Fits:
        """Return F_q along directions of a tile: those with numbers `drawn`; None: `count` from `first` on."""
        begin = self.first[tile]
        wanted = slice(begin + first, begin + first + count) if drawn is None else drawn + begin
        part = self.tally.rows(wanted)
        low, high = ((end.double() * self.unit).to(self.dtype) for end in part.edges())
        with boundary.calling(self.owner, "of_counts"):
            fitted = self.cdf.of_counts(part.below(), self.count, low, high)
        if not isinstance(fitted, FittedCDF):
            raise boundary.fault(self.owner, "of_counts", "a FittedCDF", type(fitted).__name__)
        return [fitted]


@attrs.frozen(eq=False)
class StageCounts:
    """The data's counts along all sets of a stage, on the flow's device."""

    tally: Tally
    """n·H rows, set by set."""
    sets: int
    """n."""
    form: SetCounts
    """What all sets have in common."""

    def of(self, number: int) -> SetCounts:
        """Return those of a set."""
        H = len(self.tally.counts) // self.sets
        return attrs.evolve(self.form, tally=self.tally.rows(slice(number * H, (number + 1) * H)))
