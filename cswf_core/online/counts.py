"""Counts of the data along directions that stay, to which those of more data can be added.

A stage has n sets of H directions, used in turn. Along each of them the data are counted once, into B bins
(`Tally`), by values that are whole numbers (`FixedPoint`). New samples are counted alone and added: the counts
are those of all samples, to the last one, whatever the pieces they came in and the order of these. No sample is
looked at twice, and none is needed afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Final, Literal

import attrs
import torch
from torch import Tensor

from cswf_core.checks import CheckedCDF
from cswf_core.documents import Count, MisfitError, Rule, Size, TensorForm, require_forms, structured
from cswf_core.errors import DataError, RunError
from cswf_core.flow.coordinates import StageCoordinates
from cswf_core.flow.directions import Directions, DirectionSampler, Draws
from cswf_core.flow.fits import Fits, Source
from cswf_core.flow.stage import StageData
from cswf_core.interfaces import (
    Conditions,
    Dataset,
    DenseProjection,
    Key,
    LinearMap,
    NonlinearProjection,
    Stage,
)
from cswf_core.kernels import gpu
from cswf_core.kernels.histogram import counted
from cswf_core.kernels.memory import require_memory, total_memory
from cswf_core.kernels.rows import Rows, circle_from

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


class CountedData(StageData):
    """Counts in place of the data: nothing is read or projected."""

    unfollowed = "counts of data along directions that stay do not"

    def __init__(
        self, counts: Counts, stage: int, sampler: DirectionSampler, reuse: int | None, cdf: CheckedCDF
    ) -> None:
        """Offer the counts along all sets of a stage's directions, which are the same in every round."""
        self.draws = Draws(reuse, counts.sets)
        self.direction_stage = stage
        self._directions = sampler.stage.directions
        self._dtype = sampler.like.dtype
        self._tally = counts.tallies[stage].to(sampler.like.device)
        self._samples = counts.samples
        self._unit = counts.fixed_point.unit
        self._cdf = cdf

    def source(self, draw: int, *ignored: object) -> Source[Any]:
        """Return the counts along one set."""
        del ignored
        own = self._tally.rows(slice(draw * self._directions, (draw + 1) * self._directions))
        return Source(
            lambda theta: partial(self._fits, own, theta.place.in_draw(theta.count)),
            lambda: iter(()),
        )

    def _fits(self, tally: Tally, which: slice | Tensor) -> Fits:
        """Return distributions by the counts along some directions, in the order in which they are drawn."""
        rows = tally.rows(which)
        low, high = ((end.double() * self._unit).to(self._dtype) for end in rows.edges())
        return [self._cdf.of_counts(rows.below(), self._samples, low, high)]


def _in_words(sets: int, stages: Sequence[tuple[int, int]]) -> str:
    directions, bins = ("+".join(map(str, dict.fromkeys(each))) for each in zip(*stages, strict=True))
    return f"{sets} sets of {directions} directions in {len(stages)} stages, and {bins} bins"


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
    def empty(cls, H: int, bins: int) -> Tally:
        """Return a tally of no values."""
        start = torch.zeros(H, dtype=torch.int64)
        return cls(torch.zeros(H, bins, dtype=torch.int32), start, torch.zeros_like(start))

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


THETA = -26
X = -24
VALUE = -32
"""Directions are multiples of 2^(D+THETA), samples of 2^(E+X), and values of 2^(E+D+VALUE)."""

Exponent = Annotated[int, Rule("a power of two that float64 has", lambda power: abs(power) <= 900)]


@attrs.frozen(eq=False)
class FixedSamples:
    """Some samples in fixed point."""

    x: Tensor
    """The middle of each pixel's bin: d×n, float64."""
    conditions: Conditions
    places: Tensor | None
    """Where each sample's noise begins on the circle of 2³²: n whole numbers; None where there is no noise."""


@attrs.frozen
class FixedPoint:
    """The fixed point of samples: how finely they are taken."""

    x: Exponent
    """E: 2^E ≥ √d max|x|."""
    y: Exponent
    """The same for vectors of conditions; 0 where there are none."""
    theta: Exponent = 0
    """D: 2^D ≥ |W|, so that no direction is longer than 2^D; 0 in the data's own coordinates."""

    @classmethod
    def of(cls, data: Dataset, W: LinearMap | None = None, like: Tensor | None = None) -> FixedPoint:
        """Return the fixed point for such data: for images, of all pixels from −1 to 1; W works on `like`."""
        reach = torch.ones(1) if data.space.is_image else data.x
        vectors = data.conditions.vectors
        d = data.space.dimension
        y = 0 if vectors is None else _exponent(vectors, len(vectors))
        return cls(_exponent(reach, d), y, 0 if W is None or like is None else _stretch(W, d, like))

    @property
    def unit(self) -> float:
        """What a value of 1 stands for."""
        return 2.0 ** (self.x + self.theta + VALUE)

    def check(self, data: Dataset) -> None:
        """Refuse data that lie too far out for exact counts."""
        vectors = data.conditions.vectors
        parts = [("x", data.x, self.x)] if data.stored is None else []  # grey levels lie in [−1, 1)
        parts += [] if vectors is None else [("y", vectors, self.y)]
        for name, part, exponent in parts:
            if part.numel():
                most = float(part.abs().amax())
                reach = 2.0**exponent / math.sqrt(len(part))
                # Two of three bits that float64 has left. The third is for directions a little longer than 2^D,
                # by rounding or as |W| is estimated from below.
                if most > 4 * reach:
                    raise DataError(
                        f"new data have |{name}| up to {most:.4g}, and counts that began with data up to "
                        f"{reach:.4g} go up to {4 * reach:.4g}"
                    )

    def pieces(self, data: Dataset, device: torch.device) -> Iterator[FixedSamples]:
        """Yield the data in fixed point, on a device, some samples at a time."""
        width = data.bin_width
        for first in range(0, len(data), 8192):
            columns = slice(first, first + 8192)
            x = data.columns(columns).to(device, torch.float64) + width / 2
            x.mul_(2.0 ** -(self.x + X)).round_()
            places = None
            if width:
                factors = Key(0, "places").open(device).integers(2**61, len(x))
                places = (x.long() * factors[:, None]).sum(dim=0) >> 32 & 0xFFFFFFFF
            conditions = data.conditions.take(columns).to(device, torch.float64)
            if conditions.vectors is not None:
                conditions = attrs.evolve(conditions, vectors=_rounded(conditions.vectors, self.y + X))
            yield FixedSamples(x.mul_(2.0 ** (self.x + X)), conditions, places)

    def directions(
        self, batch: Directions, sampler: DirectionSampler, width: float, W: LinearMap | None = None
    ) -> Directions:
        """Return a batch of directions in fixed point, at full resolution and in float64.

        Data have bins of `width`; W is in float64.
        """
        if isinstance(batch.projection, NonlinearProjection):
            raise RunError(
                f"{sampler.sampler.owner} has nonlinear slices, and online learning counts data along "
                "directions only: take another projection"
            )
        coordinates = sampler.coordinates
        exact = StageCoordinates(coordinates.full, upsampling=coordinates.upsampling, W=W)
        theta = exact.of_pixels(batch.projection.dense().double().T).T
        if batch.scale is not None:
            theta = theta * batch.scale.double()
        theta_y = None
        if batch.theta_y is not None:
            stretch = math.ceil(math.log2(max(1.0, abs(sampler.condition.amplifier))))
            theta_y = _rounded(batch.theta_y.double(), THETA + stretch)
        noise = sampler.noise_widths(batch, width)
        return attrs.evolve(
            batch,
            projection=DenseProjection(_rounded(theta, self.theta + THETA)),
            scale=None,
            theta_y=theta_y,
            noise=None if noise is None else noise.double(),
        )

    def values(self, directions: Directions, samples: FixedSamples) -> Tensor:
        """Return the values of samples along some directions, in multiples of `unit`: H×n, int64.

        One thing is added after the other: what a library does at once it may round once, or twice at an end.
        """
        values = directions.projection.project(samples.x)
        if directions.theta_y is not None and directions.condition is not None:
            values += directions.condition.project(
                directions.theta_y, samples.conditions, count=values.shape[1], check=directions.check
            )
        if directions.noise is not None and samples.places is not None:
            noise = circle_from(samples.places, directions.place.first, len(values), torch.float64)
            values += noise.mul_(directions.noise[:, None])
        return values.mul_(1 / self.unit).floor_().long()


def _exponent(x: Tensor, dimension: int) -> int:
    """Return the least E with 2^E ≥ √d max|x|."""
    most = float(x.abs().amax()) if x.numel() else 0.0
    return math.ceil(math.log2(math.sqrt(dimension) * most)) if most > 0 else 0


def _stretch(W: LinearMap, d: int, like: Tensor) -> int:
    """Return the least D with 2^D ≥ |W|, which power iteration finds, from below but closely."""
    v = Key(0, "stretch").open(like.device, like.dtype).normal(d, 16)
    for _ in range(32):
        v = W.adjoint(W.enter(v / torch.linalg.vector_norm(v, dim=0)))
    lengths: Tensor = torch.linalg.vector_norm(W.enter(v), dim=0) / torch.linalg.vector_norm(v, dim=0)
    return math.ceil(math.log2(float(lengths.max())))


def _rounded(x: Tensor, exponent: int) -> Tensor:
    """Return x, in float64, rounded to multiples of a power of two."""
    return (x * 2.0**-exponent).round_().mul_(2.0**exponent)
