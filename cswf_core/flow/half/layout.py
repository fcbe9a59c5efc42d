"""Directions and samples laid out for half precision on CUDA, and the products of the two."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial
from typing import Any

import attrs
import torch
from torch import Tensor

from cswf_core.checks import CheckedCondition
from cswf_core.errors import RunError
from cswf_core.flow.clock import Clock
from cswf_core.flow.directions import Directions, Place
from cswf_core.flow.fits import Fits, FitsOfRows, Source
from cswf_core.flow.settings import Settings
from cswf_core.interfaces import Conditions, PatchProjection, Rows, Space
from cswf_core.kernels.boxes import WIDEST_TILE, Boxes, Strips, side_of
from cswf_core.kernels.columns import COLUMNS_AT_A_TIME
from cswf_core.kernels.gpu import boxes, products
from cswf_core.kernels.sparse import TILE, padded
from cswf_core.ranks import Ranks

MOST = 65534 * TILE
"""Samples that a grid of programs can have: 65,535 tiles, and they are filled up by two."""

SORTED_BELOW = 0.9
"""Share of boxes that are not zero up to which directions are sorted by where they look."""

RUN = 64
"""Samples in a row that are looked at together: reading runs is quick."""


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
    """The number of the first of them among the samples of all ranks."""


@attrs.frozen(eq=False)
class HalfRows:
    """Projected values in half precision, and the matrix that they are a part of."""

    rows: Rows
    """H×n."""
    values: Tensor
    """The values filled up to whole tiles: H'×n'."""

    def filled(self) -> Tensor:
        """Return the rows' values filled up to whole tiles: H'×n'."""
        values = self.rows.values
        if values.dtype != self.values.dtype:
            self.values[: values.shape[0], : values.shape[1]] = values
        return self.values


@attrs.define(eq=False)
class HalfSlab:
    """Directions whose products are taken at once."""

    directions: Boxes
    place: Place
    """Which of the step's directions they are."""
    theta_y: Tensor | None
    """ξ √(1−a²) θ_y, in the order of the blocks: H×l."""
    condition: CheckedCondition | None
    """The plugin that multiplies θ_y by conditions."""
    check: bool
    """Whether the numbers that it returns are checked."""
    noise: Tensor | None
    """Width of the data's noise along each direction: H."""
    F_q: Fits | None = None
    """The data's distributions along the directions, once they are there."""
    begun: FitsOfRows | None = None
    """The same, while counts are on their way between ranks."""

    @property
    def count(self) -> int:
        """H."""
        return self.directions.shape[0]

    @property
    def batch(self) -> HalfSlab:
        """The slab itself."""
        return self

    def await_data(self) -> Fits:
        """Return F_q along the directions, once counts have come from other ranks; it stays here."""
        if self.F_q is None:
            assert self.begun is not None
            self.F_q = self.begun(slice(0, self.count))
            self.begun = None
        return self.F_q

    def projected_rows(self, cloud: HalfCloud, clock: Clock) -> HalfRows:
        """Return p_h = θ_h·(z, ξy) of particles."""
        with clock.part("project", partial(work, self, cloud.count, 2)):
            return self._project(cloud, None)

    def projected(self, cloud: HalfCloud, clock: Clock) -> Rows:
        """Return p_h = θ_h·(z, ξy) of particles: H×n."""
        return self.projected_rows(cloud, clock).rows

    def projected_data(self, cloud: HalfCloud, clock: Clock) -> Rows:
        """Return q_h = θ_h·(z, ξy) of data, with the noise in their bins: H×n."""
        with clock.part("project", partial(work, self, cloud.count, 2)):
            return self._project(cloud, self.noise).rows

    def _project(self, cloud: HalfCloud, noise: Tensor | None) -> HalfRows:
        """Return θ·(z, ξy), with noise of a width along each direction."""
        H = self.count
        n = cloud.count
        values = torch.empty(padded(H), cloud.z.shape[1], dtype=torch.float16, device=cloud.z.device)
        low, high = products.project(self.directions, cloud.z, values)
        rows = self._with_conditions(Rows(values[:H, :n], low, high), cloud)
        if noise is not None:
            rows = attrs.evolve(
                rows,
                low=rows.low - noise / 2,
                high=rows.high + noise / 2,
                noise=noise,
                first=self.place.first,
                column=cloud.first,
            )
        return HalfRows(rows, values)

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
        return Rows(
            rows.values, rows.low + offsets.amin(dim=1), rows.high + offsets.amax(dim=1), offsets, index
        )


@attrs.frozen(eq=False)
class PreparedData(Source[HalfCloud]):
    """Data whose distributions were fitted when directions were prepared, if that was done."""

    source: Source[HalfCloud]

    def along(self, theta: HalfSlab) -> FitsOfRows:  # type: ignore[override]
        """Return F_q along a slab."""
        if theta.F_q is None and theta.begun is None:
            return self.source.along(theta)
        return lambda _: theta.await_data()


def slabs_of(
    theta: Directions, places: Strips | None, most: int, into: list[HalfSlab] | None = None
) -> list[HalfSlab]:
    """Turn a batch of directions into slabs of at most `most`; `into` are slabs whose memory may be used."""
    source = source_of(theta)
    where = Strips.unsorted(source.shape[1], source.values.device) if places is None else places
    order = boxes.sorting(source, where)
    whole = attrs.evolve(theta.place, order=order)
    parts = [theta.theta_y, theta.noise]
    if order is not None:
        parts = [None if part is None else part[order] for part in parts]
    slabs = []
    for number, first in enumerate(range(0, theta.count, most)):
        rows = slice(first, min(first + most, theta.count))
        theta_y, noise = (None if part is None else part[rows] for part in parts)
        mine = torch.arange(first, rows.stop, device=source.values.device) if order is None else order[rows]
        old = into[number].directions if into is not None and number < len(into) else None
        slab = boxes.packed(source, mine, where, old)
        slabs.append(HalfSlab(slab, whole.rows(rows), theta_y, theta.condition, theta.check, noise))
    return slabs


def rows_of(slabs: Sequence[HalfSlab]) -> list[slice]:
    """Return which rows the directions of each slab are, among those of all."""
    stops = list(itertools.accumulate(slab.directions.shape[0] for slab in slabs))
    return [slice(first, stop) for first, stop in itertools.pairwise([0, *stops])]


def strips_for(theta: Tensor, space: Space, directions: int) -> Strips | None:
    """Return orders of coordinates and of so many directions like θ (H×d), if products then skip enough."""
    if not space.is_image:
        return None
    where = Strips.of(space.shape, directions, side_of(theta, space.shape), theta.device)
    source = boxes.DrawnDirections.of_matrix(theta, None)
    share = boxes.packed(source, boxes.sorting(source, where), where).share()
    return where if share <= SORTED_BELOW else None


def source_of(theta: Directions) -> boxes.DrawnDirections:
    """Return directions as the kernels read them: filters with a place as they are, others as a matrix."""
    projection = theta.projection
    if isinstance(projection, PatchProjection):
        filters, shape = projection.filters, projection.space.shape
        return boxes.DrawnDirections.of_filters(
            filters, projection.row, projection.column, projection.dilation, shape, theta.scale
        )
    return boxes.DrawnDirections.of_matrix(projection.dense(), theta.scale)


def halved(
    z: Tensor, places: Strips | None, conditions: Conditions, groups: tuple[Tensor, Conditions] | None
) -> HalfCloud:
    """Return samples z (d×n) in half precision, their coordinates in the order of `places`."""
    d, n = z.shape
    half = torch.empty(padded(d), padded(n, WIDEST_TILE), dtype=torch.float16, device=z.device)
    products.halve(z.contiguous(), places, half)
    return HalfCloud(half, n, conditions, groups)


def refuse_too_many(samples: int, settings: Settings) -> None:
    """Raise `RunError` if there are more samples than the kernels can count."""
    if samples > MOST:
        raise RunError(
            f"half precision goes up to {MOST:,} particles or data; "
            f"take the {settings.called('precision')} float32"
        )


def refuse_idle_ranks(ranks: Ranks, totals: Sequence[int], device: torch.device) -> None:
    """Raise `RunError` if a rank would have no particles, or no data."""
    for total in totals:
        if not all(map(len, ranks.shares(total, device))):
            width = COLUMNS_AT_A_TIME[device.type]
            raise RunError(
                f"{total:,} samples are {-(-total // width)} groups of {width:,}, fewer than the {ranks.size} "
                "ranks: take fewer devices"
            )


def packing(theta: Directions) -> tuple[float, float]:
    """Return the bytes of bringing directions into half precision: read in float32, written in float16."""
    return 6.0 * theta.numbers, 0.0


def work(slab: HalfSlab, samples: int, coordinate: int) -> tuple[float, float]:
    """Return the bytes of a product with `samples` columns, and its operations.

    A direction and a projected value take 2 bytes each, a sample's `coordinate` as many as it says.
    """
    H, d = slab.directions.shape
    return float(2 * H * (d + samples) + coordinate * d * samples), slab.directions.flops(samples)


def back_work(slab: HalfSlab, samples: int, coordinate: int) -> tuple[float, float]:
    """Return the same of a back-projection, which has boxes of its own."""
    return work(slab, samples, coordinate)[0], slab.directions.back_flops(samples)


def moving_work(particles: Any, by_update: bool) -> tuple[float, float]:
    """Return the bytes that have to be moved once the particles' updates are there.

    Of z = z₀ + G S: read S, write G S, read both parts, write z in half precision. Where particles move by an
    update: read that, read and write z and S, or x, and bring that into half precision.
    """
    each = 0 if particles.sum is None and not by_update else 18
    if by_update and particles.sum is not None:
        each += 8
    return float(each * particles.cloud.z.numel()), 0.0


def runs_of(x: Tensor, few: int) -> Tensor:
    """Return a view of some of the samples in x (d×n), in runs that are spread evenly: d×runs×RUN, or d×1×n.

    The samples of a row must lie side by side in memory, and `few` must be some runs.
    """
    d, n = x.shape
    runs = few // RUN
    if n < few:
        return x[:, None]
    return x.as_strided((d, runs, RUN), (x.stride(0), (n - RUN) // (runs - 1), 1), x.storage_offset())
