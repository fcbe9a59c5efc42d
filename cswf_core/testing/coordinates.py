"""Checks of coordinates."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from cswf_core.checks import CheckedCoordinates
from cswf_core.errors import DataError
from cswf_core.interfaces import Coordinates, Key, LinearMap, Space
from cswf_core.recipe import Recipe
from cswf_core.testing.flows import IN_A_FLOW, SHARED, recipe_with
from cswf_core.testing.generators import require_untouched
from cswf_core.testing.outcome import FaultError, Kit, SkipError, Subject
from cswf_core.testing.samples import COLOUR, GREY, POINTS, bare, samples

ROUNDING = 1e-6
"""How far two ways to compute one vector in float64 may be apart, in parts of its length."""

VECTORS = 5


class Map(Subject):
    """Coordinates, and the spaces that they are fitted in."""

    kind = "coordinates"

    def __init__(self, plugin: Coordinates, spaces: Sequence[Space] | None = None) -> None:
        super().__init__(plugin)
        self.spaces = tuple(spaces) if spaces is not None else (GREY, COLOUR, POINTS)

    @cached_property
    def coordinates(self) -> CheckedCoordinates:
        """The coordinates behind their checks."""
        coordinates: CheckedCoordinates = self.checked
        return coordinates

    def x(self, space: Space, dtype: torch.dtype = torch.float64) -> Tensor:
        """Return data to fit a map to: d×N, or d×0 if it does not look at them."""
        x = samples(space).x.to(dtype)
        return x if self.coordinates.sees_data else x[:, :0]

    def fit(self, space: Space, dtype: torch.dtype = torch.float64) -> LinearMap | None:
        """Return the map for data in a space."""
        return self.coordinates.fit(space, self.x(space, dtype))

    @cached_property
    def usable(self) -> list[Space]:
        """The spaces that coordinates take."""
        usable, refusals = [], []
        for space in self.spaces:
            try:
                self.fit(space)
            except DataError as error:
                refusals.append(str(error))
            else:
                usable.append(space)
        if not usable:
            raise FaultError(f"a map for one of {', '.join(map(str, self.spaces))}", refusals[0])
        return usable

    def maps(self) -> Iterator[tuple[Space, LinearMap]]:
        """Yield the map in each space; raise `SkipError` if these are the data's own coordinates."""
        for space in self.usable:
            W = self.fit(space)
            if W is None:
                raise SkipError("w is x itself: there is no map")
            yield space, W

    def recipe(self, **sections: Any) -> Recipe:
        """Return the recipe of a short flow in these coordinates."""
        space = self.usable[0]
        schedule = {"use": "constant", "steps": 8, "directions": 4 * space.dimension}
        data = bare(samples(space))
        return recipe_with("coordinates", self.plugin, data, **{"schedule": schedule, **sections})


def _vectors(space: Space) -> tuple[Tensor, Tensor]:
    draw = Key(0, "vectors").open(dtype=torch.float64)
    return draw.normal(space.dimension, VECTORS), draw.normal(space.dimension, VECTORS)


def _apart(a: Tensor, b: Tensor) -> float:
    return float((a - b).norm() / b.norm().clamp_min(1e-12))


def _require(
    law: str, subject: Map, both: Callable[[LinearMap, Tensor, Tensor], tuple[Tensor, Tensor]]
) -> None:
    """Raise `FaultError` unless two ways to compute vectors agree, in every space."""
    for space, W in subject.maps():
        gap = _apart(*both(W, *_vectors(space)))
        if not gap <= ROUNDING:
            raise FaultError(law, f"vectors {gap:.3g} of their length apart, in {space}")


def the_map_is_linear(subject: Map) -> None:
    """W(2u − v) = 2 W u − W v."""
    _require(
        "W(2u − v) = 2 Wu − Wv", subject, lambda W, u, v: (W.enter(2 * u - v), 2 * W.enter(u) - W.enter(v))
    )


def leaving_undoes_entering(subject: Map) -> None:
    """W⁻¹ W u = u: particles are back in the data's space as they were."""
    _require("W⁻¹ W u = u", subject, lambda W, u, _: (W.leave(W.enter(u)), u))


def entering_undoes_leaving(subject: Map) -> None:
    """W W⁻¹ u = u: the map has no direction that it loses."""
    _require("W W⁻¹ u = u", subject, lambda W, u, _: (W.enter(W.leave(u)), u))


def the_adjoint_is_the_transpose(subject: Map) -> None:
    """Wᵀθ·u = θ·W u: data are projected on Wᵀθ."""
    _require(
        "Wᵀθ·u = θ·Wu",
        subject,
        lambda W, u, v: ((W.adjoint(v) * u).sum(dim=0), (v * W.enter(u)).sum(dim=0)),
    )


def tensors_make_the_map_again(subject: Map) -> None:
    """`of_tensors` makes the map of what `tensors` returned: saved models and online learning need it."""
    if type(subject.coordinates.plugin).of_tensors is Coordinates.of_tensors:
        raise SkipError("it has no `of_tensors`, so models cannot be saved with it, nor data learned online")
    for space, W in subject.maps():
        like = torch.empty(space.dimension, 0, dtype=torch.float64)
        again = subject.coordinates.of_tensors(space, W.tensors(), like)
        u, v = _vectors(space)
        for method, vectors in (("enter", u), ("leave", v), ("adjoint", v)):
            gap = _apart(getattr(again, method)(vectors), getattr(W, method)(vectors))
            if not gap <= ROUNDING:
                raise FaultError(f"the same `{method}` of the map made again", f"{gap:.3g} apart, in {space}")


def numbers_are_those_of_the_data(subject: Map) -> None:
    """A map fitted to float32 works in float32, and one fitted to float64 in float64."""
    for dtype in (torch.float32, torch.float64):
        subject.fit(subject.usable[0], dtype)  # the adapter refuses products in other numbers


def the_same_data_make_the_same_map(subject: Map) -> None:
    """Fitted twice, the map is the same to the bit, and the global generators are left alone."""
    for space, W in subject.maps():
        require_untouched(lambda space=space: subject.fit(space))  # type: ignore[misc]
        again, (u, _) = subject.fit(space), _vectors(space)
        if again is None or not torch.equal(again.enter(u), W.enter(u)):
            raise FaultError("the same map of the same data", f"another one, in {space}")


def data_are_left_as_they_are(subject: Map) -> None:
    """`fit` does not change the data that it looks at."""
    for space in subject.usable:
        x = subject.x(space)
        subject.coordinates.fit(space, x)
        if not torch.equal(x, subject.x(space)):
            raise FaultError("data that `fit` leaves alone", f"other values, in {space}")


def coloured_noise_is_as_wide_as_the_data(subject: Map) -> None:
    """`coloured` gives noise the data's total variance, within a factor of two, for a Gaussian start."""
    for space, W in subject.maps():
        noise = Key(0, "noise").open(dtype=torch.float64).normal(space.dimension, 400)
        coloured = W.coloured(noise)
        if coloured is None:
            raise SkipError("it has no `coloured`: a Gaussian start takes the data's covariance itself")
        share = float(coloured.var(dim=1).sum() / samples(space).x.double().var(dim=1).sum())
        if not 0.5 <= share <= 2:
            raise FaultError("the data's total variance", f"{share:.3g} times as much, in {space}")


KIT = Kit(
    Map,
    (
        *SHARED,
        the_map_is_linear,
        leaving_undoes_entering,
        entering_undoes_leaving,
        the_adjoint_is_the_transpose,
        tensors_make_the_map_again,
        numbers_are_those_of_the_data,
        the_same_data_make_the_same_map,
        data_are_left_as_they_are,
        coloured_noise_is_as_wide_as_the_data,
        *IN_A_FLOW,
    ),
)
