"""Distributions of samples that are there only some at a time: they are gone through twice, and counted.

The first time the ends of each row are found, and the second time values between them are counted into bins.
Whole numbers have the same sum in any order: so the distributions are those of all samples at once, to the bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

import attrs
import torch
from torch import Tensor

from cswf_core.flow.transport import CDFTransport, Fits
from cswf_core.interfaces import Rows
from cswf_core.kernels.histogram import counted

Samples = TypeVar("Samples")


def fits_of_blocks(
    blocks: Callable[[bool], Iterator[Samples]],
    rows: Callable[[Samples], Iterator[tuple[slice, list[Rows]]]],
    directions: int,
    by_cdf: CDFTransport,
    side: int,
) -> Callable[[slice], Fits]:
    """Return F_p (side 0) or F_q (1) along any of `directions`, of samples that come in blocks.

    `blocks` yields these; it is told whether they are gone through again. `rows` projects a block, and yields
    the rows of some directions, those of each stratum.
    """
    bins, ranks, clock = by_cdf.cdf.bins, by_cdf.ranks, by_cdf.clock
    assert bins is not None
    low: Tensor | None = None
    high: Tensor | None = None
    half = False
    for block in blocks(True):
        for cut, parts in rows(block):
            half = parts[0].values.dtype == torch.float16
            lows, highs = torch.stack([part.low for part in parts]), torch.stack([part.high for part in parts])
            if low is None or high is None:
                low = lows.new_full((len(parts), directions), torch.inf)
                high = -low
            low[:, cut], high[:, cut] = low[:, cut].minimum(lows), high[:, cut].maximum(highs)
    assert low is not None
    assert high is not None
    with by_cdf.communicating(low, high):
        low, high = ranks.ends(low, high)
    below = torch.zeros(*low.shape, bins + 1, dtype=torch.int32, device=low.device)
    for block in blocks(False):
        for cut, parts in rows(block):
            with clock.part("count"):
                for number, part in enumerate(parts):
                    between = attrs.evolve(part, low=low[number, cut], high=high[number, cut])
                    below[number, cut] += counted(between, bins)
    with by_cdf.communicating(below):
        total = ranks.total(below)()

    def fits(chosen: slice) -> Fits:
        ends = [(low[number, chosen], high[number, chosen]) for number in range(len(low))]
        return by_cdf.of_counts(total[:, chosen], ends, side, half=half)

    return fits
