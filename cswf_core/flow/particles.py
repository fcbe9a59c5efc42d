"""The particles: where they are, in the data's space and in a stage's coordinates, and their noise."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import attrs
import torch
from torch import Tensor

from cswf_core.checks import CheckedCondition
from cswf_core.errors import RunError
from cswf_core.flow.settings import Parts, Settings
from cswf_core.flow.stage_coordinates import Cloud, StageCoordinates
from cswf_core.interfaces import Conditions, Dataset, Draw, Key, LinearMap, Masked
from cswf_core.kernels.columns import groups
from cswf_core.kernels.finite import is_finite
from cswf_core.kernels.rows import Columns
from cswf_core.ranks import Ranks, Share, size_of

KEYED = 4096
"""Samples whose noise shares a key."""


def refuse_other_parts(part: Tensor | None, shape: tuple[int, ...] | None, name: str) -> None:
    """Raise `RunError` if z or S of a snapshot are not of the shape that they have in this stage."""
    there = None if part is None else part.shape
    if there != shape:
        got, wanted = (None if sizes is None else "×".join(map(str, sizes)) for sizes in (there, shape))
        raise RunError(f"its {name} is {got or 'missing'}, and should be {wanted or 'left out'}")


class Particles:
    """M particles x (d×M) with conditions Y that never move.

    Inside a stage with an upsampling U, `_x` stays what it was on entering, z = UᵀWx moves, and `_sum` keeps
    the sum S of all updates. Without one, z is x itself or, with coordinates W, moves in its stead. With
    `clip`, x is kept in [−clip, clip] after each move: then x moves in every stage, and z is made of it.
    """

    in_blocks = False
    """Whether they are worked on block by block (`BlockParticles`)."""

    def __init__(
        self, x: Tensor, conditions: Conditions, clip: float | None = None, share: Share | None = None
    ) -> None:
        """`share` says which of all particles these are; None: they are all."""
        self.conditions = conditions
        self.share = Share(0, x.shape[1], x.shape[1]) if share is None else share
        self.clip = clip
        self._x = x
        self._coordinates: StageCoordinates | None = None
        self._z = x
        self._sum: Tensor | None = None

    def __len__(self) -> int:
        """Return how many there are here; `share.total` is M."""
        return int(self._x.shape[1])

    @property
    def device(self) -> torch.device:
        """The device that they are worked on."""
        return self._x.device

    @property
    def at_once(self) -> int:
        """How many are projected at once: over all ranks, or on each in blocks; for all ranks the same."""
        return self.share.total

    def blocks(self, *, write: bool = False, whole: bool = False) -> Iterator[Particles]:
        """Yield all particles in blocks on the device, here as they are.

        With `write`, changes are kept. `whole`: also what a step could do without, x where z moves.
        """
        del write, whole
        yield self

    @property
    def x(self) -> Tensor:
        """The particles in the data's space, also in the middle of a stage: d×M."""
        if self._coordinates is None:
            return self._x
        if self._sum is None:
            return self._coordinates.leave(self._z) if self._instead else self._x
        return self._x + self._coordinates.leave(self._sum)

    @property
    def _instead(self) -> bool:
        """Whether z alone moves, and x is to be had from it."""
        return self._coordinates is not None and self._coordinates.reversible and self.clip is None

    def some(self, index: Tensor, gather: Callable[[Tensor], Tensor] = lambda columns: columns) -> Tensor:
        """Return those particles that `index` (m) names, in the data's space: d×m.

        `gather` puts columns of all ranks together; it sees them before they are mapped, so that the map is
        taken of the same columns whatever the number of ranks.
        """
        inside = self._coordinates
        if inside is None or (self._sum is None and not self._instead):
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
        """The sum S of the stage's updates (d_k×M); None where updates go to x directly.

        Whoever adds to it without `move` has to reckon with z = z₀ + G S, of which `cloud` knows z₀ only.
        """
        return self._sum

    def enter(self, coordinates: StageCoordinates) -> None:
        """Begin a stage."""
        self._coordinates = coordinates
        self._z = coordinates.enter(self._x)
        if not coordinates.own:  # W may return what it was given, or a view of it
            shared = self._z.untyped_storage().data_ptr() == self._x.untyped_storage().data_ptr()
            self._z = self._z.clone() if shared else self._z.contiguous()
        follows = coordinates.own or coordinates.reversible or self.clip is not None
        self._sum = None if follows else torch.zeros_like(self._z)

    def copied(self) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Return copies of x as it was on entering the stage, of z and of S, where x itself does not move."""
        if self._sum is None and not self._instead:
            return self._x.clone(), None, None
        return self._x.clone(), self._z.clone(), None if self._sum is None else self._sum.clone()

    def restore(self, z: Tensor | None, total: Tensor | None) -> None:
        """Go on inside a stage that was entered before, with its z and S: d_k×M each; None where x moves."""
        apart = self._sum is not None or self._instead
        refuse_other_parts(z, self._z.shape if apart else None, "z")
        refuse_other_parts(total, None if self._sum is None else self._sum.shape, "sum")
        if z is not None:
            self._z = z.to(self._x, copy=True)
            self._sum = None if total is None else total.to(self._x, copy=True)

    @property
    def parts(self) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """x, z and S, as far as they are tensors of their own."""
        return self._x, None if self._z is self._x else self._z, self._sum

    def finite(self) -> bool:
        """Say whether all of them are finite, as far as they have moved. Reads numbers from the device."""
        return all(is_finite(part) for block in self.blocks() for part in block.moving)

    @property
    def moving(self) -> list[Tensor]:
        """What moves of x, z and S: x stays as it is where z moves in its stead."""
        x, z, total = self.parts
        stays = total is not None or self._instead
        return [part for part in (None if stays else x, z, total) if part is not None]

    def resume(self, coordinates: StageCoordinates | None, z: Tensor | None, total: Tensor | None) -> None:
        """Be inside a stage, with z and S as they are there: d_k×M each; None: z is x, and there is no S."""
        self._coordinates, self._z, self._sum = coordinates, self._x if z is None else z, total

    def join(self, x: Tensor, conditions: Conditions, share: Share) -> None:
        """Let more particles in, x (d×m) with the conditions of all that are here then, in a stage or not."""
        self.conditions, self.share = conditions, share
        inside = self._coordinates
        if inside is not None and (self._sum is not None or self._instead):
            z = inside.enter(x)
            self._z = torch.cat([self._z, z], dim=1)
            if self._sum is not None:
                self._sum = torch.cat([self._sum, torch.zeros_like(z)], dim=1)
        self._x = torch.cat([self._x, x], dim=1)
        if self._sum is None and not self._instead:
            self._z = self._x if inside is None else inside.enter(self._x)

    def reshare(self, columns: Callable[[Tensor], Tensor]) -> None:
        """Have those particles that `share` says: `columns` gives them, of what all ranks had; d×n → d×n'."""
        beside = self._z is not self._x
        self._x = columns(self._x)
        self._z = columns(self._z) if beside else self._x
        self._sum = None if self._sum is None else columns(self._sum)

    def leave(self) -> None:
        """End a stage: x takes on what the stage has changed."""
        self._x = self.x
        self._coordinates, self._sum, self._z = None, None, self._x

    def move(self, u: Tensor) -> Tensor:
        """Add the update U u (u: d_k×M), but not to observed coordinates; return the length of each move: M."""
        assert self._coordinates is not None, "particles move inside a stage"
        if self._instead:
            self._z += u
            moved: Tensor = torch.linalg.vector_norm(u, dim=0)
            return moved
        if self._sum is None:
            change = self._coordinates.leave(u)
            if self.clip is None:
                self._x += change
            else:
                bounded = self._clipped(self._x + change)
                change = bounded - self._x
                self._x.copy_(bounded)
            if self._z is not self._x:
                self._z = self._coordinates.enter(self._x)
            lengths: Tensor = torch.linalg.vector_norm(change, dim=0)
            return lengths
        change = self._coordinates.gram(u)
        self._z += change
        self._sum += u
        return (u * change).sum(dim=0).clamp_min(0).sqrt()

    def shake(self, noise: Tensor) -> None:
        """Add noise (d×M) to the particles, but not to observed coordinates."""
        assert self._coordinates is not None, "particles are shaken inside a stage"
        noise = self._free(noise)
        if self._instead:
            self._z += self._coordinates.enter(noise)
            return
        if self.clip is None:
            self._x += noise
        else:
            self._x.copy_(self._clipped(self._x + noise))
        if self._sum is not None:
            self._z += self._coordinates.enter(noise)
        elif self._z is not self._x:
            self._z = self._coordinates.enter(self._x)

    def _clipped(self, x: Tensor) -> Tensor:
        """Return x (d×M) with its coordinates in bounds, but for observed pixels, which stay as they are."""
        assert self.clip is not None
        bounded = x.clamp(-self.clip, self.clip)
        observation = None if self._coordinates is None else self._coordinates.observation
        return torch.where(observation.mask, x, bounded) if isinstance(observation, Masked) else bounded

    def _free(self, change: Tensor) -> Tensor:
        """Return a change of x (d×M) without what it does to observed coordinates."""
        observation = None if self._coordinates is None else self._coordinates.observation
        return change if observation is None else observation.free(change)


def mean_length(x: Tensor, W: LinearMap | None, ranks: Ranks) -> float:
    """Return the mean length of all ranks' samples x (d×n) in coordinates W, in which moves are measured."""
    total = torch.zeros(2, dtype=torch.float64, device=x.device)
    for part in torch.split(x, KEYED, dim=1):
        lengths: Tensor = torch.linalg.vector_norm(part if W is None else W.enter(part), dim=0)
        total += torch.stack([lengths.sum(dtype=torch.float64), total.new_tensor(len(lengths))])
    length, count = ranks.sums(total).tolist()
    return float(length) / max(1.0, float(count))


def refuse_in_strata(parts: Parts, settings: Settings) -> None:
    """Raise `RunError` if, of groups that flow apart from each other, some samples would not count."""
    parted = parts.cdf.particles is not None or parts.cdf.data is not None
    wishes = (("offline", settings.offline > 0), ("part", parted), ("turn", settings.turn is not None))
    for noun, wanted in wishes:
        if wanted:
            raise RunError(
                f"{parts.condition.owner} has a flow for each class, in which every particle and every datum "
                f"counts: leave out {settings.called(noun)}, or set it to null"
            )


def taking_part(
    conditions: Conditions, total: int, condition: CheckedCondition, settings: Settings
) -> Columns | None:
    """Return which of `total` particles take part in F_p, and are not only carried along; None: all of them.

    `conditions` are those of all ranks' particles.
    """
    origin = conditions.origin
    if condition.carries_held_out and origin is not None:
        seen = (origin >= 0).nonzero()[:, 0]
        return None if len(seen) == len(origin) else seen
    return slice(total - settings.offline) if settings.offline else None


def refuse_idle_half(part: Columns | None, total: int, steps: int, settings: Settings) -> None:
    """Raise `RunError` if there are turns, and one half of the particles would never take part in F_p.

    `part` are those of `total` particles that ever do.
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
    """Return the data that particles flow to: all of them, or as the condition wants them."""
    index = condition.balance(data, Key(seed, "balance").open())
    return data if index is None else data.take(index)


def normal(key: Key, dimension: int, share: Share, like: Tensor) -> Tensor:
    """Return N(0, 1) entries for the samples of a share: d×n.

    Noise is drawn sample by sample, from keys of global index: that of a sample does not depend on how many
    others there are, nor on where they are computed.
    """
    noise = torch.empty(dimension, len(share), dtype=like.dtype, device=like.device)
    for columns, draw in _keyed(key, dimension, share.first, len(share), like):
        noise[:, columns] = draw.normal(columns.stop - columns.start, dimension).T
    return noise


def uniform(key: Key, dimension: int, first: int, count: int, like: Tensor) -> Tensor:
    """Return entries uniform in [0, 1) for `count` samples, from number `first` on: d×n; as with `normal`."""
    noise = torch.empty(dimension, count, dtype=like.dtype, device=like.device)
    for columns, draw in _keyed(key, dimension, first, count, like):
        noise[:, columns] = draw.uniform(columns.stop - columns.start, dimension).T
    return noise


def _keyed(key: Key, d: int, first: int, count: int, like: Tensor) -> Iterator[tuple[slice, Draw]]:
    """Yield `count` samples from `first` on, some at a time, each with a draw that has reached their noise."""
    draw: Draw | None = None
    for columns in groups(count, like.device.type):
        index, inside = divmod(first + columns.start, KEYED)
        if draw is None or inside == 0:
            draw = attrs.evolve(key, index=index).open(like.device, like.dtype)
            draw.skip(inside * d)
        yield columns, draw


def dequantised(
    z: Tensor, bin_width: float, dimension: int, coordinates: StageCoordinates, key: Key, first: int = 0
) -> Tensor:
    """Return data in a stage's coordinates (z = UᵀLx, d_k×n) with fresh uniform noise in every pixel's bin.

    The noise is drawn for all `dimension` coordinates of x and brought into the stage's coordinates, so that
    the result is UᵀL(x + noise) exactly. `first` is the number of the first sample among all.
    """
    if bin_width == 0:
        return z
    noisy = torch.empty_like(z)
    for columns, draw in _keyed(key, dimension, first, z.shape[1], z):
        noise = draw.uniform(columns.stop - columns.start, dimension).mul_(bin_width).T.contiguous()
        torch.add(z[:, columns], coordinates.enter_data(noise), out=noisy[:, columns])
    return noisy
