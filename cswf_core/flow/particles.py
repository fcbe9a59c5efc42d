"""The particles: where they are, in the data's space and in a stage's coordinates, and their noise."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import attrs
import torch
from torch import Tensor

from cswf_core.checks import CheckedCondition
from cswf_core.errors import RunError
from cswf_core.flow.coordinates import Cloud, StageCoordinates
from cswf_core.flow.settings import Parts, Settings
from cswf_core.interfaces import Conditions, Dataset, Draw, Key, LinearMap, Masked, Observation, Space
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


class Particles:
    """M particles x (d×M) with conditions Y that never move.

    In a stage whose coordinates are not x itself, z = UᵀWx moves while x stays as it was on entering. If x
    cannot be computed from z alone, the sum S of all updates is kept besides. With `clip`, x is kept in
    [−clip, clip] after each move: then x itself moves in every stage, and z is computed from it.
    """

    in_blocks = False
    stored: Sequence[Particles] = ()

    def __init__(
        self, x: Tensor, conditions: Conditions, clip: float | None = None, share: Share | None = None
    ) -> None:
        """Begin between two stages with the particles x (d×n) of a share; None: these are all."""
        self.conditions = conditions
        self.share = Share(0, x.shape[1], x.shape[1]) if share is None else share
        self.clip = clip
        self.parts: dict[Quantity, Tensor] = {"x": x}
        """x, z and S, as far as they are tensors of their own."""
        self._coordinates = BETWEEN_STAGES

    def __len__(self) -> int:
        """Return how many there are here; `share.total` is M."""
        return len(self.share)

    @property
    def at_once(self) -> int:
        """How many are projected at once: over all ranks, or on each in blocks; the same on all ranks."""
        return self.share.total

    def blocks(self, *, write: bool = False, whole: bool = False) -> Iterator[Particles]:
        """Yield all particles in blocks on the device, here as one block.

        `write`: changes of the blocks are kept. `whole`: they have x where z moves, too.
        """
        del write, whole
        yield self

    @property
    def x(self) -> Tensor:
        """The particles in the data's space, also in the middle of a stage: d×M."""
        return self._x_of(self.parts.__getitem__)

    def _x_of(self, part: Callable[[Quantity], Tensor]) -> Tensor:
        """Return x, computed from x, z and S as far as these are needed."""
        if not self._x_stays:
            return part("x")
        if "sum" not in self.parts:
            return self._coordinates.leave(part("z"))
        return part("x") + self._coordinates.leave(part("sum"))

    @property
    def _x_stays(self) -> bool:
        """Whether x stays as it was on entering the stage, and z moves."""
        return not self._coordinates.own and self.clip is None

    def some(self, index: Tensor, gather: Callable[[Tensor], Tensor]) -> Tensor:
        """Return those particles that `index` (m) names, in the data's space: d×m.

        `gather` puts columns of all ranks together; it is called before they are mapped, so that the map is
        applied to the same columns whatever the number of ranks.
        """
        if "sum" in self.parts and self._coordinates.observation is not None:  # maybe another for each particle
            return gather(self.x[:, index])
        return self._x_of(lambda name: gather(self.parts[name][:, index]))

    def gathered(
        self, index: Tensor | None, ranks: Ranks, seen: Observation | None, originals: Callable[[], Tensor]
    ) -> Tensor:
        """Return all ranks' particles, or those that `index` names, on the CPU: d×m; only rank 0 has them.

        `seen` is what is observed of a rank's particles, if it has to be as it is in their originals.
        """
        device = self.parts["x"].device
        own = self.share.own(None if index is None else index.to(device))

        def gather(columns: Tensor) -> Tensor:
            columns = ranks.gathered(columns)
            if index is None or ranks.alone or not ranks.leads:
                return columns
            here = [each.has(index).nonzero()[:, 0] for each in ranks.shares(self.share.total, device)]
            return torch.empty_like(columns).index_copy_(1, torch.cat(here).to(columns.device), columns)

        if seen is not None:
            x = seen.free(self.x) + seen.seen(originals())
            x = gather(x if own is None else x[:, own])
        else:
            x = self.some(own, gather) if isinstance(own, Tensor) else gather(self.x)
        return x.cpu() if self.in_blocks else x.detach().clone().cpu()  # those in blocks are a copy already

    @property
    def cloud(self) -> Cloud:
        """The particles in the current stage's coordinates."""
        return Cloud(self.parts.get("z", self.parts["x"]), self.conditions)

    @property
    def sum(self) -> Tensor | None:
        """The sum S of the stage's updates (d_k×M), which `move` adds to z as G S; None: S is not kept."""
        return self.parts.get("sum")

    def finite(self) -> bool:
        """Return whether all that has moved is finite. Reads numbers from the device."""
        return all(is_finite(part) for block in self.blocks() for part in block.parts.values())

    def enter(self, coordinates: StageCoordinates) -> None:
        """Begin a stage."""
        self._coordinates = coordinates
        x = self.parts["x"]
        self.parts = {"x": x}
        if coordinates.own:
            return
        z = coordinates.enter(x)  # W may return its argument, or a view of it
        shared = z.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
        self.parts["z"] = z.clone() if shared else z.contiguous()
        if self._x_stays and not coordinates.reversible:
            self.parts["sum"] = torch.zeros_like(self.parts["z"])

    def leave(self) -> None:
        """End a stage: apply its changes to x."""
        self.parts = {"x": self.x}
        self._coordinates = BETWEEN_STAGES

    def _needed(self) -> dict[Quantity, list[Tensor]]:
        """Return the blocks of x, and of z and S where these cannot be computed from x."""
        return {name: [part] for name, part in self.parts.items() if name == "x" or self._x_stays}

    def copied(self) -> dict[Quantity, Tensor]:
        """Return copies of x as it was on entering the stage, and of z and S where x itself does not move."""
        return {name: torch.cat(blocks, dim=1) for name, blocks in self._needed().items()}

    def restore(self, z: Tensor | None, total: Tensor | None) -> None:
        """Continue in a stage with z and S (d_k×M each); `RunError` if they do not have their shapes there."""
        parts: dict[Quantity, Tensor | None] = {"z": z, "sum": total}
        for name, part in parts.items():
            blocks = self._needed().get(name)
            shape = None if blocks is None else (len(blocks[0]), len(self))
            there = None if part is None else part.shape
            if there != shape:
                got = "missing" if there is None else "×".join(map(str, there))
                wanted = "left out" if shape is None else "×".join(map(str, shape))
                raise RunError(f"its {name} is {got}, and should be {wanted}")
            if part is not None:
                self._replace(name, part)

    def _replace(self, name: Quantity, part: Tensor) -> None:
        self.parts[name] = part.to(self.parts["x"], copy=True)

    def join(self, x: Tensor, conditions: Conditions, ranks: Ranks) -> None:
        """Add particles x (d×m) behind all others, in a stage or between two, and share all out anew.

        `conditions` are those of all then, on the CPU.
        """
        M = self.share.total
        before = ranks.shares(M, x.device)
        before[-1] = attrs.evolve(before[-1], stop=M + x.shape[1])
        after = ranks.shares(M + x.shape[1], x.device)
        self.share = after[ranks.rank]
        self.conditions = conditions.take(self.share.cut).to(x.device, x.dtype)
        others = Particles(x if ranks.rank == ranks.size - 1 else x[:, :0], self.conditions, self.clip)
        if self._x_stays:
            others.enter(self._coordinates)
        self.parts = {n: torch.cat([self.parts[n], part], dim=1) for n, part in others.parts.items()}
        if not self._x_stays:  # z follows x
            self.enter(self._coordinates)
        self.parts = {n: ranks.reshared(part, before, after) for n, part in self.parts.items()}

    def move(self, u: Tensor) -> Tensor:
        """Add the update U u (u: d_k×M), but not to observed coordinates; return the length of each move: M."""
        if "sum" in self.parts:
            change = self._coordinates.gram(u)
            self.parts["z"] += change
            self.parts["sum"] += u
            return (u * change).sum(dim=0).clamp_min(0).sqrt()
        if self._x_stays:
            self.parts["z"] += u
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
        if "sum" in self.parts:
            self.parts["x"] += noise
        self.parts["z"] += inside.enter(noise)

    def _move_x(self, change: Tensor) -> Tensor:
        """Add a change (d×M) to x, within the bounds, and let z follow; return the change as it was made."""
        x = self.parts["x"]
        if self.clip is None:
            x += change
        else:
            moved = x + change
            bounded = moved.clamp(-self.clip, self.clip)
            observation = self._coordinates.observation
            if isinstance(observation, Masked):  # observed pixels stay as they are
                bounded = torch.where(observation.mask, moved, bounded)
            change = bounded - x
            x.copy_(bounded)
        if "z" in self.parts:
            self.parts["z"] = self._coordinates.enter(x)
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


def eligible_particles(
    conditions: Conditions, total: int, condition: CheckedCondition, settings: Settings
) -> Columns | None:
    """Return which of all particles take part in F_p, and are not only carried along; None: all of them."""
    origin = conditions.origin
    if condition.carries_held_out and origin is not None:
        seen = (origin >= 0).nonzero()[:, 0]
        return None if len(seen) == len(origin) else seen
    return slice(total - settings.offline) if settings.offline else None


def require_both_halves_used(part: Columns | None, total: int, steps: int, settings: Settings) -> None:
    """Raise `RunError` if there are turns, and one half of the particles would never take part in F_p."""
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


def normal(key: Key, share: Share, like: Tensor) -> Tensor:
    """Return N(0, 1) entries for the samples of a share, of the kind of `like` (d×0): d×n.

    That of a sample depends on its number among all, and neither on the others nor on where they are computed.
    """
    noise = like.new_empty(len(like), len(share))
    for columns, draw in _keyed(key, len(like), share.first, noise):
        noise[:, columns] = draw.normal(columns.stop - columns.start, len(like)).T
    return noise


def uniform(key: Key, dimension: int, first: int, count: int, like: Tensor) -> Tensor:
    """Return entries uniform in [0, 1) for `count` samples from number `first` on: d×n; see `normal`."""
    noise = like.new_empty(dimension, count)
    for columns, draw in _keyed(key, dimension, first, noise):
        noise[:, columns] = draw.uniform(columns.stop - columns.start, dimension).T
    return noise


def dequantised(z: Tensor, bin_width: float, coordinates: StageCoordinates, key: Key, first: int = 0) -> Tensor:
    """Return data in a stage's coordinates (z = UᵀLx, d_k×n) with fresh uniform noise in every pixel's bin.

    It is drawn in the data's space and mapped: this is UᵀL(x + noise). `first` is the number of the first.
    """
    if bin_width == 0:
        return z
    noisy = torch.empty_like(z)
    d = coordinates.full.dimension
    for columns, draw in _keyed(key, d, first, z):
        noise = draw.uniform(columns.stop - columns.start, d).mul_(bin_width).T.contiguous()
        torch.add(z[:, columns], coordinates.enter_data(noise), out=noisy[:, columns])
    return noisy


def _keyed(key: Key, d: int, first: int, samples: Tensor) -> Iterator[tuple[slice, Draw]]:
    """Yield slices of samples, which are those from number `first` on, each with a draw of their noise."""
    draw: Draw | None = None
    for columns in groups(samples.shape[1], samples.device.type):
        index, inside = divmod(first + columns.start, SAMPLES_PER_KEY)
        if draw is None or inside == 0:
            draw = attrs.evolve(key, index=index).open(samples.device, samples.dtype)
            draw.skip(inside * d)
        yield columns, draw
