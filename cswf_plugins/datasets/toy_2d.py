"""Data `toy-2d`: points (x, y) of the plane from mixtures of Gaussians, as in the paper's Appendix A.

What it is: a target mixture, and if wanted another one that particles begin with. Either both coordinates
flow (the joint SWF), or x flows and y is the condition (CSWF).
Cost: nothing.
When not to use it: it is for pictures of the method and for tests with known answers.
"""

from __future__ import annotations

from typing import Any, Literal

import attrs
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cswf_core.interfaces import Conditions, Dataset, DatasetSource, Draw, Space, parameter
from cswf_core.kernels.memory import require_memory


def _not_empty(_instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    if not value:
        raise ValueError(f"{attribute.name} must name at least one component")


def _positive(_instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    if min(value) <= 0:
        raise ValueError(f"{attribute.name} must be above 0 in both directions, got {list(value)}")


@attrs.frozen(kw_only=True)
class Component:
    """One Gaussian of a mixture, with axes along x and y."""

    mean: tuple[float, float] = parameter("centre [x, y]")
    std: tuple[float, float] = parameter("standard deviations [x, y]", default=(0.3, 0.3), validator=_positive)
    weight: float = parameter("share, relative to the other components", default=1.0, above=0)


@attrs.frozen(kw_only=True)
class Toy2D(DatasetSource):
    """Mixtures of Gaussians in the plane."""

    count: int = parameter("N, the number of points", default=2000, at_least=1, at_most=2**40)
    target: tuple[Component, ...] = parameter("the mixture to flow to", validator=_not_empty)
    initial: tuple[Component, ...] = parameter(
        "the mixture that particles begin with; N(0, I) if left out", default=()
    )
    variables: Literal["xy", "x"] = parameter(
        "'xy': both coordinates flow; 'x': x flows and y is the condition", default="xy"
    )

    starts = True

    def load(self, draw: Draw) -> Dataset:
        """Return N points of the target; each point's label is the component it came from."""
        numbers = 6 * 8 * self.count  # points, their means and deviations, in float64
        require_memory(numbers, f"{self.count:,} points", "take fewer (data.count)")
        labels = _shares(self.target, self.count)
        return self._dataset(_points(self.target, labels, draw), labels)

    def start(self, data: Dataset, count: int, draw: Draw) -> Dataset | None:
        """Return points of the initial mixture, if there is one.

        Where y is the condition, p₀(y) = q(y): each particle takes a datum's y, and its x from the initial
        component of the same number.
        """
        if not self.initial:
            return None
        if self.variables == "xy":
            labels = _shares(self.initial, count)
            return self._dataset(_points(self.initial, labels, draw), labels)
        taken = data.conditions.take(torch.arange(count) * len(data) // count)
        assert taken.labels is not None
        assert taken.vectors is not None
        labels = np.minimum(taken.labels.numpy(), len(self.initial) - 1)
        x = _points(self.initial, labels, draw)[:1]
        return attrs.evolve(data, x=x, conditions=taken)

    def _dataset(self, points: Tensor, labels: NDArray[np.int64]) -> Dataset:
        flows = 2 if self.variables == "xy" else 1
        return Dataset(
            x=points[:flows],
            space=Space((flows,)),
            conditions=Conditions(torch.from_numpy(labels), points[flows:] if flows == 1 else None),
            classes=tuple(str(i) for i in range(max(len(self.target), len(self.initial)))),
        )


def _shares(mixture: tuple[Component, ...], count: int) -> NDArray[np.int64]:
    """Return the component of each of `count` points, in order: every component has its exact share."""
    edges = np.cumsum([component.weight for component in mixture])
    levels = (np.arange(count) + 0.5) / count * edges[-1]
    labels: NDArray[np.int64] = np.minimum(np.searchsorted(edges, levels), len(mixture) - 1).astype(np.int64)
    return labels


def _points(mixture: tuple[Component, ...], labels: NDArray[np.int64], draw: Draw) -> Tensor:
    """Return a point of each label's component: 2×n."""
    means = np.array([component.mean for component in mixture])[labels]
    stds = np.array([component.std for component in mixture])[labels]
    points = means + stds * draw.host.standard_normal((len(labels), 2))
    return torch.from_numpy(points.T.copy()).to(draw.dtype)
