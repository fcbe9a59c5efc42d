"""The particles: where they are, in the data's space and in a stage's coordinates, and their noise."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Literal

import attrs
import torch
from torch import Tensor

from cswf_core.checks import CheckedCondition
from cswf_core.errors import RunError
from cswf_core.flow.coordinates import Cloud, StageCoordinates
from cswf_core.flow.settings import Parts, Settings
from cswf_core.interfaces import Conditions, Dataset, Draw, Key, LinearMap, Masked, Space
from cswf_core.kernels.columns import groups
from cswf_core.kernels.finite import is_finite
from cswf_core.kernels.rows import Columns
from cswf_core.ranks import Ranks, Share, size_of

SAMPLES_PER_KEY = 4096
"""Samples whose noise shares a key."""

BETWEEN_STAGES = StageCoordinates(Space((1,)))
"""The coordinates of particles that are in no stage: the data's own, of any dimension."""

Quantity = Literal["x", "z", "sum"]
"""What is kept of particles: x, and z and S inside a stage."""


def require_shape(part: Tensor | None, shape: tuple[int, ...] | None, name: str) -> None:
    """Raise `RunError` if z or S of a snapshot does not have the shape that it has in this stage."""
    there = None if part is None else part.shape
    if there != shape:
        got = "missing" if there is None else "×".join(map(str, there))
        wanted = "left out" if shape is None else "×".join(map(str, shape))
        raise RunError(f"its {name} is {got}, and should be {wanted}")


class Particles:
    """M particles x (d×M) with conditions Y that never move.

    In a stage whose coordinates are not x itself, z = UᵀWx moves while x stays as it was on entering. If x
    cannot be computed from z alone, the sum S of all updates is kept besides. With `clip`, x is kept in
    [−clip, clip] after each move: then x itself moves in every stage, and z is computed from it.
    """

    in_blocks = False
    """Whether they are processed block by block (`BlockParticles`)."""

    def __init__(
        self, x: Tensor, conditions: Conditions, clip: float | None = None, share: Share | None = None
    ) -> None:
        """Begin between two stages.

        Args:
            x: d×n.
            conditions: those of these particles.
            clip: the bound on coordinates; None: there is none.
            share: which of all M particles these are; None: all of them.
        """
        self.conditions = conditions
        self.share = Share(0, x.shape[1], x.shape[1]) if share is None else share
        self.clip = clip
        self._x = x
        self._z = x
        self._sum: Tensor | None = None
        self._coordinates = BETWEEN_STAGES

    def __len__(self) -> int:
        """Return how many there are here; `share.total` is M."""
        return len(self.share)

    @property
    def device(self) -> torch.device:
        """The device on which they are processed."""
        return self._x.device

    @property
    def at_once(self) -> int:
        """How many are projected at once: over all ranks, or on each in blocks; the same on all ranks."""
        return self.share.total

    def blocks(self, *, write: bool = False, whole: bool = False) -> Iterator[Particles]:
        """Yield all particles in blocks on the device, here as one block.

        With `write`, changes of the blocks are kept. With `whole`, blocks also have what a step does not need:
        x where z moves.
        """
        del write, whole
        yield self

    @property
    def x(self) -> Tensor:
        """The particles in the data's space, also in the middle of a stage: d×M."""
        if not self._x_stays:
            return self._x
        if self._sum is None:
            return self._coordinates.leave(self._z)
        return self._x + self._coordinates.leave(self._sum)

    @property
    def _x_stays(self) -> bool:
        """Whether x stays as it was on entering the stage, and z moves."""
        return not self._coordinates.own and self.clip is None

    def some(self, index: Tensor, gather: Callable[[Tensor], Tensor] = lambda columns: columns) -> Tensor:
        """Return those particles that `index` (m) names, in the data's space: d×m.

        `gather` puts columns of all ranks together; it is called before they are mapped, so that the map is
        applied to the same columns whatever the number of ranks.
        """
        inside = self._coordinates
        if not self._x_stays:
            return gather(self._x[:, index])
        if self._sum is None:
            return inside.leave(gather(self._z[:, index]))
        if inside.observation is not None:  # it may be another one for each particle
            return gather(self.x[:, index])
        return gather(self._x[:, index]) + inside.leave(gather(self._sum[:, index]))

    @property
    def cloud(self) -> Cloud:
        """The particles in the current stage's coordinates."""
        return Cloud(self._z, self.conditions)

    @property
    def sum(self) -> Tensor | None:
        """The sum S of the stage's updates (d_k×M); None: x can be computed from z, or moves itself.

        A caller that adds to it without `move` has to compute z = z₀ + G S, of which `cloud` has z₀ only.
        """
        return self._sum

    @property
    def parts(self) -> dict[Quantity, Tensor]:
        """x, z and S, as far as they are tensors of their own."""
        parts: dict[Quantity, Tensor] = {"x": self._x}
        if self._z is not self._x:
            parts["z"] = self._z
        if self._sum is not None:
            parts["sum"] = self._sum
        return parts

    @property
    def moving(self) -> list[Tensor]:
        """Those of x, z and S that move."""
        return [part for name, part in self.parts.items() if not (name == "x" and self._x_stays)]

    def finite(self) -> bool:
        """Return whether all that has moved is finite. Reads numbers from the device."""
        return all(is_finite(part) for block in self.blocks() for part in block.moving)

    def enter(self, coordinates: StageCoordinates) -> None:
        """Begin a stage."""
        self._coordinates = coordinates
        self._z = coordinates.enter(self._x)
        if not coordinates.own:  # W may return its argument, or a view of it
            shared = self._z.untyped_storage().data_ptr() == self._x.untyped_storage().data_ptr()
            self._z = self._z.clone() if shared else self._z.contiguous()
        self._sum = torch.zeros_like(self._z) if self._x_stays and not coordinates.reversible else None

    def leave(self) -> None:
        """End a stage: apply its changes to x."""
        self.resume(BETWEEN_STAGES, {"x": self.x})

    def resume(self, coordinates: StageCoordinates, parts: Mapping[Quantity, Tensor]) -> None:
        """Be in a stage, with x, z and S as they are there; without z, it is x."""
        self._coordinates = coordinates
        self._x = parts["x"]
        self._z = parts.get("z", self._x)
        self._sum = parts.get("sum")

    def copied(self) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Return copies of x as it was on entering the stage, and of z and S; None where x itself moves."""
        z = self._z.clone() if self._x_stays else None
        return self._x.clone(), z, None if self._sum is None else self._sum.clone()

    def restore(self, z: Tensor | None, total: Tensor | None) -> None:
        """Continue in a stage that was entered before, with its z and S: d_k×M each; None where x moves."""
        require_shape(z, self._z.shape if self._x_stays else None, "z")
        require_shape(total, None if self._sum is None else self._sum.shape, "sum")
        if z is not None:
            self._z = z.to(self._x, copy=True)
            self._sum = None if total is None else total.to(self._x, copy=True)

    def join(self, x: Tensor, conditions: Conditions, share: Share) -> None:
        """Add particles x (d×m), in a stage or between two; `conditions` are those of all here afterwards."""
        self.conditions = conditions
        self.share = share
        self._x = torch.cat([self._x, x], dim=1)
        if not self._x_stays:
            self._z = self._coordinates.enter(self._x)
            return
        z = self._coordinates.enter(x)
        self._z = torch.cat([self._z, z], dim=1)
        if self._sum is not None:
            self._sum = torch.cat([self._sum, torch.zeros_like(z)], dim=1)

    def reshare(self, columns: Callable[[Tensor], Tensor]) -> None:
        """Take over the particles of `share`: `columns` selects them from those of all ranks, d×n → d×n'."""
        self.resume(self._coordinates, {name: columns(part) for name, part in self.parts.items()})

    def move(self, u: Tensor) -> Tensor:
        """Add the update U u (u: d_k×M), but not to observed coordinates; return the length of each move: M."""
        if self._x_stays and self._sum is not None:
            change = self._coordinates.gram(u)
            self._z += change
            self._sum += u
            return (u * change).sum(dim=0).clamp_min(0).sqrt()
        if self._x_stays:
            self._z += u
        else:
            u = self._move_x(self._coordinates.leave(u))
        lengths: Tensor = torch.linalg.vector_norm(u, dim=0)
        return lengths

    def add_noise(self, noise: Tensor) -> None:
        """Add noise (d×M) to the particles, but not to observed coordinates."""
        inside = self._coordinates
        if inside.observation is not None:
            noise = inside.observation.free(noise)
        if not self._x_stays:
            self._move_x(noise)
            return
        if self._sum is not None:
            self._x += noise
        self._z += inside.enter(noise)

    def _move_x(self, change: Tensor) -> Tensor:
        """Add a change (d×M) to x, within the bounds, and let z follow; return the change as it was made."""
        if self.clip is None:
            self._x += change
        else:
            moved = self._x + change
            bounded = moved.clamp(-self.clip, self.clip)
            observation = self._coordinates.observation
            if isinstance(observation, Masked):  # observed pixels stay as they are
                bounded = torch.where(observation.mask, moved, bounded)
            change = bounded - self._x
            self._x.copy_(bounded)
        if self._z is not self._x:
            self._z = self._coordinates.enter(self._x)
        return change


def mean_length(x: Tensor, W: LinearMap | None, ranks: Ranks) -> float:
    """Return the mean length of all ranks' samples x (d×n) in coordinates W, in which moves are measured."""
    total = torch.zeros(2, dtype=torch.float64, device=x.device)
    for part in torch.split(x, SAMPLES_PER_KEY, dim=1):
        lengths: Tensor = torch.linalg.vector_norm(part if W is None else W.enter(part), dim=0)
        total += torch.stack([lengths.sum(dtype=torch.float64), total.new_tensor(len(lengths))])
    length, count = ranks.sums(total).tolist()
    return float(length) / max(1.0, float(count))


def require_every_sample_counts(parts: Parts, settings: Settings) -> None:
    """Raise `RunError` if some samples of strata, which flow apart from each other, would not count."""
    parted = parts.cdf.particles is not None or parts.cdf.data is not None
    options = {"offline": settings.offline > 0, "part": parted, "turn": settings.turn is not None}
    for noun, wanted in options.items():
        if wanted:
            raise RunError(
                f"{parts.condition.owner} has a flow for each class, in which every particle and every datum "
                f"counts: leave out {settings.called(noun)}, or set it to null"
            )


def taking_part(
    conditions: Conditions, total: int, condition: CheckedCondition, settings: Settings
) -> Columns | None:
    """Return which particles take part in F_p, and are not only carried along; None: all of them.

    Args:
        conditions: those of all ranks' particles.
        total: the number of all particles.
        condition: the plugin, which may carry along particles of images that are held out.
        settings: the flow's numbers, of which `offline` counts.
    """
    origin = conditions.origin
    if condition.carries_held_out and origin is not None:
        seen = (origin >= 0).nonzero()[:, 0]
        return None if len(seen) == len(origin) else seen
    return slice(total - settings.offline) if settings.offline else None


def require_both_halves_used(part: Columns | None, total: int, steps: int, settings: Settings) -> None:
    """Raise `RunError` if there are turns, and one half of the particles would never take part in F_p.

    Args:
        part: the particles that ever take part; None: all of them.
        total: the number of all particles.
        steps: the number of steps of the flow.
        settings: the flow's numbers, of which `turn` counts.
    """
    if settings.turn is None:
        return
    if size_of(part, total) < 2:
        raise RunError(
            f"one particle has no halves that could take turns: leave out the {settings.called('turn')}"
        )
    if steps <= settings.turn:
        raise RunError(
            f"the flow has {steps} steps and a turn {settings.turn}: half of the particles would never take "
            f"part in F_p. Take a {settings.called('turn')} of fewer steps"
        )


def balanced(data: Dataset, condition: CheckedCondition, seed: int) -> Dataset:
    """Return the data that particles flow to: all of them, or as many of each class as the condition wants."""
    index = condition.balance(data, Key(seed, "balance").open())
    return data if index is None else data.take(index)


def normal(key: Key, dimension: int, share: Share, like: Tensor) -> Tensor:
    """Return N(0, 1) entries for the samples of a share: d×n.

    Noise is drawn sample by sample, from keys of global index: that of a sample does not depend on how many
    others there are, nor on where they are computed.

    Args:
        key: the key of the noise, without its index.
        dimension: d.
        share: the n samples.
        like: a tensor with the type and the device of the noise.
    """
    noise = torch.empty(dimension, len(share), dtype=like.dtype, device=like.device)
    for columns, draw in _keyed(key, dimension, share.first, len(share), like):
        noise[:, columns] = draw.normal(columns.stop - columns.start, dimension).T
    return noise


def uniform(key: Key, dimension: int, first: int, count: int, like: Tensor) -> Tensor:
    """Return entries uniform in [0, 1), drawn as those of `normal`: d×n.

    Args:
        key: the key of the noise, without its index.
        dimension: d.
        first: the number of the first sample.
        count: n.
        like: a tensor with the type and the device of the noise.
    """
    noise = torch.empty(dimension, count, dtype=like.dtype, device=like.device)
    for columns, draw in _keyed(key, dimension, first, count, like):
        noise[:, columns] = draw.uniform(columns.stop - columns.start, dimension).T
    return noise


def _keyed(key: Key, d: int, first: int, count: int, like: Tensor) -> Iterator[tuple[slice, Draw]]:
    """Yield slices of `count` samples from number `first` on, each with a draw that has reached their noise."""
    draw: Draw | None = None
    for columns in groups(count, like.device.type):
        index, inside = divmod(first + columns.start, SAMPLES_PER_KEY)
        if draw is None or inside == 0:
            draw = attrs.evolve(key, index=index).open(like.device, like.dtype)
            draw.skip(inside * d)
        yield columns, draw


def dequantised(
    z: Tensor, bin_width: float, dimension: int, coordinates: StageCoordinates, key: Key, first: int = 0
) -> Tensor:
    """Return data in a stage's coordinates (z = UᵀLx, d_k×n) with fresh uniform noise in every pixel's bin.

    The noise is drawn for all coordinates of x and mapped into the stage's coordinates, so that the result is
    UᵀL(x + noise) exactly.

    Args:
        z: the data, d_k×n.
        bin_width: the distance between two grey levels; 0: there is no noise.
        dimension: d.
        coordinates: those of the stage.
        key: the key of the noise.
        first: the number of the first sample among all.
    """
    if bin_width == 0:
        return z
    noisy = torch.empty_like(z)
    for columns, draw in _keyed(key, dimension, first, z.shape[1], z):
        noise = draw.uniform(columns.stop - columns.start, dimension).mul_(bin_width).T.contiguous()
        torch.add(z[:, columns], coordinates.enter_data(noise), out=noisy[:, columns])
    return noisy
