"""Filters that are pieces of the data, evened out."""

from __future__ import annotations

import attrs
import pytest
import torch
from torch import Tensor

from cswf_core.errors import DataError
from cswf_core.interfaces import Dataset, Draw, Key, ProjectionSampler, Space
from cswf_plugins.conditions.none import NoCondition
from cswf_plugins.coordinates.whitened import Whitened
from cswf_plugins.datasets.digits import Digits
from cswf_plugins.projections.conv_stack import ConvStack
from cswf_plugins.projections.data_covariance import DataCovariance
from cswf_plugins.projections.exemplars import RIDGE, Exemplars, pieces
from cswf_plugins.projections.high_pass import HighPass
from cswf_plugins.projections.locally_connected import LocallyConnected
from cswf_plugins.projections.low_rank import LowRank
from cswf_plugins.projections.patches import inverse_root
from cswf_plugins.projections.uniform import Uniform
from cswf_plugins.schedules.pyramid import Entry, Pyramid
from tests.conftest import small_flow
from tests.plugins.test_coordinates import smooth

GREY, COLOUR = Space((1, 8, 8)), Space((3, 6, 7))


@pytest.fixture(autouse=True)
def few_pieces(monkeypatch):
    """The covariance of fewer pieces is good enough, and quick."""
    monkeypatch.setattr("cswf_plugins.projections.exemplars.PIECES", 5000)


def draw(index: int = 0, dtype: torch.dtype = torch.float64) -> Draw:
    return Key(8, "test", index=index).open(dtype=dtype)


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
    cut = pieces(3000, z, space, 3, dilation, draw()).reshape(3000, 2, 3, 3)
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
@pytest.mark.parametrize("patch", [3, 7])
@pytest.mark.parametrize("value", [0.0, -1.0])
def test_data_that_are_all_alike_still_give_directions(value, patch, dtype):
    x = torch.full((COLOUR.dimension, 10), value, dtype=dtype)
    theta = exemplars(x=x, patch=patch, share=1.0).sample(COLOUR, 500, draw(dtype=dtype))
    torch.testing.assert_close(theta.norm(dim=1), torch.ones(500, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_pixels_that_never_change_give_directions_too(dtype):
    """As the border of digits does: most pieces there are nothing but the mean."""
    x = smooth(GREY, 200).reshape(8, 8, -1)
    x[:3] = -1
    x = x.reshape(64, -1).to(dtype)
    theta = exemplars(GREY, x, share=1.0).sample(GREY, 2000, draw(dtype=dtype))
    torch.testing.assert_close(theta.norm(dim=1), torch.ones(2000, dtype=dtype))


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


def test_the_other_sampler_gets_the_patch_the_data_and_its_say():
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


OTHERS = [LowRank(), LocallyConnected(), DataCovariance()]


@pytest.mark.parametrize("coordinates", [None, Whitened()], ids=["plain", "whitened"])
@pytest.mark.parametrize("of", OTHERS, ids=lambda of: type(of).__name__)
def test_a_flow_of_digits_gets_nearer(of, coordinates):
    data = Digits(classes=(0, 1)).load(draw())
    entries = tuple(map(Entry.from_text, ("(4×4) [4, 3]", "(8×8) [8, 3]")))
    flow = small_flow(
        data,
        condition=NoCondition(),
        projection=Exemplars(of=of, share=0.5),
        schedule=Pyramid(entries=entries, steps=6, directions=200),
        coordinates=coordinates,
        count=100,
    )
    states = list(flow)
    assert len(states) == 24
    assert states[-1].distance < 0.5 * states[12].distance


def test_a_flow_without_a_pyramid_takes_pieces_too():
    data = Dataset(x=smooth(GREY, 200), space=GREY)
    flow = small_flow(data, projection=Exemplars(of=LowRank(patch=3), share=1.0, patch=3))
    states = list(flow)
    assert states[-1].distance < states[0].distance
