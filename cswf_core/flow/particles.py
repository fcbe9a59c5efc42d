"""The particles: where they are, in the data's space and in a stage's coordinates, and their noise."""

from __future__ import annotations

import logging
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import zip_longest
from typing import Literal

import attrs
import torch
from torch import Tensor

from cswf_core.checks import CheckedCondition
from cswf_core.errors import RunError
from cswf_core.flow.coordinates import Cloud, StageCoordinates
from cswf_core.flow.memory import block_width, fits_in_memory
from cswf_core.flow.settings import Parts, Settings
from cswf_core.interfaces import Conditions, Dataset, Draw, Key, LinearMap, Masked, Observation, Space
from cswf_core.kernels.columns import groups, is_finite
from cswf_core.kernels.rows import Columns
from cswf_core.ranks import Ranks, Share, size_of

log = logging.getLogger("cswf")

SAMPLES_PER_KEY = 4096
"""Samples whose noise shares a key."""

BETWEEN_STAGES = StageCoordinates(Space((1,)))
"""The coordinates of particles that are in no stage: the data's own, of any dimension."""

Quantity = Literal["x", "z", "sum"]
"""What is kept of particles: x, and z and S inside a stage."""

BlockParts = dict[Quantity, Tensor]
"""x, z and S of some particles, as far as they are needed: d×n or d_k×n each."""

Start = Callable[[Share], Tensor]
"""A share of all particles → where these begin: d×n, in memory that nothing else uses."""


@attrs.define(eq=False)
class ParticleBlock:
    """n particles x (d×n) with conditions Y that never move, and the linear algebra of moving them.

    In a stage whose coordinates are not x itself, z = UᵀWx moves while x stays as it was on entering. If x
    cannot be computed from z alone, the sum S of all updates is kept besides. With `clip`, x is kept in
    [−clip, clip] after each move: then x itself moves in every stage, and z is computed from it.
    """

    parts: BlockParts
    """x, z and S, as far as they are kept: all else follows from them."""
    conditions: Conditions
    share: Share
    """Which of all particles these are."""
    clip: float | None = None
    coordinates: StageCoordinates = BETWEEN_STAGES
    """Those of the stage that the particles are in."""
    _image: Tensor | None = attrs.field(default=None, init=False)
    """z where x moves, once it has been computed for where x is now."""

    @classmethod
    def joined(cls, blocks: Sequence[ParticleBlock]) -> ParticleBlock:
        """Return blocks in a stage as one, with which they all move: what moves is a view of it from now on."""
        parts: BlockParts = {}
        widths = [len(block) for block in blocks]
        for name in blocks[0].moving:
            parts[name] = torch.cat([block.parts[name] for block in blocks], dim=1)
            for block, own in zip(blocks, torch.split(parts[name], widths, dim=1), strict=True):
                block.parts[name] = own
        conditions = Conditions.joined([block.conditions for block in blocks])
        share = Share(0, sum(widths), sum(widths))
        return attrs.evolve(blocks[0], parts=parts, conditions=conditions, share=share)

    def __len__(self) -> int:
        """Return n."""
        return len(self.share)

    @property
    def x(self) -> Tensor:
        """The particles in the data's space, also in the middle of a stage: d×n."""
        if "sum" in self.parts:
            return self.parts["x"] + self.coordinates.leave(self.parts["sum"])
        return self.coordinates.leave(self.parts["z"]) if "z" in self.parts else self.parts["x"]

    @property
    def cloud(self) -> Cloud:
        """The particles in the current stage's coordinates."""
        name: Quantity = "x" if self.coordinates.identity else "z"
        if name in self.parts:
            return Cloud(self.parts[name], self.conditions)
        if self._image is None:
            self._image = self.coordinates.enter(self.parts["x"])
        return Cloud(self._image, self.conditions)

    @property
    def sum(self) -> Tensor | None:
        """The sum S of the stage's updates (d_k×n), which `move` adds to z as G S; None: S is not kept."""
        return self.parts.get("sum")

    @property
    def constrained(self) -> bool:
        """Whether x cannot go anywhere: a part of it is observed, or it is clipped."""
        return self.clip is not None or self.coordinates.observation is not None

    @property
    def decisive(self) -> list[Quantity]:
        """What `x` is computed from: x itself, or z alone, or x and S."""
        if "sum" in self.parts:
            return ["x", "sum"]
        return ["z"] if "z" in self.parts else ["x"]

    @property
    def moving(self) -> list[Quantity]:
        """What a step reads and writes: x; or z, and S if it is kept."""
        return [name for name in self.parts if name != "x"] or ["x"]

    def enter(self, coordinates: StageCoordinates) -> None:
        """Begin a stage."""
        self.coordinates = coordinates
        self._image = None
        x = self.parts["x"]
        if coordinates.identity or self.clip is not None:  # x moves
            return
        z = coordinates.enter(x)  # W may return its argument, or a view of it
        shared = z.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
        self.parts["z"] = z.clone() if shared else z.contiguous()
        if not coordinates.reversible:
            self.parts["sum"] = torch.zeros_like(self.parts["z"])

    def leave(self) -> None:
        """End a stage: apply its changes to x."""
        self.parts = {"x": self.x.contiguous()}  # it may be a view, as in `joined`
        self.coordinates = BETWEEN_STAGES
        self._image = None

    def move(self, u: Tensor) -> Tensor:
        """Add the update U u (u: d_k×n), but not to observed coordinates; return the length of each move: n."""
        if "sum" in self.parts:
            change = self.coordinates.gram(u)
            self.parts["z"] += change
            self.parts["sum"] += u
            return (u * change).sum(dim=0).clamp_min(0).sqrt()
        if "z" in self.parts:
            self.parts["z"] += u
        else:
            u = self._move_x(self.coordinates.leave(u))
        lengths: Tensor = torch.linalg.vector_norm(u, dim=0)
        return lengths

    def add_noise(self, noise: Tensor) -> None:
        """Add noise (d×n) to the particles, but not to observed coordinates."""
        inside = self.coordinates
        if inside.observation is not None:
            noise = inside.observation.free(noise)
        if "z" not in self.parts:
            self._move_x(noise)
            return
        if "sum" in self.parts:
            self.parts["x"] += noise
        self.parts["z"] += inside.enter(noise)

    def _move_x(self, change: Tensor) -> Tensor:
        """Add a change (d×n) to x, within the bounds; return the change as it was made."""
        x = self.parts["x"]
        if self.clip is None:
            x += change
        else:
            moved = x + change
            bounded = moved.clamp(-self.clip, self.clip)
            observation = self.coordinates.observation
            if isinstance(observation, Masked):  # observed pixels stay as they are
                bounded = torch.where(observation.mask, moved, bounded)
            change = bounded - x
            x.copy_(bounded)
        self._image = None
        return change


@attrs.frozen(eq=False)
class Placement:
    """How particles are kept: on the device where they move; `streaming` has others."""

    like: Tensor
    """No particles, in their type and on the device: d×0."""
    width: int = sys.maxsize
    """Particles of a block, at most."""
    streamed: bool = False
    """Whether a rank's share takes too much of the device's memory."""

    @property
    def in_blocks(self) -> bool:
        """Whether there are several blocks, so that no device has room for all particles."""
        return self.width < sys.maxsize

    def room(self, count: int) -> Tensor:
        """Return room for `count` particles (d×count), on a device that has it for those of all ranks."""
        return self.like.new_empty(len(self.like), count, device="cpu" if self.in_blocks else None)

    def keep(self, part: Tensor) -> Tensor:
        """Return a part of a block where it is kept; the caller does not change it any more."""
        return part.to(self.like).contiguous()

    def brought(self, stored: Sequence[ParticleBlock], *, write: bool, whole: bool) -> Iterator[ParticleBlock]:
        """Yield blocks on the device; see `Particles.blocks`."""
        del write, whole
        return iter(stored)

    def wait(self) -> None:
        """Wait until all blocks are back where they are kept."""


class Particles:
    """A rank's particles, in one or more blocks, which move on the device one after the other.

    Where blocks are kept between their moves is a matter of their placement.
    """

    def __init__(
        self, start: Start, conditions: Conditions, clip: float | None, share: Share, placement: Placement
    ) -> None:
        """Put the particles of a share where they begin, block by block; `conditions` are theirs."""
        self.conditions = conditions
        self.share = share
        self.placement = placement
        self.stored: list[ParticleBlock] = []
        """The blocks where they are kept: there is one at least, which may be empty."""
        self._borrowed: Tensor | None = None
        """x as a whole, once `_borrow_x` has returned it."""
        for first in range(0, max(1, len(share)), placement.width):
            cut = slice(first, min(first + placement.width, len(share)))
            own = Share(share.first + cut.start, share.first + cut.stop, share.total)
            parts: BlockParts = {"x": placement.keep(start(own))}
            self.stored.append(ParticleBlock(parts, conditions.take(cut), own, clip))

    def __len__(self) -> int:
        """Return how many there are here; `share.total` is M."""
        return len(self.share)

    @property
    def in_blocks(self) -> bool:
        """Whether particles are processed in several blocks; the same on all ranks."""
        return self.placement.in_blocks

    @property
    def at_once(self) -> int:
        """How many are projected at once: over all ranks, or on each in blocks; the same on all ranks."""
        return min(self.placement.width, self.share.total)

    def blocks(self, *, write: bool = False, whole: bool = False) -> Iterator[ParticleBlock]:
        """Yield all particles in blocks on the device.

        `write`: changes of the blocks are kept. `whole`: they have x where z moves, too.
        """
        return self.placement.brought(self.stored, write=write, whole=whole)

    @property
    def x(self) -> Tensor:
        """The particles in the data's space, also in the middle of a stage: d×n, a copy."""
        x = self.placement.room(len(self))
        for part, block in zip(self._split(x), self.blocks(whole=True), strict=True):
            part.copy_(block.x)
        return x

    def _split(self, columns: Tensor) -> tuple[Tensor, ...]:
        """Return the columns of each block, of some that have one for each particle."""
        return torch.split(columns, [len(block) for block in self.stored], dim=1)

    def gathered(
        self,
        index: Tensor | None,
        ranks: Ranks,
        seen: Observation | None,
        originals: Callable[[], Tensor],
        *,
        borrow: bool = False,
    ) -> Tensor:
        """Return all ranks' particles, or those that `index` names, on the CPU: d×m; only rank 0 has them.

        `seen` is what is observed of a rank's particles, if it has to be as it is in their originals. With
        `borrow`, where memory is short, they are not copied until a stage is entered.
        """
        if borrow and index is None and ranks.alone and self.placement.streamed:
            return self._borrow_x()
        device = self.placement.like.device
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
            x = self._some(own, gather) if isinstance(own, Tensor) else gather(self.x)
        return x.cpu()

    def _some(self, index: Tensor, gather: Callable[[Tensor], Tensor]) -> Tensor:
        """Return those particles that `index` (m) names, in the data's space: d×m.

        `gather` puts columns of all ranks together; it is called before they are mapped, so that the map is
        applied to the same columns whatever the number of ranks.
        """
        self.placement.wait()
        first = self.stored[0]
        if first.coordinates.observation is not None:  # maybe another for each particle
            return gather(self._columns((block.x for block in self.blocks(whole=True)), index))
        few: BlockParts = {}
        for name in first.decisive:
            few[name] = gather(self._columns((stored.parts[name] for stored in self.stored), index))
        count = next(iter(few.values())).shape[1]
        x = self.placement.room(count)
        for begin in range(0, count, self.placement.width):
            cut = slice(begin, min(begin + self.placement.width, count))
            parts = {name: columns[:, cut].to(self.placement.like.device) for name, columns in few.items()}
            x[:, cut] = attrs.evolve(first, parts=parts).x
        return x

    def _columns(self, parts: Iterable[Tensor], index: Tensor) -> Tensor:
        """Return some columns (m) of x, z or S, of which each block has a part."""
        columns = self.placement.room(len(index))
        index = index.to(columns.device)
        for number, part in enumerate(parts):
            chosen = index // self.placement.width == number
            inside = index[chosen] % self.placement.width
            columns[: len(part), chosen] = part[:, inside.to(part.device)].to(columns.device)
        return columns[: len(part)]

    def _borrow_x(self) -> Tensor:
        """Return x (d×n) on the CPU, in the memory of the particles; a stage entered later works on a copy."""
        self.placement.wait()
        if self._borrowed is None:
            self._borrowed = self.placement.room(len(self))
            for stored, part in zip(self.stored, self._split(self._borrowed), strict=True):
                stored.parts["x"] = part.copy_(stored.parts["x"])
        return self._borrowed

    def finite(self) -> bool:
        """Return whether all that has moved is finite. Reads numbers from the device."""
        return all(
            is_finite(part) for block in self.blocks() for part in {block.cloud.z, *block.parts.values()}
        )

    def enter(self, coordinates: StageCoordinates) -> None:
        """Begin a stage."""
        if self._borrowed is not None:
            for stored in self.stored:
                stored.parts["x"] = self.placement.keep(stored.parts["x"].clone())
            self._borrowed = None
        for stored, block in zip(self.stored, self.blocks(), strict=True):
            block.enter(coordinates)
            stored.coordinates = coordinates
            new = {name: part for name, part in block.parts.items() if name not in stored.parts}
            stored.parts |= {name: self.placement.keep(part) for name, part in new.items()}

    def leave(self) -> None:
        """End a stage: apply its changes to x."""
        if "z" in self.stored[0].parts:
            for block in self.blocks(write=True, whole=True):
                block.leave()
        self.placement.wait()
        outside = BETWEEN_STAGES
        self.stored = [attrs.evolve(s, parts={"x": s.parts["x"]}, coordinates=outside) for s in self.stored]

    def copied(self) -> BlockParts:
        """Return copies of x as it was on entering the stage, and of z and S where x itself does not move."""
        self.placement.wait()
        names = list(self.stored[0].parts)
        return {name: torch.cat([block.parts[name] for block in self.stored], dim=1) for name in names}

    def restore(self, z: Tensor | None, total: Tensor | None) -> None:
        """Continue in a stage with z and S (d_k×n each); `RunError` if they do not have their shapes there."""
        parts: dict[Quantity, Tensor | None] = {"z": z, "sum": total}
        first = self.stored[0]
        for name, part in parts.items():
            shape = (len(first.parts[name]), len(self)) if name in first.parts else None
            there = None if part is None else part.shape
            if there != shape:
                got = "missing" if there is None else "×".join(map(str, there))
                wanted = "left out" if shape is None else "×".join(map(str, shape))
                raise RunError(f"its {name} is {got}, and should be {wanted}")
            if part is not None:
                for stored, own in zip(self.stored, self._split(part), strict=True):
                    stored.parts[name].copy_(own)

    def join(self, x: Tensor, conditions: Conditions, ranks: Ranks) -> None:
        """Add particles x (d×m) behind all others, in a stage or between two, and share all out anew.

        `conditions` are those of all then, on the CPU.
        """
        if self.in_blocks:
            raise RunError("particles that one device's memory does not hold cannot be joined by others")
        M = self.share.total
        before = ranks.shares(M, x.device)
        before[-1] = attrs.evolve(before[-1], stop=M + x.shape[1])
        after = ranks.shares(M + x.shape[1], x.device)
        self.share = after[ranks.rank]
        self.conditions = conditions.take(self.share.cut).to(x.device, x.dtype)
        block = self.stored[0]
        others = attrs.evolve(block, parts={"x": x if ranks.rank == ranks.size - 1 else x[:, :0]})
        others.enter(block.coordinates)
        parts = {n: torch.cat([part, others.parts[n]], dim=1) for n, part in block.parts.items()}
        parts = {n: ranks.reshared(part, before, after) for n, part in parts.items()}
        self.stored = [attrs.evolve(block, parts=parts, conditions=self.conditions, share=self.share)]


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


def placement_of(like: Tensor, total: int, ranks: Ranks, memory: int | None = None) -> Placement:
    """Return how to keep `total` particles, where `memory` bytes of each device may be used; None: all fit."""
    bytes_each = len(like) * like.dtype.itemsize
    if memory is None or fits_in_memory(bytes_each * total, memory):
        return Placement(like)
    most = max(map(len, ranks.shares(total, like.device)))
    streamed = not fits_in_memory(bytes_each * most, memory)
    if streamed:
        log.warning(
            "%s particles take %.3g GB, more than a quarter of a memory of %.3g GB: they stay in the "
            "host's, and are streamed",
            f"{most:,}",
            bytes_each * most / 1e9,
            memory / 1e9,
        )
    kind = PinnedPlacement if streamed and like.is_cuda else Placement
    return kind(like, block_width(like, memory), streamed)


def require_blocks_suffice(
    total: int, parts: Parts, observation: Observation | None, settings: Settings
) -> None:
    """Raise `RunError` if plugins or observations need all particles at once, of which there are `total`."""
    remedy = f"take fewer {settings.called('particles')}"
    if parts.cdf.bins is None:
        raise RunError(
            f"{parts.cdf.owner} needs all projected particles of a direction at once, and {total:,} "
            "do not fit into one device's memory: take an estimator with bins, such as histogram, or "
            f"{remedy}"
        )
    if observation is not None and not (observation.shared and parts.condition.amplifier == 1):
        raise RunError(
            f"{total:,} particles are too many for one device's memory, and are not worked on in "
            f"blocks where each sees a part of its own, or an amplifier stretches that: {remedy}"
        )


class PinnedPlacement(Placement):
    """How blocks are kept in the host's memory that a GPU copies from and to beside other work."""

    @cached_property
    def _side(self) -> torch.cuda.Stream:
        """The stream of the copies."""
        return torch.cuda.Stream(self.like.device)  # type: ignore[no-untyped-call]

    def keep(self, part: Tensor) -> Tensor:
        """Return a copy of a part of a block in pinned memory."""
        stored = torch.empty(part.shape, dtype=part.dtype)
        if stored.nbytes:
            # PyTorch's own pinned memory would be rounded up to a power of two.
            place = stored.data_ptr()
            runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
            if int(runtime.cudaHostRegister(place, stored.nbytes, 0)) != 0:
                raise RunError(
                    f"{stored.nbytes / 1e9:.3g} GB of the host's memory cannot be locked for the GPU: take "
                    "fewer particles, or a higher `ulimit -l`"
                )
            weakref.finalize(stored.untyped_storage(), runtime.cudaHostUnregister, place)
        return stored.copy_(part)

    def brought(self, stored: Sequence[ParticleBlock], *, write: bool, whole: bool) -> Iterator[ParticleBlock]:
        """Yield blocks on the device, where the next one is on its way then; see `Particles.blocks`."""
        ahead = self._begun(stored[0], whole)
        for source, following in zip_longest(stored, stored[1:]):
            parts, arrival = ahead
            if following is not None:
                ahead = self._begun(following, whole)
            here = torch.cuda.current_stream(self.like.device)
            here.wait_event(arrival)
            for part in parts.values():
                part.record_stream(here)
            block = attrs.evolve(source, parts=parts)
            yield block
            if write:
                self._send(block, source)

    def _begun(self, stored: ParticleBlock, whole: bool) -> tuple[BlockParts, torch.cuda.Event]:
        """Begin to copy a block to the device, `whole` or what moves; return the copies, and their arrival."""
        names = stored.parts if whole else stored.moving
        with torch.cuda.stream(self._side):
            parts: BlockParts = {n: stored.parts[n].to(self.like.device, non_blocking=True) for n in names}
            return parts, self._side.record_event()  # type: ignore[no-untyped-call]

    def _send(self, block: ParticleBlock, stored: ParticleBlock) -> None:
        """Begin to copy a block back to the host."""
        for name in block.parts:
            part = block.parts[name].contiguous()
            self._side.wait_stream(torch.cuda.current_stream(self.like.device))
            part.record_stream(self._side)
            with torch.cuda.stream(self._side):
                stored.parts[name].copy_(part, non_blocking=True)

    def wait(self) -> None:
        """Wait until all blocks are back."""
        self._side.synchronize()
