"""The Triton kernels do what plain PyTorch does: in Triton's interpreter, or on a GPU where there is one."""

from __future__ import annotations

import math
import os

import attrs
import pytest
import torch

from tests.kernels.interpreted import DEVICE
from tests.processes import PYTHON, completed

from cswf_core.kernels import philox, sparse  # isort: skip
from cswf_core.interfaces import Key, PatchProjection, Space
from cswf_core.kernels import histogram as plain
from cswf_core.kernels.gpu import boxes, following, histogram, knots, products
from cswf_core.kernels.gpu.philox import drawn
from cswf_core.kernels.knots import displaced, lines
from cswf_core.kernels.rows import Rows
from cswf_core.kernels.sparse import BOX_WIDTH, LOW_TILE, TILE, WIDEST_TILE, Strips

pytestmark = pytest.mark.interpreter

H, M, N, BINS = 3, 700, 1100, 64


def sample(H: int, n: int, seed: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    draw = torch.Generator().manual_seed(seed)
    return (torch.randn(H, n, generator=draw) * (1 + seed) + seed).to(DEVICE, dtype)


def rows(seed: int, n: int, form: str, dtype: torch.dtype) -> Rows:
    """Rows with nothing added, with the offsets of groups, with noise, or with both."""
    values = sample(H, n, seed, dtype)
    low, high = values.float().amin(dim=1), values.float().amax(dim=1)
    offsets = groups = noise = None
    if "groups" in form:
        offsets, groups = sample(H, 3, 7), torch.arange(n, device=DEVICE).remainder(3).to(torch.uint8)
        low, high = low + offsets.amin(dim=1), high + offsets.amax(dim=1)
    if "noise" in form:
        noise = torch.linspace(0, 0.5, H, device=DEVICE)
        low, high = low - noise / 2, high + noise / 2
    return Rows(values, low, high, offsets, groups, noise)


FORMS = ["plain", "groups", "noise", "groups and noise"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("form", FORMS)
def test_counts_are_the_same_whole_numbers(form, dtype):
    given = rows(1, N, form, dtype)
    wanted = plain.counted(on_cpu(given), BINS)
    got = histogram.counted(given, BINS).cpu()
    assert got.dtype == wanted.dtype == torch.int32
    # A value on an edge, to the last bit of a product, may be on either side of it.
    assert (got - wanted).abs().max() <= (0 if DEVICE.type == "cpu" else 1)
    assert torch.equal(got[:, -1], torch.full((H,), N, dtype=torch.int32))


def on_cpu(given: Rows) -> Rows:
    fields = (given.values, given.low, given.high, given.offsets, given.groups, given.noise)
    return Rows(*(None if field is None else field.cpu() for field in fields))


def counts(p: Rows, q: Rows, bins: int = BINS) -> list[plain.Counted]:
    half = p.values.dtype == torch.float16
    return [plain.Counted(histogram.counted(r, bins), r.values.shape[1], r.low, r.high, half) for r in (p, q)]


def composed_plainly(p: plain.Counted, q: plain.Counted, tail: float) -> torch.Tensor:
    there = [plain.Counted(c.below.cpu(), c.count, c.low.cpu(), c.high.cpu()) for c in (p, q)]
    return plain.composed(*there, tail)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float16, 1e-2)])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("tail", [pytest.param(0.0, marks=pytest.mark.slow), 0.1])
def test_transport_is_the_same_to_rounding_and_in_one_go_to_the_bit(form, dtype, tolerance, tail):
    p, q = rows(0, M, form, dtype), rows(1, N, form, dtype)
    mine, data = counts(p, q)
    out = torch.empty_like(p.values)
    squares = histogram.looked_up(p, histogram.composed(mine, data, tail), out)
    delta, sums = plain.looked_up(on_cpu(p), composed_plainly(mine, data, tail))
    torch.testing.assert_close(out.cpu().float(), delta.float(), atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(squares.cpu(), sums, atol=0, rtol=max(tolerance, 1e-4))
    assert torch.equal(histogram.displaced(p, data, tail), squares)
    assert torch.equal(p.values, out)


@pytest.mark.parametrize("bins", [2, 512, 4096])
def test_any_number_of_bins_is_looked_up_in_one_go_to_the_bit(bins):
    p, q = rows(0, M, "plain", torch.float16), rows(1, N, "plain", torch.float16)
    p.values[:, 0] = p.high.half() + 1  # beyond the last edge
    mine, data = counts(p, q, bins)
    table, out = histogram.composed(mine, data, 0.1), torch.empty_like(p.values)
    squares = histogram.looked_up(p, table, out)
    wanted = composed_plainly(mine, data, 0.1)
    torch.testing.assert_close(table.cpu().float(), wanted, atol=1e-2, rtol=1e-2)
    assert torch.equal(histogram.displaced(p, data, 0.1), squares)
    assert torch.equal(p.values, out)


@pytest.mark.parametrize(
    ("dtype", "tolerance", "tail"),
    [(torch.float32, 1e-4, 0.1), (torch.float16, 3e-2, 0.0), (torch.float16, 3e-2, 0.1)],
)
def test_values_that_are_the_datas_stay_in_place_whatever_lies_far_from_them(dtype, tolerance, tail):
    values = sample(H, M, 0, dtype)
    values[:, 0], values[:, 1] = 20, -31
    p, q = Rows.of(values), Rows.of(values.repeat(1, 3))
    histogram.displaced(p, counts(p, q)[1], tail)
    assert float(p.values.abs().max()) < tolerance


@pytest.mark.parametrize(("M", "N", "tail"), [(1, 1, 0.1), (8, 5, 0.0), (8, 5, 0.1), (20, 61, 0.0)])
def test_jumps_are_those_of_the_cpu_where_most_bins_are_empty(M, N, tail):
    p, q = (Rows.of((sample(4, n, 0) ** 3).round()) for n in (M, N))
    mine, data = counts(p, q, 32)
    wanted = composed_plainly(mine, data, tail)
    torch.testing.assert_close(histogram.composed(mine, data, tail).cpu(), wanted, atol=1e-4, rtol=1e-4)
    low, high = mine.low.cpu()[:, None], mine.high.cpu()[:, None]
    edges = torch.linspace(0, 1, 33) * (high - low) + low
    T = torch.stack([wanted[:, :-1, 0] + edges[:, :-1], wanted[:, :-1, 1] + edges[:, 1:]], dim=2).flatten(1)
    assert (T.diff(dim=1) >= -1e-4).all()


@pytest.mark.parametrize("share", [1e-6, 0.1])
def test_tails_are_finite_where_ends_are_wider_than_the_values(share):
    """As on CUDA with labels, whose ends are those of all offsets: the outermost bins are empty."""
    p, q = (Rows.of(Key(i, "wide").open().normal(3, 50).to(DEVICE)) for i in (1, 2))
    p.values[:, :20] = p.values[:, :1]  # and one bin has more than a tail
    p, q = (Rows(r.values, r.low - 3, r.high + 2) for r in (p, q))
    mine, data = counts(p, q)
    table = histogram.composed(mine, data, share)
    assert float(table.abs().max()) < 10
    torch.testing.assert_close(table.cpu(), composed_plainly(mine, data, share), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("values", [torch.ones(2, 40), torch.tensor([[3.0], [-1.0]])])
def test_rows_without_a_width_have_one_bin(values):
    given = Rows.of(values.to(DEVICE))
    below = histogram.counted(given, 8).cpu()
    assert torch.equal(below, plain.counted(Rows.of(values), 8))
    data = plain.Counted(below.to(DEVICE), values.shape[1], given.low, given.high)
    histogram.displaced(given, data)
    assert float(given.values.abs().max()) == 0


@pytest.mark.parametrize(
    ("kind", "make", "dtype", "tolerance"),
    [
        ("uniform", philox.uniforms, torch.float32, 0.0),
        ("normal", philox.normals, torch.float32, 1e-5),
        ("uniform64", philox.uniforms, torch.float64, 0.0),
    ],
)
def test_random_numbers_are_the_same(kind, make, dtype, tolerance):
    bits = 0xF234567812345678, 0xDEADBEEF12345678
    wanted = make(philox.words(*bits, 5, 700, torch.device("cpu")), dtype)
    like = torch.empty(0, dtype=dtype, device=DEVICE)
    got = drawn(kind, bits, 5, 700, like, None)
    torch.testing.assert_close(got.cpu(), wanted, atol=tolerance, rtol=0)
    signed = torch.tensor([half - 2**64 for half in bits], device=DEVICE)
    assert torch.equal(drawn(kind, (0, 0), 5, 700, like, signed), got)


def local_directions(H: int, shape: tuple[int, int, int]) -> torch.Tensor:
    channels, height, width = shape
    draw = torch.Generator().manual_seed(3)
    theta = torch.zeros(H, *shape)
    for h in range(H):
        row, column = (int(torch.randint(size - 1, (), generator=draw)) for size in (height, width))
        theta[h, :, row : row + 2, column : column + 2] = torch.randn(channels, 2, 2, generator=draw)
    return theta.view(H, -1)


SHAPE = (3, 8, 8)


@pytest.fixture(scope="module")
def problem():
    """Directions that look at 2×2 pixels, as float32 and as boxes in half precision, and samples."""
    H, n = 150, 300  # two tiles of columns, of both kinds
    theta, scale = local_directions(H, SHAPE), torch.rand(H, 1) + 0.5
    where = Strips.of(SHAPE, H, 2, DEVICE)
    directions = arranged(boxes.DrawnDirections.of_matrix(theta.to(DEVICE), scale.to(DEVICE)), where)
    x = torch.randn(192, n, generator=torch.Generator().manual_seed(5))
    return theta * scale, where, directions, x


def arranged(source, where):
    return boxes.packed(source, boxes.sorting(source, where), where)


def unpacked(side, columns: int) -> torch.Tensor:
    """The matrix that boxes stand for, filled up to whole tiles; every number in one box only."""
    tiles, depth = side.starts.shape
    values = side.values.cpu().view(tiles, depth, side.rows, BOX_WIDTH)
    whole = torch.zeros(tiles * side.rows, columns + BOX_WIDTH, dtype=torch.float16)
    for tile in range(tiles):
        end = 0
        for number in range(int(side.lengths[tile])):
            start = int(side.starts[tile, number])
            assert start >= end
            end = start + BOX_WIDTH
            whole[tile * side.rows : (tile + 1) * side.rows, start:end] = values[tile, number]
        assert int(side.starts[tile, int(side.lengths[tile])]) == 0
    assert float(whole[:, columns:].abs().max()) == 0
    return whole[:, :columns]


def assert_packed(directions, theta, where):
    """Both sides hold the same directions, sorted by where they look, and nothing else."""
    H, d = theta.shape
    order = directions.order.cpu()
    assert sorted(order.tolist()) == list(range(H))
    across, along = unpacked(directions.across, d), unpacked(directions.along, H)
    assert torch.equal(across[:H], theta[order][:, where.order.cpu()].half())
    assert torch.equal(along[:d], theta[order][:, where.along.cpu()].T.half())
    assert float(across[H:].abs().sum()) == float(along[d:].abs().sum()) == 0


def test_directions_are_sorted_and_packed_into_boxes(problem):
    theta, where, directions, _ = problem
    assert_packed(directions, theta, where)
    position = where.position.cpu()
    seen = (theta != 0).float()
    middle = (seen @ position / seen.sum(dim=1, keepdim=True) + 0.5).long()
    key = where.rank.cpu()[middle[:, 0] * where.width + middle[:, 1]]
    assert torch.equal(directions.order.cpu(), key.argsort(stable=True))
    assert directions.share() < 1
    assert 0 < directions.back_flops(10) < 2 * 10 * 256 * 256


@pytest.mark.parametrize(("H", "d"), [(150, 192), (70, 20), (3, 5)])
def test_directions_that_see_everything_are_boxes_side_by_side(H, d):
    theta, where = torch.randn(H, d), Strips.unsorted(d, DEVICE)
    directions = arranged(boxes.DrawnDirections.of_matrix(theta.to(DEVICE), None), where)
    assert_packed(directions, theta, where)
    assert torch.equal(directions.order.cpu(), torch.arange(H))
    assert directions.share() == 1


@pytest.mark.parametrize(("side", "dilation", "H"), [(3, 2, 140), (4, 1, 30), (11, 1, 30)])
def test_filters_are_packed_as_their_dense_matrix_is(side, dilation, H):
    """With the same order, the same boxes, and the same numbers but for the last digit."""
    draw = Key(6, "filters").open()
    filters, scale = draw.normal(H, 3, side, side), draw.uniform(H, 1) + 0.5
    row, column = draw.integers(8, H), draw.integers(8, H)
    projection = PatchProjection(filters.to(DEVICE), Space(SHAPE), dilation, row.to(DEVICE), column.to(DEVICE))
    where = Strips.of(SHAPE, H, side, DEVICE)
    dense = arranged(boxes.DrawnDirections.of_matrix(projection.dense(), scale.to(DEVICE)), where)
    place = (projection.row, projection.column, dilation, SHAPE)
    patches = arranged(boxes.DrawnDirections.of_filters(projection.filters, *place, scale.to(DEVICE)), where)
    assert torch.equal(dense.order, patches.order)
    for one, other in ((dense.across, patches.across), (dense.along, patches.along)):
        assert torch.equal(one.lengths, other.lengths)
        columns = 192 if one is dense.across else H
        torch.testing.assert_close(unpacked(one, columns), unpacked(other, columns), atol=0, rtol=2e-3)
    unscaled = boxes.DrawnDirections.of_filters(projection.filters, *place, None)
    lengths = unpacked(boxes.packed(unscaled, patches.order, where).across, 192)
    torch.testing.assert_close(lengths[:H].float().norm(dim=1), torch.ones(H), atol=2e-3, rtol=0)


def test_boxes_may_be_written_over(problem):
    theta, where, _, _ = problem
    source = boxes.DrawnDirections.of_matrix(theta.flip(0).contiguous().to(DEVICE), None)
    mine = boxes.packed(source, boxes.sorting(source, where), where)
    assert_packed(boxes.packed(source, mine.order, where, mine), theta.flip(0), where)
    again = boxes.packed(source, mine.order, where, mine)
    assert again.across.values is mine.across.values
    part = boxes.packed(source, mine.order[:60], where, mine)  # of other sizes: it has memory of its own
    assert torch.equal(
        unpacked(part.across, 192)[:60], theta.flip(0)[mine.order[:60].cpu()][:, where.order.cpu()].half()
    )


def halved(x, where, plus=None):
    d, n = x.shape
    out = torch.full(
        (sparse.padded(d), sparse.padded(n, WIDEST_TILE)), math.nan, dtype=torch.half, device=DEVICE
    )
    products.halve(x.to(DEVICE), where, out, None if plus is None else plus.to(DEVICE))
    return out


def test_samples_are_halved_in_their_order_and_filled_up(problem):
    _, where, _, x = problem
    out = halved(x, where).cpu()
    n = x.shape[1]
    assert torch.equal(out[:192, :n], x[where.order.cpu()].half())
    assert float(out[192:].abs().max()) == 0
    assert torch.equal(out[:, n:], out[:, n - 1 : n].expand(-1, out.shape[1] - n))
    y = x.flip(1).contiguous()
    assert torch.equal(halved(x, where, y).cpu(), halved(x + y, where).cpu())


@pytest.mark.parametrize("rows", [(TILE, TILE), (TILE, LOW_TILE)], ids=str)
def test_products_agree_with_dense_ones(rows, problem):
    theta, where, _, x = problem
    where = attrs.evolve(where, rows=rows)
    directions = arranged(boxes.DrawnDirections.of_matrix(theta.to(DEVICE), None), where)
    assert (directions.across.rows, directions.along.rows) == rows
    H, n = 150, 300
    values = torch.full(
        (sparse.padded(H), sparse.padded(n, WIDEST_TILE)), math.nan, dtype=torch.half, device=DEVICE
    )
    low, high = products.project(directions, halved(x, where), values)
    order = directions.order.cpu()
    wanted = (theta @ x)[order]
    torch.testing.assert_close(values[:H, :n].cpu().float(), wanted, atol=0.02, rtol=0)
    assert torch.equal(low, values[:H, :n].float().amin(dim=1))
    assert torch.equal(high, values[:H, :n].float().amax(dim=1))

    update = torch.full((sparse.padded(192), values.shape[1]), float("nan"), device=DEVICE)
    products.back_project(directions, values, update, add=False)
    expected = theta[order].T @ values[:H, :n].cpu().float()
    torch.testing.assert_close(update[:192, :n].cpu(), expected[where.along.cpu()], atol=0.1, rtol=1e-2)
    once = update.clone()
    products.back_project(directions, values, update, add=True)
    torch.testing.assert_close(update[:192, :n], 2 * once[:192, :n])

    factor, back = torch.tensor([0.5], device=DEVICE), where.along.argsort()
    for plus, times in ((None, 0.5), (once, 1.0)):
        moved, half = x.to(DEVICE).clone(), torch.empty(update.shape, dtype=torch.float16, device=DEVICE)
        products.move(directions, values, plus, moved, factor, where, half)
        torch.testing.assert_close(moved, x.to(DEVICE) + times * once[:192, :n][back])
        assert torch.equal(half[:192, :n], moved[where.order].half())
        assert float(half[192:].abs().max()) == 0
        assert torch.equal(half[:, n:], half[:, n - 1 : n].expand(-1, half.shape[1] - n))
        unhalved = x.to(DEVICE).clone()
        products.move(directions, values, plus, unhalved, factor, where, None)
        assert torch.equal(unhalved, moved)


@pytest.mark.parametrize("labels", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_maps_by_knots_are_those_of_plain_pytorch(labels, dtype):
    S, H, n, K = 3 if labels else 1, 5, 700, 13
    p = sample(H, n, 1, dtype)
    centre, delta = sample(S, H, 2), torch.stack([sample(H, K, 4 + i) for i in range(S)])
    reach = 0.2 + torch.stack([sample(H, 2, 9 + i).abs() for i in range(S)])
    reach[0, 0] = 2.0**-32
    cells = (torch.arange(n, device=DEVICE) % S).to(torch.uint8) if labels else None
    rows = Rows.of(p.float())
    rows = attrs.evolve(rows, values=p, offsets=sample(H, S, 3) if labels else None, groups=cells)
    wanted = attrs.evolve(rows, values=p.clone())
    squares = knots.displaced(rows, centre, reach, delta, cells)
    expected = displaced(wanted, centre, reach, lines(centre, reach, delta), cells)
    torch.testing.assert_close(rows.values, wanted.values, atol=2e-3, rtol=2e-3)
    torch.testing.assert_close(squares, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("channels", "side", "placed"),
    [(3, 1, True), (3, 16, False), (1, 75, True), (2, 144, True), (2, 144, False)],
)
def test_particles_that_follow_a_sum_of_updates_are_those_of_plain_products(channels, side, placed):
    d, n = channels * side, 200
    G = torch.stack([sample(side, side, i) for i in range(channels)]) / side
    total, z = sample(d, n, 3) / 4, sample(d, n, 1)
    rank = torch.randperm(d, generator=torch.Generator().manual_seed(1)).to(DEVICE) if placed else None
    half = torch.zeros(sparse.padded(d), 256, dtype=torch.float16, device=DEVICE)
    following.follow(G, total, z, rank, half)
    wanted = z + torch.cat([g @ s for g, s in zip(G, total.view(channels, side, n), strict=True)])
    found = half if rank is None else half[rank]
    torch.testing.assert_close(found[:d, :n].float(), wanted, atol=0.02, rtol=0.01)
    assert float(half[:, n:].abs().max()) == float(half[d:].abs().sum()) == 0


@pytest.mark.compile
@pytest.mark.skipif(torch.cuda.is_available(), reason="they are compiled for this GPU anyway")
@pytest.mark.parametrize(
    ("capability", "forms"),
    [("90", "fullest"), *[pytest.param(card, "every", marks=pytest.mark.slow) for card in ("80", "90", "120")]],
)
def test_every_kernel_compiles_for_cards_that_are_not_here(capability, forms):
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = (PYTHON, "-m", "tests.kernels.compile_kernels", capability, forms)
    done = completed(*command, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
