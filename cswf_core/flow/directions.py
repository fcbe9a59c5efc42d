"""The directions of a step: θ_x from the projection plugin, θ_y from the condition plugin."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache, partial
from math import prod

import attrs
import torch
from torch import Tensor

from cswf_core.checks import CheckedCondition, CheckedSampler
from cswf_core.errors import PluginError, RunError
from cswf_core.flow.coordinates import Cloud, StageCoordinates
from cswf_core.flow.memory import Budget, Clock, batch_size, batches
from cswf_core.flow.settings import Parts
from cswf_core.interfaces import (
    Conditions,
    DenseProjection,
    Draw,
    Key,
    NonlinearProjection,
    PatchProjection,
    Projection,
    Rows,
    Space,
    Stage,
)
from cswf_core.interfaces.dataset import digest_of
from cswf_core.kernels import sparse
from cswf_core.kernels.columns import columnwise, groups
from cswf_core.kernels.sparse import Places, SparseDirections, arrange
from cswf_core.ranks import Ranks

PAYS_BELOW = 0.6
"""Share of cells that are not zero up to which skipping the others is quicker than one dense product."""


@lru_cache(maxsize=32)
def places(space: Space, device: torch.device) -> Places | None:
    """Return the order of a grid's coordinates along a Hilbert curve; None for data that are no images."""
    return Places.of(space.shape, device) if space.is_image else None


class SparseProjection(Projection):
    """H directions s_h t_h, sorted by where they look; the rest of their batch has to be sorted alike."""

    def __init__(self, directions: SparseDirections, where: Places) -> None:
        self.directions = directions
        self.where = where

    @property
    def shape(self) -> tuple[int, int]:
        """(H, d)."""
        return self.directions.shape

    def project(self, x: Tensor) -> Tensor:
        """d×n → H×n."""
        return sparse.project(self.directions, x[self.where.order])

    def adjoint(self, a: Tensor) -> Tensor:
        """H×n → d×n."""
        product = sparse.back_project(self.directions, a)
        return torch.empty_like(product).index_copy_(0, self.where.order, product)

    def dense(self) -> Tensor:
        """The directions as rows, H×d."""
        H, d = self.shape
        theta = self.directions.theta[:H, :d]
        return torch.empty_like(theta).index_copy_(1, self.where.order, theta)

    def rows(self, cut: slice) -> SparseProjection:
        """Return some of the directions."""
        H, d = self.shape
        theta = self.directions.theta
        return SparseProjection(arrange(theta[:H, :d][cut], None, None, theta.dtype), self.where)


@attrs.frozen(eq=False)
class Place:
    """Which directions of a step some rows belong to."""

    batch: int
    """The number of the batch that they were drawn in."""
    begin: int = 0
    """The number of the batch's first direction among all of the step."""
    first: int = 0
    """The first row's number among those of the batch."""
    order: Tensor | None = None
    """The number of each in the order of the draw, where rows have another one; None: first, first + 1, …"""

    def rows(self, cut: slice) -> Place:
        """Return the place of some of the rows."""
        order = None if self.order is None else self.order[cut]
        return Place(self.batch, self.begin, self.first + cut.start, order)

    def in_step(self, count: int) -> slice:
        """Return the numbers of `count` rows among all of the step, batch by batch."""
        start = self.begin + self.first
        return slice(start, start + count)

    def in_draw(self, count: int) -> slice | Tensor:
        """Return the numbers of `count` rows among all of the step, in the order of the draw."""
        return self.in_step(count) if self.order is None else self.order + self.begin


@attrs.frozen(eq=False)
class Directions:
    """T of a step's H directions, θ_h = [s_h t_h, √(1−a²) θ_y], with unit length at full resolution."""

    projection: Projection
    """The filters t_h, T×d_k."""
    place: Place
    scale: Tensor | None = None
    """s_h, T×1; None is 1."""
    theta_y: Tensor | None = None
    """ξ √(1−a²) θ_y, with θ_y of unit length: T×l; None where there is no condition."""
    condition: CheckedCondition | None = None
    check: bool = False
    """Whether the numbers that the condition plugin returns are checked."""
    length: Tensor | None = None
    """a = |θ_x| of each direction, T×1; None is 1."""
    noise: Tensor | None = None
    """The width of the noise in the data's bins along each direction: T; None is none."""
    weight: Tensor | None = None
    """w_h, how much each direction counts: T×1; None is 1."""

    @property
    def count(self) -> int:
        """T."""
        return self.projection.shape[0]

    @property
    def numbers(self) -> int:
        """How many numbers were drawn and written for them: T·d_k, or those of small filters."""
        patches = self.projection
        return patches.filters.numel() if isinstance(patches, PatchProjection) else prod(patches.shape)

    def rows(self, cut: slice) -> Directions:
        """Return some of the directions."""
        if (cut.start, cut.stop) == (0, self.count):
            return self
        return self.replaced(self.projection.rows(cut), self.place.rows(cut), cut)

    def replaced(self, projection: Projection, place: Place, rows: slice | Tensor) -> Directions:
        """Return directions with another projection, whose rows are some of the rows here."""
        numbers = (self.scale, self.theta_y, self.length, self.noise, self.weight)
        scale, theta_y, length, noise, weight = (None if each is None else each[rows] for each in numbers)
        return Directions(projection, place, scale, theta_y, self.condition, self.check, length, noise, weight)

    def project(self, cloud: Cloud) -> Tensor:
        """Return θ_h·(z, ξy) = s_h t_h·z + ξ √(1−a²) θ_y·y: T×n."""
        values = columnwise(self.projection.project, cloud.z)
        if self.theta_y is None or self.condition is None:
            return values if self.scale is None else values * self.scale
        of_conditions = partial(self.condition.project, self.theta_y, check=self.check)
        offsets = [
            of_conditions(cloud.conditions.take(cut), count=cut.stop - cut.start)
            for cut in groups(values.shape[1], values.device.type)
        ]
        offset = torch.cat(offsets, dim=1) if offsets else torch.zeros_like(values)
        if cloud.noise is not None:
            offset = offset + columnwise((self.theta_y / self.condition.amplifier).matmul, cloud.noise)
        return values + offset if self.scale is None else torch.addcmul(offset, values, self.scale)

    def projected(self, cloud: Cloud, clock: Clock) -> Rows:
        """Return p_h = θ_h·(z, ξy) of particles, in memory of its own: T×n."""
        with clock.part("project", partial(self.work, cloud.z)):
            p = self.project(cloud).contiguous()
            if p.untyped_storage().data_ptr() == cloud.z.untyped_storage().data_ptr():
                p = p.clone()  # an operator may hand the particles back; p is overwritten by δ
        with clock.part("count"):  # the ends of each row are found
            return Rows.of(p)

    def projected_data(self, cloud: Cloud, clock: Clock) -> Rows:
        """Return q_h = θ_h·(z, ξy) of data, with the noise in their bins: T×n."""
        with clock.part("project", partial(self.work, cloud.z)):
            q = self.project(cloud).contiguous()
        with clock.part("count"):
            return Rows.of(q, self.noise, self.place.first, cloud.first)

    def back_projected(self, delta: Tensor, cloud: Cloud, clock: Clock) -> Tensor:
        """Return Σ_h w_h δ_h s_h t_h: T×n → d_k×n."""
        with clock.part("back-project", partial(self.work, cloud.z)):
            return self.adjoint(delta, cloud)

    def adjoint(self, a: Tensor, cloud: Cloud) -> Tensor:
        """Return Σ_h w_h a_h s_h t_h of a cloud's projections, without θ_y (velocity masking): T×n → d_k×n."""
        for factor in (self.scale, self.weight):
            a = a if factor is None else a * factor
        if not isinstance(self.projection, NonlinearProjection):
            return columnwise(self.projection.adjoint, a)
        update = torch.empty_like(cloud.z)
        for cut in groups(a.shape[1], a.device.type):  # the gradient of a nonlinear slice depends on z
            update[:, cut] = self.projection.adjoint(a[:, cut].contiguous(), cloud.z[:, cut].contiguous())
        return update

    def weighted(self, squares: Tensor) -> Tensor:
        """Return w_h times sums of δ_h²: T → T."""
        return squares if self.weight is None else squares * self.weight[:, 0].to(squares)

    def weighted_root(self, delta: Tensor) -> Tensor:
        """Return √w_h δ_h, whose squares count as much as they should: T×n → T×n."""
        return delta if self.weight is None else delta * self.weight.sqrt()

    def work(self, z: Tensor) -> tuple[float, float]:
        """Return the bytes that a product with samples (d_k×n) has to move, and its operations."""
        H, d = self.projection.shape
        samples = z.shape[1]
        moved = float(z.element_size() * (H * d + (H + d) * samples))
        if isinstance(self.projection, SparseProjection):
            return moved, self.projection.directions.flops(samples)
        return moved, 2.0 * H * d * samples


def slabs_of(directions: Iterable[Directions], budget: Budget) -> Iterator[Directions]:
    """Yield batches of directions in slabs, whose products fit into memory at once."""
    for batch in directions:
        for first in range(0, batch.count, budget.slab):
            yield batch.rows(slice(first, min(first + budget.slab, batch.count)))


@attrs.define(eq=False)
class DirectionSampler:
    """Draws the directions of any step of one stage, each batch from its own key."""

    stage: Stage
    coordinates: StageCoordinates
    sampler: CheckedSampler
    condition: CheckedCondition
    length: int
    """l."""
    like: Tensor
    """A tensor on the device, and of the type, of the directions' numbers."""
    tensors: Mapping[str, Tensor] | None = None
    """What the projection has fitted to the data, on the CPU; None: nothing that could be saved."""
    dense: bool = attrs.field(default=False, init=False)
    """Whether directions are taken as dense: they are, or skipping their zeros does not pay."""
    forms: set[tuple[bool, bool]] = attrs.field(factory=set, init=False)
    """Whether directions have weights, and whether they are nonlinear, as they have come so far."""

    @classmethod
    def of_stage(
        cls, stage: Stage, coordinates: StageCoordinates, parts: Parts, length: int, like: Tensor
    ) -> DirectionSampler:
        """Return the sampler of a stage; one that looks at the data is to be `fitted` or `restored` first."""
        sampler = parts.projection.of_stage(stage).conditioned(Space((length,)))
        return cls(stage, coordinates, sampler, parts.condition, length, like)

    def fitted(self, data_x: Callable[[], Tensor]) -> DirectionSampler:
        """Return the sampler whose projection has looked at all data (d×N), if it wants to.

        Its directions come from the very tensors that a model saves.
        """
        if not self.sampler.sees_data:
            return self
        sampler = self.sampler.fitted(self.coordinates.space, self.coordinates.enter_data(data_x()))
        if self.sampler.lacking is None:
            return self.restored(sampler.tensors())
        return attrs.evolve(self, sampler=sampler)

    def restored(self, tensors: Mapping[str, Tensor]) -> DirectionSampler:
        """Return the sampler whose projection is made again of what it has fitted to the data."""
        sampler = self.sampler.of_tensors(self.coordinates.space, tensors, self.like)
        return attrs.evolve(self, sampler=sampler, tensors=tensors)

    @property
    def together(self) -> int:
        """Directions that are drawn as one."""
        return self.sampler.together(self.coordinates.space)

    def batches(self, seed: int, stage: int, step: int, *, check: bool) -> Iterator[Directions]:
        """Yield the H directions of a step, batch by batch; `check` checks numbers and not only shapes."""
        for number, count in batches(self.stage.directions, self.together):
            yield self.batch(Key(seed, "directions", stage, step, number), count, check)

    @property
    def plain(self) -> bool:
        """Whether directions are linear, count alike and follow nothing: only such ones have a fast path.

        This is known once some have been drawn, as `recognise` does first of all.
        """
        return not self.sampler.adapts and self.forms <= {(False, False)}

    @property
    def measured_later(self) -> bool:
        """Whether λ cannot be told when a stage begins: directions follow the particles, or are nonlinear.

        This, too, is known once some have been drawn.
        """
        return self.sampler.adapts or any(nonlinear for _, nonlinear in self.forms)

    def adapted(self, particles: Tensor, data: Tensor, draw: Draw) -> DirectionSampler:
        """Return the sampler of one step, whose projection has seen particles and data (d_k×n each)."""
        return attrs.evolve(self, sampler=self.sampler.adapted(self.coordinates.space, particles, data, draw))

    def filters(self, key: Key, count: int, *, check: bool) -> Directions:
        """Return `count` directions s_h t_h, with s_h = 1/‖U t_h‖ and without θ_y.

        Raise `PluginError` for directions of another form than earlier ones, or that cannot serve here.
        """
        draw = key.open(self.like.device, self.like.dtype)
        projection = self.sampler.sample(self.coordinates.space, count, draw, check=check)
        nonlinear = isinstance(projection, NonlinearProjection)
        self.forms.add((projection.weights is not None, nonlinear))
        if len(self.forms) > 1:
            raise PluginError(
                f"{self.sampler.owner}: some directions of a stage have weights, or are nonlinear, and others "
                "are not: return the same form at every call"
            )
        coarse = self.coordinates.upsampling is not None
        if nonlinear and (coarse or self.coordinates.observation is not None):
            where = "on a coarse grid" if coarse else "where a part is observed"
            raise PluginError(
                f"{self.sampler.owner}: nonlinear slices work on the data's own grid with all of x flowing, "
                f"and not {where}: take schedule constant, and another condition"
            )
        weight = None if projection.weights is None else projection.weights[:, None]
        place = Place(key.index, key.index * batch_size(self.together))
        return Directions(projection, place, self.coordinates.scale(projection), weight=weight)

    def mean_square_length(self, key: Key) -> float:
        """Return the mean of |θ_x|² = a² over some directions; 1 where nothing stands beside x."""
        if self.length == 0:
            return 1.0
        a, _ = self._condition_part(key, min(1024, self.stage.directions), check=True)
        return float(a.square().mean())

    def groups(self, conditions: Conditions) -> tuple[Tensor, Conditions] | None:
        """Return the group of each sample, in few bits, and each group's condition; None: no groups."""
        return None if self.length == 0 else self.condition.groups(conditions)

    def as_sparse(self, theta: Directions) -> Directions:
        """Return a batch as sparse directions, sorted by where they look, if that makes products quicker.

        Reads one number back from the device.
        """
        where = places(self.coordinates.space, self.like.device)
        if self.dense or where is None or not isinstance(theta.projection, DenseProjection):
            return theta
        directions = arrange(theta.projection.dense(), theta.scale, where, self.like.dtype)
        if directions.share() > PAYS_BELOW:
            self.dense = True
            return theta
        assert directions.order is not None
        place = attrs.evolve(theta.place, order=directions.order)
        scaled = attrs.evolve(theta, scale=None)  # the sparse directions hold it
        return scaled.replaced(SparseProjection(directions, where), place, directions.order)

    def noise_widths(self, theta: Directions, width: float) -> Tensor | None:
        """Return how wide the noise in bins of a width b is along each direction: b |L Wᵀθ_x|, T numbers.

        Where conditions get noise too, that is b |θ| = b, unless W changes lengths.
        """
        if width == 0:
            return None
        coordinates = self.coordinates
        both = theta.condition is not None and theta.condition.dequantised
        stretches = coordinates.observation is not None and coordinates.amplifier != 1
        if coordinates.W is None and (both or not stretches):
            if both or theta.length is None:
                return self.like.new_full((theta.count,), width)
            return width * theta.length[:, 0]
        pixels = coordinates.stretched(coordinates.of_pixels(theta.projection.dense().T))
        lengths: Tensor = torch.linalg.vector_norm(pixels, dim=0)
        lengths = lengths if theta.scale is None else lengths * theta.scale[:, 0]
        if both and theta.length is not None:
            lengths = (lengths.square() + 1 - theta.length[:, 0].square()).sqrt()
        return width * lengths

    def batch(self, key: Key, count: int, check: bool) -> Directions:
        """Return the `count` directions that a key names."""
        theta = self.filters(key, count, check=check)
        if self.length == 0:
            return theta
        a, theta_y = self._condition_part(attrs.evolve(key, role="theta_y"), count, check)
        scale = a if theta.scale is None else a * theta.scale
        return attrs.evolve(
            theta, scale=scale, theta_y=theta_y, condition=self.condition, check=check, length=a
        )

    def _condition_part(self, key: Key, count: int, check: bool) -> tuple[Tensor, Tensor]:
        """Return a_h (T×1) and ξ √(1−a_h²) θ_y (T×l)."""
        draw = key.open(self.like.device, self.like.dtype)
        space = self.coordinates.full if self.condition.full_dimension else self.coordinates.space
        theta_y = self.condition.directions(self.length, count, draw, check=check)
        a = self.condition.weights(space.dimension, self.length, count, draw, check=check)[:, None]
        return a, theta_y * (1 - a.square()).clamp_min(0).sqrt() * self.condition.amplifier


class Draws:
    """The draws of a stage: which directions each of its steps uses."""

    def __init__(self, reuse: int | None = 1, sets: int | None = None) -> None:
        """Keep the directions of a draw for `reuse` steps; None: one draw serves the whole stage.

        With `sets`, there is a fixed number of draws, which come again in turn; the data are counted along all.
        """
        self.reuse = sys.maxsize if reuse is None else reuse
        self.sets = sets
        self.fresh = self.reuse == 1 and sets is None
        """Whether each step has a draw of its own."""

    def number(self, step: int) -> int:
        """Return the number of the draw that a step uses: that of its set, or of the first step with it."""
        return step - step % self.reuse if self.sets is None else step // self.reuse % self.sets

    def next(self, number: int, steps: int) -> int | None:
        """Return the draw after another one in a stage with some steps; None: no data are read for one."""
        following = number + self.reuse
        return following if self.sets is None and following < steps else None

    def number_kept(self, most: int) -> int:
        """Return how many draws are kept for later steps, if memory is enough for `most`."""
        if self.sets is not None and self.sets <= most:
            return self.sets
        return 0 if self.reuse == 1 else 1


def first_directions(sampler: DirectionSampler, seed: int, stage: int) -> Directions:
    """Return the first batch of a stage's directions, drawn twice; raise `PluginError` if they differ."""
    first, again = (next(sampler.batches(seed, stage, 0, check=True)) for _ in range(2))
    require_repeatable(sampler, first, again)
    return first


def require_repeatable(sampler: DirectionSampler, first: Directions, again: Directions) -> None:
    """Raise `PluginError` if two draws from one key did not give the same directions, to the bit."""
    pairs = zip(_numbers(sampler, first), _numbers(sampler, again), strict=True)
    if not all(torch.equal(one, other) for one, other in pairs):
        raise PluginError(
            f"{sampler.sampler.owner}: directions drawn twice from one key differ, so that no run could be "
            "repeated and no model sampled: draw all randomness from `draw`, and keep no state between calls"
        )


def fingerprint(sampler: DirectionSampler, directions: Directions) -> str:
    """Return the products of some directions with a fixed vector, in hexadecimal: `θ_x`, or `θ_x/l/θ_y`."""
    theta_y = directions.theta_y
    a = directions.length
    values = attrs.evolve(directions, theta_y=None).project(Cloud(_probe(sampler), Conditions()))[:, 0]
    values = directions.weighted(values)
    if isinstance(directions.projection, NonlinearProjection):  # of any size, unlike those of unit directions
        values = (values - values.mean()) / values.std(correction=0).clamp_min(torch.finfo(values.dtype).tiny)
    if theta_y is None or a is None:
        return _printed(values)
    factors = torch.arange(1, sampler.length + 1).cos().to(theta_y)
    beside = (theta_y * factors).sum(dim=1) / (sampler.condition.amplifier or 1.0)  # ξ = 0 leaves nothing
    alone = values / a[:, 0].clamp_min(torch.finfo(a.dtype).tiny)
    return f"{_printed(alone)}/{sampler.length}/{_printed(beside)}"


def _printed(values: Tensor) -> str:
    """Return some of the values as hexadecimal digits."""
    chosen = torch.arange(32, device=values.device) * len(values) // 32
    # Projected values are about as large as 1: levels of a 2,048th of it are printed
    levels = (values[chosen].double() * 2**11).round().clamp(1 - 2**15, 2**15 - 1).long().tolist()
    return "".join(f"{level % 2**16:04x}" for level in levels)


def recognise(sampler: DirectionSampler, seed: int, stage: int, known: str | None, ranks: Ranks) -> str | None:
    """Return the fingerprint of a stage's directions; None for directions that follow the particles.

    A resumed run, and a model that is sampled, draw directions again by the code of a plugin: if that has
    changed, particles would move along other directions than their maps belong to, and nothing else shows it.
    Raise an error if they cannot be repeated, if other ranks draw others, or if `known` belongs to others.
    """
    if sampler.sampler.adapts:
        return None
    first = first_directions(sampler, seed, stage)
    if not ranks.alone:
        ranks.agree("directions", "".join(map(digest_of, _numbers(sampler, first))))
    now = fingerprint(sampler, first)
    if known and not same_fingerprint(now, known):
        raise RunError(
            f"stage {sampler.stage.name or 'of the schedule'}: {sampler.sampler.owner} draws other directions "
            "than it did before, so that particles would go astray: its code or its parameters have changed, "
            "or the data that it looks at. Bring back the version that was used then (run.json has its "
            "SHA-256), or begin anew"
        )
    return now


def same_fingerprint(first: str, second: str) -> bool:
    """Return whether two fingerprints are of the same directions, perhaps drawn on different devices."""
    x, *y = first.split("/")
    other_x, *other_y = second.split("/")
    comparable = bool(y and other_y) and y[0] == other_y[0]  # Y becomes longer when classes are added
    return _near(x, other_x) and (not comparable or _near(y[1], other_y[1]))


def _near(first: str, second: str) -> bool:
    """Return whether all but a few values are the same, up to rounding."""
    levels = [[int(text[at : at + 4], 16) for at in range(0, len(text), 4)] for text in (first, second)]
    apart = [abs((a - b + 2**15) % 2**16 - 2**15) for a, b in zip(*levels, strict=False)]
    # Devices round in other places, by some levels; and a number on a border falls on either side of it
    return len(first) == len(second) and sum(gap > 4 for gap in apart) <= 2


def _numbers(sampler: DirectionSampler, directions: Directions) -> list[Tensor]:
    """Return the numbers that directions are made of; of operators, their products with a fixed vector."""
    projection = directions.projection
    dense = isinstance(projection, DenseProjection)
    theta = projection.dense() if dense else projection.project(_probe(sampler))
    parts = (theta, directions.weight, directions.length, directions.theta_y)
    return [part for part in parts if part is not None]


def _probe(sampler: DirectionSampler) -> Tensor:
    """Return a fixed vector: d_k×1."""
    d = sampler.coordinates.space.dimension
    return Key(0, "fingerprint").open(dtype=sampler.like.dtype).normal(d, 1).to(sampler.like)
