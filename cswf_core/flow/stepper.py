"""What takes the steps of a stage: it has directions and maps at hand for `step`, and moves all particles.

`ExactStepper` works in float32 or float64 on any device; `HalfStepper`, in `half`, in half precision with
float32 sums on CUDA.

Which part of a step has made numbers that are not finite, directions, projections, maps, or the update, is seen
while it is taken, on a CPU, or when it is taken once more with other particles. Plugins are held to be at fault
only while numbers are far from the largest float32.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import attrs
import torch
from torch import Tensor

from cswf_core.errors import RunError
from cswf_core.flow.coordinates import Cloud, StageCoordinates
from cswf_core.flow.data import Block
from cswf_core.flow.directions import Directions, require_repeatable, slabs_of
from cswf_core.flow.fits import (
    AnyCloud,
    Fitter,
    KeptFits,
    Members,
    Slab,
    Source,
    remembering,
)
from cswf_core.flow.memory import Clock, retried
from cswf_core.flow.particles import ParticleBlock, dequantised, normal
from cswf_core.flow.stability import largest_eigenvalue_of
from cswf_core.flow.stage import StageSetup
from cswf_core.flow.step import Tools, nothing, step
from cswf_core.flow.tables import StepTables, TabulatedMaps
from cswf_core.flow.transport import LARGEST_SAFE, FittedMaps, Participants
from cswf_core.interfaces import Conditions, Key, NonlinearProjection, Rows
from cswf_core.kernels.columns import COLUMNS_AT_A_TIME, columnwise, groups, is_finite
from cswf_core.ranks import Share


@attrs.frozen
class Fault:
    """What has made numbers that are not finite."""

    kind: str
    """The kind of the plugin that is at fault; empty: no plugin is."""
    words: str
    """What the plugin did, to be written behind its name."""


@attrs.frozen(eq=False)
class StepOutcome:
    """The outcome of a step."""

    length: Tensor
    """The mean length of the particles' move, a scalar."""
    squares: Tensor
    """SW₂² before it, a scalar."""
    tables: StepTables | None = None
    """Its transport maps, where they are wanted."""
    shortened: float = 1.0
    """What η was multiplied with, as the step's own directions made that necessary."""


class Stepper(abc.ABC):
    """Takes the steps of one stage."""

    half = False
    """Whether products are in half precision."""

    def __init__(self, setup: StageSetup) -> None:
        self.setup = setup
        self.inspects = False
        """Whether a step is inspected while it is taken, for numbers that are not finite: a GPU would wait."""
        self.fault: Fault | None = None
        """What has made such numbers, if they were seen."""
        self._entered: Any = None
        """The data in the stage's coordinates, where they are the same at every draw."""

    @abc.abstractmethod
    def attempt(self, number: int, eta: float, tools: Tools) -> StepOutcome:
        """Take a step without its noise."""

    @abc.abstractmethod
    def smaller(self) -> bool:
        """Have fewer directions worked on at a time, as memory was short; False: it was one at a time."""

    def move(self, number: int, eta: float, clock: Clock) -> StepOutcome:
        """Take a step without its noise, with fewer directions at a time if memory is short."""
        tools = Tools(self.setup.budget, clock, self.setup.ranks)

        def may_retry() -> bool:
            tools.record = nothing  # it holds the samples
            return not tools.moving and self.setup.ranks.alone and self.smaller()

        return retried(partial(self.attempt, number, eta, tools), may_retry)

    def take(self, number: int, eta: float, clock: Clock) -> StepOutcome:
        """Take a step: move and, with λ > 0, add √(2λη) ε to the particles."""
        setup = self.setup
        result = self.move(number, eta, clock)
        entropy = setup.sampler.stage.entropy
        if entropy > 0:
            key = Key(setup.settings.seed, "entropy", setup.index, number)
            for block in setup.particles.blocks(write=True, whole=True):
                noise = normal(key, block.share, setup.like)
                block.add_noise(noise.mul_(math.sqrt(2 * entropy * eta * result.shortened)))
        return result

    def outcome(self, lengths: Tensor, squares: Tensor, clock: Clock, tables: StepTables | None) -> StepOutcome:
        """Return the outcome of a step, given this rank's part of the sum of lengths and of SW₂²."""
        setup = self.setup
        with self.fitter(clock).communicating():
            sums = setup.ranks.sums(torch.cat([lengths.reshape(1), squares.reshape(-1)]))
        return StepOutcome(sums[0] / setup.particles.share.total, sums[1:].sum(), tables)

    def numerics(self) -> dict[str, int]:
        """Return the decisions made on the way that decide about last digits; see `adopt`."""
        budget = self.setup.budget
        return {"slab": budget.slab, "dense": int(self.setup.sampler.dense)}

    def adopt(self, numerics: Mapping[str, int]) -> None:
        """Decide as a stepper of the same stage has before, so that a flow continues with the same bits."""
        slab = numerics.get("slab", 0)
        if slab < 1:  # "habits" is their name in the file of a checkpoint
            raise RunError(f"it is damaged: habits.slab must be 1 or more, got {slab}")
        self.setup.budget.slab = slab
        self.setup.sampler.dense = bool(numerics.get("dense", 0))

    def draw(self, draw: int, clock: Clock, *, check: bool) -> Iterator[Directions]:
        """Draw the directions of a draw, batch by batch; `check` checks numbers, not only shapes."""
        setup = self.setup
        check = check or self.inspects or setup.like.device.type == "cpu"
        drawn = setup.sampler.batches(setup.settings.seed, setup.data.direction_stage, draw, check=check)
        size = setup.like.element_size()
        theta: Directions | None = None

        def written() -> tuple[float, float]:
            return (0.0 if theta is None else float(theta.numbers * size)), 0.0

        while True:
            with clock.part("draw", written):
                theta = next(drawn, None)
            if theta is None:
                return
            yield theta

    def examine(self, number: int) -> None:
        """Check the numbers of a step's directions, as most steps do not; raise if they are at fault."""
        self.setup.sampler.sampler.recheck()
        if not self.setup.sampler.sampler.adapts:  # those were checked as they were drawn
            for _ in self.draw(self.setup.data.draws.number(number), Clock(), check=True):
                pass

    def fitter(self, clock: Clock) -> Fitter:
        """Return what fits distributions."""
        return Fitter(self.setup.cdf, clock, self.setup.ranks)

    def maps(
        self,
        number: int,
        block: ParticleBlock,
        F_q: Source[AnyCloud],
        F_p: Source[AnyCloud] | None,
        tools: Tools,
    ) -> FittedMaps[AnyCloud]:
        """Return the maps that move a block of the particles at a step; tables of them if a model is saved."""
        setup = self.setup
        maps = (self.fitter(tools.clock), setup.participants(number, block), F_q, F_p, number == 0)
        request = setup.settings.tables
        if request is None:
            return FittedMaps(*maps)
        H = setup.sampler.stage.directions
        return TabulatedMaps(*maps, request=request, directions=H, cells=setup.cells(block.share))

    def entered(self, block: Block, enter: Callable[[Block], Any]) -> Any:
        """Return a block of the data as `enter` makes it; one block that serves all draws is kept."""
        if self.setup.data.in_blocks or not self.setup.data.stays:
            return enter(block)
        if self._entered is None:
            self._entered = enter(block)
        return self._entered

    def fit_streamed_particles(
        self,
        blocks: Callable[[], Iterable[tuple[ParticleBlock, AnyCloud]]],
        slabs: Sequence[Slab[AnyCloud]],
        number: int,
        clock: Clock,
    ) -> Source[AnyCloud] | None:
        """Return F_p along a step's directions before any particle moves; None: particles are one block.

        `blocks` goes through the blocks, with each in the numbers that slabs project.
        """
        setup = self.setup
        if not setup.particles.in_blocks:
            return None

        def clouds(more_passes: bool) -> Iterator[tuple[AnyCloud, Members]]:
            del more_passes
            for block, cloud in blocks():
                yield cloud, setup.participants(number, block).particles

        def project(theta: Slab[AnyCloud], p: AnyCloud) -> Rows:
            return theta.projected(p, clock)

        sizes = setup.participants(number).particles.sizes
        fits = self.fitter(clock).of_blocks(clouds, slabs, project, sizes)  # before any particle moves
        return Source(
            lambda theta: partial(fits, theta.place.in_step(theta.count)),
            lambda: (cloud for _, cloud in blocks()),
        )


def squares_in_groups(theta: Directions, delta: Tensor, share: Share, participants: Participants) -> Tensor:
    """Return Σ w_h δ_h² of a slab (δ: H×n) in groups of particles, 0 for those of other ranks.

    Added up over ranks, and then over groups, they do not depend on how many ranks there are.
    """
    width = COLUMNS_AT_A_TIME[delta.device.type]
    of_particles = theta.weighted_root(delta).double().square()
    if participants.measured is not None:
        weights = of_particles.new_zeros(delta.shape[1])
        weights[participants.measured] = participants.stretch
        of_particles *= weights
    sums = of_particles.new_zeros(-(-share.total // width))
    for group in groups(delta.shape[1], delta.device.type):
        sums[(share.first + group.start) // width] = of_particles[:, group].contiguous().sum()
    return sums


class ExactStepper(Stepper):
    """Takes steps in float32 or float64 on any device.

    The noise in the data's bins is drawn at every step, or once for directions that are kept. Where speed is
    wanted (`settings.half`), and the estimator can, noise of the same variance is added in even steps as
    projected values are counted (`kernels.rows`), without a draw.
    """

    def __init__(self, setup: StageSetup) -> None:
        super().__init__(setup)
        self.inspects = setup.like.device.type == "cpu"
        refuse_unfit(setup)
        quick = setup.settings.half and setup.cdf.displaces and setup.sampler.plain
        self._binned = quick and setup.bin_width > 0
        """Whether noise in the data's bins is added when they are counted: quicker than drawing it."""
        self._drawn: dict[int, list[Directions]] = {}
        """The directions of draws that serve more than one step."""
        self._fits: dict[int, KeptFits] = {}
        """F_q along those of the last draw."""
        self._repeated = False
        """Whether directions that follow the particles have been drawn twice, and were the same."""

    def smaller(self) -> bool:
        """Halve the slabs of directions; False: they are of one direction."""
        return self.setup.budget.halve(self.setup.sampler.stage.directions)

    def attempt(self, number: int, eta: float, tools: Tools) -> StepOutcome:
        """Take a step without its noise."""
        setup = self.setup
        clock = tools.clock
        directions = self._along(number, clock)
        shortened = 1.0
        if setup.sampler.measured_later and eta > 0:
            directions = list(directions)
            shortened = 1 / max(1.0, eta * self._largest_eigenvalue(directions))
        slabs: list[Directions] = []
        if setup.in_blocks:
            directions = list(directions)
            slabs = list(slabs_of(directions, setup.budget))
        F_q = self._source_of_data(number, slabs, clock)
        F_p = self.fit_streamed_particles(
            lambda: ((block, block.cloud) for block in setup.particles.blocks()), slabs, number, clock
        )
        lengths = squares = torch.zeros((), dtype=torch.float64, device=setup.like.device)
        tables: StepTables | None = None
        for block in setup.particles.blocks(write=True):
            # Tables do not depend on the block: F_p and F_q are those of all particles and data.
            length, square, tables = self._move_block(
                block, directions, F_q, F_p, number, eta * shortened, tools
            )
            lengths = lengths + length
            squares = squares + square
        return attrs.evolve(self.outcome(lengths, squares, clock, tables), shortened=shortened)

    def _largest_eigenvalue(self, directions: Sequence[Directions]) -> float:
        """Return λ of a step's own directions, as rank 0 has it: slopes differ from particle to particle."""
        own = 0.0
        if self.setup.ranks.leads:
            few = next(self.setup.particles.blocks()).cloud
            own = largest_eigenvalue_of(directions, self.setup.sampler, few)
        return float(self.setup.ranks.sums(torch.tensor([own], dtype=torch.float64)))

    def _move_block(
        self,
        block: ParticleBlock,
        directions: Iterable[Directions],
        F_q: Source[Cloud],
        F_p: Source[Cloud] | None,
        number: int,
        eta: float,
        tools: Tools,
    ) -> tuple[Tensor, Tensor, StepTables | None]:
        """Move a block of the particles; return the sum of lengths, its part of SW₂², and tables if wanted."""
        setup = self.setup
        maps = self.maps(number, block, F_q, F_p, tools)
        # SW₂², ξy included: a scalar, or numbers that are to be added up.
        squared = torch.zeros((), dtype=torch.float64, device=setup.like.device)
        X = block.cloud
        update = X.z

        def record(theta: Directions, delta: Tensor, squares: Tensor) -> None:
            nonlocal squared
            if self.inspects and self.fault is None and not is_finite(squares):
                coordinates = setup.sampler.coordinates
                self.fault = fault_along(theta, X, F_q.clouds(), coordinates, maps.largest)
            part = theta.weighted(squares).sum()
            if setup.adaptive:
                part = squares_in_groups(theta, delta, block.share, maps.participants)
            squared = squared + part / block.share.total

        def scale(total: Tensor, H: int) -> Tensor:
            nonlocal update
            tools.moving = True
            update = total.div_(H).mul_(eta)
            return update

        tools.record = record
        lengths = step(block, directions, maps.begin, scale, tools)
        squared = squared / setup.sampler.stage.directions
        if self.inspects and self.fault is None and not is_finite(lengths):
            again = directions if isinstance(directions, list) else self._along(number, Clock())
            self._inspect_update(update, eta, float(squared.sum()), again)
        tables = maps.tables()
        return lengths.sum(dtype=torch.float64), squared, StepTables(*tables) if tables else None

    def _inspect_update(
        self, update: Tensor, eta: float, squares: float, directions: Iterable[Directions]
    ) -> None:
        """Note what is at fault if the update η/H Σ δ θ, or particles that have moved by it, are not finite."""
        if not is_finite(update):
            self.fault = fault_of_update(directions, squares, self.setup.like) if eta < LARGEST_SAFE else None
        elif float(update.abs().max()) < LARGEST_SAFE:
            self.fault = fault_of_coordinates(self.setup.sampler.coordinates, "the particles' move")

    def _along(self, number: int, clock: Clock) -> Iterable[Directions]:
        """Return the directions of a step; those that serve more than one step are kept."""
        draw = self.setup.data.draws.number(number)
        if draw in self._drawn:
            return self._drawn[draw]
        if self.setup.sampler.sampler.adapts:
            return self._following(number, clock)
        drawn = map(self._ready, self.draw(draw, clock, check=number == 0))
        if self.setup.draws_kept == 0:
            return drawn
        if len(self._drawn) == self.setup.draws_kept:
            self._drawn.clear()
        self._drawn[draw] = list(drawn)
        return self._drawn[draw]

    def _following(self, number: int, clock: Clock) -> list[Directions]:
        """Return directions that follow the particles, drawn after a look at some of these and of the data."""
        setup = self.setup
        seed = setup.settings.seed
        looks_at = setup.sampler.sampler.looks_at

        def part(z: Tensor, index: int) -> Tensor:
            if looks_at is None or looks_at >= z.shape[1]:
                return z
            draw = Key(seed, "look", setup.index, number, index).open(z.device, torch.float64)
            return z[:, draw.spread(looks_at, z.shape[1])]

        def drawn() -> list[Directions]:
            key = Key(seed, "adapt", setup.index, number)
            own = setup.sampler.adapted(mine, theirs, key.open(mine.device, mine.dtype))
            return list(own.batches(seed, setup.data.direction_stage, number, check=True))

        with clock.part("draw"):
            z = next(setup.particles.blocks()).cloud.z
            mine = part(z if setup.eligible is None else z[:, setup.eligible], 0)
            theirs = setup.sampler.coordinates.enter_data(part(setup.data.x, 1) + setup.bin_width / 2)
            directions = drawn()
            if not self._repeated:
                for first, again in zip(directions, drawn(), strict=True):
                    require_repeatable(setup.sampler, first, again)
                self._repeated = True
        return [self._ready(theta) for theta in directions]

    def _ready(self, theta: Directions) -> Directions:
        """Return directions, sparse where that pays, with the width of the noise in the data's bins."""
        sampler = self.setup.sampler
        theta = sampler.as_sparse(theta)
        if not self._binned:
            return theta
        return attrs.evolve(theta, noise=sampler.noise_widths(theta, self.setup.bin_width))

    def _source_of_data(self, number: int, slabs: Sequence[Directions], clock: Clock) -> Source[Cloud]:
        """Return F_q at a step; it is kept where directions stay, or several blocks of particles ask for it."""
        setup = self.setup
        draw = setup.data.draws.number(number)
        keep = setup.settings.reuse != 1 and setup.cdf.compact
        # What is kept was fitted with the noise of the first step; a flow that continues later does the same.
        noise_step = draw if keep else number
        fitter = self.fitter(clock)
        source = setup.data.source(draw, lambda block: self._cloud(noise_step, block, clock), slabs, fitter)
        if not keep and not setup.particles.in_blocks:
            return source
        if draw not in self._fits:
            self._fits = {draw: {}}
        return remembering(source, self._fits[draw] if keep else {})

    def _cloud(self, noise_step: int, block: Block, clock: Clock) -> Cloud:
        """Return a block of the data in the stage's coordinates, with the noise of a step in their bins."""
        setup = self.setup
        z: Tensor = self.entered(block, self._without_noise)
        if self._binned:
            return Cloud(z, block.conditions, setup.mean_condition_noise(), block.first)
        key = Key(setup.settings.seed, "dequantise", setup.index, noise_step)
        drawn = float(z.nbytes) if setup.bin_width else 0.0
        with clock.part("draw", lambda: (drawn, 0.0)):
            coordinates = setup.sampler.coordinates
            noisy = dequantised(z, setup.bin_width, coordinates, key, block.first)
            of_conditions = setup.condition_noise(noise_step, block.first, z.shape[1])
            return Cloud(noisy, block.conditions, of_conditions, block.first)

    def _without_noise(self, block: Block) -> Tensor:
        """Return data in the stage's coordinates, in the middle of their bins if noise is added later."""
        x = block.x + self.setup.bin_width / 2 if self._binned else block.x
        return self.setup.sampler.coordinates.enter_data(x)


def refuse_unfit(setup: StageSetup) -> None:
    """Raise `RunError` where directions follow the particles, and something else cannot follow them."""
    if not setup.sampler.sampler.adapts:
        return
    settings = setup.settings
    reasons = {
        "each of several devices has some of the particles or data only": not setup.ranks.alone,
        "a device with little memory has some of the particles or data only": setup.particles.in_blocks,
        setup.data.unfollowed: setup.data.unfollowed != "",
        "directions that are kept for several steps do not": settings.reuse != 1,
        "a saved model has no particles": settings.tables is not None,
    }
    for reason, unfit in reasons.items():
        if unfit:
            raise RunError(f"{setup.sampler.sampler.owner} follows the particles step by step, and {reason}")


def fault_along(
    theta: Directions, particles: Cloud, data: Iterable[Cloud], coordinates: StageCoordinates, limit: float
) -> Fault | None:
    """Return why displacements along directions are not finite; None: numbers are too large, or unknown."""
    if not is_finite(particles.z):
        return None
    fault = _fault_of_directions(theta) or _fault_of_projection(theta, particles, "particles")
    if fault is not None:
        return fault
    largest = _largest(theta.project(particles))
    for cloud in data:
        if not is_finite(cloud.z):
            return fault_of_coordinates(coordinates, "data") or Fault("", "data are not finite")
        fault = _fault_of_projection(theta, cloud, "data")
        if fault is not None:
            return fault
        largest = max(largest, _largest(theta.project(cloud)))
    return Fault("cdf", "moved particles by amounts that are not finite") if largest < limit else None


def fault_of_update(directions: Iterable[Directions], squares: float, like: Tensor) -> Fault | None:
    """Return why 1/H Σ δ θ is not finite, though SW₂² (`squares`), which the CDF plugin has summed, is."""
    if not squares < LARGEST_SAFE:
        return None
    for theta in directions:
        nowhere = Cloud(like.new_zeros(theta.projection.shape[1], 1), Conditions())
        if not is_finite(theta.adjoint(like.new_ones(theta.count, 1), nowhere)):
            return Fault("projection", "back-projected to numbers that are not finite")
    return Fault("cdf", "moved particles by amounts that are not finite, which its sums of squares hide")


def fault_of_coordinates(coordinates: StageCoordinates, moved: str) -> Fault | None:
    """Return whose map between x and a stage's coordinates has made finite numbers infinite or NaN, or None."""
    owners = {
        "coordinates": coordinates.W,
        "schedule": coordinates.upsampling,
        "condition": coordinates.observation,
    }
    kind = next((kind for kind, part in owners.items() if part is not None), None)
    return None if kind is None else Fault(kind, f"brought {moved} to numbers that are not finite")


def _fault_of_directions(theta: Directions) -> Fault | None:
    """Return whose directions are not finite, if they are not."""
    # The adapters have checked weights, θ_y, and θ where it is a matrix, as they were drawn.
    projection = theta.projection
    if not isinstance(projection, NonlinearProjection) and not is_finite(projection.dense()):
        return Fault("projection", "drew directions that are not finite")
    if theta.scale is not None and not is_finite(theta.scale):
        return Fault("projection", "drew directions of length 0 on the stage's grid")
    return None


def _fault_of_projection(theta: Directions, cloud: Cloud, noun: str) -> Fault | None:
    """Return whose products of finite directions and samples are not finite, if they are not."""
    if is_finite(theta.project(cloud)) or not _largest(cloud.z) < LARGEST_SAFE:
        return None
    alone = columnwise(theta.projection.project, cloud.z)
    kind = "condition" if is_finite(alone) else "projection"
    return Fault(kind, f"projected {noun} to numbers that are not finite")


def _largest(values: Tensor) -> float:
    return float(values.abs().max()) if values.numel() else 0.0
