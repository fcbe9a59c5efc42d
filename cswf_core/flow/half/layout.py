"""Directions and samples laid out for half precision on CUDA, and the products of the two."""

from __future__ import annotations

from functools import partial

import attrs
import torch
from torch import Tensor

from cswf_core.checks import CheckedCondition
from cswf_core.errors import RunError
from cswf_core.flow.clock import Clock
from cswf_core.flow.directions import Directions, Place
from cswf_core.flow.fits import Begun, Fits, Source
from cswf_core.flow.settings import Settings
from cswf_core.interfaces import Conditions, PatchProjection, Rows, Space
from cswf_core.kernels.boxes import WIDEST_TILE, Boxes, Strips, side_of
from cswf_core.kernels.gpu import boxes, products
from cswf_core.kernels.sparse import TILE, padded

LARGEST_CLOUD = 65534 * TILE
"""Samples that a grid of programs can have: 65,535 tiles, and they are filled up by two."""

SORTED_BELOW = 0.9
"""Share of boxes that are not zero up to which directions are sorted by where they look."""

RUN = 64
"""Consecutive samples that are measured together: reading runs is quick."""


@attrs.frozen(eq=False)
class HalfCloud:
    """Samples in a stage's coordinates, in half precision, filled up to whole tiles; and their conditions."""

    z: Tensor
    """d'×n'."""
    count: int
    """n."""
    conditions: Conditions
    groups: tuple[Tensor, Conditions] | None
    """The group of each sample, and each group's condition."""
    noise: Tensor | None = None
    """What is added to ξy of all samples: l×1; None is nothing."""
    first: int = 0
    """The first one's number among the samples of all ranks."""


@attrs.define(eq=False)
class HalfSlab:
    """Directions whose products are taken at once."""

    directions: Boxes
    place: Place
    theta_y: Tensor | None
    """ξ √(1−a²) θ_y, in the order of the boxes: H×l."""
    condition: CheckedCondition | None
    check: bool
    """Whether the numbers that the condition plugin returns are checked."""
    noise: Tensor | None
    """The width of the noise in the data's bins along each direction: H."""
    F_q: Fits | None = None
    """The data's distributions along the directions, once they are fitted."""
    begun: Begun | None = None
    """The same, while counts are on their way between ranks."""

    @property
    def count(self) -> int:
        """H."""
        return self.directions.shape[0]

    def await_data(self) -> Fits:
        """Return F_q along the directions, once counts have come from other ranks, and keep it."""
        if self.F_q is None:
            assert self.begun is not None
            self.F_q = self.begun()
            self.begun = None
        return self.F_q

    def projected_rows(self, cloud: HalfCloud, clock: Clock) -> tuple[Rows, Tensor]:
        """Return p_h = θ_h·(z, ξy) of samples: H×n; and the matrix of whole tiles that they begin in: H'×n'."""
        with clock.part("project", partial(self.work, cloud.count, 2)):
            values = cloud.z.new_empty(padded(self.count), cloud.z.shape[1])
            low, high = products.project(self.directions, cloud.z, values)
            rows = Rows(values[: self.count, : cloud.count], low, high)
            return self._with_conditions(rows, cloud), values

    def projected(self, cloud: HalfCloud, clock: Clock) -> Rows:
        """Return p_h = θ_h·(z, ξy) of particles: H×n."""
        return self.projected_rows(cloud, clock)[0]

    def projected_data(self, cloud: HalfCloud, clock: Clock) -> Rows:
        """Return q_h = θ_h·(z, ξy) of data, with the noise in their bins: H×n."""
        rows = self.projected(cloud, clock)
        if self.noise is None:
            return rows
        low = rows.low - self.noise / 2
        high = rows.high + self.noise / 2
        first = self.place.first
        return attrs.evolve(rows, low=low, high=high, noise=self.noise, first=first, column=cloud.first)

    def work(self, samples: int, coordinate: int) -> tuple[float, float]:
        """Return the bytes of a projection of samples, with those per `coordinate`, and its operations."""
        H, d = self.directions.shape
        moved = float(2 * H * (d + samples) + coordinate * d * samples)
        return moved, self.directions.flops(samples)

    def back_work(self, samples: int, coordinate: int) -> tuple[float, float]:
        """Return the same of a back-projection, which has boxes of its own."""
        return self.work(samples, coordinate)[0], self.directions.back_flops(samples)

    def _with_conditions(self, rows: Rows, cloud: HalfCloud) -> Rows:
        """Return projected values to which θ_y·ξy is added, or stands beside them for each group."""
        theta_y = self.theta_y
        condition = self.condition
        if theta_y is None or condition is None:
            return rows
        shift = 0 if cloud.noise is None else theta_y / condition.amplifier @ cloud.noise
        if cloud.groups is None:
            offset = shift + condition.project(theta_y, cloud.conditions, count=cloud.count, check=self.check)
            return Rows.of(rows.values.float() + offset)
        index, classes = cloud.groups
        offsets = shift + condition.project(theta_y, classes, check=self.check)
        low = rows.low + offsets.amin(dim=1)
        high = rows.high + offsets.amax(dim=1)
        return Rows(rows.values, low, high, offsets, index)


@attrs.frozen(eq=False)
class PreparedData(Source[HalfCloud]):
    """Data whose distributions were fitted when directions were prepared, if that was done."""

    source: Source[HalfCloud]

    def along(self, theta: HalfSlab) -> Begun:  # type: ignore[override]
        """Return F_q along a slab."""
        if theta.F_q is None and theta.begun is None:
            return self.source.along(theta)
        return theta.await_data


def slabs_of(
    theta: Directions, places: Strips | None, most: int, into: list[HalfSlab] | None = None
) -> list[HalfSlab]:
    """Turn a batch of directions into slabs of at most `most`; `into` are slabs whose memory may be used."""
    projection = theta.projection
    if isinstance(projection, PatchProjection):  # filters with a place are packed as they are
        source = boxes.DrawnDirections.of_filters(
            projection.filters,
            projection.row,
            projection.column,
            projection.dilation,
            projection.space.shape,
            theta.scale,
        )
    else:
        source = boxes.DrawnDirections.of_matrix(projection.dense(), theta.scale)
    device = source.values.device
    where = Strips.unsorted(source.shape[1], device) if places is None else places
    order = boxes.sorting(source, where)
    whole = attrs.evolve(theta.place, order=order)
    sides = [theta.theta_y, theta.noise]
    if order is not None:
        sides = [None if side is None else side[order] for side in sides]
    free = [] if into is None else [slab.directions for slab in into]
    slabs = []
    for number, first in enumerate(range(0, theta.count, most)):
        rows = slice(first, min(first + most, theta.count))
        theta_y, noise = (None if side is None else side[rows] for side in sides)
        mine = torch.arange(first, rows.stop, device=device) if order is None else order[rows]
        slab = boxes.packed(source, mine, where, free[number] if number < len(free) else None)
        slabs.append(HalfSlab(slab, whole.rows(rows), theta_y, theta.condition, theta.check, noise))
    return slabs


def strips_for(theta: Tensor, space: Space, directions: int) -> Strips | None:
    """Return orders of coordinates and of directions like θ (H×d), if products then skip enough zeros."""
    if not space.is_image:
        return None
    where = Strips.of(space.shape, directions, side_of(theta, space.shape), theta.device)
    source = boxes.DrawnDirections.of_matrix(theta, None)
    share = boxes.packed(source, boxes.sorting(source, where), where).share()
    return where if share <= SORTED_BELOW else None


def halved(
    z: Tensor, places: Strips | None, conditions: Conditions, groups: tuple[Tensor, Conditions] | None
) -> HalfCloud:
    """Return samples z (d×n) in half precision, their coordinates in the order of `places`."""
    d, n = z.shape
    half = z.new_empty(padded(d), padded(n, WIDEST_TILE), dtype=torch.float16)
    products.halve(z.contiguous(), places, half)
    return HalfCloud(half, n, conditions, groups)


def refuse_too_many(samples: int, settings: Settings) -> None:
    """Raise `RunError` if there are more samples than the kernels can count."""
    if samples > LARGEST_CLOUD:
        raise RunError(
            f"half precision goes up to {LARGEST_CLOUD:,} particles or data; "
            f"take the {settings.called('precision')} float32"
        )


def packing(theta: Directions) -> tuple[float, float]:
    """Return the bytes of bringing directions into half precision: read in float32, written in float16."""
    return 6.0 * theta.numbers, 0.0


def runs_of(x: Tensor, few: int) -> Tensor:
    """Return a view of `few` samples in x (d×n), in runs that are spread evenly: d×runs×RUN, or d×1×n."""
    d, n = x.shape
    if n < few:
        return x[:, None]
    runs = few // RUN  # of samples that lie side by side in memory
    return x.as_strided((d, runs, RUN), (x.stride(0), (n - RUN) // (runs - 1), 1), x.storage_offset())
