"""What is kept of the data so that more can come: counts along directions that stay.

A stage has n sets of H directions, used in turn. Along each of them the data are counted once, into B bins
(`kernels.tally`), by values that are whole numbers (`lattice`). New samples are counted alone and added: the
counts are those of all samples, to the last one, whatever the pieces they came in and the order of these. No
sample is looked at twice, and none is needed afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import attrs
import torch
from torch import Tensor

from cswf_core.errors import RunError
from cswf_core.flow.counts import SetCounts, StageCounts
from cswf_core.flow.directions import Directions
from cswf_core.flow.memory import tiles, total_memory
from cswf_core.interfaces import CDFEstimator, Dataset, Owner, Stage
from cswf_core.kernels.tally import Tally
from cswf_core.online.fixed_point import Beams, Lattice, Samples

FORMAT = 1
"""Version of what `tensors` and `facts` say."""

SHARE = 16
"""Counts of all stages, or data that are being counted, may take this part of a device's memory."""

COLUMNS = 8192
"""Samples that are counted at a time."""

VALUES = {"cpu": 1 << 20, "cuda": 1 << 25}
"""Projected values that are worked on at a time: on a CPU they had better stay in its cache."""

Drawer = Callable[[int], Directions]
"""The number of a stage → what draws its directions."""


@attrs.frozen(eq=False)
class _Blocks:
    """Data as samples on a lattice, some at a time; made anew whenever they are gone through."""

    lattice: Lattice
    data: Dataset
    device: torch.device

    def __iter__(self) -> Iterator[Samples]:
        for first in range(0, len(self.data), COLUMNS):
            yield self.lattice.samples(self.data, slice(first, first + COLUMNS), self.device)


@attrs.define(eq=False)
class Sketch:
    """The data's counts along n sets of directions of every stage, in the host's memory or on a device."""

    tallies: list[Tally]
    """For each stage, n·H rows of B bins."""
    lattice: Lattice
    sets: int
    """n."""
    samples: int = 0
    """N, the samples that have been counted."""
    pieces: int = 0
    """The data sets that they came in."""

    @classmethod
    def empty(cls, stages: Sequence[Stage], bins: int, sets: int, lattice: Lattice) -> Sketch:
        """Return the counts of no data."""
        return cls([Tally.empty(sets * stage.directions, bins) for stage in stages], lattice, sets)

    def settle(self, device: torch.device) -> None:
        """Move to a device, if the counts take little of its memory; else they go there stage by stage."""
        if sum(tally.nbytes for tally in self.tallies) <= total_memory(device) // SHARE:
            self.tallies = [tally.to(device) for tally in self.tallies]

    def insert(self, data: Dataset, drawer: Drawer, seed: int) -> None:
        """Count more samples. Directions are drawn on their device, and what is heavy happens there."""
        self.lattice.check(data)
        blocks: Iterable[Samples] | None = None
        for index, tally in enumerate(self.tallies):
            directions = drawer(index)
            device = directions.like.device
            if blocks is None:
                blocks = _Blocks(self.lattice, data, device)
                if 8 * data.x.numel() <= total_memory(device) // SHARE:
                    blocks = list(blocks)
            there = tally.to(device)
            for number in range(self.sets):
                drawn = directions.tiles(seed, index, number, values=number == 0)
                beams = (self.lattice.beams(tile, directions, data.bin_width) for tile in drawn)
                self._count(there, number * directions.stage.directions, beams, blocks)
            if there.counts is not tally.counts:
                tally.copy_(there)
        self.samples += len(data)
        self.pieces += 1

    def _count(self, tally: Tally, first: int, drawn: Iterable[Beams], blocks: Iterable[Samples]) -> None:
        """Count samples along the directions of a set, whose rows begin at `first`."""
        for beams in drawn:
            T = len(beams.theta)
            most = VALUES["cpu" if beams.theta.device.type == "cpu" else "cuda"]
            for samples in blocks:
                step = max(1, most // samples.x.shape[1])
                for row in range(0, T, step):
                    rows = slice(row, min(row + step, T))
                    values = self.lattice.values(beams, rows, samples)
                    tally.rows(slice(first + rows.start, first + rows.stop)).add(values)
            first += T

    def stage(self, index: int, directions: Directions, cdf: CDFEstimator, owner: Owner) -> StageCounts:
        """Return a stage's counts where its directions are drawn."""
        like, first = directions.like, [0]
        for _, count in tiles(directions.stage.directions, directions.together):
            first.append(first[-1] + count)
        tally = self.tallies[index].to(like.device)
        return StageCounts(
            tally, self.sets, SetCounts(tally, first, self.samples, self.lattice.unit, cdf, owner, like.dtype)
        )

    def tensors(self) -> dict[str, Tensor]:
        """Return all counts, to be kept; see `of_tensors`."""
        found: dict[str, Tensor] = {}
        for index, tally in enumerate(self.tallies):
            found |= {
                f"{index}.counts": tally.counts,
                f"{index}.start": tally.start,
                f"{index}.level": tally.level,
            }
        return found

    def facts(self) -> dict[str, Any]:
        """Return the rest of what is to be kept: a few numbers."""
        return {
            "format": FORMAT,
            "samples": self.samples,
            "pieces": self.pieces,
            "sets": self.sets,
            "lattice": attrs.asdict(self.lattice),
        }

    @classmethod
    def of_tensors(cls, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> Sketch:
        """Return counts that were kept; raise `RunError` if they are none, or of another version."""
        if facts.get("format") != FORMAT:
            raise RunError(
                f"counts are of format {facts.get('format')}, and this version of cswf reads {FORMAT}"
            )
        try:
            tallies = [
                Tally(*(tensors[f"{index}.{name}"] for name in ("counts", "start", "level")))
                for index in range(len(tensors) // 3)
            ]
            lattice = Lattice(**facts["lattice"])
            return cls(tallies, lattice, facts["sets"], facts["samples"], facts["pieces"])
        except (KeyError, TypeError) as error:
            raise RunError(f"these are no counts of data: {error} is missing or wrong") from None

    def check(self, stages: Sequence[Stage], bins: int, sets: int) -> None:
        """Refuse counts that belong to other stages, bins or sets."""
        mine = self.sets, [(len(tally.counts) // self.sets, tally.counts.shape[1]) for tally in self.tallies]
        wanted = sets, [(stage.directions, bins) for stage in stages]
        if mine != wanted:
            raise RunError(f"the counts are of {_words(*mine)}, and this flow has {_words(*wanted)}")


def _words(sets: int, stages: Sequence[tuple[int, int]]) -> str:
    """Return what counts are of, in words."""
    directions, bins = ("+".join(map(str, dict.fromkeys(each))) for each in zip(*stages, strict=True))
    return f"{sets} sets of {directions} directions in {len(stages)} stages, and {bins} bins"
