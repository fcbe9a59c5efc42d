"""The steps of a stage in float32 or float64, on any device."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache, partial

import attrs
import torch
from torch import Tensor

from cswf_core.errors import RunError
from cswf_core.flow.blocks import fits_of_blocks
from cswf_core.flow.clock import Clock
from cswf_core.flow.coordinates import Cloud
from cswf_core.flow.data import Block
from cswf_core.flow.diagnosis import LARGEST_SAFE, fault_along, fault_of_coordinates, fault_of_update
from cswf_core.flow.directions import Directions
from cswf_core.flow.fingerprint import require_repeatable
from cswf_core.flow.particles import Particles, dequantised
from cswf_core.flow.plan import Move, Plan, StageSetup
from cswf_core.flow.stability import largest_eigenvalue_of
from cswf_core.flow.step import displacements
from cswf_core.flow.target import BlockTarget, FitsByPlace, FittedTarget, KeptTarget, Target
from cswf_core.flow.transport import CDFTransport, Fits, FitsOfBatch, FittedTransport, StepTables, Transport
from cswf_core.interfaces import Key, Rows
from cswf_core.kernels.finite import is_finite


class ExactPlan(Plan):
    """Float32 or float64 on any device.

    The noise in the data's bins is drawn at every step. Where speed is wanted (`settings.half`), it is added as
    projected values are counted, in even steps (`kernels.rows`): the same distribution, and no draw.
    """

    def __init__(self, setup: StageSetup) -> None:
        super().__init__(setup)
        self.inspects = setup.like.device.type == "cpu"
        refuse_unfit(setup)
        quick = setup.settings.half and setup.cdf.displaces and setup.sampler.plain
        self._binned = quick and setup.bin_width > 0
        """Whether noise in the data's bins is added when they are counted: quicker than drawing it."""
        self._data_z = self._entered(setup.data.x if setup.data.together else setup.like)
        self._key = -1
        self._directions: list[Directions] | None = None
        """Those of the step `_key`, if they serve more than one step."""
        self._fits: FitsByPlace = {}
        """F_q along them."""
        self._sets: dict[int, list[Directions]] = {}
        """The directions of each set, where sets come again."""
        self._repeated = False
        """Whether directions that follow the particles have been drawn twice, and were the same."""

    def move(self, step: int, eta: float, clock: Clock) -> Move:
        """X ← X − η v̂."""
        directions, particles, shortened = self._along(step, clock), self.setup.particles, 1.0
        if self.setup.sampler.measured_later and eta > 0:
            directions = list(directions)
            shortened = 1 / max(1.0, eta * self._largest_eigenvalue(directions))
            eta *= shortened
        by_cdf = self.transport(step, clock)
        target = self._target(step, by_cdf, clock)
        F_p: FitsOfBatch = {}
        if particles.in_blocks:
            directions = list(directions)
            target = target if isinstance(target, KeptTarget) else KeptTarget(target, {})
            F_p = {batch.place.batch: self._fitted(batch, step, clock) for batch in directions}
        lengths = squares = torch.zeros((), dtype=torch.float64, device=self.setup.like.device)
        tables: StepTables | None = None
        for block in particles.blocks(write=True):
            with self.on(block):
                by_cdf = self.transport(step, clock) if particles.in_blocks else by_cdf
                length, square, tables = self._moved(block, directions, target, F_p, by_cdf, step, eta)
            lengths, squares = lengths + length, squares + square
        return attrs.evolve(self.outcome(lengths, squares, clock, tables), shortened=shortened)

    def _largest_eigenvalue(self, directions: Sequence[Directions]) -> float:
        """Return λ of a step's own directions, as rank 0 has it: slopes differ from particle to particle."""
        own, ranks = 0.0, self.setup.ranks
        if ranks.leads:
            few = next(self.setup.particles.blocks()).cloud
            own = largest_eigenvalue_of(directions, self.setup.sampler, few)
        return float(ranks.sums(torch.tensor([own], dtype=torch.float64)))

    def _moved(
        self,
        block: Particles,
        directions: Iterable[Directions],
        target: Target,
        F_p: FitsOfBatch,
        by_cdf: CDFTransport,
        step: int,
        eta: float,
    ) -> tuple[Tensor, Tensor, StepTables | None]:
        """Move a block of the particles; return the sum of lengths, its part of SW₂², and tables if wanted."""
        setup, clock = self.setup, by_cdf.clock
        by_tables = self.table_transport(by_cdf)
        transport: Transport = by_cdf if by_tables is None else by_tables
        total = displacements(
            directions,
            block.cloud,
            target,
            FittedTransport(transport, F_p) if F_p else transport,
            setup.budget,
            clock,
            block.share.total if F_p else setup.total,
            partial(self._square_sums, by_cdf.samples) if setup.adaptive else None,
            partial(self._inspect, block.cloud, target) if self.inspects else None,
        )
        update = total.mean
        kept_up = 1 if block.sum is None else 2  # x, or z and S: read and written
        with clock.part("move", lambda: (float((1 + 2 * kept_up) * update.nbytes), 0.0)):
            lengths = block.move(update.mul_(eta))
        if self.inspects and self.fault is None and not is_finite(lengths):
            again = directions if isinstance(directions, list) else self._along(step, Clock())
            self._inspect_update(update, eta, float(total.squared_distance.sum()), again)
        tables = None if by_tables is None or not self.wants_tables(step) else by_tables.tables()
        return lengths.sum(dtype=torch.float64), total.squared_distance, tables

    def _inspect(self, particles: Cloud, target: Target, theta: Directions, squares: Tensor) -> None:
        """Note what is at fault if sums of δ² along some directions are not finite."""
        if self.fault is None and not is_finite(squares):
            coordinates, tables = self.setup.sampler.coordinates, self.setup.settings.tables
            limit = (
                LARGEST_SAFE if tables is None else min(LARGEST_SAFE, torch.finfo(tables.dtype).max / 2)
            )  # δ = q − p
            self.fault = fault_along(theta, particles, target.clouds_at_hand(), coordinates, limit)

    def _inspect_update(
        self, update: Tensor, eta: float, squares: float, directions: Iterable[Directions]
    ) -> None:
        """Note what is at fault if the update η/H Σ δ θ, or particles that have moved by it, are not finite."""
        coordinates, like = self.setup.sampler.coordinates, self.setup.like
        if not is_finite(update):
            self.fault = fault_of_update(directions, squares, like) if eta < LARGEST_SAFE else None
        elif float(update.abs().max()) < LARGEST_SAFE:
            self.fault = fault_of_coordinates(coordinates, "the particles' move")

    def _fitted(self, batch: Directions, step: int, clock: Clock) -> Callable[[slice], Fits]:
        """Return F_p along a batch of directions, of particles that come in blocks."""
        budget = self.setup.budget

        def clouds(again: bool) -> Iterator[tuple[Cloud, CDFTransport]]:
            del again
            for block in self.setup.particles.blocks():
                with self.on(block):
                    yield block.cloud, self.by_cdf(step, clock, check=False)

        def rows(block: tuple[Cloud, CDFTransport]) -> Iterator[tuple[slice, list[Rows]]]:
            cloud, by_cdf = block
            for cut in budget.slabs(batch.count):
                theta = batch.rows(cut)
                with clock.part("project", partial(theta.work, cloud.z.shape[1])):
                    p = theta.project(cloud).contiguous()
                with clock.part("count"):
                    yield cut, by_cdf.parts(Rows.of(p), 0)

        return fits_of_blocks(clouds, rows, batch.count, self.by_cdf(step, clock, check=False), side=0)

    def _along(self, step: int, clock: Clock) -> Iterable[Directions]:
        """Return the directions of a step; those that serve more than one step are kept."""
        key = self.draw_number(step)
        if key != self._key:
            self._directions, self._fits, self._key = self._sets.get(key), {}, key
        if self._directions is not None:
            return self._directions
        if self.setup.sampler.sampler.adapts:
            return self._following(step, clock)
        drawn = map(self._ready, self.draw(key, clock, check=step == 0))
        if self.setup.settings.reuse == 1 and not self.keeps_sets:
            return drawn
        self._directions = list(drawn)
        if self.keeps_sets:
            self._sets[key] = self._directions
        return self._directions

    def _following(self, step: int, clock: Clock) -> list[Directions]:
        """Return directions that follow the particles, drawn after a look at some of these and of the data."""
        setup, seed = self.setup, self.setup.settings.seed
        looks_at = setup.sampler.sampler.looks_at

        def part(z: Tensor, index: int) -> Tensor:
            if looks_at is None or looks_at >= z.shape[1]:
                return z
            draw = Key(seed, "look", setup.index, step, index).open(z.device, torch.float64)
            return z[:, draw.spread(looks_at, z.shape[1])]

        def drawn() -> list[Directions]:
            key = Key(seed, "adapt", setup.index, step)
            own = setup.sampler.adapted(mine, theirs, key.open(mine.device, mine.dtype))
            return list(own.batches(seed, setup.direction_stage, step, check=True))

        with clock.part("draw"):
            counted, z = self._counted, setup.particles.cloud.z  # those carried along change nothing
            mine = part(z if counted is None else z[:, counted], 0)
            theirs = setup.sampler.coordinates.enter_data(part(setup.data.x, 1) + setup.bin_width / 2)
            directions = drawn()
            if not self._repeated:
                for first, again in zip(directions, drawn(), strict=True):
                    require_repeatable(setup.sampler, first, again)
                self._repeated = True
        return [self._ready(theta) for theta in directions]

    def _ready(self, theta: Directions) -> Directions:
        """Return directions in blocks where that pays, and with the width of the noise in the data's bins."""
        sampler = self.setup.sampler
        theta = sampler.in_blocks(theta)
        if not self._binned:
            return theta
        return attrs.evolve(theta, noise=theta.noise_widths(sampler.coordinates, self.setup.bin_width))

    def _target(self, step: int, by_cdf: CDFTransport, clock: Clock) -> Target:
        """Return F_q: from counts where there are counts, kept where directions stay, else fitted now."""
        setup = self.setup
        if setup.counts is not None:
            return setup.counts.of(self.draw_number(step))
        keep = setup.settings.reuse != 1 and setup.cdf.compact
        # What is kept was fitted with the noise of the first step; a flow that goes on later does the same.
        key = self.draw_number(step)
        noise = key if keep else step
        target: Target
        if len(setup.data.cuts(self.part_size)) == 1:

            @lru_cache
            def data() -> tuple[Cloud, int]:
                block = next(self.data_blocks(key, again=False))
                return self._cloud(block, noise, clock), block.first

            target = FittedTarget(data, by_cdf.begin_data, clock, not setup.ranks.alone)
        else:
            target = BlockTarget(partial(self._clouds, key, noise, by_cdf, clock), by_cdf, setup.budget, clock)
        return KeptTarget(target, self._fits) if keep else target

    def _clouds(
        self, key: int, noise: int, by_cdf: CDFTransport, clock: Clock, again: bool
    ) -> Iterator[tuple[Cloud, int, CDFTransport]]:
        """Yield the data of a draw block by block: a cloud, its first place, the transport of its strata."""
        blocks = self.data_blocks(key, again)
        while True:
            with clock.part("read"):
                block = next(blocks, None)
            if block is None:
                return
            yield self._cloud(block, noise, clock), block.first, self.of_block(by_cdf, block)

    def _cloud(self, block: Block, noise: int, clock: Clock) -> Cloud:
        """Return a block of the data in the stage's coordinates, with the noise of a step in their bins."""
        setup, whole = self.setup, block.x is self.setup.data.x
        z = self._data_z if whole else self._entered(block.x)
        if self._binned:
            return Cloud(z, block.conditions, self.mean_condition_noise())
        key = Key(setup.settings.seed, "dequantise", setup.index, noise)
        drawn = float(z.nbytes) if setup.bin_width else 0.0
        with clock.part("draw", lambda: (drawn, 0.0)):
            coordinates, d = setup.sampler.coordinates, len(setup.like)
            noisy = dequantised(z, setup.bin_width, d, coordinates, key, block.first)
            return Cloud(noisy, block.conditions, self.condition_noise(noise, block.first, z.shape[1]))

    def _entered(self, x: Tensor) -> Tensor:
        """Return data in the stage's coordinates, in the middle of their bins if noise is added later."""
        return self.setup.sampler.coordinates.enter_data(x + self.setup.bin_width / 2 if self._binned else x)


def refuse_unfit(setup: StageSetup) -> None:
    """Raise `RunError` where directions follow the particles, and something else cannot follow them."""
    if not setup.sampler.sampler.adapts:
        return
    settings, many = setup.settings, "has some of the particles or data only"
    reasons = {
        "each of several devices " + many: not setup.ranks.alone,
        "a device with little memory " + many: setup.particles.in_blocks or not setup.data.together,
        "directions that are kept for several steps do not": settings.reuse != 1,
        "counts of data along directions that stay do not": setup.counts is not None,
        "a saved model has no particles": settings.tables is not None,
    }
    for reason, unfit in reasons.items():
        if unfit:
            raise RunError(f"{setup.sampler.sampler.owner} follows the particles step by step, and {reason}")
