"""Each sampler draws what its description says."""

from __future__ import annotations

import attrs
import numpy as np
import pytest
import torch

from cswf_core.errors import DataError, RunError
from cswf_core.flow.stability import largest_eigenvalue, longest_step
from cswf_core.interfaces import Dataset, Draw, Key, PatchProjection, ProjectionSampler, Space
from cswf_core.kernels.patches import around
from cswf_plugins.projections.conv_stack import ConvStack, distinct, gradients
from cswf_plugins.projections.data_covariance import DataCovariance
from cswf_plugins.projections.exemplars import Exemplars
from cswf_plugins.projections.high_pass import HighPass
from cswf_plugins.projections.locally_connected import LocallyConnected
from cswf_plugins.projections.max_sliced import MaxSliced
from cswf_plugins.projections.orthogonal import Orthogonal, rotations
from cswf_plugins.projections.patches import embed_at, joined, window
from cswf_plugins.projections.uniform import Uniform
from cswf_plugins.schedules.constant import Constant
from cswf_plugins.schedules.pyramid import Entry, Pyramid
from tests.conftest import random_data, small_flow

GRID = Space((2, 9, 7))


def draw(index: int = 0, dtype: torch.dtype = torch.float64) -> Draw:
    return Key(5, "test", index=index).open(dtype=dtype)


def noise_images(space: Space = GRID, n: int = 60) -> Dataset:
    return Dataset(x=draw(9).normal(space.dimension, n) * 0.3, space=space)


@pytest.mark.parametrize(
    "sampler", [LocallyConnected(patch=3), ConvStack(patch=3), ConvStack(patch=3, width=4)]
)
def test_a_direction_looks_at_one_patch_anywhere_on_the_grid(sampler):
    theta = sampler.sample(GRID, 4000, draw()).reshape(4000, *GRID.shape)
    seen = (theta != 0).any(dim=1)
    rows, columns = seen.any(dim=2), seen.any(dim=1)
    assert set(rows.sum(dim=1).tolist()) == {2, 3}  # two where the border cuts
    assert set(columns.sum(dim=1).tolist()) == {2, 3}
    # The centre is uniform over 9 rows; a patch that is cut at the top or bottom has it in the first or last.
    assert (rows.sum(dim=1) == 2).double().mean() == pytest.approx(2 / 9, abs=0.03)
    assert (columns.sum(dim=1) == 2).double().mean() == pytest.approx(2 / 7, abs=0.03)


def test_locally_connected_filters_are_even_within_their_patch():
    theta = LocallyConnected(patch=3).sample(Space((2, 30, 30)), 20000, draw())
    inside = theta[(theta != 0).sum(dim=1) == 18]
    values = inside[inside != 0].reshape(-1, 18)
    torch.testing.assert_close(
        values.square().mean(dim=0), torch.full((18,), 1 / 18).double(), atol=3e-3, rtol=0
    )


@pytest.mark.parametrize(
    "sampler",
    [
        LocallyConnected(patch=3, dilation=2),
        ConvStack(patch=3, dilation=2),
        ConvStack(patch=3, dilation=2, width=4),
    ],
)
def test_dilated_patches_leave_every_second_pixel_out(sampler):
    theta = sampler.sample(Space((1, 20, 20)), 200, draw()).reshape(200, 20, 20)
    for seen in (theta != 0).any(dim=2):
        places = seen.nonzero()[:, 0]
        assert set(places.diff().tolist()) == {2}


@pytest.mark.parametrize("sampler", [LocallyConnected(patch=9), ConvStack(patch=9), ConvStack(patch=10)])
def test_a_patch_as_large_as_the_grid_is_the_whole_grid(sampler):
    assert torch.equal(sampler.sample(GRID, 5, draw()), Uniform().sample(GRID, 5, draw()))


@pytest.mark.parametrize("patch", [7, 9, 15])
@pytest.mark.parametrize("sampler", [LocallyConnected(), ConvStack(), ConvStack(width=4, units=50)])
def test_a_patch_as_large_as_the_grid_is_placed_and_cut_off_if_the_recipe_says_so(sampler, patch):
    space = Space((2, 7, 7))
    theta = (
        attrs.evolve(sampler, patch=patch, covering="placed")
        .sample(space, 5000, draw())
        .reshape(5000, *space.shape)
    )
    seen = (theta != 0).any(dim=1)
    torch.testing.assert_close(theta.flatten(1).norm(dim=1), torch.ones(5000).double())
    shares = torch.bincount(seen.any(dim=2).sum(dim=1), minlength=8) / 5000
    half = patch // 2
    rows = [len({row for row in range(7) if abs(row - centre) <= half}) for centre in range(7)]
    expected = torch.bincount(torch.tensor(rows), minlength=8) / 7
    torch.testing.assert_close(shares, expected, atol=0.03, rtol=0)


def test_a_placed_patch_on_a_single_pixel_is_a_uniform_direction_of_its_channels():
    space = Space((3, 1, 1))
    for sampler in (LocallyConnected(), ConvStack(), ConvStack(width=20)):
        sampler = attrs.evolve(sampler, patch=1, covering="placed")
        assert torch.equal(sampler.sample(space, 5, draw()), Uniform().sample(space, 5, draw()))


@pytest.mark.parametrize(
    ("sampler", "complaint"),
    [
        (ConvStack(patch=4), "patches of odd size on a grid of 9×7, or one as large as the grid; got 4"),
        (ConvStack(patch=10, covering="placed"), "patches of odd size on a grid of 9×7; got 10"),
    ],
)
def test_conv_stack_refuses_even_patches(sampler, complaint):
    with pytest.raises(DataError, match=complaint):
        sampler.sample(GRID, 5, draw())


@pytest.mark.parametrize(("layers", "dilation"), [(1, 1), (3, 1), (5, 1), (2, 2)])
def test_the_window_has_the_variance_of_real_random_stacks(layers, dilation):
    """Weights from every input pixel to one unit behind L random convolutions of width 20."""
    stacks, side = 300, 2 * layers * dilation + 1
    generator = torch.Generator().manual_seed(layers)
    responses = []
    for _ in range(stacks):
        pixels = torch.zeros(20, 1, side, side, requires_grad=True)
        x = pixels
        for layer in range(layers):
            weights = torch.randn(20, 1 if layer == 0 else 20, 3, 3, generator=generator)
            x = torch.nn.functional.conv2d(x, weights / weights[0].numel() ** 0.5, dilation=dilation)
        # All 20 units of the last layer look at the same pixels; each is a draw of its own, and has its image.
        (gradient,) = torch.autograd.grad(x.flatten(1).diagonal().sum(), pixels)
        responses.append(gradient[:, 0])
    filters = torch.cat(responses)
    measured = filters.square().mean(dim=0).numpy()[::dilation, ::dilation]
    line = window(layers, 0.5) ** 2
    expected = np.outer(line, line)
    # Rim pixels have few paths and heavy tails; compare in proportion to the centre.
    np.testing.assert_allclose(
        measured / measured.sum(), expected / expected.sum(), atol=0.12 * expected.max() / expected.sum()
    )
    if layers > 1:
        assert np.corrcoef(measured.ravel(), expected.ravel())[0, 1] > 0.95


def stack_gradient(weights, channel, row, column, shape, dilation):
    """The gradient of one unit of a network that PyTorch computes, forwards and back."""
    image = torch.zeros(1, *shape, dtype=torch.float64, requires_grad=True)
    x = image
    for layer in weights:
        x = torch.nn.functional.conv2d(x, layer, padding=dilation, dilation=dilation)
    return torch.autograd.grad(x[0, channel, row, column], image)[0].flatten()


@pytest.mark.parametrize("shape", [(3, 7, 6), (1, 7, 6)])
@pytest.mark.parametrize("dilation", [1, 2])
@pytest.mark.parametrize("patch", [3, 7, 9])
def test_directions_of_networks_are_the_gradients_of_real_ones(shape, dilation, patch, monkeypatch):
    width, networks = 4, 3
    places = [(0, 0), (0, 5), (6, 0), (6, 5), (3, 2), (5, 4)]  # the corners first
    units = torch.tensor(
        [[((u + n) % width * 7 + r) * 6 + c for u, (r, c) in enumerate(places)] for n in range(3)]
    )
    monkeypatch.setattr("cswf_plugins.projections.conv_stack.distinct", lambda *_: units)
    sampler = ConvStack(patch=patch, dilation=dilation, width=width, units=6, covering="placed")
    theta = sampler.sample(Space(shape), 18, draw()).reshape(networks, 6, -1)
    again = draw()
    layers = [again.normal(networks, width, v, 3, 3) for v in (shape[0], *[width] * (patch // 2 - 1))]
    for n in range(networks):
        weights = [layer[n] for layer in layers]
        for u, (row, column) in enumerate(places):
            expected = stack_gradient(weights, (u + n) % width, row, column, shape, dilation)
            torch.testing.assert_close(theta[n, u], expected / expected.norm(), atol=1e-12, rtol=0)


@pytest.mark.parametrize(("layers", "dilation"), [(1, 1), (3, 1), (3, 2)])
@pytest.mark.parametrize(("row", "column"), [(0, 0), (1, 4)])
def test_networks_have_the_variance_of_paths_that_stay_on_the_grid(layers, dilation, row, column):
    """Where a corner cuts paths off on their way, a filter is weaker than the window of the direct way."""
    networks, width, side = 600, 20, 2 * layers + 1
    numbers = draw()
    weights = [numbers.normal(networks, width, v, 3, 3) for v in (1, *[width] * (layers - 1))]
    inside, paths = [], []
    for centre, length in ((row, 6), (column, 5)):
        places, on_grid = around(torch.tensor(centre), side, dilation, length)
        step = sum(torch.diag(torch.ones(length - abs(k)), k) for k in (-dilation, 0, dilation)).double()
        walks = torch.linalg.matrix_power(step, layers)[centre]  # of L steps that never leave the line
        inside.append(on_grid)
        paths.append(torch.where(on_grid, walks[places.clamp(0, length - 1)], 0))
    expected = torch.outer(*paths)
    window_inside = (inside[0][:, None] & inside[1]).expand(networks, width, side, side)
    filters = gradients(weights, torch.arange(width).expand(networks, width), window_inside)
    measured = filters.square().mean(dim=(0, 1, 2))
    assert torch.equal(measured != 0, expected != 0)
    measured, expected = measured / measured.sum(), expected / expected.sum()
    torch.testing.assert_close(measured, expected, atol=0.05 * float(expected.max()), rtol=0)


def test_units_of_a_network_are_different_and_uniform_in_every_order():
    numbers = distinct(60_000, 3, 5, draw())
    assert all(len(set(row)) == 3 for row in numbers.tolist())
    orders = torch.bincount(numbers @ torch.tensor([25, 5, 1]), minlength=125)
    orders = orders[orders > 0]
    assert len(orders) == 5 * 4 * 3
    assert float(((orders - 1000.0).square() / 1000).sum()) < 59 + 5 * (2 * 59) ** 0.5  # chi-squared
    assert torch.equal(distinct(20, 8, 8, draw()).sort(dim=1).values, torch.arange(8).expand(20, 8))


def test_the_last_network_gives_fewer_directions_and_a_network_is_drawn_at_once():
    sampler = ConvStack(patch=3, width=4, units=5)
    assert torch.equal(sampler.sample(GRID, 7, draw()), sampler.sample(GRID, 10, draw())[:7])
    assert (sampler.together(GRID), ConvStack().together(GRID)) == (5, 1)
    assert HighPass(of=sampler).together(GRID) == 5


def test_networks_too_small_for_their_units_and_parameters_of_the_other_way_are_refused():
    small = r"takes 10 units of each network, and one of width 2 has only 8 on a grid of 2×2"
    with pytest.raises(DataError, match=small):
        ConvStack(patch=3, width=2, covering="placed").sample(Space((1, 2, 2)), 5, draw())
    with pytest.raises(
        ValueError, match=r"power belongs to filters that are drawn directly, and width=20 draws"
    ):
        ConvStack(width=20, power=1)
    with pytest.raises(ValueError, match=r"units belongs to networks, which are drawn only with a width"):
        ConvStack(units=5)


def test_high_pass_takes_away_what_is_smooth():
    space = Space((3, 12, 12))
    plain = ConvStack(patch=7).sample(space, 500, draw()).reshape(500, 3, 144)
    rough = HighPass(of=ConvStack(patch=7), local=(0.8, 1.0), channel=(0.8, 1.0))
    changed = rough.sample(space, 500, draw()).theta.reshape(500, 3, 144)
    for smooth in (lambda t: t.sum(dim=(1, 2)), lambda t: t.mean(dim=1).norm(dim=1)):
        assert smooth(changed).abs().mean() < 0.5 * smooth(plain).abs().mean()
    nothing = HighPass(of=ConvStack(patch=7), local=(0.0, 0.0), channel=(0.0, 0.0))
    torch.testing.assert_close(nothing.sample(space, 500, draw()).theta.reshape(500, 3, 144), plain)


@pytest.mark.parametrize(
    "sampler", [HighPass(of=LocallyConnected()), Orthogonal(), DataCovariance(), ConvStack()]
)
def test_a_schedule_can_set_the_patch(sampler):
    changed = sampler.patched(5)
    assert (changed.of if isinstance(changed, HighPass) else changed).patch == 5


@pytest.mark.parametrize(("sampler", "dilation"), [(HighPass(of=Uniform()), 1), (Orthogonal(), 2)])
def test_a_sampler_without_patches_says_so_to_a_schedule_that_sets_them(sampler, dilation):
    complaint = (
        r"schedule asks for patches of 5×5.* has no parameter '(\w+)'.* give the class \w+ the line \1: int ="
    )
    with pytest.raises(DataError, match=complaint):
        sampler.patched(5, dilation)


@attrs.frozen
class Uneven(ProjectionSampler):
    """Axis i is drawn with probability in proportion to i + 1."""

    tempered = True

    def sample(self, space, count, draw):
        weight = torch.arange(1, space.dimension + 1).double()
        level = draw.uniform(count).double() * weight.sum()
        axis = torch.searchsorted(weight.cumsum(0), level, right=True)
        return torch.eye(space.dimension, dtype=draw.dtype)[axis]


def test_the_largest_eigenvalue_is_found():
    flow = small_flow(Dataset(x=draw().normal(8, 30), space=Space((8,))), projection=Uneven())
    directions = flow.setup.sampler(flow.stages[0])
    assert largest_eigenvalue(directions, Key(0, "gain")) == pytest.approx(8 / 36, rel=0.1)


def test_the_largest_eigenvalue_counts_the_upsampling():
    space = Space((1, 12, 12))
    schedule = Pyramid(entries=(Entry.from_text("(5×5) [3]"),), directions=50)
    flow = small_flow(noise_images(space), projection=ConvStack(), schedule=schedule)
    directions = flow.setup.sampler(flow.stages[0])
    theta = torch.cat(
        [t.scale * t.projection.dense() for i in range(300) for t in directions.batches(0, 0, i, check=False)]
    )
    full = directions.coordinates.upsampling.up(theta.T)
    torch.testing.assert_close(full.norm(dim=0), torch.ones(full.shape[1]).double())
    exact = float(torch.linalg.eigvalsh(full @ full.T / full.shape[1])[-1])
    assert largest_eigenvalue(directions, Key(0, "gain")) == pytest.approx(exact, rel=0.2)


def test_a_tempered_sampler_shortens_the_step_and_an_even_one_does_not():
    data = Dataset(x=draw().normal(8, 30), space=Space((8,)))
    schedule = Constant(steps=1, directions=1000, step_size=8.0)
    (state,) = list(small_flow(data, projection=Uneven(), schedule=schedule))
    assert state.eta == pytest.approx(36 / 8, rel=0.1)
    (state,) = list(small_flow(data, schedule=schedule))
    assert state.eta == 8.0
    assert longest_step(0.1, dimension=100, directions=10_000) == pytest.approx(10)
    assert longest_step(0.1, dimension=101, directions=50) == pytest.approx(0.5 * 10)  # of few directions


def test_high_pass_cannot_run_away_where_the_same_directions_untempered_do():
    @attrs.frozen(kw_only=True)
    class Untempered(HighPass):
        tempered = False

    space = Space((3, 8, 8))
    settings = {"schedule": Constant(steps=120, directions=300, step_size=1.6 * space.dimension), "count": 60}
    parameters = {"of": LocallyConnected(patch=5), "local": (0.8, 1.0), "channel": (0.8, 1.0)}
    with pytest.raises(RunError, match="the flow ran away"):
        small_flow(noise_images(space), projection=Untempered(**parameters), **settings).run()
    x = small_flow(noise_images(space), projection=HighPass(**parameters), **settings).run().x
    assert float(x.std()) < 0.7  # it began at 1 and is on its way to 0.3


@pytest.mark.parametrize("patch", [None, 3, 4, 20])
def test_orthogonal_directions_are_a_basis(patch):
    d = GRID.dimension
    theta = Orthogonal(patch=patch).sample(GRID, 2 * d + 5, draw())
    for block in (theta[:d], theta[d : 2 * d]):
        torch.testing.assert_close(block @ block.T, torch.eye(d).double())
    rest = theta[2 * d :]
    torch.testing.assert_close(rest @ rest.T, torch.eye(5).double())
    if patch in (3, 4):
        seen = theta.reshape(-1, *GRID.shape) != 0
        assert int(seen.any(dim=1).any(dim=2).sum(dim=1).max()) <= patch


def test_a_step_draws_whole_bases(monkeypatch):
    monkeypatch.setattr("cswf_core.flow.memory.DIRECTIONS_PER_BATCH", 1024)
    d = GRID.dimension
    flow = small_flow(noise_images(), projection=Orthogonal(), schedule=Constant(steps=1, directions=1500))
    tiles = [
        tile.projection.dense() for tile in flow.setup.sampler(flow.stages[0]).batches(0, 0, 0, check=True)
    ]
    assert [len(tile) for tile in tiles] == [9 * d, 1500 - 9 * d]  # nine bases are the first with 1,024 or more
    for first in range(0, 9 * d, d):
        block = tiles[0][first : first + d]
        torch.testing.assert_close(block @ block.T, torch.eye(d).double())


def test_orthogonal_matrices_are_uniform():
    q = rotations(20000, 3, draw())
    torch.testing.assert_close(q.mean(dim=0), torch.zeros(3, 3).double(), atol=0.02, rtol=0)
    torch.testing.assert_close(q.square().mean(dim=0), torch.full((3, 3), 1 / 3).double(), atol=0.02, rtol=0)
    assert float(q.square().square().mean()) == pytest.approx(1 / 5, abs=0.01)  # uniform on the sphere of ℝ³


@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("patch", [3, 9])
def test_filters_have_a_power_of_the_inverse_covariance(exponent, patch):
    space = Space((1, 9, 9))
    line = torch.linspace(0.2, 2, 81).double()
    mixed = Key(2, "mix").open(dtype=torch.float64).normal(81, 81) / 9 + torch.diag(line)
    z = mixed @ draw().normal(81, 4000)
    fitted = DataCovariance(patch=patch, exponent=exponent, ridge=1e-13).fitted(space, z)
    if patch == 9:
        sigma = torch.cov(z, correction=0)
    else:
        patches = torch.nn.functional.unfold(z.T.reshape(-1, 1, 9, 9), 3)  # n × 9 pixels × 49 places
        sigma = torch.cov(patches.transpose(0, 1).flatten(1), correction=0)
    values, vectors = torch.linalg.eigh(sigma)
    expected = vectors * values.pow(-exponent) @ vectors.T
    got = fitted.root @ fitted.root.T
    torch.testing.assert_close(got / got.trace(), expected / expected.trace(), rtol=1e-6, atol=1e-8)
    assert torch.isfinite(small_flow(Dataset(x=z, space=space), projection=fitted).run().x).all()


def test_filters_with_a_place_are_the_same_directions_as_their_matrix():
    """What samplers return on a GPU: the matrix is made only if somebody asks for it."""
    space, draw = Space((3, 9, 7)), Key(2, "filters").open()
    filters, row, column = draw.normal(20, 3, 5, 5), draw.integers(9, 20), draw.integers(7, 20)
    whole = PatchProjection(filters, space, 1, row, column)
    assert whole.shape == (20, space.dimension)
    assert "theta" not in vars(whole)
    theta = embed_at(filters, space, 1, row, column)
    assert torch.equal(whole.dense(), theta)
    x = draw.normal(space.dimension, 4)
    assert torch.equal(whole.project(x), theta @ x)
    parts = [PatchProjection(filters[cut], space, 1, row[cut], column[cut]) for cut in (slice(8), slice(8, 20))]
    together = joined(parts)
    assert isinstance(together, PatchProjection)
    assert torch.equal(together.dense(), theta)
    torch.testing.assert_close(joined([parts[0], theta[8:]]), theta)
    wider = PatchProjection(draw.normal(2, 3, 7, 7), space, 1, row[:2], column[:2])
    assert torch.equal(joined([whole, wider]), torch.cat([theta, wider.dense()]))


@attrs.frozen
class Told(Uniform):
    """Directions that know how long Y is, and show it: they look at the pixel with this number."""

    pixel: int = 0

    def conditioned(self, condition):
        return attrs.evolve(self, pixel=condition.dimension)

    def sample(self, space, count, draw):
        return torch.eye(space.dimension, dtype=draw.dtype)[self.pixel].expand(count, -1).contiguous()


@pytest.mark.parametrize(
    "outer",
    [lambda inner: inner, lambda inner: HighPass(of=inner, local=(0, 0)), lambda inner: MaxSliced(of=inner)],
)
def test_samplers_and_those_inside_them_are_told_the_length_of_y(outer):
    data = random_data(d=16, classes=3)
    data = attrs.evolve(data, space=Space((1, 4, 4)))
    flow = small_flow(data, projection=outer(Told()))
    drawn = next(flow.setup.sampler(flow.stages[0]).batches(0, 0, 0, check=True))
    assert drawn.projection.dense().abs().sum(dim=0).argmax() == 3


def test_pieces_of_the_data_tell_the_other_sampler_the_length_of_y():
    assert Exemplars(of=Told()).conditioned(Space((3,))).of.pixel == 3
