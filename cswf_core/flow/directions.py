"""The directions of a step: θ_x from the projection plugin, θ_y from the condition plugin."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from cswf_core.flow import boundary
from cswf_core.flow.coordinates import Coordinates
from cswf_core.flow.memory import tiles
from cswf_core.flow.settings import Parts
from cswf_core.flow.step import Meeting, Tile
from cswf_core.flow.structured import PAYS_BELOW, BlockProjection, places
from cswf_core.interfaces import (
    ConditionEncoder,
    Conditions,
    DenseProjection,
    Key,
    Owner,
    Projection,
    ProjectionSampler,
    Stage,
)
from cswf_core.kernels.blocks import arrange


class Directions:
    """Draws the tiles of any step of one stage, each from its own key."""

    def __init__(
        self,
        stage: Stage,
        coordinates: Coordinates,
        sampler: tuple[ProjectionSampler, Owner],
        condition: tuple[ConditionEncoder, Owner],
        length: int,
        like: Tensor,
    ) -> None:
        self.stage = stage
        self.coordinates = coordinates
        self.sampler, self.sampler_owner = sampler
        self.condition, self.condition_owner = condition
        self.length = length
        self.like = like
        self.dense = False
        """Whether directions are taken as dense: they are, or skipping their zeros was found not to pay."""
        with boundary.calling(self.sampler_owner, "together"):
            self.together = boundary.check_together(
                self.sampler.together(coordinates.space), self.sampler_owner
            )

    def tiles(self, seed: int, stage_index: int, step: int, *, values: bool) -> Iterator[Tile]:
        """Yield the H directions of a step, tile by tile; `values` checks numbers and not only shapes."""
        for index, count in tiles(self.stage.directions, self.together):
            yield self._tile(Key(seed, "directions", stage_index, step, index), count, values)

    def filters(self, key: Key, count: int, *, values: bool) -> tuple[Projection, Tensor | None]:
        """Return `count` filters t_h on the stage's grid, and 1/‖U t_h‖ (T×1; None is 1)."""
        space = self.coordinates.space
        with boundary.calling(self.sampler_owner, "sample"):
            sampled = self.sampler.sample(space, count, key.open(self.like.device, self.like.dtype))
        projection = boundary.check_projection(
            sampled, self.sampler_owner, shape=(count, space.dimension), like=self.like, values=values
        )
        return projection, self.coordinates.scale(projection)

    def groups(self, conditions: Conditions) -> tuple[Tensor, Conditions] | None:
        """Return the group of each sample, in few bits, and each group's condition; None: no groups."""
        if self.length == 0:
            return None
        owner = self.condition_owner
        with boundary.calling(owner, "groups"):
            answer = self.condition.groups(conditions)
        if answer is None:
            return None
        boundary.check_groups(answer, owner, conditions)
        index, classes = answer
        few = len(classes) <= 256
        return index.to(torch.uint8 if few else torch.int32), classes

    def structured(self, tile: Tile) -> Tile:
        """Return the directions of a tile as blocks, sorted by where they look, if that makes products quicker.

        Reads one number back from the device.
        """
        where = places(self.coordinates.space, self.like.device)
        if self.dense or where is None or not isinstance(tile.projection, DenseProjection):
            return tile
        blocks = arrange(tile.projection.dense(), tile.scale, where, self.like.dtype)
        if blocks.share() > PAYS_BELOW:
            self.dense = True
            return tile
        theta_y, length = (None if p is None else p[blocks.order] for p in (tile.theta_y, tile.length))
        return Tile(BlockProjection(blocks, where), None, theta_y, tile.meet, length, drawn=blocks.order)

    def _tile(self, key: Key, count: int, values: bool) -> Tile:
        projection, scale = self.filters(key, count, values=values)
        if self.length == 0:
            return Tile(projection, scale)
        a, theta_y = self._condition_part(
            Key(key.seed, "theta_y", key.stage, key.step, key.index), count, values
        )
        return Tile(projection, a if scale is None else a * scale, theta_y, self._meeting(values), a)

    def _condition_part(self, key: Key, count: int, values: bool) -> tuple[Tensor, Tensor]:
        """Return a_h (T×1) and ξ √(1−a_h²) θ_y (T×l)."""
        owner, draw = self.condition_owner, key.open(self.like.device, self.like.dtype)
        d = self.coordinates.space.dimension
        with boundary.calling(owner, "directions"):
            theta_y = self.condition.directions(self.length, count, draw)
        boundary.check_tensor(theta_y, owner, "directions", shape=(count, self.length), like=self.like)
        with boundary.calling(owner, "weights"):
            a = self.condition.weights(d, self.length, count, draw)
        boundary.check_tensor(a, owner, "weights", shape=(count,), like=self.like)
        if values:
            boundary.check_unit(theta_y, owner, "directions")
            if not bool(((a >= 0) & (a <= 1)).all()):
                raise boundary.fault(
                    owner, "weights", "lengths in [0, 1]", f"{float(a.min())} … {float(a.max())}"
                )
        a = a[:, None]
        return a, theta_y * (1 - a.square()).clamp_min(0).sqrt() * self.condition.amplifier

    def _meeting(self, values: bool) -> Meeting:
        def meet(theta_y: Tensor, conditions: Conditions, count: int) -> Tensor:
            owner, shape = self.condition_owner, (theta_y.shape[0], count)
            with boundary.calling(owner, "project"):
                value = self.condition.project(theta_y, conditions)
            boundary.check_tensor(value, owner, "project", shape=shape, like=theta_y)
            return boundary.check_finite(value, owner, "project") if values else value

        return meet


def directions_of(
    stage: Stage, coordinates: Coordinates, parts: Parts, length: int, data_x: Tensor
) -> Directions:
    """Return what draws a stage's directions; its sampler may look at the data (d×N) first."""
    sampler, owner = parts.projection, parts.owner("projection")
    if stage.sampler is not None:
        same = type(stage.sampler) is type(sampler)
        sampler, owner = stage.sampler, owner if same else Owner.of("projection", stage.sampler)
    with boundary.calling(owner, "fitted"):
        if type(sampler).fitted is not ProjectionSampler.fitted:
            data_z = coordinates.enter_data(data_x)
            sampler = boundary.check_sampler(sampler.fitted(coordinates.space, data_z), owner)
    condition = parts.condition, parts.owner("condition")
    return Directions(stage, coordinates, (sampler, owner), condition, length, data_x)


def step_key(step: int, reuse: int | None, sets: int | None = None) -> int:
    """Return the step whose directions a step uses: the first of every `reuse` steps; None: of the stage.

    With `sets`, there are only so many, numbered from 0 and used in turn.
    """
    if reuse is None:
        return 0
    return step - step % reuse if sets is None else step // reuse % sets
