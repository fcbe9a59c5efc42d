"""F_q, the data's distributions along directions: fitted now, kept from an earlier step, or from counts."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache

import attrs
import torch

from cswf_core.checks import CheckedCDF
from cswf_core.flow.blocks import fits_of_blocks
from cswf_core.flow.clock import Clock
from cswf_core.flow.coordinates import Cloud
from cswf_core.flow.directions import Directions
from cswf_core.flow.memory import Budget
from cswf_core.flow.transport import Begun, CDFTransport, Fits, Place
from cswf_core.interfaces import Rows
from cswf_core.kernels.tally import Tally

FitsOfRows = Callable[[slice], Fits]
"""Some of the directions, by their rows → F_q along these."""


Clouds = Callable[[bool], Iterator[tuple[Cloud, int, CDFTransport]]]
"""(whether they are gone through again) → data in the stage's coordinates, some at a time: a cloud, the place
of its first datum among all that count, and the transport that knows its strata."""


class Target(abc.ABC):
    """The distributions q that particles flow to."""

    def over(self, batch: Directions) -> Target:
        """Return the target along a batch of directions, of which `along` then asks for some."""
        del batch
        return self

    def clouds_at_hand(self) -> Iterator[Cloud]:
        """Yield the data that it is fitted to, for a look at them; none where there are only counts of them."""
        yield from ()

    @abc.abstractmethod
    def along(self, theta: Directions) -> FitsOfRows:
        """Return F_q along directions, for some rows at a time."""


@attrs.frozen(eq=False)
class FittedTarget(Target):
    """F_q fitted to the data now."""

    data: Callable[[], tuple[Cloud, int]]
    """The data in the stage's coordinates, and the place of the first among those of all ranks; called only if
    they are needed."""
    fit: Callable[[Rows], Begun]
    clock: Clock
    ahead: bool = False
    """Whether fits of all rows are begun at once, as other ranks take part in them, and not row by row."""

    def clouds_at_hand(self) -> Iterator[Cloud]:
        """Yield the data."""
        yield self.data()[0]

    def along(self, theta: Directions) -> FitsOfRows:
        """Project the data, q = θ·(z, ξy), with the first rows that are asked for, and fit those rows."""

        @lru_cache
        def q() -> torch.Tensor:
            cloud, _ = self.data()
            with self.clock.part("project", lambda: theta.work(cloud.z.shape[1])):
                return theta.project(cloud).contiguous()

        def begin(rows: slice) -> Begun:
            values = q()[rows]
            with self.clock.part("count"):
                noise = None if theta.noise is None else theta.noise[rows]
                noisy = Rows.of(values, noise, theta.place.first + rows.start, self.data()[1])
            return self.fit(noisy)

        if not self.ahead:
            return lambda rows: begin(rows)()
        begun = begin(slice(0, theta.count))
        return lambda _: begun()


FitsByPlace = dict[tuple[int, int, int, int], Fits]
"""F_q that serve several steps, by the place of their directions in a step."""


@attrs.frozen(eq=False)
class KeptTarget(Target):
    """F_q from an earlier step along the same directions; fitted, and kept, if it is not there."""

    target: Target
    fits_by_place: FitsByPlace

    def clouds_at_hand(self) -> Iterator[Cloud]:
        """Yield the data of the target."""
        return self.target.clouds_at_hand()

    def over(self, batch: Directions) -> KeptTarget:
        """Return what is kept along a batch, or what the target has along it."""
        return attrs.evolve(self, target=self.target.over(batch))

    def along(self, theta: Directions) -> FitsOfRows:
        """Return what is kept for some rows, else what the target gives."""
        whole = (theta.place.batch, theta.place.first, 0, theta.count)
        fit = None if whole in self.fits_by_place else self.target.along(theta)

        def fits(rows: slice) -> Fits:
            key = (theta.place.batch, theta.place.first, rows.start, rows.stop)
            if key not in self.fits_by_place:
                assert fit is not None
                self.fits_by_place[key] = fit(rows)
            return self.fits_by_place[key]

        return fits


@attrs.frozen(eq=False)
class BlockTarget(Target):
    """F_q of data that are there only some at a time: they are counted in blocks, along a whole batch."""

    clouds: Clouds
    by_cdf: CDFTransport
    budget: Budget
    clock: Clock

    def clouds_at_hand(self) -> Iterator[Cloud]:
        """Go through the data once more."""
        return (cloud for cloud, _, _ in self.clouds(False))

    def over(self, batch: Directions) -> Target:
        """Go through the data when the first rows are asked for: for the ends of all rows, then for counts."""

        def rows(block: tuple[Cloud, int, CDFTransport]) -> Iterator[tuple[slice, list[Rows]]]:
            cloud, first, by_cdf = block
            for cut in self.budget.slabs(batch.count):
                theta = batch.rows(cut)
                with self.clock.part("project", lambda: theta.work(cloud.z.shape[1])):  # noqa: B023
                    q = theta.project(cloud).contiguous()
                with self.clock.part("count"):
                    yield cut, by_cdf.parts(Rows.of(q, theta.noise, theta.place.first, first), 1)

        fits = lru_cache(lambda: fits_of_blocks(self.clouds, rows, batch.count, self.by_cdf, side=1))
        return BatchTarget(lambda chosen: fits()(chosen))

    def along(self, theta: Directions) -> FitsOfRows:
        """Return F_q along directions that are a batch of their own."""
        return self.over(theta).along(theta)


@attrs.frozen(eq=False)
class BatchTarget(Target):
    """F_q along a batch of directions, by their rows."""

    fits: Callable[[slice], Fits]

    def along(self, theta: Directions) -> FitsOfRows:
        """Return the distributions of some of the batch's rows."""
        first = theta.place.first
        return lambda rows: self.fits(slice(first + rows.start, first + rows.stop))


@attrs.frozen(eq=False)
class CountedTarget(Target):
    """F_q from counts of the data along one set of directions, on the flow's device."""

    tally: Tally
    """H rows, in the order in which directions are drawn."""
    first: Sequence[int]
    """The number of the first direction of each batch."""
    count: int
    """N."""
    unit: float
    """What a value of 1 in the tally stands for."""
    cdf: CheckedCDF
    dtype: torch.dtype

    def along(self, theta: Directions) -> FitsOfRows:
        """Make distributions of the counts of some rows."""
        return lambda rows: self.at(theta.place.rows(rows), rows.stop - rows.start)

    def at(self, place: Place, count: int) -> Fits:
        """Return F_q along `count` directions at a place."""
        begin, numbers = self.first[place.batch], place.numbers(count)
        if isinstance(numbers, slice):
            rows = self.tally.rows(slice(begin + numbers.start, begin + numbers.stop))
        else:
            rows = self.tally.rows(numbers + begin)
        low, high = ((end.double() * self.unit).to(self.dtype) for end in rows.edges())
        return [self.cdf.of_counts(rows.below(), self.count, low, high)]


@attrs.frozen(eq=False)
class StageCounts:
    """Counts of the data along all sets of a stage's directions, on the flow's device."""

    target: CountedTarget
    """The counts of all sets, set by set: n·H rows."""
    sets: int
    """n."""

    def of(self, number: int) -> CountedTarget:
        """Return the target along one set."""
        H = len(self.target.tally.counts) // self.sets
        return attrs.evolve(self.target, tally=self.target.tally.rows(slice(number * H, (number + 1) * H)))
