"""Condition `one-hot`: a class label, encoded as a unit vector of ℝ^l.

What it is: class-conditional generation as in the paper; θ_y·e_c is the c-th entry of θ_y.
Cost: one table lookup per direction and sample.
When not to use it: for labels with an order or a distance between them; `continuous` keeps those.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import attrs
import torch
from torch import Tensor

from cswf_core.errors import DataError, RoomError
from cswf_core.interfaces import Conditions, Dataset, Draw, parameter
from cswf_plugins.conditions.continuous import JointDirections


def _shares(_instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    if value and (min(value) < 0 or not 0 < sum(value) < math.inf):
        raise ValueError(f"{attribute.name} must be shares of 0 or more, not all of them 0, got {list(value)}")


def _quotas(share: Tensor, count: int) -> Tensor:
    """Return how many of `count` each class gets: whole numbers as near its share as can be."""
    exact = share * count
    counts = exact.floor().long()
    left = count - int(counts.sum())
    counts[(exact - counts).argsort(descending=True, stable=True)[:left]] += 1
    return counts


@attrs.frozen(kw_only=True)
class OneHot(JointDirections):
    """Class labels as one-hot vectors."""

    labels: Literal["drawn", "balanced"] = parameter(
        "Y₀ of the particles: drawn one by one from the prior (paper), or each class's exact share of it",
        default="drawn",
    )
    prior: tuple[float, ...] = parameter(
        "share of each class among the particles, relative to the others; the data's if left out. The data are "
        "then resampled to the same shares, since the flow needs p₀(y) = q(y); but see `resample`",
        default=(),
        validator=_shares,
    )
    resample: bool = parameter(
        "with a prior: whether the data are resampled to it; false leaves them as they are, and p₀(y) and q(y) "
        "differ, as in the released code",
        default=True,
    )
    dequantise: bool = parameter(
        "whether the label rows of the data, ξ y, get the noise that pixels get at every step, as in the "
        "released code",
        default=False,
    )
    theta: Literal["uniform", "laplace"] = parameter(
        "θ_y: uniform on the sphere (paper), or Laplace entries, normalised (released code)", default="uniform"
    )

    room: int | None = parameter(
        "l, where more classes are to come than the data have, as in online learning; as many as they have if "
        "left out",
        default=None,
        at_least=1,
        at_most=2**20,
    )

    def __attrs_post_init__(self) -> None:
        """Refuse options that would do nothing."""
        if self.dequantise and self.amplifier == 0:
            raise ValueError("dequantise: true needs an amplifier above 0, since 0 ignores the labels")
        if not (self.resample or self.prior):
            raise ValueError("resample: false needs a prior: without one no data are resampled")

    @property
    def dequantised(self) -> bool:  # type: ignore[override]
        """Whether labels get noise."""
        return self.dequantise

    def length(self, data: Dataset) -> int:
        """l, the number of classes that there are or may be."""
        if data.conditions.labels is None or not data.classes:
            raise DataError("condition 'one-hot' needs labelled data, and this data set has no labels")
        if self.prior and len(self.prior) != len(data.classes):
            raise DataError(
                f"condition.prior has {len(self.prior)} shares, and the data have {len(data.classes)} classes: "
                f"{', '.join(data.classes)}"
            )
        wanted = torch.tensor(self.prior) > 0
        if self.prior and bool((wanted & (self._counts(data) == 0)).any()):
            raise DataError("condition.prior asks for a class that no data have")
        if self.room is not None and self.room < len(data.classes):
            many = len(data.classes)
            raise RoomError(
                f"condition.room is {self.room}, and the data have {many} classes: give it {many} or more", many
            )
        return len(data.classes) if self.room is None else self.room

    def draw(self, data: Dataset, count: int, draw: Draw) -> Conditions:
        """Return labels that follow the prior, q(y) if none is given."""
        if self.labels == "drawn" and not self.prior:
            return Conditions(labels=super().draw(data, count, draw).labels)
        share = self._share(data)
        if self.labels == "drawn":
            level = torch.from_numpy(draw.host.random(count))
            return Conditions(
                labels=torch.searchsorted(share.cumsum(0), level, right=True).clamp(max=len(share) - 1)
            )
        return Conditions(labels=torch.repeat_interleave(torch.arange(len(share)), _quotas(share, count)))

    def balance(self, data: Dataset, draw: Draw) -> Tensor | None:
        """Resample the data to a given prior: whole copies of each class, and a random part of one more."""
        if not (self.prior and self.resample):
            return None
        assert data.conditions.labels is not None
        chosen = []
        for c, quota in enumerate(_quotas(self._share(data), len(data)).tolist()):
            members = (data.conditions.labels == c).nonzero()[:, 0]
            if quota:
                copies, left = divmod(quota, len(members))
                part = torch.from_numpy(draw.host.permutation(len(members))[:left])
                chosen += [members.repeat(copies), members[part]]
        return torch.cat(chosen).sort().values

    def directions(self, length: int, count: int, draw: Draw) -> Tensor:
        """Return θ_y: count × l, of unit length."""
        if self.theta == "uniform":
            return super().directions(length, count, draw)
        level = draw.uniform(count, length) - 0.5
        entries = -level.sign() * torch.log1p(-2 * level.abs().clamp_max(0.5 - 2**-25))
        lengths: Tensor = torch.linalg.vector_norm(entries, dim=1, keepdim=True)
        return entries / lengths.clamp_min(torch.finfo(entries.dtype).tiny)

    def _share(self, data: Dataset) -> Tensor:
        """Return the share of each class among the particles."""
        share = torch.tensor(self.prior, dtype=torch.float64) if self.prior else self._counts(data).double()
        return share / share.sum()

    @staticmethod
    def _counts(data: Dataset) -> Tensor:
        assert data.conditions.labels is not None
        return torch.bincount(data.conditions.labels, minlength=len(data.classes))

    def groups(self, conditions: Conditions) -> tuple[Tensor, Conditions]:
        """Return each sample's index among the classes that occur, and those classes."""
        assert conditions.labels is not None
        present, index = torch.unique(conditions.labels, return_inverse=True)
        return index, Conditions(labels=present)

    def project(self, theta_y: Tensor, conditions: Conditions) -> Tensor:
        """Return the entry of θ_y that belongs to each sample's class: H×n."""
        assert conditions.labels is not None
        return theta_y.index_select(1, conditions.labels)
