"""Condition `one-hot`: a class label, encoded as a unit vector of ℝ^l.

What it is: class-conditional generation as in the paper; θ_y·e_c is the c-th entry of θ_y.
Cost: one table lookup per direction and sample.
When not to use it: for labels with an order or a distance between them; `continuous` keeps those.
"""

from __future__ import annotations

from typing import Literal

import attrs
import torch
from torch import Tensor

from cswf_core.errors import DataError
from cswf_core.interfaces import Conditions, Dataset, Draw, parameter
from cswf_plugins.conditions.joint import JointDirections


@attrs.frozen(kw_only=True)
class OneHot(JointDirections):
    """Class labels as one-hot vectors."""

    labels: Literal["drawn", "balanced"] = parameter(
        "Y₀ of the particles: labels of random data (paper), or each class's exact share of q(y)",
        default="drawn",
    )

    def length(self, data: Dataset) -> int:
        """l, the number of classes."""
        if data.conditions.labels is None or not data.classes:
            raise DataError("condition 'one-hot' needs labelled data, and this data set has no labels")
        return len(data.classes)

    def draw(self, data: Dataset, count: int, draw: Draw) -> Conditions:
        """Return labels that follow q(y), the share of each class in the data."""
        if self.labels == "drawn":
            return Conditions(labels=super().draw(data, count, draw).labels)
        assert data.conditions.labels is not None
        share = torch.bincount(data.conditions.labels, minlength=len(data.classes)).double() / len(data)
        quota = share * count
        counts = quota.floor().long()
        left = count - int(counts.sum())
        counts[(quota - counts).argsort(descending=True, stable=True)[:left]] += 1
        return Conditions(labels=torch.repeat_interleave(torch.arange(len(data.classes)), counts))

    def project(self, theta_y: Tensor, conditions: Conditions) -> Tensor:
        """Return the entry of θ_y that belongs to each sample's class: H×n."""
        assert conditions.labels is not None
        return theta_y[:, conditions.labels]
