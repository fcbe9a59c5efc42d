"""One Euler step of Algorithm 1: project, transport, back-project."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import attrs
import torch
from torch import Tensor

from cswf_core.flow.clock import Clock
from cswf_core.flow.coordinates import Coordinates, stretched
from cswf_core.flow.counts import SetCounts
from cswf_core.flow.estimate import Estimate, Fits
from cswf_core.flow.memory import Chunks
from cswf_core.flow.structured import BlockProjection
from cswf_core.flow.tables import TableKeeper
from cswf_core.interfaces import Conditions, DenseProjection, Projection, Rows

Kept = dict[tuple[int, int, int, int], Fits]
"""Fits of the data that are good for several steps, by the place of their directions in a step."""

Meeting = Callable[[Tensor, Conditions, int], Tensor]
"""(ξ θ_y: T×l, conditions of n samples, n) → ξ θ_y·y: T×n."""


@attrs.frozen(eq=False)
class Cloud:
    """Samples in a stage's coordinates: z (d_k×n), with their conditions."""

    z: Tensor
    conditions: Conditions


@attrs.frozen(eq=False)
class Tile:
    """Some directions of a step, as θ_h = [s_h t_h, θ_y]: s_h makes the whole have unit length."""

    projection: Projection
    """The filters t_h, T×d_k."""
    scale: Tensor | None = None
    """s_h, T×1; None is 1."""
    theta_y: Tensor | None = None
    """ξ θ_y, T×l; None where there is no condition."""
    meet: Meeting | None = None
    """How ξ θ_y meets conditions."""
    length: Tensor | None = None
    """|θ_x| of each direction, T×1; None is 1."""
    noise: Tensor | None = None
    """The width of the noise that data get along each direction when they are counted: T; None is none."""
    drawn: Tensor | None = None
    """The place of each direction among those drawn together, T; None: they are in that order."""

    def rows(self, first: int, last: int) -> Tile:
        """Return the directions from `first` up to, not including, `last`."""
        if (first, last) == (0, self.projection.shape[0]):
            return self
        cut = slice(first, last)
        whole = self.projection
        return Tile(
            whole.rows(cut) if isinstance(whole, BlockProjection) else DenseProjection(whole.dense()[cut]),
            None if self.scale is None else self.scale[cut],
            None if self.theta_y is None else self.theta_y[cut],
            self.meet,
            None if self.length is None else self.length[cut],
            None if self.noise is None else self.noise[cut],
            None if self.drawn is None else self.drawn[cut],
        )

    def project(self, cloud: Cloud) -> Tensor:
        """Return s_h t_h·z + ξ θ_y·y: T×n."""
        values = self.projection.project(cloud.z)
        if self.theta_y is None or self.meet is None:
            return values if self.scale is None else values * self.scale
        offset = self.meet(self.theta_y, cloud.conditions, cloud.z.shape[1])
        return values + offset if self.scale is None else torch.addcmul(offset, values, self.scale)

    def work(self, samples: int) -> tuple[float, float]:
        """Return the bytes that a product with `samples` columns has to move, and its operations."""
        H, d = self.projection.shape
        size = self.projection.dense().element_size()
        moved = float(size * (H * d + (H + d) * samples))
        if isinstance(self.projection, BlockProjection):
            return moved, self.projection.flops(samples)
        return moved, 2.0 * H * d * samples

    def adjoint(self, a: Tensor) -> Tensor:
        """Return Σ_h a_h s_h t_h: T×n → d_k×n. The θ_y part is left out: velocity masking."""
        return self.projection.adjoint(a if self.scale is None else a * self.scale)


@attrs.frozen(eq=False)
class Workbench:
    """What the directions of a step are worked on with."""

    estimate: Estimate
    chunks: Chunks
    kept: Kept | None
    """Fits of the data from the steps before; None where none are kept."""
    clock: Clock
    tables: TableKeeper | None = None
    """What keeps the step's transport maps; None where none are wanted."""
    counts: SetCounts | None = None
    """The data's counts along the step's directions; None where the data themselves are at hand."""


def noise_widths(tile: Tile, coordinates: Coordinates, width: float) -> Tensor | None:
    """Return how wide the noise in bins of a width w is along each direction: w |L θ_x|, H numbers."""
    if width == 0:
        return None
    if coordinates.observation is None or coordinates.amplifier == 1:
        like = tile.projection.dense()
        return like.new_full(like.shape[:1], width) if tile.length is None else width * tile.length[:, 0]
    t = tile.projection.dense().T
    full = t if coordinates.upsampling is None else coordinates.upsampling.up(t)
    lengths: Tensor = torch.linalg.vector_norm(
        stretched(full, coordinates.observation, coordinates.amplifier), dim=0
    )
    return width * (lengths if tile.scale is None else lengths * tile.scale[:, 0])


def velocity(
    tiles: Iterable[Tile],
    particles: Cloud,
    data: Callable[[], Cloud],
    bench: Workbench,
) -> tuple[Tensor, Tensor]:
    """Return −v̂, the mean over directions of δ_h θ_h (d_k×M), and SW₂², the mean of δ² (a scalar).

    p_h = θ_h·(z, ξy) of the particles, q_h that of the data, δ_h = F_q⁻¹(F_p(p_h)) − p_h. What was fitted to
    the data is taken from what is kept if it is there, and left there if the estimator's fits are small.
    """
    total = torch.zeros_like(particles.z)
    squares = torch.zeros((), dtype=torch.float64, device=total.device)
    count = 0
    for index, tile in enumerate(tiles):
        done, H = 0, tile.projection.shape[0]
        while done < H:
            slab = tile.rows(done, min(done + bench.chunks.slab, H))
            rows = slab.projection.shape[0]
            parts = bench.chunks.attempt(partial(_slab, slab, particles, data, bench, (index, done)), rows)
            if parts is not None:
                total += parts[0]
                squares += parts[1]
                done += rows
        count += H
    return total / count, squares / count


def _slab(
    slab: Tile, particles: Cloud, data: Callable[[], Cloud], bench: Workbench, place: tuple[int, int]
) -> tuple[Tensor, Tensor]:
    """Return Σ_h δ_h θ_h (d_k×M) and the sum over directions of the mean of δ_h²."""
    estimate, kept, clock = bench.estimate, bench.kept, bench.clock
    H, M = slab.projection.shape[0], particles.z.shape[1]
    with clock.part("project", lambda: slab.work(M)):
        p = slab.project(particles).contiguous()
        if p.untyped_storage().data_ptr() == particles.z.untyped_storage().data_ptr():
            p = p.clone()  # an operator may hand the samples back; p is overwritten below
    squares = torch.empty(H, dtype=torch.float64, device=p.device)
    q: list[Tensor] = []

    def displace(rows: slice) -> None:
        key = (*place, rows.start, rows.stop)
        fits = None if kept is None else kept.get(key)
        drawn = None if slab.drawn is None else slab.drawn[rows]
        if bench.counts is not None:
            fits = bench.counts.fits(place[0], place[1] + rows.start, rows.stop - rows.start, drawn)
        if fits is None:
            if not q:
                cloud = data()
                with clock.part("project", lambda: slab.work(cloud.z.shape[1])):
                    q.append(slab.project(cloud).contiguous())
            noise = None if slab.noise is None else slab.noise[rows]
            with clock.part("count"):
                data_rows = Rows.of(q[0][rows], noise, first=place[1] + rows.start)
            fits = estimate.fit_data(data_rows, clock)
            if kept is not None and estimate.cdf.compact:
                kept[key] = fits
        with clock.part("count"):
            my_rows = Rows.of(p[rows])
        if bench.tables is None:
            squares[rows] = estimate.displace(my_rows, fits, clock)
        else:
            squares[rows] = bench.tables.displace(place[0], place[1] + rows.start, drawn, my_rows, fits, clock)

    bench.chunks.over(H, displace)
    with clock.part("back-project", lambda: slab.work(M)):
        return slab.adjoint(p), (squares / M).sum()
