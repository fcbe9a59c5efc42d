"""Counts of the data along directions that stay, to which those of more data can be added.

A stage has n sets of H directions, used in turn. Along each of them the data are counted once, into B bins
(`kernels.tally`), by values that are whole numbers (`fixed_point`). New samples are counted alone and added:
the counts are those of all samples, to the last one, whatever the pieces they came in and the order of these.
No sample is looked at twice, and none is needed afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal

import attrs
import torch
from torch import Tensor

from cswf_core.checks import CheckedCDF
from cswf_core.documents import Count, MisfitError, Size, TensorForm, require_forms, structured
from cswf_core.errors import RunError
from cswf_core.flow.directions import Directions, DirectionSampler, DrawsInTurn
from cswf_core.flow.fits import Begun, Fits, Slab, Source
from cswf_core.flow.stage import StageData
from cswf_core.interfaces import Dataset, LinearMap, Stage
from cswf_core.kernels.memory import require_memory, total_memory
from cswf_core.kernels.tally import Tally
from cswf_core.online.fixed_point import FixedPoint, FixedSamples

FORMAT: Final = 2
"""Version of what `tensors` and `facts` say."""

MEMORY_SHARE = 16
"""Counts of all stages, or data that are being counted, may take one part in `MEMORY_SHARE` of memory."""

VALUES_AT_A_TIME = {"cpu": 1 << 20, "cuda": 1 << 25}
"""Projected values that are worked on at a time: on a CPU they had better stay in its cache."""


@attrs.frozen
class CountFacts:
    """The facts in a file of counts."""

    format: Literal[2]
    samples: Count
    pieces: Count
    sets: Size
    lattice: FixedPoint


@attrs.define(eq=False)
class Counts:
    """Counts of the data along n sets of directions of every stage, in the host's memory or on a device."""

    tallies: list[Tally]
    """For each stage, n·H rows of B bins."""
    fixed_point: FixedPoint
    sets: int
    """n."""
    samples: int = 0
    """N, the samples that have been counted."""
    pieces: int = 0
    """The data sets that they came in."""
    W: LinearMap | None = None
    """The flow's coordinates in float64, which files of counts lack; None: the data's own."""

    @classmethod
    def empty(cls, stages: Sequence[Stage], bins: int, sets: int, fixed_point: FixedPoint) -> Counts:
        """Return the counts of no data; raise `OutOfMemoryError` if they do not fit into memory."""
        rows = sum(sets * stage.directions for stage in stages)
        require_memory(
            Tally.size(rows, bins),
            f"counts along {rows:,} directions, in {bins:,} bins each,",
            "take fewer directions (schedule.directions) or sets (online.sets)",
        )
        return cls([Tally.empty(sets * stage.directions, bins) for stage in stages], fixed_point, sets)

    def move_to(self, device: torch.device) -> None:
        """Move to a device, if the counts take little of its memory; otherwise stages go there one by one."""
        if sum(tally.nbytes for tally in self.tallies) <= total_memory(device) // MEMORY_SHARE:
            self.tallies = [tally.to(device) for tally in self.tallies]

    def insert(self, data: Dataset, samplers: Iterable[DirectionSampler], seed: int) -> None:
        """Count more samples, on the device of the samplers, which draw the directions of each stage."""
        self.fixed_point.check(data)
        pieces: list[FixedSamples] | None = None
        for index, (tally, sampler) in enumerate(zip(self.tallies, samplers, strict=True)):
            assert (self.W is None) == (sampler.coordinates.W is None), "counts have the flow's coordinates"
            device = sampler.like.device
            if pieces is None and 8 * data.space.dimension * len(data) <= total_memory(device) // MEMORY_SHARE:
                pieces = list(self.fixed_point.pieces(data, device))
            there = tally.to(device)
            first = 0
            for number in range(self.sets):
                for batch in sampler.batches(seed, index, number, check=number == 0):
                    directions = self.fixed_point.directions(batch, sampler, data.bin_width, self.W)
                    rows = there.rows(slice(first, first + batch.count))
                    self._count(rows, directions, pieces or self.fixed_point.pieces(data, device))
                    first += batch.count
            if there.counts is not tally.counts:
                tally.copy_(there)
        self.samples += len(data)
        self.pieces += 1

    def _count(self, tally: Tally, directions: Directions, pieces: Iterable[FixedSamples]) -> None:
        """Count samples along some directions, each of which has a row of `tally`."""
        for samples in pieces:
            step = max(1, VALUES_AT_A_TIME[samples.x.device.type] // samples.x.shape[1])
            for first in range(0, directions.count, step):
                rows = slice(first, min(first + step, directions.count))
                tally.rows(rows).add(self.fixed_point.values(directions.rows(rows), samples))

    def stage(self, index: int, sampler: DirectionSampler, reuse: int | None, cdf: CheckedCDF) -> StageData:
        """Return a stage's counts where its directions are drawn."""
        tally = self.tallies[index].to(sampler.like.device)
        data = TalliedData(tally, self.samples, self.fixed_point.unit, cdf, sampler.like.dtype)
        return CountedData(data, DrawsInTurn(reuse, self.sets), index)

    def tensors(self) -> dict[str, Tensor]:
        """Return all counts, to be kept; see `of_tensors`."""
        named = [attrs.asdict(tally) for tally in self.tallies]
        return {f"{index}.{name}": part for index, parts in enumerate(named) for name, part in parts.items()}

    def facts(self) -> dict[str, Any]:
        """Return the rest of what is to be kept: a few numbers."""
        return attrs.asdict(CountFacts(FORMAT, self.samples, self.pieces, self.sets, self.fixed_point))

    @classmethod
    def of_tensors(cls, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> Counts:
        """Return counts that were kept; raise `RunError` if they are none, or of another version."""
        version = facts.get("format") if isinstance(facts, dict) else None
        if version != FORMAT:
            raise RunError(
                f"counts are of format {version}, and this version of cswf reads format {FORMAT}: "
                "run the recipe again"
            )
        try:
            known: CountFacts = structured(facts, CountFacts)
        except MisfitError as error:
            raise RunError(f"these are no counts of data: {error}") from None
        tallies = []
        for index in range(len(tensors) // 3):
            counts, start, level = (f"{index}.{name}" for name in ("counts", "start", "level"))
            rows = len(tensors[counts]) if counts in tensors and tensors[counts].ndim == 2 else 0
            forms = {counts: TensorForm(torch.int32, (rows, None))}
            forms |= {name: TensorForm(torch.int64, (rows,)) for name in (start, level)}
            require_forms(tensors, forms, "the file of counts")
            tallies.append(Tally(*(tensors[name] for name in forms)))
        if not tallies:
            raise RunError("the file of counts is damaged: it has no counts")
        return cls(tallies, known.lattice, known.sets, known.samples, known.pieces)

    def check(self, stages: Sequence[Stage], bins: int, sets: int) -> None:
        """Refuse counts that belong to other stages, bins or sets."""
        mine = self.sets, [(len(tally.counts) // self.sets, tally.counts.shape[1]) for tally in self.tallies]
        wanted = sets, [(stage.directions, bins) for stage in stages]
        if mine != wanted:
            raise RunError(f"the counts are of {_in_words(*mine)}, and this flow has {_in_words(*wanted)}")


@attrs.frozen(eq=False)
class TalliedData(Source[Any]):
    """Counts of the data along sets of directions, on the flow's device."""

    tally: Tally
    """The counts along H directions, or n·H, set by set, in the order in which they are drawn."""
    size: int
    """N."""
    unit: float
    """What a value of 1 in the tally stands for."""
    cdf: CheckedCDF
    dtype: torch.dtype

    def along(self, theta: Slab[Any]) -> Begun:
        """Make distributions of the counts along directions."""
        return lambda: self._fits(self.tally.rows(theta.place.in_draw(theta.count)))

    def _fits(self, rows: Tally) -> Fits:
        low, high = ((end.double() * self.unit).to(self.dtype) for end in rows.edges())
        return [self.cdf.of_counts(rows.below(), self.size, low, high)]


class CountedData(StageData):
    """Counts in place of the data: nothing is read or projected."""

    unfollowed = "counts of data along directions that stay do not"

    def __init__(self, data: TalliedData, draws: DrawsInTurn, stage: int) -> None:
        """Offer the counts along all sets of a stage's directions, which are the same in every round."""
        self.draws = draws
        self.direction_stage = stage
        self._data = data
        self._directions = len(data.tally.counts) // draws.sets

    def source(self, draw: int, *ignored: object) -> TalliedData:
        """Return the counts along one set."""
        del ignored
        rows = slice(draw * self._directions, (draw + 1) * self._directions)
        return attrs.evolve(self._data, tally=self._data.tally.rows(rows))


def _in_words(sets: int, stages: Sequence[tuple[int, int]]) -> str:
    directions, bins = ("+".join(map(str, dict.fromkeys(each))) for each in zip(*stages, strict=True))
    return f"{sets} sets of {directions} directions in {len(stages)} stages, and {bins} bins"
