"""Adapter of coordinates: a map W that has an inverse and a transpose."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from cswf_core.checks.adapter import Adapter, calling
from cswf_core.errors import PluginError
from cswf_core.interfaces import Coordinates, Key, LinearMap, Owner, Space

VECTORS_CHECKED = 16
"""Vectors that a map is checked on."""

INVERSE_TOLERANCE = 1e-3
"""How far W⁻¹W may be from the identity, in parts of a vector's length."""


class CheckedCoordinates(Adapter, Coordinates):
    """Coordinates whose map W is linear in shape, can be undone, and has the transpose it says."""

    def __init__(self, plugin: Coordinates, owner: Owner) -> None:
        self._adapt(plugin, owner)
        self.sees_data = plugin.sees_data

    def fit(self, space: Space, x: Tensor) -> LinearMap | None:
        """Return W for data x (d×N); None: w is x itself."""
        return self._checked(self._call("fit", space, x), "fit", space, x)

    def of_tensors(self, space: Space, tensors: Mapping[str, Tensor], like: Tensor) -> LinearMap:
        """Return the map whose tensors a saved model has."""
        if type(self.plugin).of_tensors is Coordinates.of_tensors:
            raise PluginError(
                f"{self.owner} has no of_tensors, which saved models (model.save) and online learning need: "
                "write one, or do without these"
            )
        answer = self._checked(self._call("of_tensors", space, tensors, like), "of_tensors", space, like)
        if answer is None:
            raise self._fault("of_tensors", "a LinearMap", "None")
        return answer

    def tensors_of(self, W: LinearMap, space: Space, like: Tensor) -> dict[str, Tensor]:
        """Return all that W was made of, if the same map can be made of it again."""
        with calling(self.owner, "tensors"):
            tensors = W.tensors()
        if not isinstance(tensors, dict) or not all(isinstance(part, Tensor) for part in tensors.values()):
            raise self._fault("tensors", "tensors by name", type(tensors).__name__)
        again = self.of_tensors(space, tensors, like)
        x = Key(0, "coordinates").open(like.device, like.dtype).normal(space.dimension, VECTORS_CHECKED)
        with calling(self.owner, "enter"):
            first = W.enter(x)
            second = again.enter(x)
        if bool((first - second).abs().max() > INVERSE_TOLERANCE * first.abs().max()):
            raise self._fault("of_tensors", "the map whose tensors these are", "another one")
        return tensors

    def _checked(self, answer: object, method: str, space: Space, like: Tensor) -> LinearMap | None:
        """Return a map if W⁻¹W x is x, and θ·Wx is Wᵀθ·x, for some random vectors."""
        if answer is None:
            return None
        if not isinstance(answer, LinearMap):
            raise self._fault(method, "None or a LinearMap", type(answer).__name__)
        draw = Key(0, "coordinates").open(like.device, like.dtype)
        x, theta = (draw.normal(space.dimension, VECTORS_CHECKED) for _ in range(2))
        parts: dict[str, Tensor] = {}
        for name, vectors in (("enter", x), ("adjoint", theta)):
            parts[name] = self._product(answer, name, vectors)
        back = self._product(answer, "leave", parts["enter"])
        lost = float((torch.linalg.vector_norm(back - x, dim=0) / torch.linalg.vector_norm(x, dim=0)).max())
        if lost > INVERSE_TOLERANCE:
            raise self._fault("leave", "what `enter` was given", f"vectors {lost:.3g} of their length apart")
        seen, meant = ((a * b).sum(dim=0) for a, b in ((theta, parts["enter"]), (parts["adjoint"], x)))
        size = (theta.abs() * parts["enter"].abs()).sum(dim=0)
        if bool(((seen - meant).abs() > INVERSE_TOLERANCE * size).any()):
            raise self._fault("adjoint", "Wᵀθ, with Wᵀθ·x = θ·Wx", "another vector")
        if answer.coloured(x[:, :0]) is not None:
            self._product(answer, "coloured", x)
        return answer

    def _product(self, linear: LinearMap, method: str, vectors: Tensor) -> Tensor:
        """Return what a method makes of vectors (d×n), if it leaves these as they are: d×n."""
        own = vectors.clone()
        with calling(self.owner, method):
            answer = getattr(linear, method)(own)
        product = self._finite(self._like(answer, method, vectors), method)
        if not torch.equal(own, vectors):
            raise self._fault(method, "a new tensor", "the one it was given, changed")
        return product
