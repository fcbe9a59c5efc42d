"""Contract of coordinates: an invertible linear map W, in which a flow takes its steps."""

from __future__ import annotations

import abc
from collections.abc import Mapping

from torch import Tensor

from cswf_core.interfaces.contract import Contract
from cswf_core.interfaces.space import Space


class LinearMap(abc.ABC):
    """An invertible linear map W of the data's space: w = W x.

    Directions θ are drawn in w, with unit length there. So x is projected on Wᵀθ, since θ·w = Wᵀθ·x, and moves
    along W⁻¹θ.
    """

    @abc.abstractmethod
    def enter(self, x: Tensor) -> Tensor:
        """Return W x: d×n → d×n."""

    @abc.abstractmethod
    def leave(self, w: Tensor) -> Tensor:
        """Return W⁻¹ w: d×n → d×n."""

    @abc.abstractmethod
    def adjoint(self, theta: Tensor) -> Tensor:
        """Return Wᵀ θ, for directions as columns: d×n → d×n."""

    @abc.abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """Return all that W was made of, by name, for saved models; see `Coordinates.of_tensors`."""

    def coloured(self, noise: Tensor) -> Tensor | None:
        """Return independent N(0, 1) numbers with the covariance that the map knows of the data: d×n → d×n.

        None, the usual: it knows none. For `particles.start: gaussian` in spaces too large for a matrix.
        """
        del noise
        return None


class Coordinates(Contract):
    """Chooses W for some data. Subclasses are attrs classes whose fields are the parameters."""

    sees_data: bool = True
    """Whether `fit` looks at the numbers of data; otherwise it is given no data (d×0)."""

    @abc.abstractmethod
    def fit(self, space: Space, x: Tensor) -> LinearMap | None:
        """Return W for data x (d×N), on their device and in their numbers; None: w is x itself."""

    def of_tensors(self, space: Space, tensors: Mapping[str, Tensor], like: Tensor) -> LinearMap:
        """Return the map that `LinearMap.tensors` was asked of, on the device and in the numbers of `like`.

        There it is the same to the bit: `fit` computes W from the tensors as they are returned, rounded.
        Saved models have these tensors in place of the data; learning online needs W in float64.
        """
        del space, tensors, like
        raise NotImplementedError
