"""Each map W is invertible, has the transpose it says, and does to the data what its description says."""

from __future__ import annotations

import pytest
import torch

from cswf_core.errors import DataError
from cswf_core.interfaces import Dataset, Key, Space
from cswf_core.recipe import build_flow, load_recipe
from cswf_plugins.conditions.none import NoCondition
from cswf_plugins.coordinates import principal
from cswf_plugins.coordinates.plain import Plain
from cswf_plugins.coordinates.principal import Principal
from cswf_plugins.coordinates.whitened import Whitened, cosines
from cswf_plugins.schedules.constant import Constant
from tests.conftest import random_data, small_flow

SPACES = [Space((3, 6, 5)), Space((1, 4, 7)), Space((2, 1, 5)), Space((3, 1, 1)), Space((1, 1, 1))]
EXPONENTS = [0.0, 0.5, 1.0]
KINDS = pytest.mark.parametrize("kind", [Whitened, Principal], ids=lambda kind: kind.__name__)


def smooth(space: Space, n: int = 400, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Images whose neighbouring pixels, and whose colours, are alike, around a mean that is not 0."""
    channels, height, width = space.shape
    draw = Key(4, "smooth").open(dtype=torch.float64)
    x = draw.normal(channels, height, width, n)
    for axis in (1, 2):
        x = x + 0.9 * x.roll(1, axis) + 0.6 * x.roll(2, axis)
    mixed = torch.einsum("dc,chwn->dhwn", torch.eye(channels).double() + 0.8, x)
    return (0.2 * mixed + draw.normal(channels, height, width, 1)).reshape(space.dimension, n).to(dtype)


def matrix(apply, d: int) -> torch.Tensor:
    return apply(torch.eye(d, dtype=torch.float64))


def basis(W) -> torch.Tensor:
    """B, frequencies and colours as rows, by its definition: a product of three matrices."""
    _, height, width = W.basis.shape
    return torch.kron(W.basis.colours, torch.kron(cosines(height), cosines(width)))


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_frequencies_and_colours_are_an_orthonormal_basis(space):
    W, x = Whitened().fit(space, smooth(space)), smooth(space)
    B = basis(W)
    torch.testing.assert_close(B @ B.T, torch.eye(space.dimension).double(), atol=1e-12, rtol=0)
    torch.testing.assert_close(W.basis.coefficients(x), B @ x)
    torch.testing.assert_close(W.basis.images(x), B.T @ x)
    torch.testing.assert_close(W.variances, (B @ x).var(dim=1, correction=0))


def test_colours_are_uncorrelated_over_all_pixels():
    space = SPACES[0]
    W, x = Whitened().fit(space, smooth(space)), smooth(space)
    colours = (W.basis.colours @ (x - x.mean(dim=1, keepdim=True)).reshape(3, -1)).double()
    shared = torch.corrcoef(colours) - torch.eye(3).double()
    assert float(shared.abs().max()) < 0.02


@pytest.mark.parametrize("exponent", EXPONENTS)
@pytest.mark.parametrize("space", SPACES, ids=str)
def test_variances_become_their_power_and_keep_their_sum(space, exponent):
    x = smooth(space)
    W = Whitened(exponent=exponent, floor=1e-12).fit(space, x)
    before, after = ((basis(W) @ each).var(dim=1, correction=0) for each in (x, W.enter(x)))
    wanted = before ** (1 - exponent)
    torch.testing.assert_close(after / after.sum(), wanted / wanted.sum(), rtol=1e-6, atol=0)
    torch.testing.assert_close(W.enter(x).var(dim=1).sum(), x.var(dim=1).sum())


@pytest.mark.parametrize("exponent", EXPONENTS)
def test_principal_components_stay_uncorrelated_and_their_variances_become_a_power(exponent):
    space = SPACES[1]
    x = smooth(space)
    before, axes = torch.linalg.eigh(torch.cov(x))
    W = Principal(exponent=exponent, floor=1e-12).fit(space, x)
    after = axes.T @ torch.cov(W.enter(x)) @ axes
    wanted = before ** (1 - exponent)
    torch.testing.assert_close(after, torch.diag(wanted * before.sum() / wanted.sum()), atol=1e-8, rtol=1e-6)


def test_principal_components_are_for_points_too_and_up_to_a_size(monkeypatch):
    flow = small_flow(random_data(), coordinates=Principal())
    assert torch.isfinite(flow.run().x).all()
    with pytest.raises(DataError, match="two data or more"):
        Principal().fit(Space((3,)), torch.zeros(3, 1))
    monkeypatch.setattr(principal, "LARGEST", 4)
    with pytest.raises(DataError, match=r"go up to 4 dimensions, and these data have 5; take whitened"):
        small_flow(random_data(), coordinates=Principal())


def test_the_floor_keeps_what_hardly_varies_from_being_blown_up():
    space = Space((1, 4, 4))
    x = smooth(space)
    x[8:] = x[:8].flip(0).roll(3, 0) * 1e-8  # the lower half is nearly constant
    for floor in (1e-5, 1e-2):
        W = Whitened(exponent=1.0, floor=floor).fit(space, x)
        v = W.variances
        gains = (v + floor * v.mean()).rsqrt()
        torch.testing.assert_close(W.gains / W.gains.max(), gains / gains.max())
        assert float(W.gains.max() / W.gains.min()) <= (v.max() / (floor * v.mean()) + 1) ** 0.5 * (1 + 1e-9)


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_exponent_0_is_plain_up_to_rounding(space):
    x = smooth(space)
    W = Whitened(exponent=0.0).fit(space, x)
    torch.testing.assert_close(W.gains, torch.ones(space.dimension).double())
    torch.testing.assert_close(W.enter(x), x)
    data = Dataset(x=x, space=space)
    parts = {"condition": NoCondition(), "schedule": Constant(steps=2, directions=20)}
    whitened = small_flow(data, coordinates=Whitened(exponent=0.0), **parts).run()
    torch.testing.assert_close(whitened.x, small_flow(data, **parts).run().x, atol=1e-9, rtol=0)


def test_coloured_noise_has_the_variances_of_the_data():
    space = SPACES[1]
    W = Whitened().fit(space, smooth(space))
    root = matrix(W.coloured, space.dimension)
    torch.testing.assert_close(basis(W) @ root @ root.T @ basis(W).T, torch.diag(W.variances))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("exponent", EXPONENTS)
@KINDS
def test_images_that_are_all_alike_are_left_as_they_are(kind, exponent, dtype):
    space = SPACES[0]
    x = torch.full((space.dimension, 20), 0.25, dtype=dtype)
    W = kind(exponent=exponent).fit(space, x)
    torch.testing.assert_close(W.enter(x), x)
    torch.testing.assert_close(W.leave(x), x)
    flow = small_flow(Dataset(x=x, space=space), coordinates=kind(exponent=exponent), dtype=dtype)
    assert torch.isfinite(flow.run().x).all()


@pytest.mark.parametrize("exponent", EXPONENTS)
def test_pixels_that_never_change_have_a_finite_gain(exponent):
    space = SPACES[0]
    x = smooth(space)
    x[:40] = -1.0
    for data in (x, x.float()):
        W = Whitened(exponent=exponent).fit(space, data)
        torch.testing.assert_close(W.leave(W.enter(data)), data, atol=1e-4, rtol=0)


def test_points_are_refused_with_a_sentence():
    complaint = r"coordinates 'whitened' needs images, and these data are points in 5 dimensions"
    with pytest.raises(DataError, match=complaint):
        small_flow(random_data(), coordinates=Whitened())


def test_plain_has_no_map_and_is_the_default_of_recipes():
    assert Plain().fit(Space((5,)), torch.zeros(5, 3)) is None
    assert small_flow(coordinates=Plain()).setup.W is None
    flow = build_flow(load_recipe("digits"), device="cpu")
    assert isinstance(flow.parts.coordinates.plugin, Plain)
    assert flow.setup.W is None
