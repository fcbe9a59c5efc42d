"""Each sampler draws what its description says: filters of a structure, pieces of the data, bases."""

from __future__ import annotations

import math

import attrs
import numpy as np
import pytest
import torch
from torch import Tensor

from cswf_core.errors import DataError, RunError
from cswf_core.flow.stability import largest_eigenvalue, longest_step
from cswf_core.interfaces import Dataset, Draw, Key, PatchProjection, ProjectionSampler, Space
from cswf_core.kernels.patches import around
from cswf_plugins.conditions.none import NoCondition
from cswf_plugins.coordinates.whitened import Whitened
from cswf_plugins.datasets.digits import Digits
from cswf_plugins.projections.conv_stack import ConvStack, distinct, gradients
from cswf_plugins.projections.data_covariance import DataCovariance
from cswf_plugins.projections.exemplars import RIDGE, Exemplars, cut_out
from cswf_plugins.projections.high_pass import HighPass
from cswf_plugins.projections.locally_connected import LocallyConnected
from cswf_plugins.projections.low_rank import FAMILIES, LowRank, profiles
from cswf_plugins.projections.max_sliced import MaxSliced
from cswf_plugins.projections.orthogonal import Orthogonal, rotations
from cswf_plugins.projections.patches import counts, embed_at, inverse_root, joined, window
from cswf_plugins.projections.uniform import Uniform
from cswf_plugins.schedules.constant import Constant
from cswf_plugins.schedules.pyramid import Entry, Pyramid
from tests.conftest import random_data, small_flow
from tests.plugins.test_coordinates import smooth

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
    theta = LocallyConnected(patch=3).sample(Space((2, 12, 12)), 20000, draw())
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
        LowRank(patch=3, dilation=2),
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
        (
            ConvStack(patch=4),
            "'conv-stack' has patches of odd size on a grid of 9×7, or one as large .*; got 4",
        ),
        (ConvStack(patch=10, covering="placed"), "'conv-stack' has patches of odd size .* 9×7; got 10"),
        (LowRank(patch=2), "'low-rank' has patches of odd size on a grid of 9×7, or one as large .*; got 2"),
        (LowRank(patch=8), "'low-rank' has patches of odd size on a grid of 9×7, or one as large .*; got 8"),
    ],
)
def test_even_patches_that_do_not_cover_the_grid_are_refused(sampler, complaint):
    with pytest.raises(DataError, match=complaint):
        sampler.sample(GRID, 5, draw())


@pytest.mark.parametrize("layers", [1, 2, 5])
def test_the_window_is_the_root_of_the_number_of_paths(layers):
    side = 4 * layers + 1
    step = np.abs(np.subtract.outer(np.arange(side), np.arange(side))) <= 1
    paths = np.linalg.matrix_power(step.astype(float), layers)[2 * layers, layers : 3 * layers + 1]
    np.testing.assert_allclose(window(layers, 0.5) ** 2, paths / paths.max())


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
    networks, width, side = 300, 20, 2 * layers + 1
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
    for measure in (lambda t: t.sum(dim=(1, 2)), lambda t: t.mean(dim=1).norm(dim=1)):
        assert measure(changed).abs().mean() < 0.5 * measure(plain).abs().mean()
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
        [t.scale * t.projection.dense() for i in range(100) for t in directions.batches(0, 0, i, check=False)]
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

    space = Space((3, 6, 6))
    settings = {"schedule": Constant(steps=120, directions=200, step_size=1.6 * space.dimension), "count": 40}
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
    z = mixed @ draw().normal(81, 1000)
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


OBLONG = Space((3, 9, 7))


def only(family: str, **parameters) -> LowRank:
    """Filters of one family."""
    return LowRank(**{each: float(each == family) for each in FAMILIES}, **parameters)


def ranks(matrices: Tensor) -> set[int]:
    values = torch.linalg.svdvals(matrices)
    return set((values > 1e-9 * values[..., :1]).sum(dim=-1).flatten().tolist())


def moments(sampler: LowRank, space: Space, count: int) -> Tensor:
    theta = sampler.sample(space, count, draw())
    return theta.T @ theta / count


@pytest.mark.parametrize("patch", [5, 9])
@pytest.mark.parametrize("family", ["plane", "separable", "oriented"])
def test_filters_have_one_colour_each(family, patch):
    theta = only(family, patch=patch).sample(OBLONG, 50, draw()).reshape(50, 3, -1)
    assert ranks(theta) == {1}
    colours = torch.linalg.svd(theta)[0][:, :, 0]
    assert ranks(colours) == {3}  # and not all the same one


def test_dense_filters_have_all_colours_and_are_those_of_conv_stack_s_window():
    theta = only("dense", patch=5).sample(OBLONG, 50, draw())
    assert ranks(theta.reshape(50, 3, -1)) == {3}
    whole = only("dense", patch=9).sample(OBLONG, 50, draw())
    torch.testing.assert_close(whole, draw().sphere(50, OBLONG.dimension))


@pytest.mark.parametrize("patch", [5, 9])
@pytest.mark.parametrize("family", FAMILIES)
def test_only_separable_filters_are_rows_times_columns(family, patch):
    theta = only(family, patch=patch).sample(OBLONG, 50, draw()).reshape(150, 9, 7)
    assert (ranks(theta) == {1}) == (family == "separable")
    assert (min(ranks(theta)) >= 2) == (family != "separable")


@pytest.mark.parametrize("shape", [(9, 7), (8, 8), (1, 5), (1, 1)])
def test_flat_profiles_are_constant_across_their_angle_and_others_are_products(shape):
    height, width = shape
    planes = profiles(60, 40, height, width, draw())
    again = draw()
    angles = again.uniform(60, 1, 1) * math.pi
    reach = math.ceil(math.hypot(height - 1, width - 1) / 2)
    along, across = again.normal(60, 2 * reach + 2), again.normal(20, 2 * reach + 2)
    rows, columns = np.mgrid[:height, :width] - (np.array(shape)[:, None, None] - 1) / 2
    knots = np.arange(2 * reach + 2) - reach
    for number, (plane, angle) in enumerate(zip(planes, angles.flatten().tolist(), strict=True)):
        expected = np.interp(math.cos(angle) * rows + math.sin(angle) * columns, knots, along[number])
        if number >= 40:
            other = np.interp(math.cos(angle) * columns - math.sin(angle) * rows, knots, across[number - 40])
            expected = expected * other
        np.testing.assert_allclose(plane, expected, atol=1e-12)


@pytest.mark.parametrize("flat", [0.0, 0.25, 1.0])
def test_a_share_of_the_oriented_filters_is_flat(flat):
    """On a grid, those that depend on the distance along the angle alone: pixels at right angles are alike."""
    theta = only("oriented", patch=9, flat=flat).sample(Space((1, 9, 9)), 40, draw()).reshape(40, 9, 9)
    again = draw()
    angles = (again.uniform(40, 1, 1) * math.pi).flatten()
    rows, columns = (each - 4 for each in torch.meshgrid(torch.arange(9), torch.arange(9), indexing="ij"))
    found = 0
    for plane, angle in zip(theta, angles, strict=True):
        order = (angle.cos() * rows + angle.sin() * columns).flatten().argsort()
        found += bool(plane.flatten()[order].diff().abs().mean() < 0.5 * plane.std())  # a line without jumps
    assert found == flat * 40


def test_patches_fade_out_through_the_window_and_lie_anywhere():
    space = Space((1, 15, 15))
    theta = only("plane", patch=5, power=1.0).sample(space, 40_000, draw()).reshape(-1, 15, 15)
    seen = theta != 0
    rows, columns = seen.any(dim=2).sum(dim=1), seen.any(dim=1).sum(dim=1)
    assert set(rows.tolist()) == set(columns.tolist()) == {3, 4, 5}
    assert float((rows == 5).double().mean()) == pytest.approx(11 / 15, abs=0.02)
    inside = theta[(rows == 5) & (columns == 5)]
    sizes = inside[inside != 0].reshape(-1, 5, 5).abs().log().mean(dim=0)  # all shifted alike by unit length
    line = torch.from_numpy(window(2, 1.0))
    torch.testing.assert_close((sizes - sizes[2, 2]).exp(), line[:, None] * line, atol=0.02, rtol=0)


@pytest.mark.parametrize("total", [0, 1, 7, 1000])
@pytest.mark.parametrize(
    "shares", [(0.3, 0.25, 0.2, 0.25), (1.0, 0.0, 0.0, 0.0), (0.0, 0.0, 5.0), (1, 1, 1), (0.0, 0.0), (0.1,) * 9]
)
def test_counts_add_up_and_are_in_proportion(shares, total):
    parts = counts(shares, total)
    whole = sum(shares)
    if not whole:
        assert parts == [0] * len(shares)
        return
    assert sum(parts) == total
    for share, part in zip(shares, parts, strict=True):
        assert abs(part - total * share / whole) <= 1
        assert part >= 0
        assert share or not part


def test_shares_are_of_their_sum_and_families_come_one_after_the_other():
    mixed = LowRank(patch=9, plane=2.0, separable=4.0, oriented=0.0, dense=2.0)
    theta = mixed.sample(OBLONG, 80, draw()).reshape(80, 3, 63)
    assert ranks(theta[:60]) == {1}
    assert ranks(theta[60:]) == {3}
    assert ranks(theta[20:60].reshape(-1, 9, 7)) == {1}
    assert min(ranks(theta[:20].reshape(-1, 9, 7))) > 1
    with pytest.raises(ValueError, match="one of plane, separable, oriented, dense must be above 0"):
        LowRank(plane=0.0, separable=0.0, oriented=0.0, dense=0.0)


@pytest.mark.parametrize("absent", [None, *FAMILIES])
@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 1, 1), (1, 2, 2), (2, 1, 6), (1, 5, 3), (3, 9, 7)], ids=str)
def test_directions_have_unit_length_on_any_grid_with_any_share_left_out(shape, absent):
    space = Space(shape)
    for patch, count, dtype in ((1, 2, torch.float64), (3, 1, torch.float32), (10, 50, torch.float32)):
        theta = LowRank(patch=patch, **{absent: 0.0} if absent else {}).sample(space, count, draw(dtype=dtype))
        assert (theta.shape, theta.dtype) == ((count, space.dimension), dtype)
        torch.testing.assert_close(theta.norm(dim=1), torch.ones(count, dtype=dtype))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("space", [Space((1, 1, 1)), Space((1, 4, 4))], ids=str)
def test_a_single_pixel_has_a_direction_even_if_a_random_number_is_0(space, family, monkeypatch):
    """In float32 one of 2²⁴ is."""
    real = Draw.normal

    def with_zeros(self: Draw, *shape: int) -> Tensor:
        numbers = real(self, *shape)
        numbers.view(-1)[: numbers.numel() // 2] = 0
        return numbers

    monkeypatch.setattr(Draw, "normal", with_zeros)
    theta = only(family, patch=1).sample(space, 40, draw())
    torch.testing.assert_close(theta.norm(dim=1), torch.ones(40).double())


@pytest.mark.parametrize(
    ("space", "patch"), [(Space((3, 7, 7)), 7), (Space((1, 8, 8)), 5), (Space((1, 6, 9)), 3)]
)
def test_no_direction_is_drawn_more_than_twice_as_often_as_others(space, patch):
    d = space.dimension
    second = moments(LowRank(patch=patch), space, 150 * d)
    assert float(second.trace()) == pytest.approx(1)
    values = torch.linalg.eigvalsh(second) * d
    assert float(values[-1]) < 2.1
    assert float(values[0]) > 0.3


@pytest.mark.parametrize("family", FAMILIES)
def test_colours_and_signs_have_no_preference(family):
    space = Space((3, 3, 3))
    theta = only(family, patch=3).sample(space, 20_000, draw())
    second = (theta.T @ theta / 20_000).reshape(3, 9, 3, 9)
    colours = second.diagonal(dim1=1, dim2=3).sum(dim=2)
    torch.testing.assert_close(colours, torch.eye(3).double() / 3, atol=0.01, rtol=0)
    assert float(theta.mean(dim=0).abs().max()) < 0.01


GREY, COLOUR = Space((1, 8, 8)), Space((3, 6, 7))


@pytest.fixture(autouse=True)
def few_pieces(monkeypatch):
    """The covariance of fewer pieces is good enough, and quick."""
    monkeypatch.setattr("cswf_plugins.projections.exemplars.MOST_CUT", 5000)


@attrs.frozen(kw_only=True)
class Marked(ProjectionSampler):
    """Always the last axis, in a patch that it does not need."""

    patch: int = 1
    dilation: int = 1

    def sample(self, space: Space, count: int, draw: Draw) -> Tensor:
        return torch.eye(space.dimension, dtype=draw.dtype)[-1:].expand(count, -1)

    def together(self, space: Space) -> int:
        return 5


def exemplars(space: Space = COLOUR, x: Tensor | None = None, **parameters) -> ProjectionSampler:
    parameters = {"of": Marked(), "patch": 3, **parameters}
    return Exemplars(**parameters).fitted(space, smooth(space, 300) if x is None else x)


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("patch", [1, 3, 5, 7])
def test_a_share_of_the_filters_is_of_the_data_and_all_have_unit_length(patch, share):
    theta = exemplars(patch=patch, share=share).sample(COLOUR, 40, draw())
    assert theta.shape == (40, COLOUR.dimension)
    torch.testing.assert_close(theta.norm(dim=1), torch.ones(40).double())
    others = (theta[:, -1] == 1) & (theta[:, :-1] == 0).all(dim=1)
    assert others.tolist() == [False] * round(share * 40) + [True] * (40 - round(share * 40))


@pytest.mark.parametrize("dilation", [1, 2])
def test_pieces_are_cut_out_of_samples_inside_the_grid(dilation):
    space = Space((2, 7, 6))
    z = torch.arange(space.dimension * 5).double().reshape(5, -1).T.contiguous()  # every number once
    cut = cut_out(3000, z, space, 3, dilation, draw()).reshape(3000, 2, 3, 3)
    first = cut[:, :1, :1, :1]
    row, column, channel = (torch.arange(n).double() for n in (3, 3, 2))
    steps = channel[:, None, None] * 42 + dilation * (row[:, None] * 6 + column)
    torch.testing.assert_close(cut - first, steps.expand(3000, -1, -1, -1))
    corner = first.flatten().long()
    rows, columns = 7 - 2 * dilation, 6 - 2 * dilation
    wanted = {s * 84 + r * 6 + c for s in range(5) for r in range(rows) for c in range(columns)}
    assert set(corner.tolist()) == wanted  # all places of all samples, and no other


def test_filters_are_pieces_without_their_mean_times_the_inverse_root_of_their_covariance():
    space = Space((1, 4, 4))
    x = smooth(space, 30)
    theta = exemplars(space, x, patch=4, share=1.0).sample(space, 4000, draw())
    evened = (x.T - x.mean(dim=1)) @ inverse_root(x.T, 1.0, RIDGE)
    alike, which = (theta @ (evened / evened.norm(dim=1, keepdim=True)).T).max(dim=1)
    assert float(alike.min()) > 0.99  # each is one of the 30 samples
    squares = evened.square().sum(dim=1)
    often = torch.bincount(which, minlength=30) / 4000
    torch.testing.assert_close(often.double(), squares / squares.sum(), atol=0.012, rtol=0)
    assert float(squares.max() / squares.min()) > 2


@pytest.mark.parametrize("blank", [0, 3])
@pytest.mark.parametrize(("space", "patch"), [(GREY, 3), (GREY, 5), (GREY, 8), (COLOUR, 3)])
def test_no_direction_is_drawn_much_more_often_than_others(space, patch, blank):
    """Not where most pieces are blank either, as they are at the border of digits."""
    x = smooth(space, 3000)
    x.view(*space.shape, -1)[:, :blank] = -1
    theta = exemplars(space, x, patch=patch, share=1.0).sample(space, 20_000, draw())
    second = theta.T @ theta / 20_000
    assert float(second.trace()) == pytest.approx(1)
    assert float(torch.linalg.eigvalsh(second)[-1]) * space.dimension < 1.8
    uneven = torch.linalg.eigvalsh(torch.cov(x))
    assert float(uneven[-1] / uneven.sum()) * space.dimension > 5  # the data themselves are far from even


@pytest.mark.parametrize("count", [5, 20, 60])
def test_pieces_of_fewer_samples_than_dimensions_do_not_make_directions_uneven(count):
    """A step of η = d stays below 2/λ: with half of the filters along 5 of 64 axes, it would be 7/λ."""
    sampler = exemplars(GREY, smooth(GREY, count), patch=8, of=Uniform())
    theta = sampler.sample(GREY, 20_000, draw())
    assert float(torch.linalg.eigvalsh(theta.T @ theta / len(theta))[-1]) * 64 < 2
    enough = exemplars(GREY, smooth(GREY, 64), patch=8)
    assert float((enough.sample(GREY, 1000, draw()) == torch.eye(64)[-1]).all(dim=1).double().mean()) == 0.5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("patch", [3, 8])
@pytest.mark.parametrize(("value", "blank"), [(0.0, 8), (-1.0, 8), (-1.0, 3)])
def test_pixels_that_never_change_give_directions_too(value, blank, patch, dtype):
    """All of them, or some, as at the border of digits: most pieces there are nothing but the mean."""
    x = smooth(GREY, 200).reshape(8, 8, -1)
    x[:blank] = value
    x = x.reshape(64, -1).to(dtype)
    theta = exemplars(GREY, x, patch=patch, share=1.0).sample(GREY, 1000, draw(dtype=dtype))
    torch.testing.assert_close(theta.norm(dim=1), torch.ones(1000, dtype=dtype))


def test_the_data_have_to_be_seen_first():
    with pytest.raises(DataError, match=r"projection 'exemplars' needs to see the data first"):
        Exemplars(of=Uniform()).sample(GREY, 5, draw())


@pytest.mark.parametrize(
    ("space", "patch", "dilation"),
    [(GREY, 2, 1), (GREY, 4, 1), (GREY, 5, 2), (Space((1, 4, 9)), 5, 1), (Space((1, 9, 4)), 8, 1)],
)
def test_pieces_that_do_not_fit_are_refused(space, patch, dilation):
    complaint = rf"odd size that fit into a grid of {space.shape[1]}×{space.shape[2]}, or one as large"
    with pytest.raises(DataError, match=rf"{complaint} as the grid; got {patch}, {dilation} apart"):
        exemplars(space, patch=patch, dilation=dilation)


def test_the_other_sampler_gets_the_patch_the_data_the_length_of_y_and_its_say():
    assert Exemplars(of=Told()).conditioned(Space((3,))).of.pixel == 3
    patched = Exemplars(of=ConvStack(), patch=7).patched(3, 2)
    assert (patched.patch, patched.dilation, patched.of.patch, patched.of.dilation) == (3, 2, 3, 2)
    assert exemplars().together(COLOUR) == 5
    assert Exemplars(of=HighPass(of=ConvStack())).tempered
    assert exemplars(of=HighPass(of=ConvStack(patch=3))).tempered
    assert not exemplars().tempered
    inner = exemplars(of=DataCovariance(patch=3)).of
    torch.testing.assert_close(inner.sample(COLOUR, 5, draw()).norm(dim=1), torch.ones(5).double())
    with pytest.raises(DataError, match="schedule asks for patches of 3×3"):
        Exemplars(of=Uniform()).patched(3)


@pytest.mark.parametrize("coordinates", [None, Whitened()], ids=["plain", "whitened"])
def test_a_flow_along_pieces_of_the_data_gets_nearer_in_a_pyramid_and_without(coordinates):
    pyramid = Pyramid(
        entries=tuple(map(Entry.from_text, ("(4×4) [4, 3]", "(8×8) [8, 3]"))), steps=6, directions=100
    )
    for schedule, start, factor in ((pyramid, 12, 0.5), (Constant(steps=10, directions=100), 0, 0.7)):
        states = list(
            small_flow(
                Digits(classes=(0, 1)).load(draw()),
                condition=NoCondition(),
                projection=Exemplars(of=LowRank(patch=3), share=0.5, patch=3),
                schedule=schedule,
                coordinates=coordinates,
                count=100,
            )
        )
        assert states[-1].distance < factor * states[start].distance
