"""Coordinates are checked, and the error names plugin, distribution, version, expected and got."""

from __future__ import annotations

import attrs
import pytest
import torch

from cswf_core import checks
from cswf_core.errors import PluginError
from cswf_core.interfaces import Coordinates, Dataset, Key, LinearMap, Space
from cswf_plugins.conditions.mask import Mask
from cswf_plugins.projections.uniform import Uniform
from tests.checks.parts import OWNERS, named, refused, variant
from tests.conftest import random_data, small_flow


@attrs.frozen(eq=False)
class Stretched(LinearMap):
    """Two axes mixed and stretched: invertible, and not its own transpose."""

    matrix: torch.Tensor

    def enter(self, x):
        return self.matrix @ x

    def leave(self, w):
        return torch.linalg.solve(self.matrix, w)

    def adjoint(self, theta):
        return self.matrix.T @ theta

    def tensors(self):
        return {"matrix": self.matrix}


@attrs.frozen
class Mixing(Coordinates):
    """A map that any method of can be replaced."""

    members: dict = attrs.field(factory=dict)

    def fit(self, space, x):
        matrix = torch.eye(space.dimension, dtype=x.dtype)
        matrix[0, 1], matrix[2, 2] = 0.5, 3.0
        return type("Map", (Stretched,), self.members)(matrix)

    def of_tensors(self, space, tensors, like):
        return type("Map", (Stretched,), self.members)(tensors["matrix"].to(like))


def mixing(**members) -> Mixing:
    return Mixing(members)


def test_a_map_of_ones_own_is_taken():
    flow = small_flow(coordinates=mixing(), owners=OWNERS)
    assert torch.isfinite(flow.run().x).all()
    assert not torch.allclose(flow.samples().x, small_flow().run().x)
    torch.testing.assert_close(flow.setup.W.enter(torch.eye(5).double())[0, 1], torch.tensor(0.5).double())


@pytest.mark.parametrize(
    ("members", "complaint"),
    [
        ({"leave": lambda self, w: self.matrix.T @ w}, "leave must return what `enter` was given, got vectors"),
        ({"leave": lambda self, w: w}, r"leave must return what `enter` was given, got vectors [\d.]+ of"),
        ({"adjoint": lambda self, t: self.matrix @ t}, "adjoint must return Wᵀθ, with Wᵀθ·x = θ·Wx, got"),
        ({"adjoint": lambda self, t: t}, "adjoint must return Wᵀθ"),
        ({"enter": lambda self, x: x * torch.nan}, "enter must return finite numbers, got 80 of 80"),
        ({"leave": lambda self, w: w / 0}, "leave must return finite numbers"),
        ({"adjoint": lambda self, t: t.log()}, "adjoint must return finite numbers"),
        ({"enter": lambda self, x: x[:3]}, "enter must return a 5×16 tensor of float64 on cpu, got 3×16"),
        ({"leave": lambda self, w: w.float()}, "leave must return a 5×16 tensor of float64 .* got .* float32"),
        ({"adjoint": lambda self, t: t.tolist()}, "adjoint must return a 5×16 tensor of float64 .* got list"),
        ({"enter": lambda self, x: 1 / 0}, r"enter raised ZeroDivisionError: .*test_coordinates.py:\d+\)"),
        ({"leave": lambda self: 0}, "leave raised TypeError"),
        ({"enter": lambda self, x: 0 * x}, "leave must return what `enter` was given"),
        (
            {"enter": lambda self, x: x.mul_(2)},
            r"enter must return a new tensor, got .*, changed",
        ),
    ],
)
def test_a_faulty_map_is_named(members, complaint):
    refused(complaint, coordinates=mixing(**members))


@pytest.mark.parametrize(
    ("W", "complaint"),
    [
        (7, "fit must return None or a LinearMap, got int"),
        (torch.eye(5), "fit must return None or a LinearMap, got Tensor"),
        (Stretched, "fit must return None or a LinearMap, got ABCMeta"),
        (Stretched(torch.zeros(5, 5).double()), "leave raised _LinAlgError"),
    ],
)
def test_something_else_than_a_map_is_named(W, complaint):
    refused(complaint, coordinates=variant(Mixing, fit=lambda *a: W)())


def test_a_fit_that_fails_is_named():
    refused("fit raised TypeError", coordinates=variant(Mixing, fit=lambda self, space, x: x / None)())


def adapted(plugin: Coordinates) -> tuple[checks.CheckedCoordinates, LinearMap, Space, torch.Tensor]:
    adapter, space, x = checks.checked(plugin, OWNERS["coordinates"]), Space((5,)), random_data().x
    return adapter, adapter.fit(space, x), space, x


def test_the_tensors_of_a_map_make_it_again():
    adapter, W, space, x = adapted(mixing())
    tensors = adapter.tensors_of(W, space, x)
    torch.testing.assert_close(adapter.of_tensors(space, tensors, x).enter(x), W.enter(x))


@pytest.mark.parametrize(
    ("members", "complaint"),
    [
        ({"tensors": lambda self: [1]}, "tensors must return tensors by name, got list"),
        ({"tensors": lambda self: {"matrix": 1}}, "tensors must return tensors by name, got dict"),
        ({"tensors": lambda self: 1 / 0}, "tensors raised ZeroDivisionError"),
        ({"tensors": lambda self: {}}, "of_tensors raised KeyError"),
        ({"tensors": lambda self: {"matrix": 2 * self.matrix}}, "of_tensors must return the map whose"),
    ],
)
def test_tensors_that_do_not_make_the_map_again_are_named(members, complaint):
    adapter, W, space, x = adapted(mixing(**members))
    with pytest.raises(PluginError, match=complaint) as error:
        adapter.tensors_of(W, space, x)
    named(error, "coordinates")


@pytest.mark.parametrize(
    ("of_tensors", "complaint"),
    [
        (Coordinates.of_tensors, r"has no of_tensors, which saved models \(model.save\) and online"),
        (lambda *a: None, "of_tensors must return a LinearMap, got None"),
    ],
)
def test_a_map_that_no_tensors_make_is_named(of_tensors, complaint):
    adapter, W, space, x = adapted(variant(Mixing, of_tensors=of_tensors)())
    with pytest.raises(PluginError, match=rf"^coordinates 'mine' .*{complaint}"):
        adapter.tensors_of(W, space, x)


def test_a_map_that_returns_what_it_is_given_moves_nothing_twice():
    """Where a part is seen, x stays as it was on entering, while z moves."""
    same = {name: (lambda _, x: x) for name in ("enter", "leave", "adjoint")}
    data = Dataset(x=Key(1, "x").open(dtype=torch.float64).uniform(12, 40) * 2 - 1, space=Space((1, 4, 3)))
    parts = {"condition": Mask(hidden="bottom"), "projection": Uniform()}
    one, other = (small_flow(data, coordinates=c, **parts).run() for c in (mixing(**same), None))
    torch.testing.assert_close(one.x, other.x, atol=1e-10, rtol=0)
